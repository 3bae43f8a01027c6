// A rank that a launcher started among others: how the ranks of one start find each other, learn where to begin, and
// end with the exit code of what ended them. There is no agent here, and no restart: both are the launcher's.
//
// Rank 0 serves the rendezvous and writes where, and its secret, to RUN/rendezvous.json (mode 0600, gone when the run
// ends). The others read that file again and again until they have come in; one that is left over from another start is
// known by its job, by a server that is gone or refuses the secret, or by a rank that has come in there before.
//
// A rank that fails tells why before it leaves; one that ends without a word is known by its connection; one that hangs
// by the ranks' watch over each other (rank_watch.h). Each ends the others' waiting. For ranks that come when rank 0
// has failed already, it leaves a note in the run folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/exit_code.h"
#include "comm/key_value_store.h"
#include "comm/locked_store.h"
#include "comm/rendezvous.h"
#include "launch/launcher.h"
#include "launch/wait_notice.h"
#include "launch/watched_store.h"
#include "train/run_folder.h"

namespace scaletrain {

// Why a start ended, as the rank that failed tells the others.
struct SharedFailure {
  std::int64_t rank = 0;
  ExitCode code = ExitCode::bug;
  std::string message{};
  bool is_silent = false;  // it has told nothing: its process is gone
};

// What rank 0 has decided for all.
struct SharedStart {
  StartPoint start;
  std::string lock_id{};
  bool is_complete = false;  // there is nothing left to do
  std::string config{};      // rank 0's, resolved, and its program's version: for the others to compare with their own
  std::string version{};
};

// What RUN/rendezvous.json holds.
struct RendezvousFile {
  RendezvousAddress address{};
  std::string secret{};  // empty: everyone was given it
  std::string job{};
  bool operator==(const RendezvousFile&) const = default;
};

class LaunchedWorld {
 public:
  struct Options {
    RunPaths paths;
    LauncherPlace place;
    std::string secret{};  // SCALETRAIN_SECRET, if it is set; else rank 0 makes one
    std::optional<std::string> interface {
    };                       // launch.interface: where rank 0 serves; nothing: this host's loopback if the
                             // launcher says that all ranks are on it, else the address towards the network at large
    std::uint16_t port = 0;  // launch.port; 0: any free one
    double seconds = 300.0;  // for coming together
    double farewell = 5.0;   // seconds that rank 0 goes on serving for ranks that have not left
    double believed_after = 15.0;  // seconds after which a young note that was there before this rank is its start's
    // Rank 0 comes only to say why there will be no start: every rank that comes in finds it told.
    std::optional<SharedFailure> refusal{};
    std::function<bool()> interrupted{};
    // Hears whom this rank waits for, after a while and then seldom; empty: nobody does.
    std::function<void(const std::string&)> waiting{};
    WaitNotice notice{};        // when
    const char* kind = "rank";  // what place.rank counts, for messages
  };

  // Rank 0 (the run folder exists and is locked by this process): serves at once. The others: come in, or nothing when
  // interrupted. PeerError: no rendezvous of this start within the time, or rank 0 has refused the start (see
  // refuse_start), whose code and message are then in `refused`.
  static std::unique_ptr<LaunchedWorld> join(const Options& options, std::optional<SharedFailure>& refused);
  // Rank 0 serves until the others have left: `farewell` seconds at most for those that have come in, fewer once one is
  // lost; late ones until the time for coming together is over, unless a failure or an interruption ends the start.
  ~LaunchedWorld();
  LaunchedWorld(const LaunchedWorld&) = delete;
  LaunchedWorld& operator=(const LaunchedWorld&) = delete;

  // Waits through it end early, see watched_store.h.
  KeyValueStore& store();
  // The same for another thread than the one that uses everything else here.
  KeyValueStore& background_store();
  const RendezvousAddress& address() const;  // of the rendezvous, as the others reach it
  // A connection of its own, for a thread that must not wait for others here; without a network where this process
  // serves. PeerError after so many seconds; its requests are answered within reply_seconds or fail.
  std::unique_ptr<KeyValueStore> connect(double seconds, double reply_seconds) const;
  // Of a process that ends here and now: what the destructor would remove from the run folder. From any thread.
  void withdraw() const noexcept;

