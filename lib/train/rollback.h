// Going back to an older checkpoint while the run goes on, for a loss spike: in the process, by all ranks alike, with
// no help from an agent. Rank 0 chooses the checkpoint and tells the others through the rendezvous store.
//
// A run whose state has jumped was on its way there for some time, so the state must be older than the losses that the
// jump was measured against: the newest checkpoint that verifies and was written before the window; each further
// rollback in a row goes back one window more. Where none is that old, the oldest, and that is said. Later ones are
// quarantined, so that what starts after a crash is the same branch. The samples from there to the spike are skipped,
// those of the spike's step included; whoever goes on from the result saves it at once, so that a crash does not forget
// them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint/load.h"
#include "comm/rendezvous/key_value_store.h"
#include "config/config.h"
#include "data/dataset.h"
#include "parallel/mesh/mesh.h"
#include "store/param_store.h"
#include "telemetry/log.h"
#include "train/run_state.h"

namespace scaletrain {

// A checkpoint's tensors into the store, optimizer states included; its state, as the run goes on from it under
// `config`.
RunState restore(const Checkpoint& checkpoint, const Config& config, ParamStore& store, Stream& stream,
                 WorkCount* work = nullptr);

// The checkpoint to go back to because of the spike at `step`, nothing if there is none before it. reach: how many
// steps before the spike it should be older than. Damaged ones on the way are quarantined and reported. FileAccessError
// if one cannot be read now, before anything was changed.
std::optional<Checkpoint> checkpoint_before(const std::filesystem::path& checkpoints, std::int64_t step,
                                            std::int64_t reach, const std::function<void(const std::string&)>& report);

class Rollback {
 public:
  struct Parts {
    const Config& config;
    Stream& stream;
    ParamStore& store;
    const TrainingData& data;
    Rank rank;
    std::int64_t world = 1;
    KeyValueStore* rendezvous = nullptr;  // null: a single rank
    std::filesystem::path checkpoints;
    Log& log;
    std::function<bool()> may_commit;   // whether this process still owns the run; may be empty
    std::int64_t start_generation = 0;  // of this process: what it tells others is under this number
    WorkCount* work = nullptr;
  };

  explicit Rollback(Parts parts) : parts_(std::move(parts)) {}

  struct Result {
    std::optional<RunState> state;     // nothing: training stays where it is, and why
    std::filesystem::path checkpoint;  // that it went back to
    std::string fingerprint;           // of its writer
    std::string reason;
    bool within_window = false;  // no checkpoint was old enough: this one's state may be on its way to the spike
  };
  // now: the state after the spike's step, whose samples end with `last`. The store holds the result's state; the state
  // is of a new generation. Called by all ranks with the same arguments; nothing else may be under way. InputError if
  // the checkpoint that was chosen cannot be loaded here, PeerError if that is the file system's doing and may pass;
  // DivergedError when rollbacks are used up (spike_policy.h), before anything was changed.
  Result run(const RunState& now, std::int64_t last);
  // To be called when the result's state has been saved: quarantines what run() left because a start would not have
  // known without it which branch it is on. Never throws what the file system refuses.
  void leave_branch(const RunState& state);

 private:
  // What rank 0 tells the others: a path, or why there is none.
  struct Choice {
    std::string path;
    std::string reason;
  };
  RunState restore_or_restart(const Checkpoint& checkpoint);
  std::int64_t reach(const RunState& now) const;
  void quarantine_after(std::int64_t step) const;
  Choice choose(const RunState& now, std::int64_t last) const;
  Choice agreed_choice(const RunState& now, std::int64_t last);
  void wait_for_all();
  std::string wait_for(const std::string& name, const char* what);
  std::string key(const std::string& name) const;

  Parts parts_;
  std::int64_t count_ = 0;  // rollbacks tried by this process: names the keys
};

}  // namespace scaletrain
