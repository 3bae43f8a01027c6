// The three-pass layer. A unit is the piece of the model that is acquired, recomputed and scheduled as one: the
// embedding, one transformer block, the head with the loss. Units are const and stateless: everything they remember
// between passes is in memory regions that the plan sized with memory(), at addresses that repeat every step.
//
//   forward         computes the output; returns what the backward needs (Saved, in `saved`).
//   backward_input  consumes Saved; computes the input's gradient; returns WeightWork, in `work`.
//   backward_weight consumes WeightWork; adds to the weights' gradients.
//   backward        both at once, possibly cheaper.
//
// With RecomputeKind::full a block keeps nothing of its forward but the input, which lies there anyhow; with
// `selective` the outputs of matrix products and of attention, and attention's log-sum-exp. backward and backward_input
// then begin by computing the rest again, by the forward's own operations on the same operands, and with its calls of
// the tensor group: gradients are the same to the bit, weights are acquired once for both. What is computed again lives
// in scratch or, where the weight pass reads it too, in work. The head keeps nothing with either kind, the embedding
// never does.
//
// A unit's input bundle stays valid, unchanged, until its Saved is consumed (backward) or dropped, and until its
// WeightWork is consumed: units need not copy it. d_input is empty where nothing before the unit is trained: its
// gradient is not computed then. The saved region, too, stays in use until the WeightWork is consumed:
// activations are not copied to `work`. d_input may be the very memory of d_output. scratch is free for use within one
// call. Not thread-safe against the same regions; otherwise const.
//
// Tensor parallel (Shoeybi et al. 2019): a unit computes this rank's heads, ffn columns and vocabulary rows; the sums
// over the tensor group are inside it. With sequence shards (Korthikanti et al. 2022) bundles hold this rank's rows
// only and the sums become reduce-scatters, the inputs of parallel parts all-gathers. All ranks of the group call the
// same passes in the same order. What a pass asks of the group is declared by the pass itself (Transformer::calls), so
// its operations and sums go through UnitOps and TensorSums (unit_ops.h) and depend on shapes alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "nn/model_spec.h"
#include "store/group_call.h"
#include "store/param_store.h"
#include "tensor/buffer.h"

