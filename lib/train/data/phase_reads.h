// What a run that has phases reads in each of them: worked out from its config and its state alone, as far ahead as it
// goes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/phases.h"
#include "data/dataset.h"
#include "telemetry/metrics.h"
#include "train/run_state.h"

namespace scaletrain {

// Whether the history's last samples are of what that step reads: a checkpoint that was saved once more behind the last
// step of a phase has the next one's.
bool has_entered(const Config& config, std::int64_t step, const TrainingData& data, const ConsumptionHistory& history);
// Has the history and the data read what the step that follows `step` ones reads. Returns false if that is other data
// than the history's last (ConsumptionHistory::continue_with).
bool enter_phase(const Config& config, const TrainConfig& train, std::int64_t step, TrainingData& data,
                 ConsumptionHistory& history);

// A phase of which steps are to come.
struct PhaseReads {
  TrainingPhase phase{};
  std::int64_t samples = 0;            // that those steps read
  std::optional<std::int64_t> left{};  // that the epoch caps leave for them; nothing: as many as one likes
  // Of each source the epochs that the run has read when the phase has ended, those before it included.
  std::vector<double> epochs{};
};

// From the step that follows `state`, whose history has a mix, to the end of the run; empty for one without phases.
// UserError where no table can honour a phase's weights.
std::vector<PhaseReads> phase_reads(const TrainingData& data, const Config& config, const RunState& state);

// Why the epoch caps do not suffice for the rest of the phases, and what helps; empty: they do.
std::string phase_shortage(const std::vector<PhaseReads>& reads);

// "phase 2 of 3: 1,000 steps of 64 samples of 2,048 tokens (code 0.3, web 0.7), learning rate times 0.1".
std::string phase_text(const Config& config, const TrainingPhase& phase);
// The line of metrics.jsonl that says it. step: its first.
PhaseRecord phase_record(const Config& config, const TrainingPhase& phase, std::int64_t step);

}  // namespace scaletrain
