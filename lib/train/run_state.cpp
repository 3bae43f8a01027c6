#include "train/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "train/step/scalars.h"

namespace scaletrain {

namespace {
// Stands for the save id of the checkpoint that says it. No save id is a word.
constexpr std::string_view this_checkpoint = "this";

// Nothing of it where there is nothing to say, as in the checkpoints of runs without the policy.
void write_spike(const SpikeState& state, Scalars& scalars) {
  if (state == SpikeState()) return;
  put_scalar(scalars, "spike.losses", state.losses);
  put_scalar(scalars, "spike.row", state.row);
  put_scalar(scalars, "spike.rollbacks", state.rollbacks);
  put_scalar(scalars, "spike.furthest", state.furthest);
}

SpikeState read_spike(const Scalars& scalars, const std::string& where) {
  SpikeState state;
  if (!has_scalar(scalars, "spike.losses")) return state;
  state.losses = get_doubles(scalars, "spike.losses", where);
  state.row = get_integer(scalars, "spike.row", where);
  state.rollbacks = get_integer(scalars, "spike.rollbacks", where);
  state.furthest = get_integer(scalars, "spike.furthest", where);
  if (std::any_of(state.losses.begin(), state.losses.end(), [](double loss) { return !std::isfinite(loss); }))
    throw InputError(where + ": scalar \"spike.losses\" holds a loss that is not finite");
  if (state.row < 0 || state.rollbacks < 0 || state.rollbacks > most_rollbacks || state.furthest < 0)
    throw InputError(fmt::format("{}: spike.row {}, spike.rollbacks {} and spike.furthest {} cannot be", where,
                                 state.row, state.rollbacks, state.furthest));
  return state;
}

void write_loss_scale(const std::optional<LossScaleState>& state, Scalars& scalars) {
  if (!state) return;
  put_scalar(scalars, "loss_scale.scale", state->scale);
  put_scalar(scalars, "loss_scale.good_steps", state->good_steps);
}

std::optional<LossScaleState> read_loss_scale(const Scalars& scalars, const std::string& where) {
  if (!has_scalar(scalars, "loss_scale.scale")) return std::nullopt;
  const LossScaleState state{.scale = get_double(scalars, "loss_scale.scale", where),
                             .good_steps = get_integer(scalars, "loss_scale.good_steps", where)};
  const bool is_in_range = state.scale >= least_loss_scale && state.scale <= most_loss_scale;
  if (!is_in_range || state.good_steps < 0 || state.good_steps >= good_steps_to_double)
    throw InputError(fmt::format("{}: loss_scale.scale {} and loss_scale.good_steps {} cannot be", where, state.scale,
                                 state.good_steps));
  return state;
}

void write_gradient_noise(const std::optional<GradientNoiseState>& state, Scalars& scalars) {
  if (!state) return;
  put_scalar(scalars, "gradient_noise.square", state->square);
  put_scalar(scalars, "gradient_noise.variance", state->variance);
  put_scalar(scalars, "gradient_noise.weight", state->weight);
}

std::optional<GradientNoiseState> read_gradient_noise(const Scalars& scalars, const std::string& where) {
  if (!has_scalar(scalars, "gradient_noise.square")) return std::nullopt;
  const GradientNoiseState state{.square = get_double(scalars, "gradient_noise.square", where),
                                 .variance = get_double(scalars, "gradient_noise.variance", where),
                                 .weight = get_double(scalars, "gradient_noise.weight", where)};
  const bool is_finite = std::isfinite(state.square) && std::isfinite(state.variance);
  if (!is_finite || !(state.weight >= 0.0 && state.weight <= 1.0))
    throw InputError(
        fmt::format("{}: gradient_noise.square {}, gradient_noise.variance {} and gradient_noise.weight {} cannot be",
                    where, state.square, state.variance, state.weight));
  return state;
}

}  // namespace

void write_state(const RunState& state, bool is_best, Manifest& manifest) {
  manifest.step = state.step;
  manifest.tokens = state.history.tokens_consumed();
  manifest.generation = state.generation;
  manifest.parent_save_id = state.parent_save_id;
  manifest.history = state.history.to_json().dump();
  put_scalar(manifest.scalars, "updates", state.updates);
  if (state.warmup) put_scalar(manifest.scalars, "warmup", *state.warmup);
  put_scalar(manifest.scalars, "nonfinite.consecutive", state.nonfinite.consecutive);
  put_scalar(manifest.scalars, "nonfinite.total", state.nonfinite.total);
  if (is_best) {
    manifest.scalars["best_save_id"] = this_checkpoint;
  } else if (state.best_save_id) {
    manifest.scalars["best_save_id"] = *state.best_save_id;
  }
  if (state.is_evaluation_due) put_scalar(manifest.scalars, "evaluation_due", std::int64_t{1});
  if (!state.branch.root.empty()) manifest.scalars["branch_root"] = state.branch.root;
  // A manifest is UTF-8; a path that is not is known by its save id alone.
  if (!state.branch.path.empty() && !first_invalid_utf8(state.branch.path))
    manifest.scalars["branch_path"] = state.branch.path;
  manifest.base = state.base;
  write_scalars(state.early_stop, manifest.scalars);
  write_loss_scale(state.loss_scale, manifest.scalars);
  write_gradient_noise(state.gradient_noise, manifest.scalars);
  if (state.batch) put_scalar(manifest.scalars, "batch_auto.batch", *state.batch);
  write_spike(state.spike, manifest.scalars);
}

Branch branch_of(const Manifest& manifest) {
  const auto text = [&manifest](const char* name) {
    const auto found = manifest.scalars.find(name);
    return found == manifest.scalars.end() ? std::string() : found->second;
  };
  return {text("branch_root"), text("branch_path")};
}

RunState read_state(const Manifest& manifest, const std::string& where) {
  RunState state;
  state.step = manifest.step;
  state.updates = get_integer(manifest.scalars, "updates", where);
  state.nonfinite = {get_integer(manifest.scalars, "nonfinite.consecutive", where),
                     get_integer(manifest.scalars, "nonfinite.total", where)};
  if (state.updates < 0 || state.updates > state.step || state.nonfinite.consecutive < 0 ||
      state.nonfinite.total < state.nonfinite.consecutive || state.nonfinite.total > state.step - state.updates)
    throw InputError(fmt::format("{}: {} updates and {} non-finite steps do not fit step {}", where, state.updates,
                                 state.nonfinite.total, state.step));
  if (has_scalar(manifest.scalars, "warmup")) {
    state.warmup = get_integer(manifest.scalars, "warmup", where);
    if (*state.warmup < 0) throw InputError(fmt::format("{}: a warm-up of {} steps cannot be", where, *state.warmup));
  }
  state.generation = manifest.generation;
  state.history = ConsumptionHistory::from_json(parse_json(manifest.history, where + ": history"), where + ": history");
  if (state.history.tokens_consumed() != manifest.tokens)
    throw InputError(fmt::format("{}: history: {} tokens were consumed, but the manifest says {}", where,
                                 state.history.tokens_consumed(), manifest.tokens));
  state.early_stop = read_early_stop(manifest.scalars, where);
  state.loss_scale = read_loss_scale(manifest.scalars, where);
  state.gradient_noise = read_gradient_noise(manifest.scalars, where);
  if (has_scalar(manifest.scalars, "batch_auto.batch")) {
    state.batch = get_integer(manifest.scalars, "batch_auto.batch", where);
    if (*state.batch < 1) throw InputError(fmt::format("{}: a batch of {} samples cannot be", where, *state.batch));
  }
  state.spike = read_spike(manifest.scalars, where);
  const auto best = manifest.scalars.find("best_save_id");
  if (best != manifest.scalars.end())
    state.best_save_id = best->second == this_checkpoint ? manifest.save_id : best->second;
  state.is_evaluation_due =
      has_scalar(manifest.scalars, "evaluation_due") && get_integer(manifest.scalars, "evaluation_due", where) != 0;
  state.parent_save_id = manifest.save_id;
  state.branch = branch_of(manifest);
  state.base = manifest.base;
  return state;
}

}  // namespace scaletrain
