// When a run saves, and what follows from it: what is due, the checkpoint, its record, pruning.
//
// A save in the background (checkpoint.background) copies the state to memory that was allocated for it, while the next
// step's forward and backward run, and writes it from there with less priority than training has. Training is held up
// where it must be: for the copy, right before the optimizer changes what is copied; and for a save that is still being
// written when the next one is due. Saves that a run ends with are not in the background:
// they write from the store itself, after the one under way has ended, so that no more memory is needed than was
// planned.
//
// A save that fails is told, training goes on, and the next try comes soon (save_notices.h). One that finds no space
// lets older checkpoints go, never below two that verify, and is tried again at once (retention.h).
//
// Every rank of the run has one and calls it at the same steps with the same arguments. Rank 0 alone writes records,
// commits and prunes. Called by the training thread alone; a thread of its own writes in the background. What training
// shares with that thread: the store's masters and states, until before_update() or settle() has returned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/key_value_store.h"
#include "config/config.h"
#include "plan/run_plan.h"
#include "store/param_store.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"
#include "train/run_state.h"
#include "train/saving/save_notices.h"
#include "train/start/run_folder.h"

namespace scaletrain {

class Checkpointer {
 public:
  struct Parts {
    const Config& config;
    const PhasePlan& plan;
    Stream& stream;
    ParamStore& store;
    Rank rank;
    KeyValueStore* rendezvous = nullptr;             // null: a single rank
    KeyValueStore* background_rendezvous = nullptr;  // for the thread that writes; null: `rendezvous` serves any thread
    RunPaths paths;
    MetricsWriter* metrics = nullptr;  // rank 0's; null on the others
    Log& log;
    std::vector<TokenizerFile> tokenizer_files;
    std::string fingerprint;
    // Whether this process still owns the run: asked right before a checkpoint appears under its name, and before old
    // ones are removed, by any thread.
    std::function<bool()> may_commit;
    std::function<void(bool waiting_on_storage)> entered;  // while waiting, the rank makes no progress; may be empty
    std::optional<double> grace_seconds{};  // from the signal to the end of the process, see save_notices.h
    double retry_seconds = 60.0;            // after a first failed save, see SaveNotices::retry_due()
    WorkCount* work = nullptr;              // of what is copied while training may have to wait for it
  };

  // Of a save: whether the run ends with this state, so that a failure is an error; whether the last evaluation is the
  // best so far; whether all that the newest checkpoint of this branch says of its step is in this one.
  struct Reason {
    bool must = false;
    bool best = false;
    bool again = false;
  };

  // state: the trainer's, which outlives this. What it says of checkpoints (parent and best) is kept up to date here.
  // InputError if there is no memory for copies, or on rank 0 if the run begins and the disk has no space for one
  // checkpoint.
  Checkpointer(const Parts& parts, RunState& state);
  // A save under way is finished first; but given up where an exception ends a run of several ranks, since the others
  // may be gone. The rank enters the state of waiting meanwhile.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // By checkpoint.every or keep_every of the state's step: the same on every rank.
  bool due_by_step() const;
  // By this rank's clock, from the last save's beginning: one rank decides for all. Never while a save is under way.
  // Sooner than checkpoint.every, and where that is in steps too, after a save that failed.
  bool due_by_time() const;
  // The state as it is between two steps. Throws if reason.must: InputError, on every rank; else a failure is logged
  // and recorded, and the next save tries again. Waits for a save that is under way, and throws what poll() throws.
  void save(const Reason& reason);
  // Between two steps: what has become of a save in the background goes into the state and the metrics. PeerError or a
  // bug of the thread that writes is thrown here.
  void poll();
  // Right before the optimizer changes masters and states: returns when no copy of them is being made.
  void before_update();
  // Returns when no save is under way, and what became of it is in the state: before the state or the store is
  // replaced.
  void settle();
  // Training has failed, for this reason, and the rank is to end: the same as the destructor, while the failure has not
  // been told yet. Nothing may be called afterwards. Never throws.
  void end(const std::string& reason);
  // The state and the store are now those of an older checkpoint.
  void went_back();
  // The step of the newest checkpoint of this state's branch that is known to be there; -1 if there is none.
  std::int64_t saved_step() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
