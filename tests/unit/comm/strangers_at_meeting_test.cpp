// Strangers who know the ports at which members of a group meet, and are there first.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "comm/deadline.h"
#include "network_world.h"

using namespace scaletrain;

namespace {

// The ports at which this process listens.
std::set<std::uint16_t> listening_ports() {
  std::set<std::uint16_t> ports;
  constexpr int most_descriptors = 4096;
  for (int fd = 3; fd < most_descriptors; ++fd) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
    sockaddr_in address{};
    length = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 && address.sin_family == AF_INET) {
      ports.insert(ntohs(address.sin_port));
    }
  }
  return ports;
}

// A connection, or none if nobody listens any more.
FileDescriptor intrude(std::uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

void say(const FileDescriptor& socket, std::string_view bytes) {
  if (socket) [[maybe_unused]]
    const auto sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Calls `attack` whenever a member is about to tell another one where it listens.
class BetrayedStore final : public KeyValueStore {
 public:
  BetrayedStore(std::unique_ptr<KeyValueStore> inner, std::function<void()> attack)
      : inner_(std::move(inner)), attack_(std::move(attack)) {}
  void set(const std::string& key, const std::string& value) override {
    attack_();
    inner_->set(key, value);
  }
  std::optional<std::string> find(const std::string& key) override { return inner_->find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    return inner_->find_within(key, seconds);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return inner_->add(key, amount); }
  void remove(const std::string& key) override { inner_->remove(key); }

 private:
  std::unique_ptr<KeyValueStore> inner_;
  std::function<void()> attack_;
};

// Whether it is looked after that nobody listens any more.
enum class Watch { on, off };

// Members meet while this is done to them, and then each says something to every other one.
void check_that_members_meet(int num_ranks, const std::function<void()>& attack, Watch watch = Watch::on) {
  InProcessWorld stores(num_ranks);
  std::vector<std::unique_ptr<ProcessNetwork>> networks(static_cast<std::size_t>(num_ranks));
  std::vector<std::unique_ptr<Transport>> transports(networks.size());
  const auto meet_errors = run_each(num_ranks, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    networks[index] = make_network();
    BetrayedStore store(stores.make_store(), attack);
    transports[index] = networks[index]->connect(store, "data", world_ranks(num_ranks), Rank(10 + rank), 60.0);
  });
  for (const auto& error : meet_errors) REQUIRE(error == "");
  CHECK((watch == Watch::off || listening_ports().empty()));
  std::atomic<int> differences{0};
  const auto errors = run_each(num_ranks, [&](int rank) {
    Transport& transport = *transports[static_cast<std::size_t>(rank)];
    for (int peer = 0; peer < num_ranks; ++peer) {
      if (peer == rank) continue;
      const std::byte mine{static_cast<unsigned char>(rank)};
      std::byte theirs{255};
      const auto receive = transport.receive(peer, 0, {&theirs, 1});
      const auto send = transport.send(peer, 0, {&mine, 1});
      if (!receive->wait_until(deadline_after(60.0)) || !send->wait_until(deadline_after(60.0))) {
        throw PeerError("late");
      }
      differences += theirs != std::byte{static_cast<unsigned char>(peer)};
    }
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(differences == 0);
}

}  // namespace

TEST_CASE("strangers who are first at a member's port are dropped, and the members meet") {
  std::mutex mutex;
  std::vector<FileDescriptor> held;
  SUBCASE("they say nothing and stay") {
    check_that_members_meet(3, [&] {
      const std::lock_guard lock(mutex);
      for (const auto port : listening_ports()) held.push_back(intrude(port));
    });
  }
  SUBCASE("they close at once") {
    check_that_members_meet(3, [&] {
      for (const auto port : listening_ports()) intrude(port);
    });
  }
  SUBCASE("they begin as members do, and do not know the secret") {
    check_that_members_meet(3, [&] {
      const std::lock_guard lock(mutex);
      for (const auto port : listening_ports()) {
        for (const char place : {'\0', '\1', '\2', '\3', '\x7f'}) {
          held.push_back(intrude(port));
          say(held.back(), "stmeet01" + std::string(1, place) + std::string(3 + 32 + 32, '\0'));
        }
        held.push_back(intrude(port));
        say(held.back(), "stmeet01");
      }
    });
  }
  SUBCASE("they talk of something else") {
    check_that_members_meet(3, [&] {
      const std::lock_guard lock(mutex);
      for (const auto port : listening_ports()) {
        held.push_back(intrude(port));
        say(held.back(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
      }
    });
  }
}

TEST_CASE("strangers who connect faster than the members, a thousand at a time, keep no member out") {
  // Fewer descriptors than the strangers would take.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  constexpr rlim_t few = 2000;
  const rlimit lower{.rlim_cur = std::min<rlim_t>(before.rlim_cur, few), .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
  std::atomic<bool> over{false};
  std::atomic<int> intrusions{0};
  std::vector<std::thread> strangers;
  strangers.reserve(2);
  for (int thread = 0; thread < 2; ++thread) {
    strangers.emplace_back([&] {
      constexpr std::size_t most = 500;
      std::deque<FileDescriptor> held;
      for (unsigned turn = 0; !over; ++turn) {
        for (const auto port : listening_ports()) {
          held.push_back(intrude(port));
          ++intrusions;
          if (turn % 3 == 0) say(held.back(), std::string(4096, 'x'));
          if (turn % 3 == 1) say(held.back(), "stmeet01");
          if (held.size() > most) held.pop_front();
        }
      }
    });
  }
  // The first member comes when the others' ports have been besieged for a while.
  std::atomic<int> told{0};
  for (int round = 0; round < 3; ++round) {
    check_that_members_meet(
        4,
        [&] {
          if (++told % 3 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        },
        Watch::off);
  }
  over = true;
  for (auto& stranger : strangers) stranger.join();
  ::setrlimit(RLIMIT_NOFILE, &before);
  MESSAGE(intrusions.load() << " intrusions");
  CHECK(intrusions > 100);
}

TEST_CASE("who has another secret stays out, and is missed by name") {
  InProcessWorld stores(2);
  const auto errors = run_each(2, [&](int rank) {
    ProcessNetwork network({.address = "127.0.0.1", .secret = rank == 0 ? job_secret : "another secret, as long"});
    network.connect(*stores.make_store(), "data", world_ranks(2), Rank(10 + rank), 1.0);
  });
  CHECK(contains(errors[0], "rank 11 did not come"));
  CHECK(contains(errors[1], "rank 10 did not come"));
}

TEST_CASE("a stranger in a member's place is not taken for it") {
  InProcessWorld stores(2);
  // The place of rank 10, told by somebody who knows what a place looks like and sends back all that it hears.
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listener.get(), 16) == 0);
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const std::uint16_t port = ntohs(address.sin_port);
  const std::string place = std::string(32, 'n') + static_cast<char>(port >> 8) + static_cast<char>(port & 0xff);
  stores.make_store()->set("meeting/data/0/1", place + "127.0.0.1");
  std::thread echo([&] {
    for (;;) {
      const FileDescriptor caller(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!caller) return;
      std::array<char, 4096> words;
      const ssize_t heard = ::recv(caller.get(), words.data(), words.size(), 0);
      if (heard > 0) say(caller, {words.data(), static_cast<std::size_t>(heard)});
    }
  });
  ProcessNetwork network({.address = "127.0.0.1", .secret = job_secret});
  std::string message;
  try {
    network.connect(*stores.make_store(), "data", world_ranks(2), Rank(11), 1.0);
  } catch (const PeerError& error) {
    message = error.what();
  }
  ::shutdown(listener.get(), SHUT_RDWR);
  echo.join();
  CHECK(contains(message, "rank 10 did not come"));
}
