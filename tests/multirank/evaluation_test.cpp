// Validation sets during training: every sample once, whatever the layout.
#include "train/evaluation.h"

#include <doctest/doctest.h>

#include <map>
#include <mutex>

#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

using namespace scaletrain;

namespace {

constexpr std::int64_t context = 5;
constexpr std::int64_t vocab = 23;

// Synthetic samples; counts how often each was read.
class CountingSet final : public ValidationSet {
 public:
  CountingSet(std::string name, std::int64_t num_samples, bool masked)
      : name_(std::move(name)), num_samples_(num_samples), masked_(masked) {}
  const std::string& name() const override { return name_; }
  std::int64_t context() const override { return ::context; }
  std::int64_t num_samples() const override { return num_samples_; }
  std::int64_t num_tokens() const override { return num_samples_ * ::context; }
  std::uint64_t hash() const override { return 1; }
  void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                   std::vector<std::int32_t>& document_starts) const override {
    synthetic_sample(sample, vocab, inputs, targets);
    if (masked_) std::fill(targets.begin(), targets.end(), -1);
    document_starts = {0};
    ++reads[sample];
  }

  mutable std::map<std::int64_t, int> reads;

 private:
  std::string name_;
  std::int64_t num_samples_;
  bool masked_;
};

Config evaluation_config(const TestLayout& layout) {
  Config config =
      tiny_config({.hidden = 8, .heads = 2, .ffn_hidden = 12, .context = context, .vocab = vocab, .std = 0.3});
  config.train.steps = 1;
  config.train.micro_batch = 2;
  lay_out(config, layout);
  return config;
}

TestLayout chunked(std::string name, std::int64_t data, std::int64_t pipeline, std::int64_t chunks,
                   std::int64_t micro_batch) {
  return {std::move(name), data, 1, pipeline, 0, ScheduleKind::interleaved, chunks, false, micro_batch};
}

// Micro-batches of one sample, of all that a replica has, and of sizes between.
const std::vector<TestLayout>& layouts() {
  static const auto kind = ScheduleKind::one_f_one_b;
  static const std::vector<TestLayout> all = {
      {"one rank, micro-batches of 3", 1, 1, 1, 0, kind, 1, false, 3},
      {"data 2, micro-batches of 6", 2, 1, 1, 0, kind, 1, false, 6},
      {"data 3, micro-batches of 1", 3, 1, 1, 0, kind, 1, false, 1},
      {"data 3, micro-batches of 4", 3, 1, 1, 0, kind, 1, false, 4},
      {"tensor 2, micro-batches of 4", 1, 2, 1, 0, kind, 1, false, 4},
      {"tensor 2 with sequence shards, micro-batches of 1", 1, 2, 1, 0, kind, 1, true, 1},
      {"pipeline 4, micro-batches of 3", 1, 1, 4, 0, kind, 1, false, 3},
      {"pipeline 4, one micro-batch", 1, 1, 4, 0, kind, 1, false, 12},
      {"data 2, tensor 2, pipeline 2, micro-batches of 3", 2, 2, 2, 0, kind, 1, false, 3},
      {"data 2, pipeline 2, zero 3, micro-batches of 2", 2, 1, 2, 3, kind, 1, false, 2},
      chunked("pipeline 2, two chunks, micro-batches of 1", 1, 2, 2, 1),
      chunked("one rank, three chunks, micro-batches of 4", 1, 1, 3, 4),
      chunked("data 2, pipeline 2, two chunks, micro-batches of 3", 2, 2, 2, 3),
  };
  return all;
}

struct EvaluationOutcome {
  std::vector<SetLoss> losses;  // of rank 0
  bool ranks_agree = true;
  std::vector<std::map<std::int64_t, int>> reads;  // of the first set, by data rank: its last stage's first tensor rank
};

EvaluationOutcome evaluate(const Config& config, std::int64_t num_samples, std::int64_t max_samples,
                           bool masked = false) {
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  std::vector<std::vector<SetLoss>> losses(static_cast<std::size_t>(plan.mesh.world()));
  EvaluationOutcome outcome;
  outcome.reads.resize(static_cast<std::size_t>(plan.mesh.degree(Axis::data)));
  std::mutex mutex;
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, TestBackend::reference_f64);
    std::vector<std::unique_ptr<ValidationSet>> sets;
    sets.push_back(std::make_unique<CountingSet>("first", num_samples, masked));
    sets.push_back(std::make_unique<CountingSet>("second", 3, false));
    losses[static_cast<std::size_t>(rank.value())] =
        evaluate_sets(trainer.runner(), plan, rank, sets, max_samples).value();
    const MeshPosition position = plan.mesh.position_of(rank);
    if (position.tensor > 0 || position.pipeline + 1 < plan.mesh.degree(Axis::pipeline)) return;
    const std::lock_guard lock(mutex);
    outcome.reads[static_cast<std::size_t>(position.data)] = dynamic_cast<const CountingSet&>(*sets[0]).reads;
  });
  outcome.losses = losses.front();
  for (const auto& other : losses)
    for (std::size_t set = 0; set < other.size(); ++set)
      outcome.ranks_agree &= other[set].loss == losses.front()[set].loss;
  return outcome;
}

}  // namespace

TEST_CASE("every_layout_evaluates_the_same_samples_once_and_gets_the_same_loss") {
  const Config one = evaluation_config({"one rank", 1, 1, 1, 0});
  // The last one takes several rounds of every layout.
  for (const std::int64_t samples : {1, 4, 5, 13, 201}) {
    const EvaluationOutcome expected = evaluate(one, samples, 0);
    REQUIRE(expected.losses.size() == 2);
    CHECK(expected.losses[0].dataset == "first");
    for (const TestLayout& layout : layouts()) {
      CAPTURE(samples);
      CAPTURE(layout.name);
      const Config config = evaluation_config(layout);
      const EvaluationOutcome outcome = evaluate(config, samples, 0);
      CHECK(outcome.ranks_agree);
      for (std::size_t set = 0; set < 2; ++set) {
        CHECK(outcome.losses[set].tokens == expected.losses[set].tokens);
        CHECK(std::abs(outcome.losses[set].loss - expected.losses[set].loss) <= 1e-12 * expected.losses[set].loss);
      }
      std::map<std::int64_t, int> reads;
      for (const auto& own : outcome.reads)
        for (const auto& entry : own) reads[entry.first] += entry.second;
      CHECK(reads.size() == static_cast<std::size_t>(samples));
      for (const auto& entry : reads) CHECK(entry.second == 1);
    }
  }
}

TEST_CASE("only_the_first_samples_are_evaluated_where_fewer_are_asked_for") {
  const EvaluationOutcome some = evaluate(evaluation_config({"data 2, pipeline 2", 2, 1, 2, 0}), 13, 5);
  const EvaluationOutcome set_of_five = evaluate(evaluation_config({"one rank", 1, 1, 1, 0}), 5, 0);
  CHECK(some.losses[0].tokens == set_of_five.losses[0].tokens);
  CHECK(some.losses[0].loss == doctest::Approx(set_of_five.losses[0].loss).epsilon(1e-12));
}

TEST_CASE("a_set_without_unmasked_tokens_is_an_error_on_every_rank") {
  CHECK_THROWS_AS(evaluate(evaluation_config({"data 2, pipeline 2", 2, 1, 2, 0}), 4, 0, true), InputError);
}
