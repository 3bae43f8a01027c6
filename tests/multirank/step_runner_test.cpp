// One optimizer step and an evaluation on several ranks: what ranks must agree on, and what must not change.
#include "train/step/step_runner.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "support/models/tiny_model.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/rank_trainer.h"

using namespace scaletrain;

namespace {

Config layout_config(std::int64_t data, std::int64_t tensor, std::int64_t pipeline, std::int64_t zero = 1) {
  Config config =
      tiny_config({.layers = 3, .hidden = 8, .heads = 2, .ffn_hidden = 12, .context = 5, .vocab = 23, .std = 0.3});
  config.run.seed = 3;
  config.train.global_batch = 8;
  config.train.micro_batch = 2;
  config.train.lr_schedule.warmup = 2;
  config.parallel.data = data;
  config.parallel.tensor = tensor;
  config.parallel.pipeline = pipeline;
  config.parallel.zero = zero;
  return config;
}

// Runs work(trainer) on every rank and gives back each one's answer.
template <class Answer, class Work>
std::vector<Answer> on_ranks(const Config& config, Work work) {
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  std::vector<Answer> answers(static_cast<std::size_t>(plan.mesh.world()));
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, TestBackend::reference_f64);
    answers[static_cast<std::size_t>(rank.value())] = work(trainer, rank);
  });
  return answers;
}

// Every value that a rank holds, of a kind.
std::vector<double> held_values(ParamStore& store, StateKind kind, std::size_t state = 0) {
  std::vector<double> all;
  for (const ParamRange& range : store.held(kind)) {
    const View view = store.values(kind, range, state);
    const auto* values = view.as<double>();
    all.insert(all.end(), values, values + view.num_elements());
  }
  return all;
}

// Does something before a micro-batch is filled, and records what was wanted of each.
class WatchedSource final : public MicroBatchSource {
 public:
  using Watch = std::function<void(MicroBatch, const BatchTensors&)>;
  WatchedSource(MicroBatchSource& source, Watch watch) : source_(source), watch_(std::move(watch)) {}
  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    watch_(micro_batch, tensors);
    return source_.fill(micro_batch, tensors);
  }

 private:
  MicroBatchSource& source_;
  Watch watch_;
};

constexpr StepSettings settings{.learning_rate = 1e-2, .clip_norm = {}, .beta1 = 0.9, .beta2 = 0.95, .update = 1};

}  // namespace

TEST_CASE("what_one_rank_wants_every_rank_learns") {
  for (const std::int64_t wishing : {0, 3, 7}) {
    const auto results = on_ranks<StepRunner::Result>(layout_config(2, 2, 2), [&](RankTrainer& trainer, Rank rank) {
      trainer.source().set_step(0);
      return trainer.runner().step(trainer.source(), settings, [&] {
        return StepRunner::Votes{.interrupted = rank.value() == wishing, .save = rank.value() == 7 - wishing};
      });
    });
    for (const StepRunner::Result& result : results) {
      CHECK(result.votes.interrupted);
      CHECK(result.votes.save);
    }
  }
  for (const StepRunner::Result& result : on_ranks<StepRunner::Result>(
           layout_config(2, 1, 2), [&](RankTrainer&trainer, Rank) { return trainer.step(); })) {
    CHECK_FALSE(result.votes.interrupted);
    CHECK_FALSE(result.votes.save);
  }
}

TEST_CASE("a_signal_in_mid_step_is_a_wish_of_that_very_step_on_all_ranks") {
  for (const std::int64_t degree : {2, 1}) {
    const auto results =
        on_ranks<std::vector<bool>>(layout_config(degree, 1, degree), [](RankTrainer& trainer, Rank rank) {
          bool is_raised = false;
          std::vector<bool> interrupted;
          for (std::int64_t step = 0; step < 3; ++step) {
            trainer.source().set_step(step);
            WatchedSource source(trainer.source(), [&](MicroBatch micro_batch, const BatchTensors&) {
              if (step == 1 && rank == Rank(0) && micro_batch == MicroBatch(1)) is_raised = true;
            });
            const auto votes = [&] { return StepRunner::Votes{.interrupted = is_raised, .save = false}; };
            interrupted.push_back(trainer.runner().step(source, settings, votes).votes.interrupted);
          }
          return interrupted;
        });
    for (const auto& interrupted : results) CHECK(interrupted == std::vector<bool>{false, true, true});
  }
}

