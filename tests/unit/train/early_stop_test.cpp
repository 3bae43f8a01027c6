#include "train/early_stop.h"

#include <cmath>
#include <functional>
#include <limits>

#include "train/step/scalars.h"
#include "train_helpers.h"

using namespace scaletrain;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

struct Observation {
  double value;
  bool improved;
  bool stop;
};

struct Table {
  EarlyStopConfig config;
  std::vector<Observation> observations;
};

}  // namespace

TEST_CASE("the early-stop machine follows its table") {
  const std::vector<Table> tables = {
      // Patience counts evaluations without improvement in a row.
      {{"m", 2, 0.0, {}}, {{5, true, false}, {5, false, false}, {4, true, false}, {4, false, false}, {9, false, true}}},
      // Better by exactly min_delta is no improvement, and the best stays what it was.
      {{"m", 3, 0.5, {}}, {{5, true, false}, {4.5, false, false}, {4.6, false, false}, {4.4, true, false}}},
      {{"m", 2, 0.5, {}}, {{5, true, false}, {4.75, false, false}, {4.5, false, true}}},
      // The target counts at equality, even without an improvement by min_delta.
      {{"m", 5, 0.0, 3.0}, {{4, true, false}, {3.5, true, false}, {3, true, true}}},
      {{"m", 5, 1.0, 3.0}, {{3.5, true, false}, {2.9, false, true}}},
      {{"m", 1, 0.0, 9.0}, {{8, true, true}}},
      // What is not finite never improves, never reaches a target, and uses up patience.
      {{"m", 2, 0.0, 1.0}, {{not_a_number, false, false}, {-INFINITY, false, true}}},
      {{"m", 2, 0.0, {}}, {{not_a_number, false, false}, {7, true, false}, {INFINITY, false, false}, {6, true, false}}},
      {{"m", 1, 0.0, {}}, {{1, true, false}, {1, false, true}}},
  };
  for (std::size_t t = 0; t < tables.size(); ++t) {
    EarlyStopState state;
    for (std::size_t i = 0; i < tables[t].observations.size(); ++i) {
      CAPTURE(t);
      CAPTURE(i);
      const Observation& expected = tables[t].observations[i];
      const EarlyStopVerdict verdict =
          observe(tables[t].config, state, static_cast<std::int64_t>(10 * (i + 1)), expected.value);
      CHECK(verdict.improved == expected.improved);
      CHECK(verdict.stop == expected.stop);
      CHECK(state.stopped.has_value() == expected.stop);
      CHECK(verdict.reason.empty() == !expected.stop);
      if (expected.improved) CHECK(state.best_step == static_cast<std::int64_t>(10 * (i + 1)));
    }
  }
}

TEST_CASE("of an accuracy more is better, for the best, the patience and the target") {
  EarlyStopState state;
  const EarlyStopConfig config{"task/easy/accuracy", 2, 0.01, 0.9};
  CHECK(observe(config, state, 10, 0.5).improved);
  CHECK_FALSE(observe(config, state, 20, 0.505).improved);
  CHECK(observe(config, state, 30, 0.6).improved);
  CHECK(state.best == 0.6);
  CHECK_FALSE(observe(config, state, 40, 0.2).stop);
  const EarlyStopVerdict patient = observe(config, state, 50, 0.6);
  CHECK(patient.stop);
  CHECK(contains(patient.reason, "best 0.6 at step 30"));
  EarlyStopState other;
  CHECK_FALSE(observe(config, other, 10, 0.89).stop);
  const EarlyStopVerdict reached = observe(config, other, 20, 0.9);
  CHECK(reached.stop);
  CHECK(contains(reached.reason, "reached early_stop.target 0.9"));
}

TEST_CASE("the task that is watched, and what it is measured on, decide whether a stopped run goes on") {
  Config config;
  config.evaluate.tasks = {{"a", "/a.jsonl"}, {"b", "/b.jsonl"}};
  config.early_stop = EarlyStopConfig{"task/b/accuracy", 3, 0.0, {}};
  CHECK(watched_set(config) == nullptr);
  REQUIRE(watched_task(config) != nullptr);
  CHECK(watched_task(config)->path == "/b.jsonl");
  EarlyStopState state;
  state.best = 0.5;
  state.stopped = "why";
  CHECK(continue_early_stop(state, config, config).stopped);
  Config moved = config;
  moved.evaluate.tasks[1].path = "/c.jsonl";
  CHECK_FALSE(continue_early_stop(state, config, moved).stopped);
  Config other = config;
  other.early_stop->metric = "task/a/accuracy";
  CHECK_FALSE(continue_early_stop(state, config, other).best);
}

TEST_CASE("reasons name the metric and the best") {
  EarlyStopState state;
  const EarlyStopConfig config{"validation/web/loss", 1, 0.25, {}};
  observe(config, state, 100, 2.5);
  const std::string reason = observe(config, state, 200, 2.4).reason;
  CHECK(contains(reason, "validation/web/loss"));
  CHECK(contains(reason, "for 1 evaluation; best 2.5 at step 100"));
  EarlyStopState never;
  CHECK(observe(config, never, 5, not_a_number).reason.ends_with("was never a finite number in 1 evaluation"));
}