  // Rank 0.
  void announce(const SharedStart& start);
  // The others: nothing when interrupted, when a failure was told instead, or a rank was lost. PeerError if rank 0 is
  // gone.
  std::optional<SharedStart> await_start();

  // Tells the others why this rank ends; the first to tell is the cause. Never throws: who cannot tell ends anyway.
  void tell_failure(const SharedFailure& failure) noexcept;
  // The cause, if one is told within `seconds`. Never throws.
  std::optional<SharedFailure> told_failure(double seconds) noexcept;
  // The same, or else a rank that is gone without a word; rank 0, if its rendezvous is.
  std::optional<SharedFailure> cause(double seconds) noexcept;

  // How many ranks run on this rank's processors, itself included. All ranks call it. PeerError when they do not come
  // together; it names those that have not come.
  std::int64_t processor_sharers();
  // The ranks that share a kernel, a host name and a network namespace with this one, itself included, ascending: what
  // the ranks say of themselves, which launchers do not always know. All ranks call it, once. Errors as above.
  std::vector<std::int64_t> host_ranks();

  // Whether a wait has ended because of an interruption.
  bool was_interrupted() const { return watched_.was_interrupted(); }

 private:
  LaunchedWorld(Options options, RendezvousFile file, std::unique_ptr<RendezvousServer> server,
                std::unique_ptr<KeyValueStore> store);
  void serve_farewell();
  void await_all(const std::string& key);
  std::vector<std::int64_t> missing_ranks();
  std::string missing_text();

  Options options_;
  RendezvousFile file_;
  MonotonicTime begin_ = monotonic_now();
  std::unique_ptr<RendezvousServer> server_;  // rank 0's
  std::unique_ptr<KeyValueStore> connection_;
  std::unique_ptr<LockedStore> store_;
  WatchedStore watched_;
  WatchedStore watched_in_background_;
};

void write_rendezvous_file(const RunPaths& paths, const RendezvousFile& file);
// Nothing if it is missing, or cannot be read yet.
std::optional<RendezvousFile> read_rendezvous_file(const RunPaths& paths);

// What a process that is not the first has come in by.
struct Entrance {
  std::unique_ptr<KeyValueStore> store{};
  RendezvousFile file{};
};
// Reads the file again and again until `come_in` is content with the store of a server that takes the secret (else it
// gives the reason). With `member` the server watches the connection. Nothing when interrupted; PeerError as
// LaunchedWorld::join.
std::optional<Entrance> find_rendezvous(const LaunchedWorld::Options& options, std::optional<std::int64_t> member,
                                        const std::function<bool(KeyValueStore& store, std::string& reason)>& come_in,
                                        std::optional<SharedFailure>& refused);

// Where rank 0 serves under these options.
std::string rendezvous_bind_address(const LaunchedWorld::Options& options);

// Removes the file, unless another start has put its own there.
void remove_rendezvous_file(const RunPaths& paths, const RendezvousFile& file) noexcept;

// Rank 0, when it cannot take the run's lock (and so must not touch rendezvous.json), or leaves after a failure before
// all have come: a note beside the lock tells the others of this start. Ranks of the same job believe it; where the
// launcher has no job id it counts for ranks that were there before it, and for 300 s for later ones of the same boot
// of the same host: no other clock is believed. The job of agents that were started by hand (SCALETRAIN_JOB) may be the
// same at the next start: those that come after the note give node 0 the time to remove it first. The next start of
// rank 0 removes it. Never throws. The agent of node 0 leaves one too when a run has ended well, for agents that were
// not there to hear it.
void refuse_start(const RunPaths& paths, const LauncherPlace& place, const SharedFailure& failure) noexcept;

// What the note says, if it is of this job; where there is no job id, if it is of this boot and younger than `seconds`.
std::optional<SharedFailure> noted_end(const RunPaths& paths, const LauncherPlace& place, double seconds);

// The start of rank 0 begins: a note of an earlier one is void.
void forget_refusal(const RunPaths& paths) noexcept;

// The numeric address that launch.interface means: of the interface of that name, or the address itself. UserError if
// this host has neither; it lists what there is.
std::string address_of_interface(const std::string& interface);

// The numeric address of this host's interface towards `host`, or towards the network at large if `host` is empty;
// "127.0.0.1" where there is no network. PeerError if `host` cannot be resolved.
std::string address_towards(const std::string& host);

}  // namespace scaletrain
