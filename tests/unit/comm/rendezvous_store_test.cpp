#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/rendezvous/memory_store.h"
#include "comm/rendezvous/rendezvous.h"
#include "support/held_port.h"
#include "support/refused_files.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

const std::string store_secret = "0123456789abcdef";

}  // namespace

// The expected text by Python's hmac and hashlib.
TEST_CASE("a_secret_for_one_purpose_follows_from_the_jobs_and_its_salt") {
  CHECK(derived_secret("the job's secret", "salt") ==
        "90468977b05075b42be316783c8a08b2e973a9f9654036d2148eed03e73f3866");
  CHECK(derived_secret("the job's secret", "sald") != derived_secret("the job's secret", "salt"));
}

TEST_CASE("a store over TCP sets, finds, replaces, adds and removes") {
  RendezvousServer server({.secret = store_secret});
  const auto store = connect_store(server.address(), store_secret, 10.0);
  CHECK_FALSE(store->find("a").has_value());
  store->set("a", std::string("\0\xff\n", 3));
  CHECK(store->find("a") == std::string("\0\xff\n", 3));
  store->set("a", "");
  CHECK(store->find("a") == "");
  CHECK(store->wait("a", 1.0) == "");
  CHECK(store->add("n", 5) == 5);
  CHECK(store->add("n", -7) == -2);
  store->remove("a");
  store->remove("a");
  CHECK_FALSE(store->find("a").has_value());
  // The serving process sees the same store, and is seen.
  const auto local = server.local_store();
  CHECK(local->add("n", 1) == -1);
  CHECK(store->add("n", 1) == 0);
  local->set("b", "from within");
  CHECK(store->wait("b", 1.0) == "from within");
}

TEST_CASE("the longest key and value pass, longer ones are a bug of the caller") {
  RendezvousServer server({.secret = store_secret});
  const auto store = connect_store(server.address(), store_secret, 10.0);
  const std::string key(MemoryStore::max_key_bytes, 'k');
  const std::string value(MemoryStore::max_value_bytes, 'v');
  store->set(key, value);
  CHECK((store->wait(key, 10.0) == value));
  CHECK_THROWS_AS(store->set(key + "k", ""), BugError);
  CHECK_THROWS_AS(store->set("k", value + "v"), BugError);
  CHECK_THROWS_AS(store->add(key, 1), BugError);  // not a number
  CHECK(store->find("k") == std::nullopt);        // and the connection is as before
}

