// Reads a metrics.jsonl back as what counts: lines that a later restart made void are left out, and so is a torn last
// line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "telemetry/metrics.h"

namespace scaletrain {

// Each kind in the order of the file. A restart at step s removes the earlier steps, evaluations, tasks, checkpoints,
// skips, spikes, phases, early stops and ends with a step beyond s; starts, restarts and the spikes that training went
// back from are the run's history and always stay. Of evaluations of one set, or on one task, at one step the last
// counts.
struct Metrics {
  std::vector<StartRecord> starts;
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  std::vector<TaskRecord> tasks;
  std::vector<CheckpointRecord> checkpoints;
  std::vector<RestartRecord> restarts;
  std::vector<SkipRecord> skips;
  std::vector<SpikeRecord> spikes;
  std::vector<PhaseRecord> phases;
  std::vector<EarlyStopRecord> early_stops;
  std::vector<EndRecord> ends;
  bool torn_last_line = false;
  std::int64_t whole_lines = 0;    // all but a torn last one
  std::int64_t damaged_lines = 0;  // of those, where damage is skipped
  std::string first_damage;        // file, line and what is wrong with the first of them
};

// What a line means that is not an object of its kind, other than a last one without its line end.
enum class DamagedLines {
  refuse,  // InputError with file and line
  skip,    // it is counted, and the others are read
};

// A null number is read as NaN. Lines of an unknown kind are passed over, so that an older program reads a newer file.
Metrics read_metrics(const std::filesystem::path& file, DamagedLines damaged = DamagedLines::refuse);
Metrics parse_metrics(std::string_view text, const std::string& where, DamagedLines damaged = DamagedLines::refuse);

// What the last lines of a file say, without reading the others.
struct MetricsTail {
  std::int64_t step = 0;   // the last one that was done, restarts applied; 0 if there is none
  bool has_ended = false;  // the start that wrote behind `since` has its `end` line
  // Of that step, where nothing was told behind it.
  double tokens_per_second = 0;
  double mfu = 0;
};
// since: size of the file when that start began.
MetricsTail read_metrics_tail(const std::filesystem::path& file, std::uint64_t since);

}  // namespace scaletrain
