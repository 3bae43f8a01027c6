// The metrics that a command reads, of a run that somebody names.
#pragma once

#include <string>

#include "telemetry/metrics_reader.h"

namespace scaletrain {

// path: a run folder, or its metrics.jsonl. Damage costs the lines that it is in and no others: a notice on standard
// error tells of it. InputError where there are none, or no line is sound.
Metrics metrics_of_run(const std::string& path);

}  // namespace scaletrain
