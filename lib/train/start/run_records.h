// What rank 0 writes of a start and of the run's end beside its steps: the opening and closing lines of metrics.jsonl,
// the summary of all starts for the progress line, the last lines for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "telemetry/metrics.h"
#include "train/start/beginning.h"
#include "train/start/worker_parts.h"
#include "train/trainer.h"

namespace scaletrain {

LayoutRecord layout_of(const WorkerParts& parts);
// peak_flops: of all ranks; 0: not known.
DeviceRecord device_of(const WorkerParts& parts, double peak_flops);

// Whether training ever began here: a start that failed before leaves an `end` line alone.
bool has_begun(const std::filesystem::path& metrics);

void write_opening(MetricsWriter& metrics, const WorkerParts& parts, const WorkerOptions& options,
                   const Beginning& begin, const DeviceRecord& device, bool restarted,
                   std::vector<SourceRecord> sources);

// What earlier starts came to, for the progress line and the end. restarted_at: the step that this start goes on from.
void continue_summary(WorkerParts& parts, const WorkerOptions& options, std::optional<std::int64_t> restarted_at);

void write_end(MetricsWriter& metrics, const WorkerParts& parts, TrainOutcome outcome, std::int64_t step);

// What the run has come to, over all of its starts.
void tell_outcome(WorkerParts& parts, TrainOutcome outcome, std::int64_t step);

}  // namespace scaletrain
