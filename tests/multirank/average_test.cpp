// The average of the weights on every kind of layout: what its formula makes of the weights behind each step, and what
// an evaluation of it leaves behind.
#include <doctest/doctest.h>

#include "optim/weight_average.h"
#include "support/models/tiny_model.h"
#include "support/near.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

using namespace scaletrain;

namespace {

struct AveragedLayout {
  TestLayout layout;
  TestBackend backend = TestBackend::reference_f64;
  OffloadKind offload = OffloadKind::none;
  OptimizerKind optimizer = OptimizerKind::adamw;
};

const std::vector<AveragedLayout>& averaged_layouts() {
  static const std::vector<AveragedLayout> all = {
      {{"one rank", 1, 1, 1, 0}},
      {{"data 2, zero 0", 2, 1, 1, 0}},
      {{"data 3, zero 1", 3, 1, 1, 1}},
      {{"data 2, tensor 2, zero 2", 2, 2, 1, 2}},
      {{"data 2, pipeline 2, zb-h1, zero 3", 2, 1, 2, 3, ScheduleKind::zb_h1}},
      {{"tensor 2, pipeline 2, 1f1b", 1, 2, 2, 0}},
      {{"data 2, zero 1, offloaded", 2, 1, 1, 1}, TestBackend::fenced_cpu, OffloadKind::host},
      {{"data 2, zero 1, bf16", 2, 1, 1, 1}, TestBackend::cpu_bf16},
      // Whose step passes the weights twice, and changes them in the second pass.
      {{"data 2, zero 1, lamb", 2, 1, 1, 1}, TestBackend::reference_f64, OffloadKind::none, OptimizerKind::lamb},
      // Whose matrices have one state before the average, and whose other parameters have two.
      {{"data 2, zero 1, muon", 2, 1, 1, 1}, TestBackend::reference_f64, OffloadKind::none, OptimizerKind::muon},
      // Whose matrices have the average alone, beside their factors.
      {{"data 2, zero 1, adafactor", 2, 1, 1, 1},
       TestBackend::reference_f64,
       OffloadKind::none,
       OptimizerKind::adafactor},
  };
  return all;
}

constexpr double average_decay = 0.75;
constexpr int averaged_steps = 3;

Config averaged_config(const AveragedLayout& of) {
  Config config = tiny_config({.layers = 4, .ffn_hidden = 29, .vocab = 41});
  config.run.seed = 11;
  config.train.steps = 50;
  config.train.lr_schedule.warmup = 2;
  config.train.optimizer.learning_rate = 1e-2;
  config.train.optimizer.offload = of.offload;
  config.train.optimizer.type = of.optimizer;
  config.train.ema = EmaConfig{.decay = average_decay};
  config.finetune.freeze = {"blocks.1.ffn.up.*"};
  lay_out(config, of.layout);
  return config;
}

struct AverageOutcome {
  std::vector<GlobalTensors> masters;  // behind each step
  std::vector<GlobalTensors> averages;
  GlobalTensors swapped, restored;  // masters
  double loss = 0.0, loss_of_averages = 0.0;
  std::string problem;
};

AverageOutcome run_averages(const AveragedLayout& of) {
  const Config config = averaged_config(of);
  const PhasePlan plan = make_test_plan(config, of.backend);
  const auto state = plan.optimizer_states.size() - 1;
  std::vector<std::unique_ptr<TensorAssembler>> masters;
  std::vector<std::unique_ptr<TensorAssembler>> averages;
  for (int step = 0; step < averaged_steps + 2; ++step) {
    masters.push_back(std::make_unique<TensorAssembler>(plan.table));
    averages.push_back(std::make_unique<TensorAssembler>(plan.table, StateKind::optimizer));
  }
  AverageOutcome outcome;
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, of.backend);
    const auto note = [&](int place) {
      masters[std::size_t(place)]->add(trainer.settled_store(), StateKind::master);
      averages[std::size_t(place)]->add(trainer.settled_store(), StateKind::optimizer, state);
    };
    for (int step = 0; step < averaged_steps; ++step) {
      trainer.step();
      note(step);
    }
    const auto loss = [&] {
      const StepRunner::EvaluationSums sums = trainer.evaluate(5);
      return sums.loss_sum / static_cast<double>(sums.target_tokens);
    };
    const double before = loss();
    trainer.runner().swap_average();
    const double of_averages = loss();
    note(averaged_steps);
    trainer.runner().swap_average();
    note(averaged_steps + 1);
    const double again = loss();
    if (rank == Rank(0)) {
      outcome.loss = before;
      outcome.loss_of_averages = of_averages;
      if (again != before) outcome.problem = "the loss is another one behind an evaluation of averages";
    }
  });
  for (int step = 0; step < averaged_steps; ++step) {
    outcome.masters.push_back(masters[std::size_t(step)]->tensors());
    outcome.averages.push_back(averages[std::size_t(step)]->tensors());
  }
  outcome.swapped = masters[averaged_steps]->tensors();
  outcome.restored = masters[averaged_steps + 1]->tensors();
  for (const auto* assembled : {&masters, &averages})
    for (const auto& one : *assembled) outcome.problem += one->problem();
  return outcome;
}

}  // namespace

TEST_CASE("averages_follow_their_formula_on_every_layout_and_give_the_weights_back") {
  double first = 0.0;
  for (const AveragedLayout& of : averaged_layouts()) {
    CAPTURE(of.layout.name);
    const AverageOutcome outcome = run_averages(of);
    CHECK(outcome.problem == "");
    const bool is_exact = of.backend == TestBackend::reference_f64;
    GlobalTensors expected;
    for (std::size_t step = 0; step < outcome.averages.size(); ++step) {
      for (const auto& [name, average] : outcome.averages[step]) {
        const std::string& tensor = name;
        CAPTURE(tensor);
        const std::vector<double>& weights = outcome.masters[step].at(name);
        std::vector<double>& mean = expected[name];
        if (step == 0) mean = weights;
        double worst = 0.0;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          if (step > 0) mean[i] += (1.0 - average_decay) * (weights[i] - mean[i]);
          worst = std::max(worst, std::abs(average[i] - mean[i]));
        }
        CHECK(worst <= (is_exact ? 0.0 : 1e-6));
      }
    }
    CHECK(outcome.averages.back() != outcome.masters.back());
    for (const auto& [name, average] : outcome.averages.back()) CHECK(outcome.swapped.at(name) == average);
    CHECK(outcome.restored == outcome.masters.back());
    CHECK(outcome.loss != outcome.loss_of_averages);
    if (first == 0.0) first = outcome.loss_of_averages;
    if (is_exact && of.optimizer == OptimizerKind::adamw) CHECK(outcome.loss_of_averages == Near(first).epsilon(1e-12));
  }
}
