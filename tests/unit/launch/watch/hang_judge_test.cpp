// Which rank is to blame when nobody goes on, by a clock that the test moves.
#include "launch/watch/hang_judge.h"
#include "support/near.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

namespace scaletrain {
namespace {

constexpr double heartbeat = 10.0;

// Ranks that say something each second.
struct JudgedScene {
  explicit JudgedScene(std::size_t num_ranks, bool judges_world = true)
      : ranks(num_ranks),
        lives(num_ranks, true),
        talks(num_ranks, true),
        judge({.heartbeat = heartbeat, .longest_tick = 1.0, .judges_world = judges_world}, num_ranks, now) {
    for (WorkerStatus& rank : ranks) rank.waiting = false;
  }

  // Each second before(...) changes what the ranks are. The first verdict, and after how many seconds.
  template <class Before>
  std::optional<HangJudge::Verdict> run(int seconds, Before before) {
    for (int i = 0; i < seconds; ++i) {
      before();
      now += std::chrono::seconds(1);
      ++elapsed;
      std::vector<const WorkerStatus*> looked;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        if (talks[r]) ++ranks[r].lines;
        looked.push_back(lives[r] ? &ranks[r] : nullptr);
      }
      judge.observe(looked, now);
      if (const auto found = judge.find()) return found;
    }
    return std::nullopt;
  }
  std::optional<HangJudge::Verdict> run(int seconds) {
    return run(seconds, [] {});
  }

  std::vector<WorkerStatus> ranks;
  std::vector<bool> lives;
  std::vector<bool> talks;
  MonotonicTime now{};
  int elapsed = 0;
  HangJudge judge;
};

}  // namespace

TEST_CASE("ranks that stand for a heartbeat hang, one that moves excuses all") {
  JudgedScene still(2);
  const auto hang = still.run(60);
  REQUIRE(hang);
  CHECK(hang->kind == HangKind::still);
  // The first look finds a new state, and counts nothing.
  CHECK(still.elapsed == 11);

  JudgedScene moving(2);
  CHECK_FALSE(moving.run(60, [&] { ++moving.ranks[1].progress; }));
  CHECK(moving.judge.still_seconds() == 0.0);

  JudgedScene elsewhere(2, false);
  CHECK_FALSE(elsewhere.run(60));
  CHECK(elsewhere.judge.still_seconds() == Near(59.0));
}

TEST_CASE("a rank that says nothing is named though others move, and one in no collective before those in one") {
  JudgedScene mute(3, false);
  mute.talks[2] = false;
  const auto hang = mute.run(60, [&] { ++mute.ranks[0].progress; });
  REQUIRE(hang);
  CHECK(hang->index == 2);
  CHECK(hang->kind == HangKind::mute);
  CHECK(mute.elapsed == 10);

  JudgedScene missing(3);
  missing.ranks[0].collective = InCollective{.text = "all_reduce", .seconds = 1.0};
  missing.ranks[2].collective = InCollective{.text = "all_reduce", .seconds = 1.0};
  const auto missed = missing.run(60);
  REQUIRE(missed);
  CHECK(missed->index == 1);
}

TEST_CASE("a rank that ends gives the others a heartbeat more, and is not judged itself") {
  JudgedScene scene(2);
  CHECK_FALSE(scene.run(8));
  scene.lives[0] = false;
  const auto hang = scene.run(60);
  REQUIRE(hang);
  CHECK(hang->index == 1);
  CHECK(scene.elapsed == 18);
}

TEST_CASE("a judge that stood still itself takes nobody for hung") {
  JudgedScene scene(2);
  CHECK_FALSE(scene.run(5));
  scene.now += std::chrono::hours(3);
  CHECK_FALSE(scene.run(1));
}

TEST_CASE("a wait for storage lasts as long as something is read, written or computed anywhere") {
  JudgedScene scene(2);
  for (WorkerStatus& rank : scene.ranks) {
    rank.waiting = true;
    rank.storage = InStorage{};
  }
  int second = 0;
  // Each beat comes just before ten heartbeats are over.
  CHECK_FALSE(scene.run(900, [&] {
    if (++second % 95 == 0) ++scene.ranks[0].storage->activity;
  }));
  CHECK(scene.judge.stalled_seconds() < storage_patience(heartbeat));
}

TEST_CASE("storage that answers nobody for ten heartbeats is a hang of the rank that is in a call to it") {
  JudgedScene scene(3);
  for (WorkerStatus& rank : scene.ranks) {
    rank.waiting = true;
    rank.storage = InStorage{};
  }
  scene.ranks[1].storage->text = "fsync of x";
  const auto hang = scene.run(200, [&] { scene.ranks[1].storage->seconds += 1.0; });
  REQUIRE(hang);
  CHECK(hang->kind == HangKind::storage);
  CHECK(hang->index == 1);
  CHECK(scene.elapsed == 100);
  CHECK(scene.judge.longest_in_storage() == 1u);

  // Whose share of a larger world it is leaves that to others.
  JudgedScene share(1, false);
  share.ranks[0].waiting = true;
  share.ranks[0].storage = InStorage{};
  CHECK_FALSE(share.run(200));
  CHECK(share.judge.stalled_seconds() >= storage_patience(heartbeat));
}

TEST_CASE("what was written since the wait began has its time to reach a slow disk") {
  JudgedScene scene(1);
  scene.ranks[0].storage = InStorage{.bytes = 5};
  CHECK_FALSE(scene.run(1));
  scene.ranks[0].waiting = true;
  CHECK_FALSE(scene.run(1));
  // 1 GB at 10 MB/s: 100 s more.
  scene.ranks[0].storage->bytes += 1'000'000'000;
  scene.ranks[0].storage->activity += 1;
  const int begin = scene.elapsed;
  CHECK(scene.run(400));
  CHECK(scene.elapsed - begin >= 200);
  CHECK(scene.elapsed - begin <= 203);
}

TEST_CASE("a rank that cannot tell what it reads and writes may wait for ever") {
  JudgedScene scene(1);
  scene.ranks[0].waiting = true;
  CHECK_FALSE(scene.run(2000));
}

}  // namespace scaletrain
