#include "comm/rendezvous/memory_store.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/in_process/world.h"

using namespace scaletrain;

TEST_CASE("a_store_keeps_replaces_and_removes_values") {
  MemoryStore store;
  CHECK(!store.find("a").has_value());
  store.set("a", std::string("x\0y", 3));
  CHECK(store.find("a") == std::string("x\0y", 3));
  store.set("a", "");
  CHECK(store.find("a") == std::string());
  CHECK(store.find_within("a", 0) == std::string());
  store.remove("a");
  store.remove("a");
  CHECK(!store.find("a").has_value());
}

TEST_CASE("sums_of_all_threads_are_kept") {
  MemoryStore store;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) store.add("count", 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(store.add("count", -6000) == 0);
  CHECK(store.find("count") == std::string("0"));
}

TEST_CASE("what_is_no_sum_is_refused_unchanged") {
  MemoryStore store;
  store.set("text", "12a");
  CHECK(!store.try_add("text", 1).has_value());
  CHECK(store.find("text") == std::string("12a"));
  CHECK_THROWS_AS(store.add("text", 1), BugError);
  store.set("text", "9223372036854775807");
  CHECK(!store.try_add("text", 1).has_value());
  CHECK(store.try_add("text", -1) == 9223372036854775806);
  CHECK_THROWS_AS(store.set(std::string(257, 'k'), ""), BugError);
  CHECK_THROWS_AS(store.set("k", std::string((std::size_t{16} << 20) + 1, 'v')), BugError);
}

TEST_CASE("waiting_for_a_key_ends_with_its_value_the_deadline_or_the_stores_end") {
  MemoryStore store;
  std::optional<std::string> got;
  std::thread waiter([&] { got = store.find_within("late", 60); });
  store.set("other", "1");
  store.set("late", "2");
  waiter.join();
  CHECK(got == std::string("2"));
  CHECK_FALSE(store.find_within("never", 0.05).has_value());
  std::string reason;
  std::thread closed([&] {
    try {
      store.find_within("never", 60);
    } catch (const PeerError& error) {
      reason = error.what();
    }
  });
  store.close("rank 0 is gone");
  store.close("a later reason");
  closed.join();
  CHECK(reason == "the store was closed while waiting for the key never: rank 0 is gone");
  CHECK(store.find_within("late", 60) == std::string("2"));
}

TEST_CASE("the_ranks_of_a_world_share_one_store_until_one_fails") {
  InProcessWorld world(2);
  auto first = world.make_store();
  auto second = world.make_store();
  first->set("a", "1");
  CHECK(second->wait("a", 0) == "1");
  CHECK_THROWS_WITH_AS(second->wait("never", 0.05),
                       "waited 0.05 s for the key never in the store; the rank that sets it is dead or stuck",
                       PeerError);
  CHECK(second->add("a", 2) == 3);
  CHECK(first->find("a") == std::string("3"));
  second->remove("a");
  CHECK(!first->find("a").has_value());
  world.fail(Rank(1), "it was ended");
  CHECK_THROWS_AS(first->wait("a", 60), PeerError);
}
