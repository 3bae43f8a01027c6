#include "train/data/phase_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "config/batch_ramp.h"

namespace scaletrain {

namespace {

std::string count_of(std::int64_t count, std::string_view noun) {
  return grouped_count(static_cast<std::uint64_t>(count), noun);
}

ReadingPhase reading_of(const TrainingPhase& phase) {
  return {.context = phase.context, .weights = phase.weights};
}

std::vector<double> epochs_read_of(const Mix& mix, const std::vector<std::int64_t>& taken) {
  std::vector<double> epochs;
  for (std::size_t i = 0; i < mix.sources.size(); ++i)
    epochs.push_back(static_cast<double>(taken[i]) / static_cast<double>(mix.sources[i].samples_per_epoch));
  return epochs;
}

}  // namespace

bool has_entered(const Config& config, std::int64_t step, const TrainingData& data, const ConsumptionHistory& history) {
  if (history.segments().empty()) return false;
  const TrainingPhase phase = phase_of_step(config, step);
  const HistorySegment& last = history.segments().back();
  return last.context == phase.context && last.data_hash == data.description(reading_of(phase)).hash;
}

bool enter_phase(const Config& config, const TrainConfig& train, std::int64_t step, TrainingData& data,
                 ConsumptionHistory& history) {
  const TrainingPhase phase = phase_of_step(config, step);
  const bool is_same =
      history.continue_with(data.description(reading_of(phase)), phase.context, batch_of_step(train, step));
  data.enter(history.mix(), phase.context);
  return is_same;
}

std::vector<PhaseReads> phase_reads(const TrainingData& data, const Config& config, const RunState& state) {
  if (config.train.phases.empty()) return {};
  SCALETRAIN_CHECK(!state.history.segments().empty());
  Mix mix = state.history.mix();
  const HistorySegment& last = state.history.segments().back();
  std::uint64_t hash = last.data_hash;
  std::int64_t context = last.context;
  std::int64_t next = state.history.next_sample();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < mix.sources.size(); ++i) names.push_back(fmt::format("data.train.{}", i));
  std::vector<PhaseReads> reads;
  for (TrainingPhase& phase : training_phases(config)) {
    const std::int64_t steps = phase.first_step + phase.steps - std::max(state.step, phase.first_step);
    if (steps <= 0) continue;
    const DataDescription description = data.description(reading_of(phase));
    if (description.hash != hash || phase.context != context) mix = following_mix(mix, next, description.sources);
    hash = description.hash;
    context = phase.context;
    const MixTurns turns(mix, names);
    PhaseReads read{.samples = checked_mul(steps, phase.global_batch)};
    read.phase = std::move(phase);
    if (turns.end()) read.left = std::max<std::int64_t>(0, *turns.end() - next);
    next = checked_add(next, std::min(read.samples, read.left.value_or(read.samples)));
    read.epochs = epochs_read_of(mix, turns.taken(next));
    reads.push_back(std::move(read));
  }
  return reads;
}

std::string phase_shortage(const std::vector<PhaseReads>& reads) {
  for (const PhaseReads& read : reads) {
    if (!read.left || read.samples <= *read.left) continue;
    return fmt::format(
        "phases.{}: the steps from here on need {} of {} and the epoch caps of the sources that it reads leave {}; "
        "raise data.train[].epochs, shorten the phase, or have it read a source without a cap",
        read.phase.index, count_of(read.samples, "sample"), count_of(read.phase.context, "token"),
        grouped_digits(static_cast<std::uint64_t>(*read.left)));
  }
  return {};
}

std::string phase_text(const Config& config, const TrainingPhase& phase) {
  std::string mix;
  if (!config.train.phases[static_cast<std::size_t>(phase.index)].weights.empty())
    for (std::size_t i = 0; i < phase.weights.size(); ++i)
      if (phase.weights[i] > 0)
        mix += fmt::format("{}{} {}", mix.empty() ? "" : ", ", name_of_source(config.data, i), phase.weights[i]);
  std::string text = fmt::format("phase {} of {}: {} of {} of {}", phase.index + 1, config.train.phases.size(),
                                 count_of(phase.steps, "step"), count_of(phase.global_batch, "sample"),
                                 count_of(phase.context, "token"));
  if (!mix.empty()) text += fmt::format(" ({})", mix);
  if (phase.learning_rate_factor != 1.0) text += fmt::format(", learning rate times {}", phase.learning_rate_factor);
  return text;
}

PhaseRecord phase_record(const Config& config, const TrainingPhase& phase, std::int64_t step) {
  PhaseRecord line{.step = step,
                   .phase = phase.index,
                   .steps = phase.steps,
                   .context = phase.context,
                   .global_batch = phase.global_batch,
                   .learning_rate_factor = phase.learning_rate_factor};
  for (std::size_t i = 0; i < phase.weights.size(); ++i)
    if (phase.weights[i] > 0) line.weights.emplace_back(name_of_source(config.data, i), phase.weights[i]);
  return line;
}

}  // namespace scaletrain