TEST_CASE("early-stop state comes back from scalars to the bit") {
  EarlyStopState state;
  state.best = 0.1 + 0.2;
  state.best_step = 123456789012345;
  state.without_improvement = 4;
  state.stopped = "because";
  state.measured_on = MeasuredOn{0xfedcba9876543210u, 640};
  Scalars scalars;
  write_scalars(state, scalars);
  const EarlyStopState back = read_early_stop(scalars, "w");
  CHECK(*back.best == *state.best);
  CHECK(back.best_step == state.best_step);
  CHECK(back.without_improvement == 4);
  CHECK(back.stopped == state.stopped);
  CHECK(back.measured_on == state.measured_on);
  scalars["early_stop.data"] = "no hash";
  CHECK(contains(message_of<InputError>([&] { read_early_stop(scalars, "w"); }), "early_stop.data"));
  Scalars empty;
  write_scalars(EarlyStopState{}, empty);
  CHECK_FALSE(read_early_stop(empty, "w").best.has_value());
  CHECK_FALSE(read_early_stop(empty, "w").stopped.has_value());
}

TEST_CASE("a changed policy decides what of the state a resume keeps") {
  EarlyStopState state;
  state.best = 2.0;
  state.best_step = 30;
  state.without_improvement = 3;
  state.stopped = "patience";
  Config before;
  before.data.validation.resize(2);
  before.data.validation[0].name = "a";
  before.data.validation[1].name = "b";
  before.early_stop = EarlyStopConfig{"validation/a/loss", 3, 0.0, {}};
  CHECK(continue_early_stop(state, before, before).stopped.has_value());
  Config patient = before;
  patient.early_stop->patience = 4;
  const EarlyStopState on = continue_early_stop(state, before, patient);
  CHECK_FALSE(on.stopped.has_value());
  CHECK(on.without_improvement == 3);
  CHECK(*on.best == 2.0);
  Config other = before;
  other.early_stop->metric = "validation/b/loss";
  CHECK_FALSE(continue_early_stop(state, before, other).best.has_value());
  CHECK(continue_early_stop(state, before, other).without_improvement == 0);
  Config none = before;
  none.early_stop.reset();
  CHECK_FALSE(continue_early_stop(state, before, none).stopped.has_value());
  CHECK_FALSE(continue_early_stop(state, none, before).best.has_value());
}

TEST_CASE("a stopped run goes on when what is evaluated changed") {
  EarlyStopState state;
  state.stopped = "patience";
  Config before;
  before.data.validation.resize(2);
  before.data.validation[0].name = "a";
  before.data.validation[1].name = "b";
  before.early_stop = EarlyStopConfig{"validation/a/loss", 3, 0.0, {}};
  const auto goes_on = [&](const std::function<void(Config&)>& change) {
    Config now = before;
    change(now);
    return !continue_early_stop(state, before, now).stopped.has_value();
  };
  CHECK(goes_on([](Config& config) { config.evaluate.batches += 1; }));
  CHECK(goes_on([](Config& config) { config.train.global_batch += 1; }));
  CHECK(goes_on([](Config& config) { config.data.validation[0].path = "c.txt"; }));
  CHECK(goes_on([](Config& config) { config.data.validation[0].separator = "--"; }));
  CHECK(goes_on([](Config& config) { config.data.documents.loss_across = false; }));
  CHECK(goes_on([](Config& config) { config.data.documents.attention = DocumentAttention::within; }));
  CHECK_FALSE(goes_on([](Config& config) { config.data.validation[1].path = "c.txt"; }));
  CHECK_FALSE(goes_on([](Config& config) { config.evaluate.every += 1; }));
}

TEST_CASE("losses over other data are not compared: the state starts afresh and says so") {
  const EarlyStopConfig config{"m", 2, 0.0, {}};
  EarlyStopState state;
  CHECK_FALSE(measure_on({7, 40}, state));
  observe(config, state, 10, 1.0);
  observe(config, state, 20, 1.5);
  CHECK_FALSE(measure_on({7, 40}, state));
  CHECK(state.without_improvement == 1);
  const auto fewer = measure_on({7, 20}, state);
  REQUIRE(fewer);
  for (const char* part : {"over 20 samples, before over 40", "evaluate.batches", "1 at step 10"})
    CHECK(contains(*fewer, part));
  CHECK_FALSE(state.best.has_value());
  CHECK(state.without_improvement == 0);
  CHECK(observe(config, state, 30, 9.0).improved);
  const auto other = measure_on({8, 20}, state);
  REQUIRE(other);
  CHECK(contains(*other, "the set's files"));
  // Of a checkpoint that did not say it yet: nothing is known to have changed.
  EarlyStopState old;
  old.best = 2.0;
  CHECK_FALSE(measure_on({7, 40}, old));
  CHECK(old.best == 2.0);
}
