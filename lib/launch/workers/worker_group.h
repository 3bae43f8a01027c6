// The workers of one start at one place: begun together, watched together, ended together. Somebody else serves their
// rendezvous, judges what has to be judged over all places, and decides what follows, from the statuses that he is
// given.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/numbers/strong.h"
#include "base/process/exit_code.h"
#include "comm/rendezvous/rendezvous.h"
#include "host/near_processors.h"
#include "host/process/signals.h"
#include "launch/workers/worker_channel.h"
#include "telemetry/log.h"
#include "train/start/run_folder.h"

namespace scaletrain {

// One worker of one start.
struct WorkerSlot {
  Rank rank{0};
  std::int64_t world = 1;
  std::int64_t local_rank = 0;                    // among the ranks of this host
  std::int64_t sharers = 1;                       // ranks that share its processors, itself included
  std::int64_t gpu_index = 0;                     // among the ranks that see the same GPUs
  std::int64_t gpu_ranks = 1;                     // how many those are
  std::int64_t num_gpus = 0;                      // that they see; 0: it computes on none
  std::vector<int> processors{};                  // that it runs on; empty: those of the agent
  std::optional<RendezvousAddress> rendezvous{};  // of several ranks; its secret is in SCALETRAIN_SECRET
  std::optional<std::int64_t> data_degree{};      // in place of the config's parallel.data
};

// How the workers of this host are, seen together.
struct GroupStatus {
  std::uint64_t progress = 0;  // sum of their counts of work done
  std::int64_t working = 0;    // living workers that train
  std::int64_t waiting = 0;    // living workers that start up or wait for storage
  std::int64_t step = -1;      // the smallest that a living worker told; -1: one has told none yet
  // For so long nobody here has moved, waited for storage, started up or ended: 0 while one does. The worker groups of
  // a world hang if the smallest of them all reaches the heartbeat.
  double still_seconds = 0.0;
  // The same for anything at all: for so long nobody here has computed, read or written, whatever he is at. The storage
  // of a world is dead if the smallest of all its worker groups reaches storage_patience (hang_judge.h).
  double stalled_seconds = 0.0;
  // Who has been in which call to the storage, and for how long: "rank 3 has been in fsync of ... for 61 s"; empty if
  // nobody is.
  std::string stalled_text{};
  std::vector<Pace> paces{};  // of all workers, by rank (slow_ranks.h); empty until each has told one
  std::vector<pid_t> pids{};  // of the living, by rank
};

// Why workers that did nothing wrong are to end.
struct EndOrder {
  std::string reason{};
  bool is_hang = false;  // of the whole world: they write what they are in before they are killed
};

// Where the ranks of a world of several find each other.
struct RanksRendezvous {
  RendezvousAddress address;
  std::string secret;
};

struct GroupOptions {
  RunPaths paths;
  StartPoint start;
  std::string lock_id;
  std::int64_t first_rank = 0;
  std::int64_t count = 1;  // workers here: ranks first_rank and on; each gets its share of the processors
  std::int64_t world = 1;  // of all hosts
  std::optional<std::int64_t> data_degree{};  // in place of the config's parallel.data: a world of another size
  // All ranks of this host, those on the same processors and those that see the same GPUs, as PlaceShare has them;
  // empty: the workers here.
  std::vector<std::int64_t> on_host{};
  std::vector<std::int64_t> on_processors{};
  std::vector<std::int64_t> on_gpus{};
  std::int64_t num_gpus = 0;  // that are seen here; 0: the workers compute on none
  // Of each of these: where it has nearer processors, its workers run on all of those instead of on a share. Empty: of
  // none.
  std::vector<std::optional<NearProcessors>> near_gpus{};
  std::optional<RanksRendezvous> rendezvous{};  // of several ranks
  std::string address{};                        // numeric, that the data planes bind to; empty: the workers find it
  // Seconds. Where the workers are the world, it is a hang that none moves for so long; elsewhere only that a worker
  // says nothing.
  double heartbeat = 60.0;
  // How long the others may take to say more after one has only lost its peer: what makes them lose it is under way.
  double settle_seconds = 2.0;
  Log& log;
  const InterruptWatcher& interrupts;
  std::filesystem::path executable = "/proc/self/exe";
  // A worker's command line after the program's name, without --channel; empty: worker_arguments.
  std::function<std::vector<std::string>(const StartPoint&, const WorkerSlot&)> arguments{};
  // Whether the run's lock is still held (asked about once a second); empty: always.
  std::function<bool()> holds_lock{};
  // See host/memory_kills.h, which an empty one stands for.
  std::function<std::optional<std::int64_t>()> memory_kills{};

  // Called by the thread that supervises, between two looks: they must not block.
  std::function<void(const GroupStatus&)> status{};        // at each look, several in a heartbeat
  std::function<std::optional<EndOrder>()> told_to_end{};  // asked at each look: end the workers now
  std::function<bool()> told_to_leave{};                   // asked at each look: save, and leave with 75
};

// What one start came to.
struct RoundResult {
  // The result of this group's workers: the run's own; nothing: they failed in a way that a restart may mend.
  std::optional<ExitCode> result;
  bool started = true;            // false: interrupted or told to leave before all came to their first step
  bool ended_for_others = false;  // as told_to_end said; nothing else is wrong here
  // Nobody here failed but of a lost peer: if the world is larger, the cause is likely to be elsewhere.
  bool lost_peer_only = false;
  std::optional<Rank> rank{};          // the cause
  std::int64_t step = 0;               // where the cause was last seen
  std::string description{};           // "worker 123 was killed by signal 9 (Killed) at step 17"
  std::optional<std::string> message;  // what the cause, or else the first that lost it, told of its error; of
                                       // workers ended for a hang: what they were in
  bool is_alike = false;               // all of several workers told that, word for word
};

// Starts options.count workers and returns when all have ended. Throws PeerError when one cannot be started or the lock
// is lost; none is alive then either. To be called from a thread that lives as long as the process (main's): the kernel
// kills the workers when the thread that started them ends.
RoundResult run_worker_group(const GroupOptions& options);

// PeerError, if options.holds_lock denies it.
void require_lock(const GroupOptions& options);

// worker --run-folder DIR --lock ID --generation G
//   [--rank R --world N --rendezvous HOST:PORT --sharers N --heartbeat SECONDS [--local-rank L] [--address A]
//    [--gpu-index I] [--gpu-ranks N]]
//   [--gpus N] [--data N] [--report SECONDS] [--from CHECKPOINT [--asked PATH]] [--cause TEXT]
// The second and third line for several ranks only; --local-rank where it is not the rank; what is of GPUs where
// several ranks see the same; --report where the heartbeat asks for more lines than one a second.
std::vector<std::string> worker_arguments(const GroupOptions& options, const WorkerSlot& slot);

}  // namespace scaletrain
