// What only links through memory have: how members find that they can be linked, and who reads what when.
#include <doctest/doctest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/deadline.h"
#include "comm/memory/link_segment.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/watched_store.h"
#include "network_world.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

constexpr std::size_t large = std::size_t{1} << 20;  // by no thread that posts

// Two members of group "data" that are processes of their own: this one and a child of it.
class ChildRank {
 public:
  using Body = std::function<void(Transport&, const ProcessNetwork::Reach&)>;

  // Runs body in the child, which has this place in the group (its rank is 10 more) and then waits to be ended.
  explicit ChildRank(const Body& body, int place = 1, const std::function<void()>& before = {}) {
    std::array<int, 2> port_pipe{};
    REQUIRE(::pipe(port_pipe.data()) == 0);
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      ::close(port_pipe[1]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::uint16_t port = 0;
      if (::read(port_pipe[0], &port, sizeof port) == sizeof port) run(port, place, before, body);
      ::_exit(1);
    }
    server_.emplace(RendezvousServer::Options{.secret = "secret"});
    const std::uint16_t port = server_->address().port;
    REQUIRE(::write(port_pipe[1], &port, sizeof port) == sizeof port);
    ::close(port_pipe[0]);
    ::close(port_pipe[1]);
    network_ = make_network();
    const auto store = connect_store(server_->address(), "secret", 60.0);
    transport_ = network_->connect(*store, "data", world_ranks(2), Rank(11 - place), 60.0);
  }
  ~ChildRank() { kill(); }
  ChildRank(const ChildRank&) = delete;
  ChildRank& operator=(const ChildRank&) = delete;

  Transport& transport() { return *transport_; }
  const ProcessNetwork& network() const { return *network_; }
  pid_t process() const { return child_; }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  [[noreturn]] static void run(std::uint16_t port, int place, const std::function<void()>& before, const Body& body) {
    try {
      if (before) before();
      const auto store = connect_store({.host = "127.0.0.1", .port = port}, "secret", 60.0);
      const auto network = make_network();
      const auto transport = network->connect(*store, "data", world_ranks(2), Rank(10 + place), 60.0);
      body(*transport, network->reach());
      for (;;) ::pause();
    } catch (...) {
      ::_exit(2);
    }
  }

  pid_t child_ = 0;
  std::optional<RendezvousServer> server_;
  std::unique_ptr<ProcessNetwork> network_;
  std::unique_ptr<Transport> transport_;
};

// Mappings and descriptors of links that this process has.
int links_held() {
  int held = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) held += contains(line, "memfd:scaletrain-link-") ? 1 : 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    held += contains(std::filesystem::read_symlink(entry.path(), error).string(), "memfd:scaletrain-link-") ? 1 : 0;
  }
  return held;
}

std::ptrdiff_t descriptors_held() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// What the system does with a call of all threads of this process from now on: SECCOMP_RET_ERRNO | errno, as a
// container's profile may do it, or SECCOMP_RET_KILL_PROCESS.
void rule(std::uint32_t call, std::uint32_t action) {
  std::array<sock_filter, 4> rules{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, action),
                                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog program{.len = rules.size(), .filter = rules.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
    throw std::runtime_error("no filter is to be had");
}

void forbid_reading() {
  rule(SYS_process_vm_readv, SECCOMP_RET_ERRNO | EPERM);
}

// Three members of group "data", as ranks of a run come to it: that one of a place is a process that ends without a
// word at its first such system call.
class KilledMember {
 public:
  KilledMember(int place, std::uint32_t call) {
    std::array<int, 2> port_pipe{};
    REQUIRE(::pipe(port_pipe.data()) == 0);
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      ::close(port_pipe[1]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const rlimit no_core{};
      ::setrlimit(RLIMIT_CORE, &no_core);
      RendezvousAddress address{.host = "127.0.0.1"};
      if (::read(port_pipe[0], &address.port, sizeof address.port) == sizeof address.port)
        die_meeting(address, place, call);
      ::_exit(1);
    }
    server_.emplace(RendezvousServer::Options{.secret = "secret"});
    address_ = server_->address();
    REQUIRE(::write(port_pipe[1], &address_.port, sizeof address_.port) == sizeof address_.port);
    ::close(port_pipe[0]);
    ::close(port_pipe[1]);
  }
  ~KilledMember() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    CHECK(WIFSIGNALED(status));
  }
  KilledMember(const KilledMember&) = delete;
  KilledMember& operator=(const KilledMember&) = delete;

  void meet_as(int place) const { meet(address_, place); }

 private:
  static void meet(const RendezvousAddress& address, int place) {
    const auto store = connect_store(address, "secret", 60.0, 10 + place);
    WatchedStore watched(*store, {});
    make_network()->connect(watched, "data", world_ranks(3), Rank(10 + place), 60.0);
  }
  [[noreturn]] static void die_meeting(const RendezvousAddress& address, int place, std::uint32_t call) {
    try {
      rule(call, SECCOMP_RET_KILL_PROCESS);
      meet(address, place);
    } catch (...) {
      ::_exit(2);
    }
    ::_exit(3);
  }

  pid_t child_ = 0;
  std::optional<RendezvousServer> server_;
  RendezvousAddress address_{};
};

}  // namespace

