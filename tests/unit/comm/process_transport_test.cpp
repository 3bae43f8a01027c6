#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <span>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "comm/deadline.h"
#include "comm/gloo/wait_watch.h"
#include "comm/process/peer_meeting.h"
#include "network_world.h"
#include "support/refused_files.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

struct CountingTarget final : WaitWatch::Target {
  void wake() override { ++count; }
  std::atomic<int> count{0};
};

// Counts the values that a member waits for and gets, and their bytes.
class CountingStore final : public KeyValueStore {
 public:
  explicit CountingStore(std::unique_ptr<KeyValueStore> inner) : inner_(std::move(inner)) {}
  void set(const std::string& key, const std::string& value) override {
    keys.push_back(key);
    inner_->set(key, value);
  }
  std::optional<std::string> find(const std::string& key) override { return inner_->find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    auto value = inner_->find_within(key, seconds);
    values += value.has_value();
    bytes += value.value_or("").size();
    return value;
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return inner_->add(key, amount); }
  void remove(const std::string& key) override { inner_->remove(key); }

  std::vector<std::string> keys;  // set
  int values = 0;
  std::size_t bytes = 0;

 private:
  std::unique_ptr<KeyValueStore> inner_;
};

}  // namespace

TEST_CASE("a member reads one address of each member before it in the group, and leaves nothing in the store") {
  std::size_t bytes_of_one = 0;
  for (const int num_ranks : {2, 6}) {
    InProcessWorld world(num_ranks);
    std::vector<std::unique_ptr<CountingStore>> stores;
    stores.reserve(static_cast<std::size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank) stores.push_back(std::make_unique<CountingStore>(world.make_store()));
    // They live until all are connected.
    std::vector<std::unique_ptr<ProcessNetwork>> networks(stores.size());
    std::vector<std::unique_ptr<Transport>> transports(stores.size());
    const auto errors = run_each(num_ranks, [&](int rank) {
      const auto index = static_cast<std::size_t>(rank);
      networks[index] = make_network();
      transports[index] =
          networks[index]->connect(*stores[index], "data", world_ranks(num_ranks), Rank(10 + rank), 60.0);
    });
    for (const auto& error : errors) REQUIRE(error == "");
    if (num_ranks == 2) bytes_of_one = stores[1]->bytes;
    CHECK(bytes_of_one > 0);
    for (std::size_t place = 0; place < stores.size(); ++place) {
      const auto& store = stores[place];
      CHECK(store->values == static_cast<int>(place));
      CHECK(store->bytes == bytes_of_one * place);
      for (const std::string& key : store->keys) CHECK_FALSE(stores[0]->find(key).has_value());
    }
  }
}