TEST_CASE("only_the_ends_of_the_model_read_samples_and_each_reads_them_once") {
  for (const auto& degrees : {std::pair{3, 1}, {1, 3}, {2, 2}, {1, 1}}) {
    const std::int64_t pipeline = degrees.first;
    const std::int64_t chunks = degrees.second;
    CAPTURE(pipeline);
    CAPTURE(chunks);
    Config config = layout_config(1, 1, pipeline);
    config.model.layers = 4;
    config.parallel.chunks = chunks;
    if (chunks > 1) config.parallel.schedule = ScheduleKind::interleaved;
    struct Reads {
      std::vector<std::int64_t> ids, targets, any;
      std::int64_t asked = 0;
    };
    const auto all = on_ranks<Reads>(config, [](RankTrainer& trainer, Rank) {
      Reads reads;
      trainer.source().set_step(0);
      WatchedSource source(trainer.source(), [&](MicroBatch micro_batch, const BatchTensors& tensors) {
        ++reads.asked;
        if (!tensors.ids.empty()) reads.ids.push_back(micro_batch.value());
        if (!tensors.targets.empty()) reads.targets.push_back(micro_batch.value());
        if (!tensors.ids.empty() || !tensors.targets.empty()) reads.any.push_back(micro_batch.value());
      });
      trainer.runner().step(source, settings);
      return reads;
    });
    const std::vector<std::int64_t> every = {0, 1, 2, 3};
    for (std::size_t stage = 0; stage < all.size(); ++stage) {
      CAPTURE(stage);
      const bool is_end = stage == 0 || stage + 1 == all.size();
      CHECK(all[stage].asked == 4 * chunks);
      CHECK(all[stage].ids == (stage == 0 ? every : std::vector<std::int64_t>()));
      CHECK(all[stage].targets == (stage + 1 == all.size() ? every : std::vector<std::int64_t>()));
      CHECK(all[stage].any == (is_end ? every : std::vector<std::int64_t>()));
    }
  }
}

TEST_CASE("a_rank_that_fails_in_mid_step_ends_all_ranks_at_once_and_its_error_is_the_cause") {
  // The failing rank has reductions, and under ZeRO 3 gathers, under way with its peer of the other replica; which will
  // not join them, for it is held up by storage until it hears of the failure.
  struct Failure {
    std::int64_t rank, micro_batch;
  };
  const std::pair<Failure, Failure> cases[] = {{{0, 2}, {1, 1}}, {{2, 1}, {3, 0}}};
  for (const std::int64_t zero : {2, 3}) {
    for (const std::pair<Failure, Failure>& ranks : cases) {
      const Failure failing = ranks.first;
      const Failure held = ranks.second;
      // There the last stage would wait for gathers with the one that is held, and never come to its failure.
      if (zero == 3 && failing.rank == 2) continue;
      CAPTURE(zero);
      CAPTURE(failing.rank);
      Config config = layout_config(2, 1, 2, zero);
      config.model.layers = 2;
      config.train.micro_batch = 1;
      const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
      const MonotonicTime begin = monotonic_now();
      std::string cause;
      try {
        run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld& world) {
          RankTrainer trainer(config, plan, rank, groups, TestBackend::reference_f64);
          trainer.source().set_step(0);
          const auto is_at = [rank](const Failure& place, MicroBatch micro_batch) {
            return rank == Rank(place.rank) && micro_batch == MicroBatch(place.micro_batch);
          };
          WatchedSource source(trainer.source(), [&](MicroBatch micro_batch, const BatchTensors&) {
            if (is_at(failing, micro_batch)) throw InputError("the sample cannot be read");
            if (is_at(held, micro_batch)) world.make_store()->wait("never set", 60.0);
          });
          trainer.runner().step(source, settings);
        });
      } catch (const InputError& error) {
        cause = error.what();
      }
      CHECK(cause == "the sample cannot be read");
      // The groups' own deadline is 60 s.
      CHECK(seconds_since(begin) < 30.0);
    }
  }
}

namespace {

// Everything that training changes on a rank, by kind: weights, both moments.
using State = std::array<std::vector<double>, 3>;
State state_of(RankTrainer& trainer) {
  ParamStore& store = trainer.settled_store();
  return {held_values(store, StateKind::master), held_values(store, StateKind::optimizer, 0),
          held_values(store, StateKind::optimizer, 1)};
}

// NaN is a value like others here.
bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}
bool same_bits(const State& a, const State& b) {
  return same_bits(a[0], b[0]) && same_bits(a[1], b[1]) && same_bits(a[2], b[2]);
}

