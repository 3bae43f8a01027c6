// The decoder-only transformer as a list of units, in the order of the ParamTable's: embedding, blocks, head.
//
// Pre-norm blocks: x1 = x + attention(norm(x)), out = x1 + ffn(norm(x1)) (Radford et al. 2019; Touvron et al. 2023).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "nn/unit.h"
#include "parallel/schedule/schedule.h"

namespace scaletrain {

class Transformer {
 public:
  // recompute: which activations units compute again in the backward (unit.h). It changes no bit of what they compute.
  explicit Transformer(const ModelSpec& spec, const TensorPart& part = {},
                       RecomputeKind recompute = RecomputeKind::none, const ScratchRows& scratch_rows = {},
                       const AttentionWorkspace& attention_workspace = {});

  const ModelSpec& spec() const { return spec_; }  // of the whole model
  const TensorPart& part() const { return part_; }
  std::span<const std::unique_ptr<Unit>> units() const { return units_; }
  // The bundle that leaves every unit but the head, as this rank holds it.
  std::vector<BundleEntry> boundary(const BatchShape& shape, DType compute) const;
  // What a pass of a unit (forward, backward, backward_input or backward_weight; of an evaluation forward alone) asks
  // of the tensor group, in order: the pass itself says so, run without computing anything. Nothing for a tensor degree
  // of one. losses: of an evaluation.
  std::vector<GroupCall> calls(int unit, Opcode pass, const BatchShape& shape, DType compute, Mode mode = Mode::train,
                               EvaluatedLosses losses = EvaluatedLosses::of_all) const;

 private:
  ModelSpec spec_;
  TensorPart part_;
  std::vector<std::unique_ptr<Unit>> units_;
};

// Rows of logits the head computes at once: they bound its scratch, whatever the batch, to about the budget or what the
// backward of a block takes anyway, block_scratch elements.
std::int64_t head_chunk_rows(std::int64_t rows, std::int64_t vocab, std::int64_t block_scratch,
                             const ScratchRows& scratch_rows = {});

}  // namespace scaletrain