TEST_CASE("members of one host reach each other through memory, unless one of them does not want to") {
  NetworkWorld<ByMemory> memory(3);
  NetworkWorld<ByTcp> tcp(3);
  NetworkWorld<ByBoth> both(3);
  for (int rank = 0; rank < 3; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    CHECK(memory.networks[index]->reach().by_memory == 2);
    CHECK(memory.networks[index]->reach().by_tcp == 0);
    CHECK(tcp.networks[index]->reach().by_memory == 0);
    CHECK(tcp.networks[index]->reach().by_tcp == 2);
    CHECK(both.networks[index]->reach().by_memory == (rank == 0 ? 0 : 1));
    CHECK(both.networks[index]->reach().by_tcp == (rank == 0 ? 2 : 1));
    CHECK(memory.networks[index]->reach().refusal.empty());
  }
}

TEST_CASE("a segment is found by process, descriptor and nonce together") {
  auto made = LinkSegment::create();
  REQUIRE(made);
  const auto nonce = made->memory().nonce;
  {
    const auto found = LinkSegment::find(::getpid(), made->descriptor(), nonce);
    REQUIRE(found);
    made->memory().sides[0].bell = 5;
    CHECK(found->memory().sides[0].bell == 5);
    CHECK(&found->memory() != &made->memory());
  }
  auto other = nonce;
  other[0] ^= 1;
  CHECK_FALSE(LinkSegment::find(::getpid(), made->descriptor(), other));
  CHECK_FALSE(LinkSegment::find(::getpid(), 0, nonce));
  CHECK_FALSE(LinkSegment::find(1 << 30, made->descriptor(), nonce));
  const int descriptor = made->descriptor();
  made->close_descriptor();
  CHECK_FALSE(LinkSegment::find(::getpid(), descriptor, nonce));
  CHECK(made->memory().sides[0].bell == 5);
}

TEST_CASE("a send completes while nobody waits at the other side, whoever is first") {
  NetworkWorld<ByMemory> world(2);
  for (const std::size_t size : {std::size_t{100}, large}) {
    CAPTURE(size);
    const std::uint64_t tag = 2 * size;
    const Bytes data = content(size, 1);
    Bytes received(size);
    Bytes received_later(size);
    const auto receive = world.rank(0).receive(1, tag, received);
    const auto send = world.rank(1).send(0, tag, data);
    CHECK(send->wait_until(deadline_after(60.0)));
    const auto early = world.rank(1).send(0, tag + 1, data);
    CHECK_FALSE(early->wait_until(deadline_after(0.01)));
    const auto late = world.rank(0).receive(1, tag + 1, received_later);
    CHECK(early->wait_until(deadline_after(60.0)));
    CHECK(receive->wait_until(monotonic_now()));
    CHECK(late->wait_until(monotonic_now()));
    CHECK((received == data));
    CHECK((received_later == data));
  }
}

