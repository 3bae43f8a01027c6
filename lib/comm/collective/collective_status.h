// Which collective a rank is in, told to whoever asks from another thread: for the word about a hang, and for how long
// a rank computes itself beside waiting for others.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/numbers/strong.h"
#include "comm/communicator.h"

namespace scaletrain {

// One of a process; the communicators of all its groups write to it. Thread-safe; every lock is held for a few
// instructions only.
class CollectiveStatus {
 public:
  // Where the calls of one group stand.
  struct Call {
    const char* collective = "";     // "all_reduce"
    std::uint64_t sequence = 0;      // of the group's collectives, or of its exchanges; from 0
    std::vector<std::int64_t> with;  // exchange: the ranks of the world; else empty: all of the group
  };
  struct Group {
    std::string name;  // "data"
    std::vector<Rank> ranks;
  };

  // "group data (ranks 0, 4): all_reduce #17" and the seconds since the rank has been waiting in it; nothing while it
  // is in none.
  struct Wait {
    std::string text;
    double seconds = 0.0;
  };
  std::optional<Wait> wait() const;
  // What the rank's device is in, since then, while its host goes on: a rank whose threads are in no call waits in
  // this. It says nothing of how long the rank computes.
  void device_waits(const Group& group, const Call& call, MonotonicTime since);
  void device_goes_on();
  // In all waits that have ended.
  double waited_seconds() const;

  // The calling thread waits in this call from construction to destruction; they may be nested, the innermost counts.
  // Group and call must outlive it.
  class Scope {
   public:
    Scope(CollectiveStatus& status, const Group& group, const Call& call);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CollectiveStatus& status_;
    const Group* outer_group_;
    const Call* outer_call_;
  };

 private:
  mutable std::mutex mutex_;
  const Group* group_ = nullptr;
  const Call* call_ = nullptr;
  MonotonicTime since_{};
  double waited_seconds_ = 0.0;
  std::optional<std::pair<std::string, MonotonicTime>> device_wait_;
};

// Tells the status of every call and of every wait for a ticket. ranks: of the world, in the order of the group. The
// status must outlive it and its tickets.
std::unique_ptr<Communicator> make_reporting_communicator(std::unique_ptr<Communicator> inner, std::vector<Rank> ranks,
                                                          CollectiveStatus& status);

}  // namespace scaletrain
