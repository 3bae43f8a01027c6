// Whether this process gets any further where it executes no instructions of a schedule: while it starts up, saves, or
// waits for either. What counts is what the kernel counts of it: bytes read and written by its threads, and their
// processor time. When none of that moves, the threads are looked at for one that is inside a call to a file.
//
// A process that only waits moves a little all the same: its threads wake up to look whether a peer has come, and a
// lock is renewed. So it counts how much was moved within ten seconds, not since the beginning.
//
// That is told of calls that the storage does not answer: the kernel lets nobody interrupt them, and no deadline of
// ours ends them. A sync that takes long moves nothing either; how long one may take, who asks has to know.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace scaletrain {

// What this process does beside executing instructions.
struct InStorage {
  std::uint64_t activity = 0;  // moves while it computes, reads or writes
  std::uint64_t bytes = 0;     // read and written so far
  // The call to the storage in which one of its threads has been for so long, when nothing else moves; empty: none.
  std::string text{};
  double seconds = 0.0;
};

// Tells what comes to something from what trickles while a process only waits, however long it goes on.
class ActivityMeter {
 public:
  // window: seconds within which what is moved must come to something.
  explicit ActivityMeter(double window, MonotonicTime begin = monotonic_now())
      : window_seconds_(window), window_{.begin = begin} {}

  // Bytes and nanoseconds of processor time so far; less than before stands for none since. Of a call that comes after
  // the window was over, as much more is asked as it is late.
  bool has_moved(std::uint64_t bytes, std::uint64_t nanoseconds, MonotonicTime now);

 private:
  // Where the counters stood when the window under way began.
  struct Window {
    std::uint64_t bytes = 0;
    std::uint64_t nanoseconds = 0;
    MonotonicTime begin;
  };
  double window_seconds_;
  Window window_;
};

// Used by one thread, whose own reading and processor time do not count.
class StorageProbe {
 public:
  // window: see ActivityMeter.
  explicit StorageProbe(double window = 10.0) : meter_(window) {}

  // Two looks or more after everything stood still, with a call that was the same at the last look, of several the one
  // that was seen first; before that its text is empty. Nothing where the kernel does not count bytes (no
  // /proc/self/io).
  std::optional<InStorage> look();

  // Nothing is looked for before it has been still for so long.
  static constexpr double still_seconds = 2.0;

 private:
  // A thread's call, told from the next one of its kind by nothing but that something moved in between.
  struct Call {
    pid_t thread = 0;
    std::int64_t number = -1;
    std::uint64_t file = 0;
    bool operator==(const Call&) const = default;
  };
  struct Found {
    Call call;
    std::string text;
    int looks = 1;  // in a row that have seen it
  };
  static std::vector<Found> find_calls();

  ActivityMeter meter_;
  std::uint64_t bytes_ = 0;
  std::uint64_t activity_ = 0;
  MonotonicTime moved_ = monotonic_now();
  std::vector<Found> last_;
};

}  // namespace scaletrain
