// Waits of a rank's start-up that end early.
#include "comm/rendezvous/watched_store.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <string>

#include "base/error.h"
#include "comm/in_process/world.h"
#include "comm/rendezvous/rendezvous.h"
#include "train/start/start_up.h"

namespace scaletrain {

TEST_CASE("a start-up that may wait a day ends when a rank is gone or this one is to leave") {
  InProcessWorld world(3);
  const auto store = world.make_store();
  std::atomic<bool> interrupted{false};
  WatchedStore watched(*store, {.interrupted = [&] { return interrupted.load(); }});
  StartUp start_up({.rank = Rank(0), .world = 3, .local_rank = 1, .rendezvous = &watched}, 0);
  std::string reason;
  const auto ended = [&](const std::function<void()>& wait) {
    try {
      wait();
    } catch (const PeerError& error) {
      reason = error.what();
    }
  };
  SUBCASE("gone before the data is open") {
    store->set(lost_member_key, "1");  // as the server does, see rendezvous.h
    ended([&] { start_up.first_on_host([](const std::string&) { return std::string(); }); });
    CHECK(reason.find("rank 1 is gone") == 0);
  }
  SUBCASE("gone before all have arrived") {
    store->set(lost_member_key, "1");
    ended([&] { start_up.wait_for_all(); });
    CHECK(reason.find("rank 1 is gone") == 0);
  }
  SUBCASE("asked to leave") {
    interrupted = true;
    ended([&] { start_up.wait_for_all(); });
    CHECK(reason.find("interrupted while waiting") == 0);
    CHECK(watched.was_interrupted());
  }
}

}  // namespace scaletrain