namespace scaletrain {

// The extent of one micro-batch: B samples of T tokens.
struct BatchShape {
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::int64_t rows() const { return samples * tokens; }
  bool operator==(const BatchShape&) const = default;
};

// How many rows pass through scratch at once, which is the device's to say, and how those of logits lie there.
struct ScratchRows {
  std::int64_t alignment = 1;     // elements that rows of logits are padded to a multiple of (Backend::row_alignment)
  std::int64_t budget = 8 << 20;  // elements of logits
  std::int64_t enough = 512;      // rows of logits: more of them make products no faster
  // Elements that pass through the scratch of adapters, and rows where those are more.
  std::int64_t adapter_budget = 0;
  std::int64_t adapter_rows = 1024;
  // Of a backend whose kernels want whole rows of so many elements; 1: of a processor.
  static ScratchRows aligned_to(std::int64_t row_alignment) {
    if (row_alignment == 1) return {};
    return {.alignment = row_alignment,
            .budget = std::int64_t{192} << 20,
            .enough = 4096,
            .adapter_budget = std::int64_t{64} << 20};
  }
};

enum class Mode {
  train,     // the loss and its gradient are computed in the head's backward
  evaluate,  // the loss is computed in the head's forward; no gradients
};
// What an evaluation adds up: BatchContext::loss_sum, or sample_losses.
enum class EvaluatedLosses { of_all, by_sample };

// What every unit may read of a micro-batch. Views of memory that outlives the micro-batch's last pass.
struct BatchContext {
  BatchShape shape;
  Mode mode = Mode::train;
  ConstView ids;             // [B·T] i32
  ConstView targets;         // [B·T] i32, -1: masked
  ConstView positions;       // [B·T] i32, position within the sample, or within the token's document
  ConstView document_start;  // [B·T] i32, optional: the first position a token may attend to
  // With the run's seed what dropout is keyed by, in training: [B] i64, each sample's number in the run, counted over
  // all epochs; -1 where there is none.
  ConstView samples{};
  std::uint64_t seed = 0;
  // The plan's constant: gradients are those of loss_gradient times the sum over unmasked tokens.
  double loss_gradient = 0.0;
  View loss_sum;  // [1] f64: the head adds the sum of the micro-batch's token losses
  // [B] f64, of an evaluation that asks for them: the head adds the sum of each sample's token losses, in place of
  // loss_sum. It asks the tensor group more often then, for no more at once (EvaluatedLosses::by_sample).
  View sample_losses{};
};

// What crosses a unit or stage boundary: named tensors. One entry today.
struct Bundle {
  View hidden;  // "hidden" [B·T, C], or this rank's sequence shard of its rows
};

struct BundleEntry {
  std::string_view name;
  DType dtype = DType::f32;
  Shape shape;
};

// Bytes of each region for one micro-batch.
struct UnitMemory {
  std::size_t saved = 0;    // from forward to backward, or to backward_weight
  std::size_t work = 0;     // from backward_input to backward_weight; backward() needs none
  std::size_t scratch = 0;  // within one call, the largest of all passes
};

class Unit;

namespace detail {
// A region in use by a unit, to be consumed exactly once (or dropped).
class Held {
 public:
  Held() = default;
  Held(const Unit* unit, Region region, Bundle input) : unit_(unit), region_(region), input_(input) {}
  Held(Held&& other) noexcept
      : unit_(std::exchange(other.unit_, nullptr)), region_(other.region_), input_(other.input_) {}
  Held& operator=(Held&& other) noexcept {
    unit_ = std::exchange(other.unit_, nullptr);
    region_ = other.region_;
    input_ = other.input_;
    return *this;
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  explicit operator bool() const { return unit_ != nullptr; }
  // Hands the region to its unit and empties this. Another unit's, or an empty one, is a bug.
  std::pair<Region, Bundle> consume(const Unit* unit) {
    SCALETRAIN_CHECK(unit_ == unit && unit != nullptr);
    unit_ = nullptr;
    return {region_, input_};
  }

 private:
  const Unit* unit_ = nullptr;
  Region region_;
  Bundle input_;
};
}  // namespace detail

class Saved : public detail::Held {
 public:
  using Held::Held;
};
// Holds the work region; the region of the Saved it came from stays in use with it.
class WeightWork : public detail::Held {
 public:
  WeightWork() = default;
  WeightWork(const Unit* unit, Region work, Region saved, Bundle input) : Held(unit, work, input), saved_(saved) {}
  Region saved() const { return saved_; }

 private:
  Region saved_;
};

// What a call runs with.
struct UnitRun {
  Backend& backend;
  Stream& stream;
  const BatchContext& batch;
  const UnitWeights& weights;
  const UnitGradients* gradients = nullptr;  // null: no weight gradients may be asked for
  Communicator* tensor = nullptr;            // null: a tensor degree of one
  Region scratch;
  // Not null: the pass only writes down, here, what it would ask of the tensor group. It computes nothing, reads no
  // memory and asks nobody. Set by Transformer::calls() alone.
  std::vector<GroupCall>* declared = nullptr;
};

class Unit {
 public:
  virtual ~Unit() = default;
  virtual const std::string& name() const = 0;
  virtual int index() const = 0;  // of the ParamTable's units
  // Whether backward_weight reads run.weights (a head that computes its logits again). Else it gets empty ones.
  virtual bool weight_pass_reads_weights() const { return false; }

  // Regions' sizes for a backend that computes in `compute`. shape: the whole micro-batch, also with sequence shards.
  virtual UnitMemory memory(const BatchShape& shape, DType compute) const = 0;

  // The embedding has no input bundle, the head no output bundle: empty views.
  virtual Saved forward(const UnitRun& run, const Bundle& input, const Bundle& output, Region saved) const = 0;
  virtual WeightWork backward_input(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                                    Region work) const = 0;
  virtual void backward_weight(const UnitRun& run, WeightWork work) const = 0;
  // work may be empty where a unit does both at once, as all of this folder do.
  virtual void backward(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                        Region work) const {
    backward_weight(run, backward_input(run, std::move(saved), d_output, d_input, work));
  }
};

}  // namespace scaletrain
