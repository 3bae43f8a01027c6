// Traps of evaluation on several ranks: means of means, other samples for other worlds, the sample that fills no batch.
#include <doctest/doctest.h>

#include <memory>

#include "support/near.h"
#include "train/evaluation.h"
#include "trap_runs.h"

using namespace scaletrain;

namespace {

class SyntheticSet final : public ValidationSet {
 public:
  SyntheticSet(std::int64_t first, std::int64_t count) : first_(first), count_(count) {}
  const std::string& name() const override { return name_; }
  std::int64_t context() const override { return trap_config().model.context; }
  std::int64_t num_samples() const override { return count_; }
  std::int64_t num_tokens() const override { return count_ * context(); }
  std::uint64_t hash() const override { return 1; }
  void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                   std::vector<std::int32_t>& document_starts) const override {
    synthetic_sample(first_ + sample, 23, inputs, targets);
    document_starts = {0};
  }

 private:
  std::string name_ = "synthetic";
  std::int64_t first_;
  std::int64_t count_;
};

// Samples [first, first + count) as one set; every rank's answer.
std::vector<SetLoss> evaluate(const Config& config, std::int64_t first, std::int64_t count) {
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  return on_ranks<SetLoss>(config, plan, [&](RankTrainer& trainer, Rank rank, InProcessWorld&) {
    std::vector<std::unique_ptr<ValidationSet>> sets;
    sets.push_back(std::make_unique<SyntheticSet>(first, count));
    return evaluate_sets(trainer.runner(), trainer.plan(), rank, sets, 0).value().front();
  });
}

}  // namespace

TEST_CASE("trap_evaluation_is_the_mean_over_tokens_not_the_mean_of_batch_means_and_misses_no_last_sample") {
  // Samples with unequal numbers of targets, some with none. What each contributes is known from sets of one sample.
  constexpr std::int64_t num_samples = 29;
  const Config base = trap_config();
  double sum = 0.0;
  double means = 0.0;
  std::int64_t tokens = 0;
  std::int64_t with_tokens = 0;
  for (std::int64_t sample = 0; sample < num_samples; ++sample) {
    std::vector<std::int32_t> inputs(5);
    std::vector<std::int32_t> targets(5);
    synthetic_sample(sample, 23, inputs, targets);
    if (std::all_of(targets.begin(), targets.end(), [](std::int32_t target) { return target < 0; })) continue;
    const SetLoss own = evaluate(base, sample, 1).front();
    sum += own.loss * static_cast<double>(own.tokens);
    tokens += own.tokens;
    means += own.loss;
    ++with_tokens;
  }
  const double expected = sum / static_cast<double>(tokens);
  REQUIRE(with_tokens < num_samples);
  REQUIRE(std::abs(means / static_cast<double>(with_tokens) - expected) > 1e-3 * expected);
  for (const TrapLayout& layout : trap_layouts()) {
    for (const std::int64_t micro_batch : {1, 2, 4}) {
      CAPTURE(layout.name);
      CAPTURE(micro_batch);
      Config config = layout.on(base, layout.data > 1 ? 3 : 0);
      config.train.micro_batch = micro_batch;
      config.train.global_batch = 24;
      for (const SetLoss& own : evaluate(config, 0, num_samples)) {
        CHECK(own.tokens == tokens);
        CHECK(own.loss == Near(expected).epsilon(1e-12));
      }
    }
  }
}