TEST_CASE("more messages under way than the shared memory has room for arrive all the same") {
  constexpr std::uint64_t messages = 100;
  InProcessWorld stores(2);
  std::vector<std::unique_ptr<ProcessNetwork>> networks(2);
  std::vector<std::unique_ptr<Transport>> transports(2);
  const auto errors = run_each(2, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    networks[index] = std::make_unique<ProcessNetwork>(
        ProcessNetwork::Options{.address = "127.0.0.1", .secret = job_secret, .link_capacity = 3});
    transports[index] = networks[index]->connect(*stores.make_store(), "data", world_ranks(2), Rank(10 + rank), 60.0);
  });
  for (const auto& error : errors) REQUIRE(error == "");
  const auto run = [&](bool receives_first) {
    const std::uint64_t first = receives_first ? 0 : messages;
    std::vector<Bytes> sent;
    std::vector<Bytes> received(messages, Bytes(50));
    for (unsigned i = 0; i < messages; ++i) sent.push_back(content(50, i));
    std::vector<std::unique_ptr<Transport::Pending>> sends;
    std::vector<std::unique_ptr<Transport::Pending>> receives;
    const auto post_receives = [&] {
      for (std::uint64_t i = messages; i > 0; --i)
        receives.push_back(transports[0]->receive(1, first + i - 1, received[i - 1]));
    };
    if (receives_first) post_receives();
    for (std::uint64_t i = 0; i < messages; ++i) sends.push_back(transports[1]->send(0, first + i, sent[i]));
    if (!receives_first) post_receives();
    for (auto& send : sends) CHECK(send->wait_until(deadline_after(60.0)));
    for (auto& receive : receives) CHECK(receive->wait_until(monotonic_now()));
    CHECK((received == sent));
  };
  run(true);
  run(false);
}

TEST_CASE("a message that its sender has given up is not received, and another of its tag is") {
  NetworkWorld<ByMemory> world(2);
  for (const std::size_t size : {std::size_t{100}, large}) {
    const Bytes old = content(size, 1);
    const Bytes fresh = content(size, 2);
    Bytes received(size);
    world.rank(1).send(0, size, old).reset();
    const auto receive = world.rank(0).receive(1, size, received);
    CHECK_FALSE(receive->wait_until(deadline_after(0.05)));
    const auto send = world.rank(1).send(0, size, fresh);
    CHECK(receive->wait_until(deadline_after(60.0)));
    CHECK((received == fresh));
    CHECK(send->wait_until(monotonic_now()));
  }
}

TEST_CASE("sizes that differ end the connection by name and write nothing") {
  NetworkWorld<ByMemory> world(2);
  const Bytes data = content(12, 1);
  Bytes received(8, std::byte{0x55});
  const auto send = world.rank(1).send(0, 0, data);
  const auto receive = world.rank(0).receive(1, 0, received);
  const std::string message = message_of<PeerError>([&] { receive->wait_until(deadline_after(60.0)); });
  CHECK(contains(message, "the connection to rank 11 is lost: it sends 12 bytes where 8 are awaited"));
  CHECK(std::count(received.begin(), received.end(), std::byte{0x55}) == 8);
  CHECK(contains(message_of<PeerError>([&] { send->wait_until(deadline_after(60.0)); }),
                 "the connection to rank 10 is lost: closed by the other side"));
}

