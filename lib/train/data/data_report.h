// What a run will read, said at its start: of each source what it holds, what the run has read of it, and how often it
// will have read it by its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "data/order/history.h"
#include "telemetry/metrics.h"

namespace scaletrain {

// In the order of data.train, whose paths are the first of `contents`. samples: that the run trains on from here to its
// end. Where the caps of the mix allow fewer, those.
std::vector<SourceRecord> source_records(const TrainingData& data, const std::vector<SourceContent>& contents,
                                         const ConsumptionHistory& history, std::int64_t samples);

// The same of a run whose phases have read so many epochs of each source by its end.
void end_with(std::vector<SourceRecord>& sources, const std::vector<double>& epochs);

// For people: a line for each of the first sources, and one for the rest. Of a run that goes on also what is left.
std::vector<std::string> source_lines(const std::vector<SourceRecord>& sources, bool is_resumed);

// Files that sources of the mix have gained. before: what the run knew. contents: of the sources, in their order.
std::vector<std::string> joined_lines(const Mix& mix, const std::vector<MixSource>& before,
                                      const std::vector<SourceContent>& contents);

// The checkpoint's config and the run's; it owns neither.
struct DataChange {
  const DataConfig& before;
  const DataConfig& now;
};
// Of a mix that is not the checkpoint's: what of it people may not expect, beside the files that sources have gained.
// contents: of the sources that the run's config has, in their order.
std::vector<std::string> change_lines(const Mix& mix, const std::vector<MixSource>& before,
                                      const std::vector<SourceContent>& contents, const DataChange& configs);

}  // namespace scaletrain
