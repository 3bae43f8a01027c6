// Validation sets during training: every sample once, whatever the layout.
#include "train/evaluation.h"

#include <doctest/doctest.h>

#include <map>
#include <mutex>

#include "support/models/tiny_model.h"
#include "support/near.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"
#include "support/temp_folder.h"

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

// Letters, for a small vocabulary.
class LetterTokenizer final : public Tokenizer {
 public:
  std::int64_t vocab_size() const override { return vocab; }
  std::optional<std::int32_t> end_of_document() const override { return static_cast<std::int32_t>(vocab - 1); }
  bool reads_text() const override { return true; }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> tokens;
    for (const char letter : text) tokens.push_back(static_cast<std::int32_t>(letter) % (vocab - 1));
    return tokens;
  }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::size_t safe_cut(std::string_view text) const override { return text.size(); }
  std::string description() const override { return "letters"; }
  std::vector<std::filesystem::path> files() const override { return {}; }
};

ChoiceTask make_task(const TempFolder& folder, int questions) {
  std::string text;
  for (int i = 0; i < questions; ++i) {
    const std::string question(static_cast<std::size_t>(i % 4), static_cast<char>('a' + i % 20));
    text += "{\"question\": \"" + question + "\", \"choices\": [\"b\", \"cd\", \"" + static_cast<char>('e' + i % 9) +
            "\"], \"answer\": " + std::to_string(i % 3) + "}\n";
  }
  const auto file = folder.write("task" + std::to_string(questions) + ".jsonl", text);
  return {"letters", file, LetterTokenizer(), context, "evaluate.tasks.0"};
}

// The rows of a task as a set: what they come to together.
class RowSet final : public ValidationSet {
 public:
  explicit RowSet(const ChoiceTask& task) : task_(task) {}
  const std::string& name() const override { return task_.name(); }
  std::int64_t context() const override { return ::context; }
  std::int64_t num_samples() const override { return task_.num_rows(); }
  std::int64_t num_tokens() const override { return num_samples() * ::context; }
  std::uint64_t hash() const override { return 1; }
  void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                   std::vector<std::int32_t>& document_starts) const override {
    task_.read_row(sample, inputs, targets);
    document_starts = {0};
  }

 private:
  const ChoiceTask& task_;
};

struct TaskOutcome {
  TaskResult result;  // of rank 0
  bool ranks_agree = true;
  double loss_of_all = 0.0;  // of the rows as a validation set
};

TaskOutcome evaluate_task(const Config& config, const ChoiceTask& task) {
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  std::vector<TaskOutcome> outcomes(static_cast<std::size_t>(plan.mesh.world()));
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, TestBackend::reference_f64);
    std::vector<std::unique_ptr<ValidationSet>> sets;
    sets.push_back(std::make_unique<RowSet>(task));
    std::vector<std::unique_ptr<ChoiceTask>> tasks;
    tasks.push_back(std::make_unique<ChoiceTask>(task));
    TaskOutcome& outcome = outcomes[static_cast<std::size_t>(rank.value())];
    // Between two evaluations of a set, which it leaves as they are.
    const SetLoss before = evaluate_sets(trainer.runner(), plan, rank, sets, 0).value().front();
    outcome.result = evaluate_tasks(trainer.runner(), plan, rank, tasks).value().front();
    const SetLoss after = evaluate_sets(trainer.runner(), plan, rank, sets, 0).value().front();
    CHECK(before.loss == after.loss);
    outcome.loss_of_all = after.loss * static_cast<double>(after.tokens);
  });
  for (const TaskOutcome& other : outcomes)
    outcomes.front().ranks_agree &= other.result.log_likelihoods == outcomes.front().result.log_likelihoods;
  return outcomes.front();
}

}  // namespace

TEST_CASE("every_layout_gives_each_choice_of_a_task_the_same_log_likelihood") {
  const TempFolder folder;
  const Config one = evaluation_config({"one rank", 1, 1, 1, 0});
  for (const int questions : {1, 7, 40}) {
    const ChoiceTask task = make_task(folder, questions);
    const TaskOutcome expected = evaluate_task(one, task);
    double sum = 0.0;
    for (const double value : expected.result.log_likelihoods) {
      CHECK(value < 0.0);
      sum -= value;
    }
    CHECK(sum == Near(expected.loss_of_all).epsilon(1e-12));
    for (const TestLayout& layout : layouts()) {
      CAPTURE(questions);
      CAPTURE(layout.name);
      const TaskOutcome outcome = evaluate_task(evaluation_config(layout), task);
      CHECK(outcome.ranks_agree);
      REQUIRE(outcome.result.log_likelihoods.size() == expected.result.log_likelihoods.size());
      for (std::size_t i = 0; i < expected.result.log_likelihoods.size(); ++i)
        CHECK(outcome.result.log_likelihoods[i] == Near(expected.result.log_likelihoods[i]).epsilon(1e-12));
      CHECK(outcome.result.score.accuracy == expected.result.score.accuracy);
      CHECK(outcome.result.score.normalized_accuracy == expected.result.score.normalized_accuracy);
    }
  }
}

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
  CHECK(some.losses[0].loss == Near(set_of_five.losses[0].loss).epsilon(1e-12));
}

TEST_CASE("a_set_without_unmasked_tokens_is_an_error_on_every_rank") {
  CHECK_THROWS_AS(evaluate(evaluation_config({"data 2, pipeline 2", 2, 1, 2, 0}), 4, 0, true), InputError);
}
