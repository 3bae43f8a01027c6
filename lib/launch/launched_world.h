// A rank that a launcher started among others: how the ranks of one start find each other, learn where to begin, and
// end with the exit code of what ended them. There is no agent here, and no restart: both are the launcher's.
//
// Rank 0 serves the rendezvous and writes where, and its secret, to RUN/rendezvous.json (mode 0600, gone when the run
// ends). The others read that file again and again until they have come in; one that is left over from another start is
// known by its job, by a server that is gone or refuses the secret, or by a rank that has come in there before.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/exit_code.h"
#include "comm/key_value_store.h"
#include "comm/rendezvous.h"
#include "launch/launcher.h"
#include "train/run_folder.h"

namespace scaletrain {

// Why a start ended, as the rank that failed tells the others.
struct SharedFailure {
  std::int64_t rank = 0;
  ExitCode code = ExitCode::bug;
  std::string message{};
};

// What rank 0 has decided for all.
struct SharedStart {
  StartPoint start;
  std::string lock_id{};
  bool is_complete = false;  // there is nothing left to do
};

class LaunchedWorld {
 public:
  struct Options {
    RunPaths paths;
    LauncherPlace place;
    std::string secret{};    // SCALETRAIN_SECRET, if it is set; else rank 0 makes one
    double seconds = 300.0;  // for coming together
    double farewell = 5.0;   // seconds that rank 0 goes on serving for ranks that have not left
    std::function<bool()> interrupted{};
  };

  // Rank 0 (the run folder exists and is locked by this process): serves at once. The others: come in, or nothing when
  // interrupted. PeerError: no rendezvous of this start within the time, or rank 0 has refused the start (see
  // refuse_start), whose code and message are then in `refused`.
  static std::unique_ptr<LaunchedWorld> join(const Options& options, std::optional<SharedFailure>& refused);
  // Rank 0 serves until the others have left: `farewell` seconds for those that have come in, and for late ones until
  // the time for coming together is over.
  ~LaunchedWorld();
  LaunchedWorld(const LaunchedWorld&) = delete;
  LaunchedWorld& operator=(const LaunchedWorld&) = delete;

  KeyValueStore& store();
  const RendezvousAddress& address() const;  // of the rendezvous, as the others reach it

  // Rank 0.
  void announce(const SharedStart& start);
  // The others: nothing when interrupted, or when a failure was told instead. PeerError if rank 0 is gone.
  std::optional<SharedStart> await_start();

  // Tells the others why this rank ends; the first to tell is the cause. Never throws: who cannot tell ends anyway.
  void tell_failure(const SharedFailure& failure) noexcept;
  // The cause, if one is told within `seconds`. Never throws.
  std::optional<SharedFailure> told_failure(double seconds) noexcept;

  // How many ranks run on this rank's processors, itself included. All ranks call it. PeerError when they do not come
  // together.
  std::int64_t processor_sharers();

 private:
  LaunchedWorld(Options options, RendezvousAddress address);

  Options options_;
  RendezvousAddress address_;
  MonotonicTime begin_ = monotonic_now();
  std::unique_ptr<RendezvousServer> server_;  // rank 0's
  std::unique_ptr<KeyValueStore> store_;
};

// What the file holds.
struct RendezvousFile {
  RendezvousAddress address{};
  std::string secret{};
  std::string job{};
};
void write_rendezvous_file(const RunPaths& paths, const RendezvousFile& file);
// Nothing if it is missing, or cannot be read yet.
std::optional<RendezvousFile> read_rendezvous_file(const RunPaths& paths);

// Rank 0, when it cannot take the run's lock (and so must not touch rendezvous.json): a note beside the lock tells the
// others of this start. Never throws.
void refuse_start(const RunPaths& paths, const LauncherPlace& place, const SharedFailure& failure) noexcept;

// The numeric address of this host's interface towards `host`, or towards the network at large if `host` is empty;
// "127.0.0.1" where there is no network. PeerError if `host` cannot be resolved.
std::string address_towards(const std::string& host);

}  // namespace scaletrain
