// Launched ranks that watch each other, as threads over one store.
#include "launch/rank_watch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/in_process/world.h"
#include "launch/crew_verdict.h"
#include "test_tools.h"

namespace scaletrain {
namespace {

// A store whose server is stopped: it answers nothing until it has waited for so long.
class SilentStore final : public KeyValueStore {
 public:
  SilentStore(std::unique_ptr<KeyValueStore> inner, const std::atomic<bool>& is_silent, double seconds)
      : inner_(std::move(inner)), is_silent_(is_silent), seconds_(seconds) {}
  void set(const std::string& key, const std::string& value) override {
    answer();
    inner_->set(key, value);
  }
  std::optional<std::string> find(const std::string& key) override {
    answer();
    return inner_->find(key);
  }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    answer();
    return inner_->find_within(key, seconds);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    answer();
    return inner_->add(key, amount);
  }
  void remove(const std::string& key) override { inner_->remove(key); }

 private:
  void answer() const {
    const MonotonicTime begin = monotonic_now();
    while (is_silent_ && seconds_since(begin) < seconds_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (is_silent_) throw PeerError("no answer");
  }

  std::unique_ptr<KeyValueStore> inner_;
  const std::atomic<bool>& is_silent_;
  double seconds_;
};

struct Ranks {
  explicit Ranks(std::int64_t world, double heartbeat) : store(1), ranks(static_cast<std::size_t>(world)) {
    for (std::int64_t i = 0; i < world; ++i) begin(i, world, heartbeat);
  }
  void begin(std::int64_t i, std::int64_t world, double heartbeat) {
    Rank* const rank = &ranks[static_cast<std::size_t>(i)];
    rank->watch = std::make_unique<RankWatch>(
        RankWatch::Options{.rank = i,
                           .world = world,
                           .heartbeat = heartbeat,
                           .judges = i == 0,
                           .connect = [this, i, heartbeat](double) -> std::unique_ptr<KeyValueStore> {
                             if (i == 0) return store.make_store();
                             if (is_silent) throw PeerError("no answer");
                             return std::make_unique<SilentStore>(store.make_store(), is_silent, heartbeat);
                           },
                           .status =
                               [this, rank] {
                                 // One that is stopped says nothing more.
                                 while (rank->is_stopped) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                 WorkerStatus status;
                                 status.step = 17;
                                 status.waiting = rank->is_waiting;
                                 status.progress = rank->is_moving ? ++rank->progress : rank->progress.load();
                                 if (!rank->is_moving)
                                   status.collective = InCollective{.text = "group data: all_reduce #3"};
                                 status.storage = InStorage{};
                                 if (rank->is_in_storage)
                                   status.storage = {.text = "fsync of x", .seconds = seconds_since(begun)};
                                 return status;
                               },
                           .warn = [this](const std::string& text) { note(text); },
                           .hangs =
                               [this, rank](const std::string& text) {
                                 note(text);
                                 rank->has_hung = true;
                               }});
  }
  void note(const std::string& text) {
    const std::lock_guard lock(mutex);
    notes.push_back(text);
  }
  bool noted(const std::string& text) {
    const std::lock_guard lock(mutex);
    return std::any_of(notes.begin(), notes.end(),
                       [&text](const std::string& note) { return note.find(text) != std::string::npos; });
  }
  std::string last_note() {
    const std::lock_guard lock(mutex);
    return notes.empty() ? "" : notes.back();
  }

