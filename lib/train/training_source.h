// Micro-batches of one optimizer step out of the training mix: the samples that the consumption history names.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "train/step/stage_executor.h"

namespace scaletrain {

class TrainingSource final : public MicroBatchSource {
 public:
  TrainingSource(const TrainingData& data, std::int64_t replicas, std::int64_t replica, std::int64_t micro_batch)
      : data_(data), replicas_(replicas), replica_(replica), micro_batch_(micro_batch) {}

  // The global samples of the step to come, in order.
  void set_batch(std::vector<std::int64_t> samples) { batch_ = std::move(samples); }
  const std::vector<std::int64_t>& batch() const { return batch_; }
  // That the whole batch trains on: TrainingData::sample_tokens() of all its samples.
  std::int64_t batch_tokens() const;
  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override;

 private:
  const TrainingData& data_;
  std::int64_t replicas_;
  std::int64_t replica_;
  std::int64_t micro_batch_;
  std::vector<std::int64_t> batch_;
};

}  // namespace scaletrain