TEST_CASE("the watch wakes each target once, when its moment has come, and no removed one") {
  WaitWatch watch;
  CountingTarget soon;
  CountingTarget later;
  CountingTarget removed;
  const MonotonicTime start = monotonic_now();
  const MonotonicTime far = start + std::chrono::hours(1);
  watch.add(later, far);
  watch.add(removed, start + std::chrono::milliseconds(60));
  watch.remove(removed, start + std::chrono::milliseconds(60));
  const int before_removal = removed.count;                // if this thread was held up
  watch.add(soon, start + std::chrono::milliseconds(30));  // earlier than what the thread sleeps towards
  while (soon.count == 0 && seconds_since(start) < 60.0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(seconds_since(start) >= 0.03);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  CHECK(soon.count == 1);
  CHECK(later.count == 0);
  CHECK(removed.count == before_removal);
}

TEST_CASE_TEMPLATE("messages of any size arrive, matched by tag, in both directions at once", Ways, ByMemory, ByTcp,
                   ByBoth) {
  const std::vector<std::size_t> sizes{0, 1, 1000, 5 << 20, 0, 48};
  constexpr int num_ranks = 3;
  NetworkWorld<Ways> world(num_ranks);
  for (const auto& error : world.errors) REQUIRE(error == "");
  std::atomic<int> differences{0};
  const auto errors = run_each(num_ranks, [&](int rank) {
    Transport& transport = world.rank(rank);
    std::vector<Bytes> sent;
    std::vector<Bytes> received;
    std::vector<Bytes> expected;
    std::vector<std::unique_ptr<Transport::Pending>> pending;
    sent.reserve(100);
    received.reserve(100);
    const MonotonicTime deadline = deadline_after(60.0);
    for (int peer = 0; peer < num_ranks; ++peer) {
      if (peer == rank) continue;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const auto seed = [&](int from, int to) {
          return static_cast<unsigned>(i) * 9 + static_cast<unsigned>(from * 3 + to);
        };
        sent.push_back(content(sizes[i], seed(rank, peer)));
        pending.push_back(transport.send(peer, i, sent.back()));
        // Received in the opposite order of sending.
        const std::size_t other = sizes.size() - 1 - i;
        received.emplace_back(sizes[other]);
        expected.push_back(
            content(sizes[other], static_cast<unsigned>(other) * 9 + static_cast<unsigned>(peer * 3 + rank)));
        pending.push_back(transport.receive(peer, other, received.back()));
      }
    }
    for (auto& one : pending) {
      if (!one->wait_until(deadline)) throw PeerError("a message did not come");
    }
    for (std::size_t i = 0; i < received.size(); ++i) differences += received[i] != expected[i];
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(differences == 0);
}

TEST_CASE_TEMPLATE("several threads post and wait on one transport", Ways, ByMemory, ByTcp, ByBoth) {
  constexpr int num_threads = 4;
  constexpr int messages = 100;
  NetworkWorld<Ways> world(2);
  std::atomic<int> differences{0};
  const auto errors = run_each(2 * num_threads, [&](int index) {
    const int rank = index % 2;
    const auto thread = static_cast<std::uint64_t>(index / 2);
    for (std::uint64_t i = 0; i < messages; ++i) {
      const std::uint64_t tag = thread * messages + i;
      const Bytes mine = content(100 + i, static_cast<unsigned>(tag) * 2 + static_cast<unsigned>(rank));
      Bytes theirs(100 + i);
      const auto receive = world.rank(rank).receive(1 - rank, tag, theirs);
      const auto send = world.rank(rank).send(1 - rank, tag, mine);
      const MonotonicTime deadline = deadline_after(60.0);
      if (!receive->wait_until(deadline) || !send->wait_until(deadline)) throw PeerError("late");
      differences += theirs != content(100 + i, static_cast<unsigned>(tag) * 2 + static_cast<unsigned>(1 - rank));
    }
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(differences == 0);
}

TEST_CASE_TEMPLATE("a wait that ends at its deadline leaves the message and the others as they are", Ways, ByMemory,
                   ByTcp, ByBoth) {
  NetworkWorld<Ways> world(3);
  Bytes late(100);
  Bytes other(100);
  const auto receive = world.rank(0).receive(1, 0, late);
  const auto receive_other = world.rank(0).receive(2, 0, other);
  const MonotonicTime start = monotonic_now();
  CHECK_FALSE(receive->wait_until(deadline_after(0.1)));
  CHECK(seconds_since(start) >= 0.1);
  CHECK_FALSE(receive->wait_until(start));  // a moment that has passed
  const Bytes from_one = content(100, 1);
  const Bytes from_two = content(100, 2);
  const auto send_other = world.rank(2).send(0, 0, from_two);
  CHECK(receive_other->wait_until(deadline_after(60.0)));
  const auto send = world.rank(1).send(0, 0, from_one);
  CHECK(receive->wait_until(deadline_after(60.0)));
  CHECK(late == from_one);
  CHECK(other == from_two);
  CHECK(send->wait_until(deadline_after(60.0)));
  CHECK(send_other->wait_until(deadline_after(60.0)));
}

TEST_CASE_TEMPLATE("a message that has come is complete at a deadline that has passed", Ways, ByMemory, ByTcp, ByBoth) {
  NetworkWorld<Ways> world(2);
  Bytes received(1000);
  Bytes last(1);
  const Bytes data = content(1000, 3);
  const auto receive = world.rank(0).receive(1, 0, received);
  const auto receive_last = world.rank(0).receive(1, 1, last);
  const auto send = world.rank(1).send(0, 0, data);
  const auto send_last = world.rank(1).send(0, 1, std::span(data).first(1));
  CHECK(receive_last->wait_until(deadline_after(60.0)));  // the first came before it
  CHECK(receive->wait_until(monotonic_now() - std::chrono::seconds(1)));
  CHECK(received == data);
  CHECK(receive->wait_until(monotonic_now()));  // asked again
}

TEST_CASE_TEMPLATE("a peer that is gone is a PeerError that names its rank in the world", Ways, ByMemory, ByTcp,
                   ByBoth) {
  NetworkWorld<Ways> world(3);
  const Bytes data = content(1000, 1);
  Bytes received(1000);
  Bytes received_from_one(1000);
  const auto receive = world.rank(0).receive(2, 0, received);
  const auto send = world.rank(0).send(2, 0, data);
  const auto from_one = world.rank(0).receive(1, 0, received_from_one);
  world.transports[2].reset();
  const std::string message = message_of<PeerError>([&] { receive->wait_until(deadline_after(600.0)); });
  CHECK(contains(message, "rank 12"));
  CHECK(contains(message, "lost"));
  CHECK(contains(message_of<PeerError>([&] { send->wait_until(deadline_after(600.0)); }), "rank 12"));
  CHECK(
      contains(message_of<PeerError>([&] { world.rank(0).receive(2, 1, received)->wait_until(deadline_after(600.0)); }),
               "rank 12"));
  CHECK(contains(message_of<PeerError>([&] { world.rank(0).send(2, 1, data)->wait_until(deadline_after(600.0)); }),
                 "rank 12"));
  // The connection with the other rank is as before.
  CHECK_FALSE(from_one->wait_until(deadline_after(0.01)));
  const auto to_zero = world.rank(1).send(0, 0, data);
  CHECK(from_one->wait_until(deadline_after(60.0)));
}

TEST_CASE_TEMPLATE("a peer that goes in the middle of a message is seen by receiver and sender", Ways, ByMemory, ByTcp,
                   ByBoth) {
  constexpr std::size_t large = std::size_t{64} << 20;
  NetworkWorld<Ways> world(2);
  const Bytes source(large);
  Bytes target(large);
  SUBCASE("the sender goes") {
    auto receive = world.rank(0).receive(1, 0, target);
    auto send = world.rank(1).send(0, 0, source);
    send.reset();
    world.transports[1].reset();
    const std::string message = message_of<PeerError>([&] { receive->wait_until(deadline_after(600.0)); });
    // It may have come whole on a machine that was busy elsewhere; then nothing was lost.
    if (message.empty())
      CHECK(receive->wait_until(monotonic_now()));
    else
      CHECK(contains(message, "rank 11"));
  }
  SUBCASE("the receiver goes") {
    auto send = world.rank(0).send(1, 0, source);
    auto receive = world.rank(1).receive(0, 0, target);
    receive.reset();
    world.transports[1].reset();
    const std::string message = message_of<PeerError>([&] { send->wait_until(deadline_after(600.0)); });
    // As above.
    if (message.empty())
      CHECK(send->wait_until(monotonic_now()));
    else
      CHECK(contains(message, "rank 11"));
  }
}

TEST_CASE_TEMPLATE("the last message before a peer leaves is received", Ways, ByMemory, ByTcp, ByBoth) {
  for (int round = 0; round < 10; ++round) {
    NetworkWorld<Ways> world(2);
    const Bytes data = content(300000, static_cast<unsigned>(round));
    Bytes received(data.size());
    const auto receive = world.rank(0).receive(1, 0, received);
    {
      const auto send = world.rank(1).send(0, 0, data);
      REQUIRE(send->wait_until(deadline_after(60.0)));
    }
    world.transports[1].reset();
    REQUIRE(receive->wait_until(deadline_after(60.0)));
    CHECK((received == data));
  }
}

TEST_CASE_TEMPLATE("memory of a message that was given up is not touched", Ways, ByMemory, ByTcp, ByBoth) {
  NetworkWorld<Ways> world(2);
  Bytes memory(1000, std::byte{0x55});
  auto receive = world.rank(0).receive(1, 0, memory);
  CHECK_FALSE(receive->wait_until(deadline_after(0.05)));  // the sender has learned of it
  receive.reset();
  const Bytes data = content(1000, 1);
  const auto send = world.rank(1).send(0, 0, data);
  // By TCP it is on its way; through memory it waits for a receive.
  CHECK(send->wait_until(deadline_after(Ways::uses_memory(0) ? 0.05 : 60.0)) != Ways::uses_memory(0));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(std::count(memory.begin(), memory.end(), std::byte{0x55}) == 1000);
}

TEST_CASE_TEMPLATE("messages given up at once, as fast as they are posted, leave the connection whole", Ways, ByMemory,
                   ByTcp, ByBoth) {
  NetworkWorld<Ways> world(2);
  Bytes memory(100);
  for (std::uint64_t tag = 0; tag < 200; ++tag) world.rank(0).receive(1, tag, memory).reset();
  const Bytes data = content(100, 1);
  const auto receive = world.rank(0).receive(1, 1000, memory);
  const auto send = world.rank(1).send(0, 1000, data);
  CHECK(receive->wait_until(deadline_after(60.0)));
  CHECK(send->wait_until(deadline_after(60.0)));
  CHECK(memory == data);
}

TEST_CASE_TEMPLATE("stopping a transport ends the waits of other threads", Ways, ByMemory, ByTcp, ByBoth) {
  NetworkWorld<Ways> world(2);
  Bytes memory(10);
  std::string message;
  const auto receive = world.rank(0).receive(1, 0, memory);
  std::thread waiting([&] { message = message_of<PeerError>([&] { receive->wait_until(deadline_after(600.0)); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  world.rank(0).stop();
  world.rank(0).stop();
  waiting.join();
  CHECK(contains(message, "stopped"));
}

TEST_CASE("a member that does not come is named with the group") {
  InProcessWorld stores(3);
  std::latch both(2);  // so that each meets the other's address in time
  const auto errors = run_each(2, [&](int rank) {
    const auto network = make_network();
    both.arrive_and_wait();
    network->connect(*stores.make_store(), "tensor 0", world_ranks(3), Rank(10 + rank), 1.5);
  });
  for (const auto& error : errors) {
    CHECK(contains(error, "tensor 0"));
    CHECK(contains(error, "rank 12"));
  }
}

TEST_CASE("one device serves several groups, and a group of one") {
  InProcessWorld stores(2);
  const auto errors = run_each(2, [&](int rank) {
    const auto network = make_network();
    const auto store = stores.make_store();
    const auto alone = network->connect(*store, "alone " + std::to_string(rank), {Rank(rank)}, Rank(rank), 60.0);
    if (alone->size() != 1) throw PeerError("not alone");
    const auto first = network->connect(*store, "first", {Rank(0), Rank(1)}, Rank(rank), 60.0);
    const auto second = network->connect(*store, "second", {Rank(1), Rank(0)}, Rank(rank), 60.0);
    if (second->rank() != 1 - rank) throw PeerError("the order of the group");
    // The same tag in both.
    const Bytes one = content(10, 1);
    const Bytes two = content(10, 2);
    Bytes from_first(10);
    Bytes from_second(10);
    std::vector<std::unique_ptr<Transport::Pending>> pending;
    pending.push_back(first->receive(1 - rank, 0, from_first));
    pending.push_back(second->receive(rank, 0, from_second));
    pending.push_back(second->send(rank, 0, two));
    pending.push_back(first->send(1 - rank, 0, one));
    for (auto& message : pending) {
      if (!message->wait_until(deadline_after(60.0))) throw PeerError("late");
    }
    if (from_first != one || from_second != two) throw PeerError("the groups are mixed up");
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("addresses that this host cannot bind are refused by name") {
  CHECK(contains(message_of<PeerError>([] { make_network(true, "localhost"); }), "\"localhost\""));
  CHECK(contains(message_of<PeerError>([] { make_network(true, ""); }), "numeric"));
  CHECK(contains(message_of<PeerError>([] { make_network(true, "192.0.2.1"); }), "192.0.2.1"));
}

TEST_CASE("a member that finds no descriptor names the limit of its process and its group, and waits for nobody" *
          doctest::skip(!descriptors_may_run_out)) {
  InProcessWorld stores(2);
  const auto store = stores.make_store();
  for (const rlim_t free : {0, 1}) {  // an epoll and a listening socket are needed
    CAPTURE(free);
    std::string message;
    {
      const DescriptorLimit limit(free);
      try {
        meet_peers(*store, {.name = "data",
                            .members = world_ranks(2),
                            .own = 0,
                            .address = "127.0.0.1",
                            .secret = job_secret,
                            .seconds = 60.0});
      } catch (const UserError& error) {
        message = error.what();
      }
    }
    CHECK(message.starts_with("group data: "));
    CHECK(contains(message, "Too many open files; RLIMIT_NOFILE (ulimit -n)"));
  }
}
