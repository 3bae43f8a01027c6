// Whether ranks hang, and which of them is to blame, from what each says of itself again and again.
//
// A hang is one of these:
//   mute      a rank says nothing for a heartbeat: it is stopped, or its machine is
//   still     nobody who works has finished a piece of work (base/process/work_count.h) for a heartbeat. A rank
//             that stands while another moves may only be waiting for it: the bubble of a pipeline, or a peer's
//             longer stage
//   storage   nobody computes, reads or writes for ten heartbeats and the time that what was written since the
//             beginning of the wait may take to reach a slow disk. A save or a start-up may last as long as it goes on
// Only time counts in which the judge itself was running: a machine that slept, or a job that was stopped as a whole
// and continued, is no hang. Pure: used by one thread, which says what time it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "launch/workers/worker_channel.h"

namespace scaletrain {

// Seconds without any activity anywhere after which the storage is taken to be dead: ten heartbeats, within which a
// sync of what the system had not written yet has ended.
constexpr double storage_patience(double heartbeat) {
  return 10 * heartbeat;
}

// How long one rank has been silent.
class Silence {
 public:
  Silence(double longest_tick, MonotonicTime now) : longest_tick_(longest_tick), last_look_(now) {}

  // To be called once per tick. others_wait: another rank is starting up or at its storage, so that this one may stand
  // in a collective for as long as that takes; its lines must keep coming.
  void observe(const WorkerStatus& status, bool others_wait, MonotonicTime now);
  // What it may have waited for has ended: it has a heartbeat again to go on.
  void forgive() { still_ = 0.0; }

  double seconds() const;
  double mute_seconds() const { return mute_; }    // without a line
  double still_seconds() const { return still_; }  // working, without progress
  // Whatever it does: without an instruction, and without anything computed, read or written. 0 where it is not known.
  double idle_seconds() const { return idle_; }
  // What the bytes that it moved since it began to wait may need for the way to a slow disk.
  double writeback_seconds() const;
  const WorkerStatus& seen() const { return seen_; }

 private:
  double longest_tick_;
  MonotonicTime last_look_;
  double mute_ = 0.0;
  double still_ = 0.0;
  double idle_ = 0.0;
  std::uint64_t bytes_before_wait_ = 0;
  WorkerStatus seen_;
};

enum class HangKind { mute, still, storage };

class HangJudge {
 public:
  struct Options {
    double heartbeat = 60.0;    // seconds
    double longest_tick = 1.0;  // between two looks
    // False: somebody else sees the whole world; only a mute rank is judged here.
    bool judges_world = true;
  };
  HangJudge(const Options& options, std::size_t num_ranks, MonotonicTime now = monotonic_now());

  // A look: what each has said last; null for one that has ended or has not begun.
  void observe(const std::vector<const WorkerStatus*>& ranks, MonotonicTime now = monotonic_now());

  struct Verdict {
    std::size_t index = 0;
    HangKind kind = HangKind::still;
    double seconds = 0.0;  // for which the rank has been silent in that way
  };
  // The rank to blame: of ranks that stand, those that still talk may only stand because they wait for the one that
  // does not; those in a collective, for one that is in none; and all, for one that is in a call to its storage.
  std::optional<Verdict> find() const;

  // The smallest over the living, 0 if none lives: how long nobody who works has moved, and how long nobody has done
  // anything, beyond the time that written bytes may need.
  double still_seconds() const;
  double stalled_seconds() const;
  // Who has been in one call to its storage for longest, if anybody is in one.
  std::optional<std::size_t> longest_in_storage() const;

 private:
  std::optional<Verdict> find_mute_or_still() const;

  Options options_;
  std::vector<Silence> silences_;
  std::vector<bool> lives_;
};

}  // namespace scaletrain
