#include "train/run_state.h"

#include <cmath>
#include <limits>

#include "train/step/scalars.h"
#include "train_helpers.h"

using namespace scaletrain;

namespace {

RunState some_state() {
  RunState state;
  state.history.continue_with({.hash = 77, .sources = {{.identity = 5, .samples_per_epoch = 1000}}}, 16, 4);
  for (int i = 0; i < 9; ++i) state.history.consume_batch(64);
  state.step = 9;
  state.updates = 7;
  state.warmup = 4;
  state.nonfinite = {.consecutive = 1, .total = 2};
  state.loss_scale = {.scale = 0x1p+13, .good_steps = 1234};
  state.gradient_noise = {.square = -1.0 / 3.0, .variance = 0.1, .weight = 0x1p-3};
  state.batch = 4;
  state.spike = {.losses = {1.0 / 3.0, 5e-324, 2.5}, .row = 1, .rollbacks = 2, .furthest = 12};
  state.generation = 3;
  state.early_stop.best = 1.0 / 3.0;
  state.early_stop.best_step = 8;
  state.early_stop.without_improvement = 1;
  state.best_save_id = "abcd";
  state.parent_save_id = "ef01";
  state.branch = {.root = "1234", .path = "/runs/a/checkpoints/step-00000005"};
  return state;
}

Manifest manifest_of(const RunState& state, bool is_best = false) {
  Manifest manifest;
  manifest.save_id = "5a5a";
  write_state(state, is_best, manifest);
  return manifest;
}

}  // namespace

TEST_CASE("run state comes back from a manifest") {
  const RunState state = some_state();
  const Manifest manifest = manifest_of(state);
  CHECK(manifest.step == 9);
  CHECK(manifest.tokens == 9 * 4 * 16);
  CHECK(manifest.generation == 3);
  CHECK(manifest.parent_save_id == "ef01");
  const RunState back = read_state(manifest, "m");
  CHECK(back.step == 9);
  CHECK(back.updates == 7);
  CHECK(back.warmup == 4);
  CHECK(back.nonfinite == state.nonfinite);
  CHECK(back.loss_scale == state.loss_scale);
  CHECK(back.gradient_noise == state.gradient_noise);
  CHECK(back.batch == 4);
  CHECK(back.spike == state.spike);
  CHECK(back.generation == 3);
  CHECK(back.history == state.history);
  CHECK(*back.early_stop.best == *state.early_stop.best);
  CHECK(back.best_save_id == "abcd");
  CHECK(back.branch.root == "1234");
  CHECK(back.branch.path == "/runs/a/checkpoints/step-00000005");
  CHECK(back.parent_save_id == "5a5a");  // the next checkpoint's parent is this one
}

TEST_CASE("a branch whose path is no UTF-8 is known by its save id") {
  RunState state = some_state();
  state.branch.path = "/runs/\xff";
  CHECK(read_state(manifest_of(state), "m").branch.root == "1234");
  CHECK(read_state(manifest_of(state), "m").branch.path.empty());
  state.branch = {};
  CHECK(read_state(manifest_of(state), "m").branch.root.empty());
}

TEST_CASE("the best checkpoint knows that it is the best") {
  CHECK(read_state(manifest_of(some_state(), true), "m").best_save_id == "5a5a");
}

TEST_CASE("a checkpoint of a run without the spike policy says nothing of it and has an empty window") {
  RunState state = some_state();
  state.spike = {};
  const Manifest manifest = manifest_of(state);
  for (const auto& scalar : manifest.scalars) CHECK_FALSE(scalar.first.starts_with("spike"));
  CHECK(read_state(manifest, "m").spike == SpikeState());
  // A window that is empty while something is counted comes back too.
  state.spike = {.losses = {}, .row = 0, .rollbacks = 1, .furthest = 4};
  CHECK(read_state(manifest_of(state), "m").spike == state.spike);
}

TEST_CASE(
    "a checkpoint of a run that does not measure the gradient's noise says nothing of it, nor reads what cannot be") {
  RunState state = some_state();
  state.gradient_noise.reset();
  for (const auto& scalar : manifest_of(state).scalars) CHECK_FALSE(scalar.first.starts_with("gradient_noise"));
  CHECK_FALSE(read_state(manifest_of(state), "m").gradient_noise.has_value());
  for (const GradientNoiseState& bad : {GradientNoiseState{.square = std::nan(""), .variance = 1.0, .weight = 0.5},
                                        GradientNoiseState{.square = 1.0, .variance = 1.0, .weight = 1.5}}) {
    state.gradient_noise = bad;
    CHECK_THROWS_AS(read_state(manifest_of(state), "m"), InputError);
  }
}

