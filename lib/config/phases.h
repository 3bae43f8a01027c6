// The phases of a run as its steps have them: a pure function of the config and the step's number, so that a resume, a
// rollback, another layout and an early stop need nothing more.
//
// Phase k has the steps [first_step, first_step + steps). One in tokens has the fewest steps whose samples, counted as
// full, have so many; together they are the run's train.steps. Behind the last one its settings go on. What the phases
// have in common (the weights, the optimizer and its state, the schedule of the learning rate) goes on across them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace scaletrain {

struct TrainingPhase {
  std::int64_t index = 0;
  std::int64_t first_step = 0;
  std::int64_t steps = 0;         // 0: of a run without phases, all there are
  std::int64_t context = 0;       // tokens per sample
  std::int64_t global_batch = 0;  // samples per step; of a run without phases the largest
  std::vector<double> weights{};  // of each source of data.train; 0: it is not read
  double learning_rate_factor = 1.0;
};

// Of a run without phases: one, of its own settings.
std::vector<TrainingPhase> training_phases(const Config& config);
// That of the step which follows `step` ones.
TrainingPhase phase_of_step(const Config& config, std::int64_t step);

// The length of a phase; 0 where it has none, which validation refuses. BugError where one in tokens was not filled.
std::int64_t steps_of_phase(const PhaseConfig& phase, std::int64_t global_batch);
// Of all phases together; nothing where 64 bits do not count them.
std::optional<std::int64_t> steps_of_phases(const TrainConfig& train);
// Which of the phases, which are not none, the step that follows `step` ones is in, and where that ends.
struct PhasePlace {
  std::size_t index = 0;
  std::int64_t first_step = 0;
  std::int64_t end = 0;
};
PhasePlace place_in_phases(const TrainConfig& train, std::int64_t step);

// Which source a phase means by this; nothing: none.
std::optional<std::size_t> source_of_name(const DataConfig& data, std::string_view name);
// How phases call it.
std::string name_of_source(const DataConfig& data, std::size_t source);

// Contexts that phases have besides model.context, ascending.
std::vector<std::int64_t> shorter_contexts(const Config& config);

// Puts the run's settings where phases leave them out, and the length of all phases into train.steps, where the run has
// none.
void fill_phases(Config& config);

}  // namespace scaletrain
