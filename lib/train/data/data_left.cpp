#include "train/data/data_left.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "base/numbers/checked.h"
#include "base/text.h"
#include "config/batch_ramp.h"
#include "train/data/phase_reads.h"
#include "train/run_length.h"

namespace scaletrain {

namespace {

std::int64_t batch_of(const RunState& state) {
  return state.history.segments().back().global_batch;
}

std::int64_t samples_left(std::int64_t all, const RunState& state) {
  return std::max<std::int64_t>(0, all - state.history.next_sample());
}

// Of the most steps that so many samples suffice for.
std::int64_t samples_of_whole_steps(const TrainConfig& train, std::int64_t step, std::int64_t samples) {
  const std::int64_t steps = steps_to_samples(train, step, samples);
  const std::int64_t needed = samples_from(train, step, steps);
  return needed <= samples ? needed : needed - batch_of_step(train, checked_add(step, steps) - 1);
}

std::string digits(std::int64_t count) {
  return grouped_digits(static_cast<std::uint64_t>(count));
}

TokenBounds sum_of(const std::vector<TokenBounds>& sources) {
  constexpr std::int64_t many = std::numeric_limits<std::int64_t>::max();
  TokenBounds sum;
  for (const TokenBounds& source : sources)
    sum = {try_add(sum.least, source.least).value_or(many), try_add(sum.most, source.most).value_or(many)};
  return sum;
}

// "data.train.0: 123, data.train.1: 45 and 3 more sources".
std::string sources_text(const std::vector<TokenBounds>& sources) {
  constexpr std::size_t named = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(sources.size(), named); ++i)
    text += fmt::format("{}data.train.{}: {}", i == 0 ? "" : ", ", i, digits(sources[i].most));
  if (sources.size() > named) text += " and " + counted(sources.size() - named, "more source");
  return text;
}

std::string step_shortage(const Config& config, const RunState& state, std::int64_t left) {
  const std::int64_t steps = last_step(config, state) - state.step;
  const std::int64_t needed = samples_from(config.train, state.step, steps);
  if (needed <= left) return {};
  return fmt::format(
      "data.train: the {} from here on need{} {} samples and the epoch caps leave {}; raise data.train[].epochs or "
      "reduce {}",
      steps == 1 ? "step" : digits(steps) + " steps", steps == 1 ? "s" : "", digits(needed), digits(left),
      length_key(config));
}

}  // namespace

std::string data_shortage(const TrainingData& data, const Config& config, const RunState& state,
                          std::int64_t looked_up) {
  if (!config.train.phases.empty()) return phase_shortage(phase_reads(data, config, state));
  const std::optional<std::int64_t> all = data.mixture().num_samples();
  if (!all) return {};
  const std::int64_t left = samples_left(*all, state);
  if (!config.train.tokens) return step_shortage(config, state, left);
  const std::int64_t consumed = state.history.tokens_consumed();
  const std::int64_t wanted = *config.train.tokens - consumed;
  if (wanted <= 0) return {};
  const std::int64_t next = state.history.next_sample();
  TrainConfig train = config.train;
  // Which falls where the samples that are left do not fill it.
  if (train.adapts_batch) train.global_batch = train.batch_auto->min;
  const std::int64_t whole = samples_of_whole_steps(train, state.step, left);
  const auto count = [&](std::int64_t samples) { return data.tokens_between(next, next + whole, samples); };
  if (sum_of(count(0)).least >= wanted) return {};
  const std::vector<TokenBounds> sources = count(looked_up);
  const std::int64_t most = sum_of(sources).most;
  if (most >= wanted) return {};
  return fmt::format(
      "data.train: {} of train.tokens {} are still to be trained on and the epoch caps leave {} in whole steps{}, "
      "without padding ({}); raise data.train[].epochs or reduce train.tokens to at most {}{}",
      digits(wanted), digits(*config.train.tokens), digits(most),
      train.batch_ramp ? "" : fmt::format(" of {} samples", train.adapts_batch ? train.global_batch : batch_of(state)),
      sources_text(sources), digits(consumed + most),
      train.adapts_batch ? ", or lower train.batch_auto.min, so that steps of fewer samples come to them" : "");
}

std::int64_t filled_batch(const TrainingData& data, const TrainConfig& train, const RunState& state) {
  std::int64_t batch = state.batch.value();
  const std::optional<std::int64_t> all = data.mixture().num_samples();
  if (!all) return batch;
  const std::int64_t left = samples_left(*all, state);
  while (batch > left && batch > train.batch_auto->min) batch /= 2;
  return batch;
}

bool has_next_batch(const TrainingData& data, const RunState& state) {
  const std::optional<std::int64_t> all = data.mixture().num_samples();
  return !all || samples_left(*all, state) >= batch_of(state);
}

}  // namespace scaletrain
