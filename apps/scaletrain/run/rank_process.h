// One rank's training in this process.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/numbers/strong.h"
#include "base/process/exit_code.h"
#include "base/process/work_count.h"
#include "comm/collective/collective_status.h"
#include "comm/rendezvous/key_value_store.h"
#include "comm/rendezvous/rendezvous.h"
#include "host/process/signals.h"
#include "train/start/assembly.h"
#include "train/start/run_folder.h"

namespace scaletrain {

struct RankProcess {
  RunPaths paths;
  StartPoint start;
  std::string lock_id;
  const InterruptWatcher& interrupts;
  std::int64_t sharers = 1;  // ranks that run on this one's processors, itself included
  GpuPlace gpus{};
  WorkCount* work = nullptr;
  std::function<void(std::int64_t step, bool waiting)> entered{};
  std::function<void(const std::exception_ptr&)> failed{};  // hears of an error before anything is torn down

  // Of several ranks; a run of one has neither store nor network.
  Rank rank{0};
  std::int64_t world = 1;
  std::int64_t local_rank = 0;
  std::optional<std::int64_t> data_degree{};  // in place of the config's parallel.data
  KeyValueStore* store = nullptr;             // see WatchedStore
  KeyValueStore* background_store = nullptr;  // for the thread that writes checkpoints
  std::string address{};                      // numeric, of this host: the data planes bind to it
  std::string secret{};                       // the job's: members of a group prove to each other that they know it
  CollectiveStatus* collectives = nullptr;    // told of every call
  double heartbeat = 60.0;                    // seconds
  // When whoever looks after the ranks last let them go on; empty: nobody does who would say so. By any thread.
  std::function<MonotonicTime()> vouched{};
};

// Returns and throws as train_run.
ExitCode train_rank(const RankProcess& process);

}  // namespace scaletrain
