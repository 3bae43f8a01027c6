// Layouts under the thread sanitizer: what runs on several threads of one process is the executor, the store and the
// communicators of every rank, with the naive backend, which has no threads of its own. Together the layouts have every
// schedule, ZeRO stage, sequence shards, tied embeddings and fewer key/value heads than ranks; evaluations come between
// the steps, a checkpoint after them. Without the sanitizer it is a small check that they agree.
#include <doctest/doctest.h>

#include <filesystem>

#include "checkpoint/load.h"
#include "checkpoint/save/save.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"
#include "support/temp_folder.h"

using namespace scaletrain;

namespace {

struct Case {
  TestLayout layout;
  bool tied = true;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{"data 2, zero 0", 2, 1, 1, 0}},
      {{"data 3, zero 2", 3, 1, 1, 2}},
      {{"tensor 2, sequence shards", 1, 2, 1, 0, ScheduleKind::one_f_one_b, 1, true}},
      {{"tensor 4, fewer key/value heads than ranks, untied", 1, 4, 1, 0}, false},
      {{"pipeline 4, 1f1b", 1, 1, 4, 0}},
      {{"data 2, pipeline 2, gpipe, zero 1", 2, 1, 2, 1, ScheduleKind::gpipe}},
      {{"data 2, pipeline 2, two chunks, zero 3", 2, 1, 2, 3, ScheduleKind::interleaved, 2}},
      {{"tensor 2, pipeline 2, zb-h1, untied", 1, 2, 2, 0, ScheduleKind::zb_h1}, false},
      {{"data 2, tensor 2, pipeline 2, zb-h1, zero 3, sequence shards", 2, 2, 2, 3, ScheduleKind::zb_h1, 1, true}},
      {{"data 2, tensor 2, pipeline 2, 1f1b, zero 2, sequence shards", 2, 2, 2, 2, ScheduleKind::one_f_one_b, 1, true}},
      {{"data 2, tensor 2, pipeline 2, two chunks, zero 1", 2, 2, 2, 1, ScheduleKind::interleaved, 2}},
  };
  return all;
}

Config config_of(const Case& own) {
  Config config = tiny_config({.hidden = 8, .ffn_hidden = 12, .context = 5, .vocab = 23});
  config.run.seed = 9;
  config.model.tie_embeddings = own.tied;
  config.train.micro_batch = 2;
  config.train.optimizer.learning_rate = 1e-3;
  lay_out(config, own.layout);
  return config;
}

struct Answer {
  std::vector<double> losses;
  std::vector<double> evaluations;
  bool operator==(const Answer&) const = default;
};

// Two steps, each with an evaluation behind it (with fewer micro-batches than stages, then more than training has), a
// checkpoint, and loading it again.
std::vector<Answer> train(const Config& config) {
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f32);
  const TempFolder folder;
  std::vector<Answer> answers(static_cast<std::size_t>(plan.mesh.world()));
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld& world) {
    RankTrainer trainer(config, plan, rank, groups, TestBackend::reference_f32);
    Answer& answer = answers[static_cast<std::size_t>(rank.value())];
    for (const std::int64_t samples : {1, 29}) {
      answer.losses.push_back(trainer.step().outcome.loss);
      answer.evaluations.push_back(trainer.evaluate(samples).loss_sum);
    }
    const auto store = world.make_store();
    SaveRequest request;
    request.folder = folder.path();
    request.manifest.step = 2;
    request.manifest.history = "[]";
    request.group = {.rank = rank, .world = plan.mesh.world(), .store = store.get(), .deadline = 60.0, .attempt = 1};
    request.group.plan_of = [&plan](Rank of) { return plan.save_plan(of); };
    const SaveResult saved = save_checkpoint(trainer.settled_store(), request);
    Checkpoint(saved.path, OpenCheck::none).load(trainer.settled_store(), trainer.stream(), true);
    answer.losses.push_back(trainer.step().outcome.loss);
  });
  return answers;
}

}  // namespace

TEST_CASE("layouts_train_evaluate_and_save_as_threads_and_their_ranks_agree") {
  for (const Case& own : cases()) {
    CAPTURE(own.layout.name);
    const Config config = config_of(own);
    Config alone = config;
    alone.parallel = ParallelConfig{};
    const std::vector<Answer> answers = train(config);
    const Answer one = train(alone).front();
    for (const Answer& answer : answers) CHECK(answer == answers.front());
    CHECK(largest_relative(answers.front().losses, one.losses) <= 1e-5);
    CHECK(largest_relative(answers.front().evaluations, one.evaluations) <= 1e-5);
  }
}