TEST_CASE("a send completes though a wait that its receiver was called for has just ended") {
  NetworkWorld<ByMemory> world(2);
  constexpr std::uint64_t rounds = 1000;
  const Bytes data = content(100, 1);
  std::atomic<std::uint64_t> done{0};  // rounds
  std::atomic<bool> failed{false};
  const auto errors = run_each(2, [&](int rank) {
    Transport& transport = world.rank(rank);
    for (std::uint64_t round = 0; round < rounds && !failed; ++round) {
      Bytes received(100);
      if (rank == 0) {
        // Nobody waits for this one: it is to come while or after the thread waits for another.
        const auto unattended = transport.receive(1, round, received);
        const auto send = transport.send(1, round, data);
        if (!send->wait_until(deadline_after(60.0))) throw PeerError("the first is late");
        while (done <= round && !failed) std::this_thread::yield();
      } else {
        const auto receive = transport.receive(0, round, received);
        if (!receive->wait_until(deadline_after(60.0))) failed = true;
        const auto send = transport.send(0, round, data);
        if (!send->wait_until(deadline_after(20.0))) failed = true;
        ++done;
      }
    }
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK_FALSE(failed);
}

TEST_CASE("messages given up while they are read or wait for room leave the others whole") {
  constexpr std::uint64_t messages = 200;
  NetworkWorld<ByMemory> world(2);
  std::atomic<int> differences{0};
  const auto errors = run_each(2, [&](int rank) {
    Transport& transport = world.rank(rank);
    const Bytes doomed = content(large, 9);
    for (std::uint64_t i = 0; i < messages; ++i) {
      const Bytes mine = content(1000, static_cast<unsigned>(i));
      Bytes theirs(1000);
      // One side gives up what it sends, the other what it receives, at any moment of the reading.
      Bytes given_up(large);
      std::unique_ptr<Transport::Pending> message =
          rank == 0 ? transport.send(1, 2 * i, doomed) : transport.receive(0, 2 * i, given_up);
      if (i % 3 == static_cast<std::uint64_t>(rank)) message->wait_until(deadline_after(0.0002));
      message.reset();
      std::fill(given_up.begin(), given_up.end(), std::byte{0x55});
      const auto receive = transport.receive(1 - rank, 2 * i + 1, theirs);
      const auto send = transport.send(1 - rank, 2 * i + 1, mine);
      if (!receive->wait_until(deadline_after(60.0)) || !send->wait_until(deadline_after(60.0)))
        throw PeerError("late");
      differences += theirs != content(1000, static_cast<unsigned>(i));
      differences +=
          std::count(given_up.begin(), given_up.end(), std::byte{0x55}) != static_cast<std::ptrdiff_t>(large);
    }
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(differences == 0);
}

TEST_CASE("the end of a transport ends the waits of other threads, and its messages may outlive it and the network") {
  std::unique_ptr<Transport::Pending> receive;
  std::unique_ptr<Transport::Pending> send;
  std::unique_ptr<Transport::Pending> of_peer;
  const Bytes data = content(large, 1);
  Bytes received(large);
  std::string message;
  {
    NetworkWorld<ByMemory> world(2);
    receive = world.rank(0).receive(1, 0, received);
    send = world.rank(0).send(1, 0, data);
    of_peer = world.rank(1).receive(0, 1, received);
    std::thread waiting([&] { message = message_of<PeerError>([&] { receive->wait_until(deadline_after(600.0)); }); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    world.transports[0].reset();
    waiting.join();
    CHECK(contains(message, "stopped"));
    CHECK(contains(message_of<PeerError>([&] { of_peer->wait_until(deadline_after(600.0)); }), "rank 10"));
  }
  CHECK(contains(message_of<PeerError>([&] { send->wait_until(deadline_after(600.0)); }), "stopped"));
  CHECK(links_held() > 0);
  receive.reset();
  send.reset();
  of_peer.reset();
  CHECK(links_held() == 0);
}

TEST_CASE("processes exchange, and one that is killed ends the waits of the other at once and leaves nothing behind") {
  const Bytes data = content(large, 3);
  std::optional<ChildRank> child;
  child.emplace([&](Transport& transport, const ProcessNetwork::Reach&) {
    Bytes received(large);
    const auto receive = transport.receive(0, 0, received);
    if (!receive->wait_until(deadline_after(60.0))) throw PeerError("late");
    const auto send = transport.send(0, 0, received);
    if (!send->wait_until(deadline_after(60.0))) throw PeerError("late");
  });
  CHECK(child->network().reach().by_memory == 1);
  Bytes echo(large);
  auto send = child->transport().send(1, 0, data);
  auto receive = child->transport().receive(1, 0, echo);
  CHECK(receive->wait_until(deadline_after(60.0)));
  CHECK(send->wait_until(deadline_after(60.0)));
  CHECK((echo == data));
  receive.reset();
  send.reset();
  CHECK(links_held() == 1);  // a mapping without a descriptor
  auto never = child->transport().receive(1, 1, echo);
  auto never_taken = child->transport().send(1, 1, data);
  CHECK_FALSE(never->wait_until(deadline_after(0.05)));
  child->kill();
  const MonotonicTime killed = monotonic_now();
  CHECK(contains(message_of<PeerError>([&] { never->wait_until(deadline_after(600.0)); }),
                 "the connection to rank 11 is lost: "));
  CHECK(contains(message_of<PeerError>([&] { never_taken->wait_until(deadline_after(600.0)); }), "rank 11"));
  CHECK(seconds_since(killed) < 30.0);
  never.reset();
  never_taken.reset();
  child.reset();
  CHECK(links_held() == 0);
}

TEST_CASE("a message is read out of a process that stands still") {
  const Bytes data = content(large, 4);
  ChildRank child([&](Transport& transport, const ProcessNetwork::Reach&) {
    const auto send = transport.send(0, 0, data);
    const std::byte ready{1};
    const auto told = transport.send(0, 1, {&ready, 1});
    if (!told->wait_until(deadline_after(60.0))) throw PeerError("late");
    for (;;) ::pause();
  });
  std::byte ready{};
  CHECK(child.transport().receive(1, 1, {&ready, 1})->wait_until(deadline_after(60.0)));
  ::kill(child.process(), SIGSTOP);
  CHECK(child.network().reach().by_memory == 1);
  Bytes received(large);
  CHECK(child.transport().receive(1, 0, received)->wait_until(deadline_after(60.0)));
  CHECK((received == data));
}

TEST_CASE("where the system forbids one side to read, both go by TCP and say why") {
  for (const int place : {0, 1}) {
    CAPTURE(place);
    const Bytes data = content(large, 5);
    ChildRank child(
        [&](Transport& transport, const ProcessNetwork::Reach& reach) {
          Bytes told(100);
          std::memcpy(told.data(), reach.refusal.data(), std::min(told.size(), reach.refusal.size()));
          const auto refusal = transport.send(1 - place, 0, told);
          const auto send = transport.send(1 - place, 1, data);
          if (!refusal->wait_until(deadline_after(60.0)) || !send->wait_until(deadline_after(60.0)))
            throw PeerError("late");
        },
        place, forbid_reading);
    CHECK(child.network().reach().by_memory == 0);
    CHECK(child.network().reach().by_tcp == 1);
    Bytes told(100);
    Bytes received(large);
    CHECK(child.transport().receive(place, 0, told)->wait_until(deadline_after(60.0)));
    CHECK(child.transport().receive(place, 1, received)->wait_until(deadline_after(60.0)));
    CHECK((received == data));
    const std::string why = "process_vm_readv: Operation not permitted";
    CHECK(reinterpret_cast<const char*>(told.data()) == why);
    // The one before in the group learns of it from the other's answer; the one behind was not refused itself.
    CHECK(child.network().reach().refusal == (place == 1 ? why : ""));
  }
}

TEST_CASE(
    "a side that cannot read any more ends the other's waits too, though it waits for nothing, and both say why") {
  for (const int error : {EPERM, ESRCH}) {
    CAPTURE(error);
    std::array<int, 2> from_child{};
    std::array<int, 2> to_child{};
    REQUIRE(::pipe(from_child.data()) == 0);
    REQUIRE(::pipe(to_child.data()) == 0);
    const auto said = [&] {
      std::array<char, 200> text{};
      const ssize_t count = ::read(from_child[0], text.data(), text.size());
      return std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    };
    ChildRank child([&](Transport& transport, const ProcessNetwork::Reach&) {
      const auto say = [&](const std::string& text) {
        if (::write(from_child[1], text.data(), text.size()) < 0) throw PeerError("nobody listens");
      };
      Bytes received(large);
      const auto receive = transport.receive(0, 0, received);
      rule(SYS_process_vm_readv, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
      say("ready");
      char byte = 0;
      if (::read(to_child[0], &byte, 1) != 1) throw PeerError("nobody asks");
      say(message_of<PeerError>([&] { receive->wait_until(deadline_after(60.0)); }));
    });
    REQUIRE(said() == "ready");
    const Bytes data = content(large, 6);
    const auto send = child.transport().send(1, 0, data);
    const MonotonicTime sent = monotonic_now();
    const std::string why = std::strerror(error);
    CHECK(message_of<PeerError>([&] { send->wait_until(deadline_after(60.0)); }) ==
          "the connection to rank 11 is lost: it cannot read this process's memory: " + why);
    CHECK(seconds_since(sent) < 30.0);
    REQUIRE(::write(to_child[1], "?", 1) == 1);
    CHECK(said() == "the connection to rank 10 is lost: its memory cannot be read: " + why);
    for (const int end : {from_child[0], from_child[1], to_child[0], to_child[1]}) ::close(end);
  }
}

TEST_CASE("members end by name and keep nothing when one of them is killed while they find their links") {
  for (const std::uint32_t call : {std::uint32_t{SYS_memfd_create}, std::uint32_t{SYS_process_vm_readv}}) {
    for (const int place : {0, 1, 2}) {
      if (call == SYS_memfd_create && place == 2) continue;  // the last one makes no segment
      CAPTURE(call);
      CAPTURE(place);
      const auto before = descriptors_held();
      {
        const KilledMember killed(place, call);
        const auto errors = run_each(2, [&](int other) { killed.meet_as(other < place ? other : other + 1); });
        for (const std::string& error : errors) {
          CAPTURE(error);
          const std::string who = "rank " + std::to_string(10 + place);
          CHECK((contains(error, who + " is gone: ") || contains(error, who + " went away while it was met")));
        }
      }
      CHECK(links_held() == 0);
      CHECK(descriptors_held() == before);
    }
  }
}
