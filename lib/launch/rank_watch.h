// The heartbeat of ranks that a launcher has started: no agent watches them, so they watch each other. A thread of each
// rank says again and again, through the rendezvous, what the rank does; the one of the process that serves the
// rendezvous (rank 0) judges them all as an agent would (hang_judge.h) and tells every rank when they hang. A rank 0
// that itself gives no sign of life is known by its rendezvous, which does not answer for a heartbeat; then each of the
// others says so for itself.
//
//   watch/R      BEAT, then the lines of worker_channel.h; "over" once the rank needs no watching any more
//   watch/hang   what everybody is told
//   watch/heard  how many have heard it
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/key_value_store.h"
#include "launch/hang_judge.h"
#include "launch/slow_ranks.h"
#include "launch/wait_notice.h"
#include "launch/worker_channel.h"

namespace scaletrain {

class RankWatch {
 public:
  struct Options {
    std::int64_t rank = 0;
    std::int64_t world = 1;
    std::int64_t stages = 1;  // of the pipeline
    double heartbeat = 60.0;
    bool judges = false;  // one does: whose process serves the rendezvous, which `connect` then gives without a network
    // A connection of the watch's own, whose requests are answered within a heartbeat or fail; PeerError after so many
    // seconds.
    std::function<std::unique_ptr<KeyValueStore>(double seconds)> connect;
    std::function<WorkerStatus()> status;           // what the rank does; `lines` is not looked at
    std::function<void(const std::string&)> warn;   // the judge's: of slow ranks, and of storage that does not answer
    std::function<void(const std::string&)> hangs;  // the ranks hang, for this reason; called once, the last thing
  };
  // The functions are called by the watch's thread, until the destructor has returned. PeerError if the rendezvous
  // cannot be reached.
  explicit RankWatch(Options options);
  // The rank needs no watching any more. Does not wait for a rendezvous that does not answer for longer than a
  // heartbeat.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // The rank does something else from now on: that is told at once, and not by the next beat. Any thread, never waits.
  void changed();

  // For how long the judge waits for the others to hear of a hang before it ends, and the rendezvous with it.
  static constexpr double hearing_seconds = 3.0;

 private:
  struct Peer {
    std::string text{};
    WorkerStatusParser parser{};
    bool is_over = false;
  };

  void run();
  // Nothing while all is well.
  std::optional<std::string> look();
  std::optional<std::string> judge();
  void wait_for_hearing(std::size_t hung);
  void warn_about_slow_ranks();
  void warn_about_storage();
  // The rendezvous did not answer: nothing if it does now, or has ended.
  std::optional<std::string> judge_rendezvous(double silent_seconds);
  std::string hang_text(const HangJudge::Verdict& hang) const;

  Options options_;
  double period_;
  std::unique_ptr<KeyValueStore> store_;
  std::uint64_t beat_ = 0;

  // The judge's.
  std::vector<Peer> peers_;
  std::optional<HangJudge> judge_;
  std::optional<SlowRanks> slow_ranks_;
  StorageNotice storage_notice_;
  MonotonicTime begin_ = monotonic_now();

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_stopping_ = false;
  bool has_changed_ = false;
  std::thread thread_;
};

}  // namespace scaletrain