void set_masters(RankTrainer& trainer, const std::vector<double>& values) {
  ParamStore& store = trainer.settled_store();
  auto next = values.begin();
  for (const ParamRange& range : store.held(StateKind::master)) {
    std::copy_n(next, range.count, store.values(StateKind::master, range).as<double>());
    next += range.count;
  }
  store.values_changed(host_stream());
}

// A matrix of a block, which every sample's way leads through: the last element of this rank's own shard.
void poison_a_weight(RankTrainer& trainer) {
  ParamStore& store = trainer.settled_store();
  const ShardLayout& layout = store.layout();
  for (const ParamRange& range : layout.shard_ranges(layout.position().data)) {
    const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
    if (!parameter.decays || parameter.unit == 0 || range.count == 0) continue;
    store.values(StateKind::master, range).as<double>()[range.count - 1] = std::numeric_limits<double>::quiet_NaN();
    break;
  }
  store.values_changed(host_stream());
}

struct NanAnswer {
  StepRunner::Result poisoned, last;
  bool is_poisoned = false;
  State before, after, end;
};

// Three steps; before the second an attempt at it in which a weight of rank `broken` alone is NaN (-1: no attempt),
// behind which all weights are put back.
std::vector<NanAnswer> train_with_nan(const Config& config, std::int64_t broken) {
  return on_ranks<NanAnswer>(config, [&](RankTrainer& trainer, Rank rank) {
    NanAnswer answer;
    for (std::int64_t step = 0; step < 3; ++step) {
      StepSettings own = settings;
      own.update = step + 1;
      trainer.source().set_step(step);
      if (step == 1 && broken >= 0) {
        const std::vector<double> sound = held_values(trainer.settled_store(), StateKind::master);
        if (rank.value() == broken) poison_a_weight(trainer);
        answer.before = state_of(trainer);
        answer.is_poisoned = !same_bits(answer.before[0], sound);
        answer.poisoned = trainer.runner().step(trainer.source(), own);
        answer.after = state_of(trainer);
        set_masters(trainer, sound);
      }
      answer.last = trainer.runner().step(trainer.source(), own);
    }
    answer.end = state_of(trainer);
    return answer;
  });
}

}  // namespace

TEST_CASE("nan_on_one_rank_makes_every_rank_skip_the_step_leave_its_state_and_go_on_as_if_it_had_not_been") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const Config config = layout_config(2, 2, 2, zero);
    const auto undisturbed = train_with_nan(config, -1);
    for (const std::int64_t broken : {0, 5}) {
      CAPTURE(zero);
      CAPTURE(broken);
      const auto answers = train_with_nan(config, broken);
      for (std::size_t rank = 0; rank < answers.size(); ++rank) {
        CAPTURE(rank);
        const NanAnswer& answer = answers[rank];
        CHECK(answer.is_poisoned == (static_cast<std::int64_t>(rank) == broken));
        CHECK(answer.poisoned.outcome.skip == SkipReason::nonfinite_gradient);
        // Of weights that are divided among replicas the others hear by the gather behind the step.
        std::size_t changed = 0;
        for (std::size_t i = 0; i < answer.before[0].size(); ++i) {
          const bool is_same = std::memcmp(&answer.before[0][i], &answer.after[0][i], sizeof(double)) == 0;
          if (is_same) continue;
          ++changed;
          CHECK(std::isnan(answer.after[0][i]));
        }
        CHECK(changed <= (zero == 1 || zero == 2 ? 1 : 0));
        CHECK(same_bits(answer.after[1], answer.before[1]));
        CHECK(same_bits(answer.after[2], answer.before[2]));
        CHECK(answer.last.outcome.skip == SkipReason::none);
        CHECK(answer.last.outcome.loss == undisturbed[rank].last.outcome.loss);
        CHECK(same_bits(answer.end, undisturbed[rank].end));
      }
    }
  }
}

