#include "train/evaluation.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "data/batch.h"

namespace scaletrain {

namespace {

// Samples 0, 1, 2 ... of a set in micro-batches; the last may be short.
class SetSource final : public MicroBatchSource {
 public:
  SetSource(const ValidationSet& set, std::int64_t num_samples, std::int64_t micro_batch)
      : set_(set), num_samples_(num_samples), micro_batch_(micro_batch) {}

  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    const std::int64_t first = micro_batch.value() * micro_batch_;
    std::vector<std::int64_t> samples(static_cast<std::size_t>(std::min(micro_batch_, num_samples_ - first)));
    std::iota(samples.begin(), samples.end(), first);
    const SampleReader read = [this](std::int64_t index, std::span<std::int32_t> inputs,
                                     std::span<std::int32_t> targets, std::vector<std::int32_t>& starts) {
      set_.read_sample(index, inputs, targets, starts);
    };
    return {fill_batch(samples, set_.context(), read, tensors), first};
  }

 private:
  const ValidationSet& set_;
  std::int64_t num_samples_;
  std::int64_t micro_batch_;
};

}  // namespace

std::vector<SetLoss> evaluate_sets(StageExecutor& executor, std::span<const std::unique_ptr<ValidationSet>> sets,
                                   std::int64_t max_samples, std::int64_t micro_batch) {
  std::vector<SetLoss> losses;
  for (const auto& set : sets) {
    const std::int64_t all = set->num_samples();
    const std::int64_t samples = max_samples == 0 ? all : std::min(all, max_samples);
    SetSource source(*set, samples, micro_batch);
    const auto steps = make_evaluation_schedule(1, ceil_div(samples, micro_batch), 1, Stage(0));
    const ExecutionResult result = executor.run(steps, source, Phase::evaluate, 0.0);
    if (result.target_tokens == 0) throw InputError("validation set " + set->name() + " holds no token with a loss");
    losses.push_back({set->name(), result.loss_sum / static_cast<double>(result.target_tokens), result.target_tokens});
  }
  return losses;
}

}  // namespace scaletrain
