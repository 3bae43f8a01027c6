// Where a run begins or goes on: the weights and the state, from initial ones or a checkpoint, and what of the data was
// read. Told to people where it is not what they may expect.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "telemetry/metrics.h"
#include "train/run_state.h"
#include "train/start/worker_parts.h"

namespace scaletrain {

// Nothing: the run has no checkpoint yet. Whoever chose the checkpoint has verified all of it; each of many ranks looks
// at what it reads.
std::unique_ptr<const Checkpoint> open_checkpoint(const WorkerOptions& options);

// Before the data is opened, since it says which of the files the run knows. Null: none.
std::vector<MixSource> sources_read(const Checkpoint* checkpoint);

struct Beginning {
  RunState state;
  bool fingerprint_changed = false;
  DataConfig data_before;  // as the checkpoint's run had it
};

// With the weights, in the parts' store. checkpoint: null where the run has none. UserError for initial weights of
// another model.
Beginning begin_from(const Checkpoint* checkpoint, WorkerParts& parts, const WorkerOptions& options,
                     const std::string& fingerprint);

// What the run reads from here on: what data.train says now, each source from where the run left it.
void settle_data(WorkerParts& parts, Beginning& begin);

// A run that had stopped early, and is begun all the same, is measured on other data than then: it goes on, which
// people are told.
void settle_early_stop(WorkerParts& parts, RunState& state);

// What the run reads from here to its end, also told to people.
std::vector<SourceRecord> tell_sources(WorkerParts& parts, const RunState& state);

}  // namespace scaletrain
