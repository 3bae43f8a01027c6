#include "train/training_source.h"

#include "data/batch.h"
#include "data/order/history.h"

namespace scaletrain {

std::int64_t TrainingSource::batch_tokens() const {
  std::int64_t tokens = 0;
  for (const std::int64_t sample : batch_) tokens += data_.sample_tokens(sample);
  return tokens;
}

MicroBatchSource::Filled TrainingSource::fill(MicroBatch micro_batch, const BatchTensors& tensors) {
  const auto samples = micro_batch_samples(batch_, replicas_, replica_, micro_batch_, micro_batch.value());
  const SampleReader read = [this](std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                                   std::vector<std::int32_t>& starts) {
    data_.read_sample(index, inputs, targets, starts);
  };
  return {fill_batch(samples, data_.context(), read, tensors)};
}

}  // namespace scaletrain
