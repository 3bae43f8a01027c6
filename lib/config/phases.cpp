#include "config/phases.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

std::int64_t batch_of_phase(const PhaseConfig& phase, const TrainConfig& train) {
  return phase.global_batch.value_or(train.global_batch);
}

std::vector<double> weights_of_phase(const PhaseConfig& phase, const DataConfig& data) {
  std::vector<double> weights;
  for (const SourceConfig& source : data.train) weights.push_back(phase.weights.empty() ? source.weight : 0.0);
  for (const auto& [name, weight] : phase.weights)
    if (const auto source = source_of_name(data, name)) weights[*source] = weight;
  return weights;
}

TrainingPhase phase_at_place(const Config& config, const PhasePlace& place) {
  const PhaseConfig& phase = config.train.phases[place.index];
  return {.index = static_cast<std::int64_t>(place.index),
          .first_step = place.first_step,
          .steps = place.end - place.first_step,
          .context = phase.context.value_or(config.model.context),
          .global_batch = batch_of_phase(phase, config.train),
          .weights = weights_of_phase(phase, config.data),
          .learning_rate_factor = phase.learning_rate_factor};
}

TrainingPhase only_phase(const Config& config) {
  return {.context = config.model.context,
          .global_batch = config.train.global_batch,
          .weights = weights_of_phase(PhaseConfig(), config.data)};
}

}  // namespace

std::int64_t steps_of_phase(const PhaseConfig& phase, std::int64_t global_batch) {
  if (phase.steps) return *phase.steps;
  if (!phase.tokens) return 0;
  SCALETRAIN_CHECK(phase.context.has_value());
  return ceil_div(*phase.tokens, checked_mul(global_batch, *phase.context));
}

std::optional<std::int64_t> steps_of_phases(const TrainConfig& train) {
  std::optional<std::int64_t> steps = 0;
  for (const PhaseConfig& phase : train.phases)
    steps = steps ? try_add(*steps, steps_of_phase(phase, batch_of_phase(phase, train))) : std::nullopt;
  return steps;
}

PhasePlace place_in_phases(const TrainConfig& train, std::int64_t step) {
  SCALETRAIN_CHECK(!train.phases.empty() && step >= 0);
  PhasePlace place;
  for (;; ++place.index) {
    const PhaseConfig& phase = train.phases[place.index];
    place.end = checked_add(place.first_step, steps_of_phase(phase, batch_of_phase(phase, train)));
    if (step < place.end || place.index + 1 == train.phases.size()) return place;
    place.first_step = place.end;
  }
}

std::vector<TrainingPhase> training_phases(const Config& config) {
  if (config.train.phases.empty()) return {only_phase(config)};
  std::vector<TrainingPhase> phases;
  PhasePlace place;
  for (; place.index < config.train.phases.size(); ++place.index) {
    const PhaseConfig& phase = config.train.phases[place.index];
    place.first_step = place.end;
    place.end = checked_add(place.end, steps_of_phase(phase, batch_of_phase(phase, config.train)));
    phases.push_back(phase_at_place(config, place));
  }
  return phases;
}

TrainingPhase phase_of_step(const Config& config, std::int64_t step) {
  if (config.train.phases.empty()) return only_phase(config);
  return phase_at_place(config, place_in_phases(config.train, step));
}

std::optional<std::size_t> source_of_name(const DataConfig& data, std::string_view name) {
  for (std::size_t i = 0; i < data.train.size(); ++i)
    if (name_of_source(data, i) == name) return i;
  return std::nullopt;
}

std::string name_of_source(const DataConfig& data, std::size_t source) {
  return data.train.at(source).name.value_or(std::to_string(source));
}

std::vector<std::int64_t> shorter_contexts(const Config& config) {
  std::set<std::int64_t> contexts;
  for (const PhaseConfig& phase : config.train.phases)
    if (phase.context && *phase.context < config.model.context) contexts.insert(*phase.context);
  return {contexts.begin(), contexts.end()};
}

void fill_phases(Config& config) {
  TrainConfig& train = config.train;
  for (PhaseConfig& phase : train.phases) {
    if (!phase.context) phase.context = config.model.context;
    if (!phase.global_batch) phase.global_batch = train.global_batch;
  }
  if (train.phases.empty() || train.steps || train.tokens || train.epochs) return;
  if (const auto steps = steps_of_phases(train); steps && *steps > 0) train.steps = steps;
}

}  // namespace scaletrain