TEST_CASE("target_tokens_are_counted_once_whatever_the_layout") {
  std::int64_t expected = 0;
  for (std::int64_t sample = 0; sample < 8; ++sample) {
    std::vector<std::int32_t> inputs(5);
    std::vector<std::int32_t> targets(5);
    synthetic_sample(sample, 23, inputs, targets);
    expected += std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; });
  }
  REQUIRE(expected > 0);
  REQUIRE(expected < 40);
  for (const auto& [data, tensor, pipeline] : {std::tuple{1, 1, 1}, {4, 1, 1}, {1, 2, 1}, {1, 1, 3}, {2, 2, 2}}) {
    const auto results = on_ranks<StepRunner::Result>(layout_config(data, tensor, pipeline),
                                                      [](RankTrainer& trainer, Rank) { return trainer.step(); });
    for (const StepRunner::Result& result : results) CHECK(result.target_tokens == expected);
  }
}

TEST_CASE("a_global_batch_without_targets_is_skipped_by_all") {
  const auto results = on_ranks<StepRunner::Result>(layout_config(2, 1, 2), [](RankTrainer& trainer, Rank) {
    trainer.source().set_batch(std::vector<std::int64_t>(8, -1));
    return trainer.runner().step(trainer.source(), settings);
  });
  for (const StepRunner::Result& result : results) {
    CHECK(result.outcome.skip == SkipReason::no_tokens);
    CHECK(result.target_tokens == 0);
  }
}

TEST_CASE("evaluation_between_steps_changes_no_bit_of_training") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    Config config = layout_config(2, 1, 2, zero);
    config.parallel.schedule = ScheduleKind::zb_h1;
    struct Answer {
      std::vector<double> gradients_before, gradients_after, parameters;
      std::vector<double> losses;
    };
    const auto train = [&](std::int64_t evaluated) {
      return on_ranks<Answer>(config, [&](RankTrainer& trainer, Rank) {
        Answer answer;
        for (int step = 0; step < 3; ++step) {
          answer.losses.push_back(trainer.step().outcome.loss);
          if (evaluated == 0) continue;
          answer.gradients_before = held_values(trainer.settled_store(), StateKind::gradient);
          // Once with fewer micro-batches than stages, once with more than training has.
          trainer.evaluate(1);
          trainer.evaluate(evaluated);
          answer.gradients_after = held_values(trainer.settled_store(), StateKind::gradient);
        }
        answer.parameters = held_values(trainer.settled_store(), StateKind::master);
        return answer;
      });
    };
    const auto plain = train(0);
    const auto evaluated = train(29);
    for (std::size_t rank = 0; rank < plain.size(); ++rank) {
      CHECK(evaluated[rank].losses == plain[rank].losses);
      CHECK(evaluated[rank].parameters == plain[rank].parameters);
      CHECK(evaluated[rank].gradients_after == evaluated[rank].gradients_before);
      CHECK_FALSE(evaluated[rank].gradients_after.empty());
    }
  }
}

TEST_CASE("the_same_run_twice_gives_the_same_bits") {
  LayoutRun run{.config = layout_config(2, 2, 2, 2)};
  run.steps = 3;
  const LayoutOutcome first = run_layout(run);
  const LayoutOutcome second = run_layout(run);
  CHECK(first.problem == "");
  CHECK(first.losses == second.losses);
  CHECK(first.grad_norms == second.grad_norms);
  CHECK(first.parameters == second.parameters);
}

TEST_CASE("progress_counts_every_unit_of_work_and_every_transfer_that_has_come_through") {
  // Stage 0 of two: 4 micro-batches, forward and backward of its units, one message each way for each, the update.
  const Config config = layout_config(1, 1, 2);
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  const auto counts = on_ranks<std::uint64_t>(config, [](RankTrainer& trainer, Rank) {
    trainer.step();
    return trainer.progress();
  });
  for (const std::int64_t stage : {0, 1}) {
    const auto units = static_cast<std::uint64_t>(plan.units_of_stage(stage).size());
    const std::uint64_t work = 4 * 2 * units + 1;
    CHECK(counts[static_cast<std::size_t>(stage)] > work);
    CHECK(counts[static_cast<std::size_t>(stage)] <= work + 4 * 2);
  }
}

TEST_CASE("all_ranks_issue_the_same_calls_in_one_order") {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      LayoutRun run{.config = layout_config(2, 2, 2, zero)};
      run.config.parallel.schedule = kind;
      run.steps = 2;
      run.evaluation_samples = 7;
      run.traced = true;
      const LayoutOutcome outcome = run_layout(run);
      CHECK(compare_traces(rank_traces(outcome.plan.mesh, outcome.plan.group_facts(), outcome.traces)) == "");
    }
  }
}
