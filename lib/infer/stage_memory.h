// The activation memory of one rank, for training and evaluation alike: one arena, cut as the plan says. Addresses
// never change during its life. Views and regions that it hands out must not outlive it.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "data/batch.h"
#include "nn/unit.h"
#include "plan/activation_plan.h"

namespace scaletrain {

// A micro-batch's tensors in the arena, as the model reads them.
struct BatchBuffer {
  View ids, targets, positions;
  View document_start;  // empty where documents are not told apart
  View samples;         // empty where nothing is dropped
};

// A micro-batch's tensors on the host, as the data layer fills them: in memory from where a stream copies them.
class HostBatch {
 public:
  // Of a micro-batch of the plan.
  HostBatch(Backend& backend, const ActivationPlan& plan);

  BatchTensors tensors() const;
  // Issues the copy. What the batch buffer has no view of is left out.
  void copy_to(Backend& backend, Stream& stream, const BatchBuffer& batch);
  // Whether the tensors may be filled anew; until they may.
  bool is_copied() const { return copied_.is_done(); }
  void wait_until_copied() const {
    if (!is_copied()) copied_.wait();
  }

 private:
  View row(std::int64_t index) const;
  View samples() const;

  std::int64_t rows_;
  std::int64_t samples_;  // 0: their numbers are not wanted
  bool tells_documents_apart_;
  Buffer memory_;
  Event copied_;
};

class StageMemory {
 public:
  // bytes: of the arena, where it is to have more than the plan's. std::bad_alloc when the device lacks the memory.
  StageMemory(Backend& backend, ActivationPlan plan, std::size_t bytes = 0);
  // The same arena, cut as another plan says, which it has room for: for steps that do not run beside those of `of`,
  // which outlives this one.
  StageMemory(const StageMemory& of, ActivationPlan plan);

  const ActivationPlan& plan() const { return plan_; }
  const BatchShape& shape() const { return plan_.shape; }
  Region region(const ArenaRange& range) const { return {arena().data() + range.offset, range.bytes, arena().space()}; }
  // The hidden bundle in a range; an empty range gives an empty bundle.
  Bundle bundle(const ArenaRange& range) const;
  BatchBuffer batch(std::int64_t buffer) const;
  std::size_t allocated_bytes() const { return arena_.size(); }

 private:
  const Buffer& arena() const { return shared_ != nullptr ? shared_->arena() : arena_; }

  ActivationPlan plan_;
  DType compute_;
  Buffer arena_;
  const StageMemory* shared_ = nullptr;  // whose arena it is
};

}  // namespace scaletrain