TEST_CASE("a checkpoint of a run without a dynamic loss scale says nothing of one") {
  RunState state = some_state();
  state.loss_scale.reset();
  const Manifest manifest = manifest_of(state);
  for (const auto& scalar : manifest.scalars) CHECK_FALSE(scalar.first.starts_with("loss_scale"));
  CHECK_FALSE(read_state(manifest, "m").loss_scale.has_value());
}

TEST_CASE("hostile scalars are refused by name") {
  const auto refusal = [](auto change) {
    Manifest manifest = manifest_of(some_state());
    change(manifest);
    return message_of<InputError>([&] { read_state(manifest, "the/manifest.json"); });
  };
  CHECK(refusal([](Manifest&) {}).empty());
  for (const char* name :
       {"updates", "nonfinite.consecutive", "nonfinite.total", "early_stop.best_step", "early_stop.without_improvement",
        "spike.row", "spike.rollbacks", "spike.furthest", "loss_scale.good_steps"}) {
    CAPTURE(name);
    const std::string missing = refusal([name](Manifest& m) { m.scalars.erase(name); });
    CHECK(contains(missing, name));
    CHECK(contains(missing, "the/manifest.json"));
    for (const char* value : {"", " 1", "1x", "1.0", "0x1", "99999999999999999999", "-"})
      CHECK(contains(refusal([name, value](Manifest& m) { m.scalars[name] = value; }), name));
    CHECK_FALSE(refusal([name](Manifest& m) { m.scalars[name] = "-1"; }).empty());
  }
  for (const char* value : {"", "xyz", "1.8p+1x", "nan", "inf", "-inf"})
    CHECK(contains(refusal([value](Manifest& m) { m.scalars["early_stop.best"] = value; }), "early_stop"));
  for (const char* value : {" ", "1p+0  1p+0", "1p+0 ", " 1p+0", "1p+0,1p+0", "1p+0 nan", "inf", "1p+0 x"})
    CHECK(contains(refusal([value](Manifest& m) { m.scalars["spike.losses"] = value; }), "spike.losses"));
  for (const char* value : {"", "x", "0p+0", "-1p+4", "1p-1", "1p+25", "inf", "nan"})
    CHECK(contains(refusal([value](Manifest& m) { m.scalars["loss_scale.scale"] = value; }), "loss_scale.scale"));
  CHECK(contains(refusal([](Manifest& m) { m.scalars["loss_scale.good_steps"] = "2000"; }), "loss_scale.good_steps"));
  CHECK(contains(refusal([](Manifest& m) { m.scalars["spike.rollbacks"] = "4"; }), "spike.rollbacks"));
  CHECK_FALSE(refusal([](Manifest& m) { m.scalars["updates"] = "10"; }).empty());               // more than steps
  CHECK_FALSE(refusal([](Manifest& m) { m.scalars["nonfinite.consecutive"] = "3"; }).empty());  // more than in total
  CHECK_FALSE(
      refusal([](Manifest& m) { m.scalars["nonfinite.total"] = "3"; }).empty());  // more than steps without update
  CHECK(contains(refusal([](Manifest& m) { m.history = "{"; }), "history"));
  CHECK(contains(refusal([](Manifest& m) { m.history = "[]"; }), "history"));
  CHECK(contains(refusal([](Manifest& m) { m.tokens += 1; }), "history"));
}

TEST_CASE("scalars read back to the same bits") {
  Scalars scalars;
  for (const double value : {0.0, -0.0, 1.0, -1.0 / 3.0, 5e-324, std::numeric_limits<double>::max(), 6.02214076e23}) {
    put_scalar(scalars, "x", value);
    const double back = get_double(scalars, "x", "w");
    CHECK(back == value);
    CHECK(std::signbit(back) == std::signbit(value));
  }
  for (const std::int64_t value :
       {std::int64_t{0}, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    put_scalar(scalars, "n", value);
    CHECK(get_integer(scalars, "n", "w") == value);
  }
  CHECK(has_scalar(scalars, "n"));
  CHECK_FALSE(has_scalar(scalars, "m"));
}