TEST_CASE("eight clients add to one counter and hand values round without loss") {
  constexpr int num_clients = 8;
  constexpr int rounds = 50;
  RendezvousServer server({.secret = store_secret});
  std::vector<std::string> errors(num_clients);
  std::vector<std::thread> threads;
  threads.reserve(num_clients);
  for (int client = 0; client < num_clients; ++client) {
    threads.emplace_back([&, client] {
      try {
        const auto store = connect_store(server.address(), store_secret, 10.0);
        for (int round = 0; round < rounds; ++round) {
          store->add("count", client);
          const auto key_of = [&](int of) { return std::to_string(round) + "/" + std::to_string(of); };
          store->set(key_of(client), std::to_string(client * rounds + round));
          const int next = (client + 1) % num_clients;
          if (store->wait(key_of(next), 30.0) != std::to_string(next * rounds + round)) {
            throw PeerError("a value of another key");
          }
        }
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(client)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) CHECK(error == "");
  CHECK(server.local_store()->find("count") == std::to_string(rounds * 28));  // 28 = 0 + 1 + ... + 7
}

TEST_CASE("a wait ends when the key is set by the server's process or by another client") {
  RendezvousServer server({.secret = store_secret});
  std::string first;
  std::string second;
  std::string within;
  const auto waiter = [&](std::string& result, const char* key) {
    return std::thread([&, key] { result = connect_store(server.address(), store_secret, 10.0)->wait(key, 30.0); });
  };
  std::thread a = waiter(first, "local");
  std::thread b = waiter(second, "remote");
  std::thread c([&] { within = server.local_store()->wait("remote", 30.0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.local_store()->set("local", "1");
  connect_store(server.address(), store_secret, 10.0)->set("remote", "2");
  for (std::thread* thread : {&a, &b, &c}) thread->join();
  CHECK(first == "1");
  CHECK(second == "2");
  CHECK(within == "2");
}

TEST_CASE("a wait that is not answered ends at its deadline and names the key") {
  RendezvousServer server({.secret = store_secret});
  const auto store = connect_store(server.address(), store_secret, 10.0);
  const MonotonicTime start = monotonic_now();
  CHECK(contains(message_of<PeerError>([&] { store->wait("gloo/data/3", 0.2); }), "gloo/data/3"));
  CHECK(seconds_since(start) >= 0.2);
  CHECK(contains(message_of<PeerError>([&] { store->wait("at once", 0.0); }), "at once"));
  // The connection is as before.
  store->set("gloo/data/3", "late");
  CHECK(store->wait("gloo/data/3", 0.0) == "late");
}

TEST_CASE("a client that waits learns at once that the server is gone") {
  std::string message;
  std::thread thread;
  std::unique_ptr<KeyValueStore> local;
  {
    RendezvousServer server({.secret = store_secret});
    local = server.local_store();
    const auto address = server.address();
    std::shared_ptr<KeyValueStore> store = connect_store(address, store_secret, 10.0);
    thread = std::thread([store, &message] {
      message = message_of<PeerError>([&] { store->wait("never", 600.0); });
      message += "; then " + message_of<PeerError>([&] { store->set("a", "b"); });
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  thread.join();
  CHECK(contains(message, "gone"));
  CHECK(contains(message, "127.0.0.1"));
  CHECK(contains(message, "never"));
  CHECK(contains(message, "; then rendezvous server"));
  CHECK(contains(message_of<PeerError>([&] { local->wait("never", 600.0); }), "stopped"));
}

TEST_CASE("a client may come before the server") {
  const HeldPort held;
  const std::uint16_t port = held.port();
  std::string result;
  std::thread early([&] {
    try {
      result = connect_store({"127.0.0.1", port}, store_secret, 30.0)->wait("a", 30.0);
    } catch (const std::exception& error) {
      result = error.what();
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  RendezvousServer server({.port = port, .secret = store_secret});
  server.local_store()->set("a", "found");
  early.join();
  CHECK(result == "found");
}

TEST_CASE("where no server comes, the client gives up at the deadline and names the address") {
  const HeldPort held;
  const std::uint16_t port = held.port();
  const std::string message = message_of<PeerError>([&] { connect_store({"127.0.0.1", port}, store_secret, 0.2); });
  CHECK(contains(message, "127.0.0.1:" + std::to_string(port)));
  CHECK(contains(message, "refused"));
  CHECK(contains(message_of<PeerError>([&] {
                   connect_store({"no-such-host.invalid", 1}, store_secret, 0.1);
                 }),
                 "no-such-host.invalid:1"));
}

TEST_CASE("an address that cannot be bound is named") {
  RendezvousServer server({.secret = store_secret});
  const std::uint16_t port = server.address().port;
  CHECK(contains(message_of<PeerError>([&] { RendezvousServer({.port = port, .secret = store_secret}); }),
                 std::to_string(port)));
  CHECK(
      contains(message_of<PeerError>([&] { RendezvousServer({.bind_address = "192.0.2.1", .secret = store_secret}); }),
               "192.0.2.1"));
}

TEST_CASE("a wrong secret is refused at once and in words, and the secrets are not in them") {
  RendezvousServer server({.secret = store_secret});
  server.local_store()->set("private", "value");
  const MonotonicTime start = monotonic_now();
  const std::string message = message_of<PeerError>([&] { connect_store(server.address(), "another secret", 60.0); });
  CHECK(seconds_since(start) < 30.0);
  CHECK(contains(message, "refused this process's secret"));
  CHECK_FALSE(contains(message, store_secret));
  CHECK_FALSE(contains(message, "another secret"));
  CHECK(connect_store(server.address(), store_secret, 10.0)->find("private") == "value");
}

TEST_CASE("IPv6 addresses serve as IPv4 ones do") {
  std::unique_ptr<RendezvousServer> server;
  try {
    server =
        std::make_unique<RendezvousServer>(RendezvousServer::Options{.bind_address = "::1", .secret = store_secret});
  } catch (const PeerError& error) {
    MESSAGE("no IPv6 here: ", error.what());
    return;
  }
  connect_store(server->address(), store_secret, 10.0)->set("a", "six");
  CHECK(server->local_store()->find("a") == "six");
  const std::uint16_t port = server->address().port;
  server.reset();
  CHECK(contains(message_of<PeerError>([&] { connect_store({"::1", port}, store_secret, 0.0); }), "[::1]:"));
}

TEST_CASE("a server that finds no descriptor names the limit of its process, which is no peer's failure" *
          doctest::skip(!descriptors_may_run_out)) {
  for (const rlim_t free : {0, 1, 2}) {  // a socket, an eventfd and an epoll are needed
    CAPTURE(free);
    std::string message;
    {
      const DescriptorLimit limit(free);
      try {
        const RendezvousServer server({.secret = store_secret});
      } catch (const UserError& error) {
        message = error.what();
      }
    }
    CHECK(contains(message, "Too many open files; RLIMIT_NOFILE (ulimit -n)"));
  }
}