  struct Rank {
    std::atomic<bool> is_moving{true};
    std::atomic<bool> is_waiting{false};
    std::atomic<bool> is_in_storage{false};
    std::atomic<bool> is_stopped{false};
    std::atomic<bool> has_hung{false};
    std::atomic<std::uint64_t> progress{0};
    std::unique_ptr<RankWatch> watch;
  };
  const MonotonicTime begun = monotonic_now();
  InProcessWorld store;
  std::atomic<bool> is_silent{false};
  std::mutex mutex;
  std::vector<std::string> notes;
  std::deque<Rank> ranks;
};

// Ranks whose storage does not answer: they need ten heartbeats, in which the other tests are done.
std::unique_ptr<Ranks>& ranks_at_dead_storage() {
  static std::unique_ptr<Ranks> ranks;
  if (ranks == nullptr) {
    ranks = std::make_unique<Ranks>(2, 2.0);
    ranks->ranks[1].is_in_storage = true;
    for (auto& rank : ranks->ranks) {
      rank.is_waiting = true;
      rank.is_moving = false;
    }
  }
  return ranks;
}

}  // namespace

TEST_CASE("launched ranks come to storage that does not answer, to be looked at by the last of these tests") {
  ranks_at_dead_storage();
}

TEST_CASE("of launched ranks a stopped one is named to all others, with what they wait in") {
  Ranks ranks(3, 3.0);
  // Who is stopped before it has said anything has not begun.
  REQUIRE(eventually([&] { return ranks.ranks[1].progress >= 3; }, 60.0));
  ranks.ranks[0].is_moving = false;
  ranks.ranks[2].is_moving = false;
  ranks.ranks[1].is_stopped = true;
  CHECK(eventually([&] { return ranks.ranks[0].has_hung && ranks.ranks[2].has_hung; }, 60.0));
  const std::string text = ranks.last_note();
  CAPTURE(text);
  CHECK(text.find("rank 1 gave no sign of life for ") == 0);
  CHECK(text.find("rank 0 waits in group data: all_reduce #3, and 1 more wait") != std::string::npos);
  ranks.ranks[1].is_stopped = false;
  CHECK(eventually([&] { return ranks.ranks[1].has_hung.load(); }, 60.0));
}

TEST_CASE("launched ranks that move, start up or have finished are left alone") {
  constexpr double heartbeat = 4.0;
  // Rank 0 moves, rank 1 does not, rank 2 has finished.
  Ranks working(3, heartbeat);
  working.ranks[1].is_moving = false;
  working.ranks[2].watch.reset();
  Ranks starting(3, heartbeat);
  for (auto& rank : starting.ranks) {
    rank.is_waiting = true;
    rank.is_moving = false;
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(1.4 * heartbeat));
  for (Ranks* const ranks : {&working, &starting}) {
    CAPTURE(ranks->last_note());
    for (auto& rank : ranks->ranks) CHECK_FALSE(rank.has_hung);
  }
}

TEST_CASE("launched ranks whose rendezvous does not answer for a heartbeat name rank 0") {
  Ranks ranks(2, 2.0);
  REQUIRE(eventually([&] { return ranks.ranks[0].progress >= 2 && ranks.ranks[1].progress >= 2; }, 60.0));
  // Its whole process stands: it judges nobody.
  ranks.ranks[0].is_stopped = true;
  ranks.is_silent = true;
  CHECK(eventually([&] { return ranks.ranks[1].has_hung.load(); }, 60.0));
  const std::string text = ranks.last_note();
  CAPTURE(text);
  CHECK(text.find("rank 0, which serves the rendezvous, gave no sign of life for ") == 0);
  CHECK(text.find("rank 1 is in no collective at step 17") != std::string::npos);
  ranks.ranks[0].is_stopped = false;
}

TEST_CASE("launched ranks whose storage does not answer are warned about it, and end after ten heartbeats") {
  const std::unique_ptr<Ranks> ranks = std::move(ranks_at_dead_storage());
  CHECK(eventually([&] { return ranks->ranks[0].has_hung && ranks->ranks[1].has_hung; }, 120.0));
  CHECK(ranks->noted("rank 1 has been in fsync of x for "));
  CHECK(ranks->noted("the storage does not answer"));
  const std::string text = ranks->last_note();
  CAPTURE(text);
  CHECK(text.find("rank 1 has been in fsync of x while nobody") == 0);
}

}  // namespace scaletrain
