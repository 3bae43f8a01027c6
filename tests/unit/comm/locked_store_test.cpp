// One store for several threads.
#include "comm/rendezvous/locked_store.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "comm/in_process/world.h"

using namespace scaletrain;

namespace {

// As a connection is: broken by two calls at once, and counts them.
class OneAtATime final : public KeyValueStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    const Visit visit(*this);
    store_->set(key, value);
  }
  std::optional<std::string> find(const std::string& key) override {
    const Visit visit(*this);
    return store_->find(key);
  }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    const Visit visit(*this);
    return store_->find_within(key, seconds);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const Visit visit(*this);
    return store_->add(key, amount);
  }
  void remove(const std::string& key) override {
    const Visit visit(*this);
    store_->remove(key);
  }
  bool was_broken() const { return broken_; }

 private:
  struct Visit {
    explicit Visit(OneAtATime& to) : store(to) {
      if (++store.inside_ > 1) store.broken_ = true;
    }
    ~Visit() { --store.inside_; }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    OneAtATime& store;
  };

  InProcessWorld world_{1};
  std::unique_ptr<KeyValueStore> store_ = world_.make_store();
  std::atomic<int> inside_{0};
  std::atomic<bool> broken_{false};
};

}  // namespace

TEST_CASE("calls_of_several_threads_reach_the_store_one_by_one") {
  OneAtATime below;
  LockedStore store(below);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&store, i] {
      const std::string own = "key " + std::to_string(i);
      for (int round = 0; round < 200; ++round) {
        store.add("sum", 1);
        store.set(own, std::to_string(round));
        store.find(own);
        store.find_within(own, 1.0);
        store.remove(own);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(below.was_broken());
  CHECK(store.add("sum", 0) == 800);
}

// Without slices the wait would hold the lock, and nobody could set the key that it waits for.
TEST_CASE("a_thread_that_waits_for_a_key_leaves_room_for_the_one_that_sets_it") {
  OneAtATime below;
  LockedStore store(below);
  std::optional<std::string> found;
  std::thread waiting([&] { found = store.find_within("word", 60.0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  store.set("word", "given");
  waiting.join();
  CHECK(found == "given");
  CHECK_FALSE(below.was_broken());
  CHECK_FALSE(store.find_within("nothing", 0.3).has_value());
}
