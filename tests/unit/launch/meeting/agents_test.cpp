// Agents, their links and a coordinator as threads of one process; the workers are made up.
#include "launch/agent/agent.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/rendezvous/rendezvous.h"
#include "launch/coordination/coordinator.h"
#include "launch/coordination/coordinator_thread.h"
#include "launch/meeting/meeting.h"
#include "support/blocked_signals.h"
#include "support/eventually.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

constexpr double heartbeat = 6.0;  // a lease of two seconds
constexpr double patience = 60.0;
// Where nobody is to be cut off, however busy the machine.
constexpr double long_lease = 600.0;

// A store whose server does not answer any more.
class DeafStore final : public KeyValueStore {
 public:
  DeafStore(std::unique_ptr<KeyValueStore> inner, const std::atomic<bool>& is_deaf)
      : inner_(std::move(inner)), is_deaf_(is_deaf) {}
  void set(const std::string& key, const std::string& value) override { answering().set(key, value); }
  std::optional<std::string> find(const std::string& key) override { return answering().find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    return answering().find_within(key, seconds);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return answering().add(key, amount); }
  void remove(const std::string& key) override { answering().remove(key); }

 private:
  KeyValueStore& answering() {
    if (is_deaf_) throw PeerError("no answer");
    return *inner_;
  }
  std::unique_ptr<KeyValueStore> inner_;
  const std::atomic<bool>& is_deaf_;
};

struct Network {
  Network()
      : server(std::make_unique<RendezvousServer>(RendezvousServer::Options{.secret = "secret"})),
        store(server->local_store()) {}

  std::unique_ptr<KeyValueStore> connect() const {
    if (is_cut) throw PeerError("the network is cut");
    return connect_store(server->address(), "secret", patience, std::nullopt, patience);
  }
  AgentLink::Options link(std::int64_t node, double lease = long_lease) const {
    return {.place = node, .store = connect(), .reconnect = [this] { return connect(); }, .lease = lease};
  }
  // Of a node whose connection ends once is_deaf is set.
  AgentLink::Options losing_link(std::int64_t node, double lease = long_lease) const {
    AgentLink::Options options = link(node, lease);
    options.store = std::make_unique<DeafStore>(std::move(options.store), is_deaf);
    return options;
  }
  std::unique_ptr<KeyValueStore> local() const { return server->local_store(); }
  std::optional<AgentStatus> status(std::int64_t node) const {
    const auto text = store->find(status_key(node));
    return text ? std::optional(parse_status(*text)) : std::nullopt;
  }
  void order(const Orders& orders) const { publish_orders(*store, orders); }

  std::unique_ptr<RendezvousServer> server;
  std::unique_ptr<KeyValueStore> store;
  std::atomic<bool> is_cut{false};   // no connection can be made
  std::atomic<bool> is_deaf{false};  // for those there are
};

// What a test's agents share; nobody interrupts them.
struct Host : BlockedSignals {
  AgentOptions agent(std::function<RoundResult(const GroupOptions&)> run_workers) {
    return agent_at(*meeting, std::move(run_workers));
  }
  AgentOptions agent_at(const Meeting& of, std::function<RoundResult(const GroupOptions&)> run_workers) {
    return {.paths = RunPaths(folder.path()),
            .meeting = of,
            .heartbeat = heartbeat,
            .log = log,
            .interrupts = watcher,
            .run_workers = std::move(run_workers)};
  }
  // A coordinator's, of two ranks with an agent each, whose workers need not meet.
  Coordinator::Options two_ranks() {
    return {.layout = {.ranks_per_place = 1, .replica = 1, .data = 2},
            .places = 2,
            .is_per_node = false,
            .heartbeat = heartbeat,
            .log = log,
            .next_start = [](const StartPoint& before) { return before; },
            .serve = [](std::int64_t, bool) { return WorkersRendezvous{}; }};
  }

  TempFolder folder;
  Log log{{.file = folder.path() / "agent.log"}};
  InterruptWatcher watcher;
  std::optional<ExitStatus> noted;
  std::unique_ptr<Meeting> meeting =
      Meeting::join({.paths = RunPaths(folder.path()), .place = lone_place()}, {}, noted);
};

// Of node 1 alone.
Orders run_on_node_1(const std::string& incarnation) {
  Orders orders;
  orders.command = OrderKind::run;
  orders.round = 1;
  orders.plan.shares = {{1, 0, 1}};
  orders.plan.incarnations = {incarnation};
  orders.plan.rendezvous = {{"127.0.0.1", 1}, "s"};
  return orders;
}

// One of two nodes.
Meeting::Options node_options(const TempFolder& folder, std::int64_t node, double of_heartbeat = heartbeat) {
  Meeting::Options options{
      .paths = RunPaths(folder.path()), .place = {}, .heartbeat = of_heartbeat, .interface = "127.0.0.1"};
  options.place.launcher = "SLURM";
  options.place.is_per_node = true;
  options.place.rank = node;
  options.place.world = 2;
  options.seconds = patience;
  return options;
}

RoundResult finished(std::int64_t step) {
  RoundResult round;
  round.result = ExitCode::finished;
  round.step = step;
  round.description = "ended";
  return round;
}

}  // namespace

TEST_CASE("a link whose first connections fail tries on until its lease has run out") {
  Network network;
  network.is_cut = true;
  std::atomic<int> rounds{0};
  const auto connect = [&] {
    ++rounds;
    return network.connect();
  };
  {
    AgentLink link({.place = 1, .reconnect = connect, .lease = 60.0});
    REQUIRE(eventually([&] { return rounds >= 3; }));
    CHECK_FALSE(link.is_cut_off());
    network.is_cut = false;
    CHECK(eventually([&] { return network.status(1).has_value(); }));
  }
  network.is_cut = true;
  AgentLink link({.place = 2, .reconnect = connect, .lease = 0.2});
  CHECK(eventually([&] { return link.is_cut_off(); }));
}

TEST_CASE("a link publishes its node's status and fetches orders") {
  const Network network;
  AgentLink link(network.link(4));
  REQUIRE(eventually([&] { return network.status(4).has_value(); }));
  const std::uint64_t beat = network.status(4)->beat;
  CHECK(eventually([&] { return network.status(4)->beat > beat; }));
  CHECK(network.status(4)->incarnation == link.incarnation());
  link.begin_round(7, 0);
  link.report(finished(3));
  CHECK(eventually([&] { return network.status(4)->report.has_value(); }));
  CHECK(network.status(4)->round == 7);
  Orders orders;
  orders.command = OrderKind::over;
  orders.code = ExitCode::diverged;
  network.order(orders);
  CHECK(eventually([&] { return link.wait_for_orders(1.0); }));
  CHECK(link.orders().code == ExitCode::diverged);
  CHECK_FALSE(link.is_cut_off());
  link.leave({ExitCode::diverged, "why"});
  REQUIRE(network.status(4)->left.has_value());
  CHECK(network.status(4)->left->message == "why");
}

TEST_CASE("that the first step of a round is done is told at once, however rare statuses are") {
  const Network network;
  constexpr double long_time = 1e6;
  AgentLink::Options options = network.link(4, long_time);
  options.num_places = 1'000'000;  // a status in a quarter of an hour
  AgentLink link(std::move(options));
  REQUIRE(eventually([&] { return network.status(4).has_value(); }));
  link.begin_round(2, 10);
  GroupStatus workers;
  workers.step = 11;
  link.set_workers(workers);
  CHECK(eventually([&] { return network.status(4)->workers.step == 11; }));
}

TEST_CASE("a link that cannot reach the coordinator for its lease is cut off for good") {
  Network network;
  AgentLink link(network.losing_link(1, agent_lease(heartbeat)));
  REQUIRE(eventually([&] { return network.status(1).has_value(); }));
  const MonotonicTime begin = monotonic_now();
  network.is_cut = true;
  network.is_deaf = true;
  CHECK(eventually([&] { return link.is_cut_off(); }));
  CHECK(seconds_since(begin) >= 0.5 * agent_lease(heartbeat));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a try that had begun before has failed
  const std::uint64_t beat = network.status(1)->beat;
  network.is_cut = false;
  network.is_deaf = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(link.is_cut_off());
  CHECK(network.status(1)->beat == beat);  // it does not look alive again
}

TEST_CASE("a broken connection that comes back within the lease is nothing") {
  Network network;
  AgentLink link(network.losing_link(1));
  REQUIRE(eventually([&] { return network.status(1).has_value(); }));
  network.is_deaf = true;
  const std::uint64_t beat = network.status(1)->beat;
  CHECK(eventually([&] { return network.status(1)->beat > beat + 1; }));
  CHECK_FALSE(link.is_cut_off());
}

TEST_CASE("agents follow the coordinator through a failure to the end") {
  const Network network;
  Host host;
  constexpr std::int64_t nodes = 3;
  Coordinator coordinator({.layout = {.ranks_per_place = 2, .replica = 1, .data = 6},
                           .places = nodes,
                           .lock_id = "lock",
                           .heartbeat = long_lease,
                           .log = host.log,
                           .next_start =
                               [](const StartPoint& before) {
                                 return StartPoint{.checkpoint = "c", .step = 4, .generation = before.generation + 1};
                               },
                           .serve =
                               [](std::int64_t, bool) {
                                 return WorkersRendezvous{{"127.0.0.1", 1}, "s"};
                               }});
  std::mutex mutex;
  std::vector<std::string> seen;
  std::vector<ExitCode> codes(nodes, ExitCode::bug);
  std::atomic<int> begun{0};
  // The first round fails on node 1, once all have begun; the second one ends.
  const auto work = [&](const GroupOptions& group) {
    {
      const std::lock_guard lock(mutex);
      seen.push_back(std::to_string(group.start.generation) + ": " + std::to_string(group.first_rank) + "+" +
                     std::to_string(group.count) + " of " + std::to_string(group.world) + " from " +
                     std::to_string(group.start.step));
    }
    ++begun;
    group.status({.progress = 1, .working = 2, .step = 5});
    if (group.start.generation > 0) return finished(9);
    RoundResult round;
    round.step = 5;
    eventually([&] { return begun >= nodes; });
    if (group.first_rank == 2) return round;
    round.ended_for_others = eventually([&] { return group.told_to_end().has_value(); });
    return round;
  };
  CoordinatorThread coordinating(coordinator, network.local());
  coordinating.start();
  std::vector<std::thread> threads;
  for (std::int64_t node = 0; node < nodes; ++node) {
    threads.emplace_back([&, node] {
      AgentLink link(network.link(node));
      const ExitStatus end = follow_orders(host.agent(work), link);
      codes[static_cast<std::size_t>(node)] = end.code;
      link.leave(end);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(codes == std::vector<ExitCode>(nodes, ExitCode::finished));
  std::sort(seen.begin(), seen.end());
  CHECK(seen == std::vector<std::string>{"0: 0+2 of 6 from 0", "0: 2+2 of 6 from 0", "0: 4+2 of 6 from 0",
                                         "1: 0+2 of 6 from 4", "1: 2+2 of 6 from 4", "1: 4+2 of 6 from 4"});
}

TEST_CASE("a limit that one node has met ends the run of all by name and uses up no restart") {
  const Network network;
  Host host;
  constexpr std::int64_t nodes = 2;
  Coordinator coordinator({.layout = {.ranks_per_place = 1, .replica = 1, .data = nodes},
                           .places = nodes,
                           .lock_id = "lock",
                           .heartbeat = long_lease,
                           .log = host.log,
                           .next_start = [](const StartPoint& before) { return before; },
                           .serve =
                               [](std::int64_t, bool) {
                                 return WorkersRendezvous{{"127.0.0.1", 1}, "s"};
                               }});
  std::vector<ExitCode> codes(nodes, ExitCode::bug);
  std::atomic<int> begun{0};
  // Neither node's workers can say more than that something is gone.
  const auto work = [&](const GroupOptions&) {
    ++begun;
    eventually([&] { return begun >= nodes; });
    RoundResult round;
    round.step = 5;
    round.lost_peer_only = true;
    round.message = "gone";
    return round;
  };
  CoordinatorThread coordinating(coordinator, network.local());
  coordinating.start();
  std::vector<std::thread> threads;
  for (std::int64_t node = 0; node < nodes; ++node) {
    threads.emplace_back([&, node] {
      AgentLink link(network.link(node));
      AgentOptions options = host.agent(work);
      options.check_round = [&begun, node](const PlaceShare&) {
        if (node == 1 && begun >= nodes) throw UserError("pids.max leaves no room");
      };
      const ExitStatus end = follow_orders(options, link);
      codes[static_cast<std::size_t>(node)] = end.code;
      link.leave(end);
    });
  }
  for (std::thread& thread : threads) thread.join();
  coordinating.join();
  CHECK(codes == std::vector<ExitCode>(nodes, ExitCode::usage));
  CHECK(coordinator.orders().reason.starts_with("node 1: pids.max leaves no room"));
  CHECK(TempFolder::read(host.folder / "agent.log").find("restart 1") == std::string::npos);
}

TEST_CASE("an agent that is cut off ends its workers and leaves with 75") {
  Network network;
  Host host;
  AgentLink link(network.losing_link(1, agent_lease(heartbeat)));
  network.order(run_on_node_1(link.incarnation()));
  std::string reason;
  const ExitStatus end = follow_orders(host.agent([&](const GroupOptions& group) {
    network.is_cut = true;
    network.is_deaf = true;
    RoundResult round;
    round.ended_for_others = eventually([&] { return group.told_to_end().has_value(); });
    if (const auto order = group.told_to_end()) reason = order->reason;
    return round;
  }),
                                       link);
  CHECK(end.code == ExitCode::interrupted);
  CHECK(reason.find("cannot be reached") != std::string::npos);
}

TEST_CASE("a round of an agent's predecessor is not its own") {
  const Network network;
  Host host;
  AgentLink link(network.link(1));
  Orders orders = run_on_node_1("another");
  network.order(orders);
  int started = 0;
  std::thread later([&] {
    eventually([&] { return link.orders().round == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it has looked at them
    orders.command = OrderKind::over;
    network.order(orders);
  });
  follow_orders(host.agent([&](const GroupOptions&) {
    ++started;
    return finished(1);
  }),
                link);
  later.join();
  CHECK(started == 0);
}

TEST_CASE("a node's place is taken by one agent at a time, and free when nothing is heard of it") {
  const TempFolder folder;
  std::optional<ExitStatus> refused;
  const auto first = Meeting::join(node_options(folder, 0), {"config", "1"}, refused);
  REQUIRE(first);
  const auto second = Meeting::join(node_options(folder, 1), {}, refused);
  REQUIRE(second);
  CHECK(second->basis().config == "config");
  CHECK(second->basis().version == "1");
  auto link = std::make_unique<AgentLink>(
      AgentLink::Options{.place = 1, .reconnect = [&] { return second->connect(); }, .lease = long_lease});
  const auto store = first->connect();
  REQUIRE(eventually([&] { return store->find(status_key(1)).has_value(); }));
  CHECK_THROWS_AS(Meeting::join(node_options(folder, 1), {}, refused), UserError);
  link.reset();  // without a farewell
  const MonotonicTime begin = monotonic_now();
  CHECK(Meeting::join(node_options(folder, 1), {}, refused));
  CHECK(seconds_since(begin) >= lease_run_out(agent_lease(heartbeat)));
}

TEST_CASE(
    "of several agents of a node that come at once one is let in, and a place that was given up is free at once") {
  const TempFolder folder;
  constexpr double longest_heartbeat = 600.0;  // whoever was let in has long to be seen
  std::optional<ExitStatus> nobody;
  const auto first = Meeting::join(node_options(folder, 0, longest_heartbeat), {"config", "1"}, nobody);
  REQUIRE(first);
  std::atomic<int> let_in{0};
  std::atomic<int> refused{0};
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::optional<ExitStatus> none;
      try {
        const auto world = Meeting::join(node_options(folder, 1, longest_heartbeat), {}, none);
        ++let_in;
        const AgentLink link({.place = 1, .reconnect = [&] { return world->connect(); }, .lease = long_lease});
        ++ended;
        eventually([&] { return ended == 4; });
      } catch (const UserError&) {
        ++refused;
        ++ended;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(let_in == 1);
  CHECK(refused == 3);
  // What the coordinator says of a lost agent; a silent one would be waited for longer.
  const auto store = first->connect();
  AgentStatus gone = parse_status(*store->find(status_key(1)));
  gone.left = ExitStatus{ExitCode::interrupted, "given up"};
  store->set(status_key(1), to_text(gone));
  const MonotonicTime begin = monotonic_now();
  CHECK(Meeting::join(node_options(folder, 1, longest_heartbeat), {}, nobody));
  CHECK(seconds_since(begin) < lease_run_out(agent_lease(longest_heartbeat)));
}

TEST_CASE("an agent that comes when the run is over learns how it has ended") {
  const TempFolder folder;
  Meeting::Options options{.paths = RunPaths(folder.path()), .place = {}, .interface = "127.0.0.1"};
  options.place.launcher = "SCALETRAIN_NODE";
  options.place.rank = 1;
  options.place.world = 2;
  options.place.job = "job";
  options.believed_after = 0.3;
  options.seconds = patience;
  LauncherPlace first = options.place;
  first.rank = 0;
  leave_end_note(options.paths, first, {.code = ExitCode::finished, .message = "all is done"});
  // A job of this name may be starting anew: node 0 has the time to come.
  const MonotonicTime begin = monotonic_now();
  std::optional<ExitStatus> refused;
  CHECK_THROWS_AS(Meeting::join(options, {}, refused), PeerError);
  CHECK(seconds_since(begin) >= 0.3);
  REQUIRE(refused);
  CHECK(refused->code == ExitCode::finished);
  CHECK(refused->message == "all is done");
  CHECK(noted_end(options.paths, options.place, 0.0)->code == ExitCode::finished);
  LauncherPlace another = options.place;
  another.job = "another";
  CHECK_FALSE(noted_end(options.paths, another, 60.0));
  another.job.clear();
  CHECK(noted_end(options.paths, another, 60.0));
  CHECK_FALSE(noted_end(options.paths, another, 0.0));
}

TEST_CASE("an agent that cannot take part ends the start for all, and knows whether the first has the same reason") {
  for (const bool is_alike : {true, false}) {
    CAPTURE(is_alike);
    const TempFolder folder;
    Host host;
    std::optional<ExitStatus> noted;
    const auto first = Meeting::join(node_options(folder, 0), {"config", "1"}, noted);
    const auto second = Meeting::join(node_options(folder, 1), {}, noted);
    Coordinator coordinator(host.two_ranks());
    if (is_alike) coordinator.finish(ExitCode::usage, "c.yaml:3: unknown key");
    AgentEnd other;
    std::thread thread([&] {
      other = run_agent(host.agent_at(*second, {}), {ExitCode::usage, "c.yaml:3: unknown key"});
    });
    const AgentEnd end = run_first_agent(host.agent_at(*first, {}), coordinator);
    thread.join();
    CHECK(end.status.code == ExitCode::usage);
    CHECK(other.status.code == ExitCode::usage);
    CHECK(other.is_own == !is_alike);
    if (!is_alike) CHECK(end.status.message == "rank 1 could not start: c.yaml:3: unknown key");
    CHECK(coordinator.roster().have_all_left());
  }
}

TEST_CASE("an agent that cannot take part waits for the word of a first that cannot either, however slow its host is") {
  const TempFolder folder;
  Host host;
  std::optional<ExitStatus> noted;
  const auto first = Meeting::join(node_options(folder, 0), {}, noted);
  const auto second = Meeting::join(node_options(folder, 1), {}, noted);
  Coordinator coordinator(host.two_ranks());
  coordinator.finish(ExitCode::usage, "c.yaml:3: unknown key");
  AgentEnd other;
  std::thread thread([&] {
    AgentOptions options = host.agent_at(*second, {});
    options.verdict_seconds = 0.01;
    other = run_agent(options, {ExitCode::usage, "c.yaml:3: unknown key"});
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(run_first_agent(host.agent_at(*first, {}), coordinator).status.code == ExitCode::usage);
  thread.join();
  CHECK_FALSE(other.is_own);
  CHECK_FALSE(other.is_cut_off);
}

TEST_CASE("what is wrong with a host is found by its agent before a worker starts, and ends the run for all") {
  const TempFolder folder;
  Host host;
  std::optional<ExitStatus> noted;
  const auto first = Meeting::join(node_options(folder, 0), {"config", "1"}, noted);
  const auto second = Meeting::join(node_options(folder, 1), {}, noted);
  Coordinator coordinator(host.two_ranks());
  const auto obedient = [](const GroupOptions& group) {
    RoundResult round;
    round.ended_for_others = eventually([&] { return group.told_to_end().has_value(); });
    return round;
  };
  std::vector<std::int64_t> seen;
  AgentEnd other;
  std::thread thread([&] {
    AgentOptions options = host.agent_at(*second, obedient);
    options.check_host = [&seen](const PlaceShare& share) {
      seen = share.on_host;
      throw UserError("two ranks need more memory than this host has");
    };
    other = run_agent(options);
  });
  const AgentEnd end = run_first_agent(host.agent_at(*first, obedient), coordinator);
  thread.join();
  // Both are on this host.
  CHECK(seen == std::vector<std::int64_t>{0, 1});
  CHECK(other.is_own);
  CHECK(end.status.code == ExitCode::usage);
  CHECK(end.status.message == "rank 1 could not go on: two ranks need more memory than this host has");
}

TEST_CASE("an agent that comes to say why it cannot take part says so with its first word") {
  const Network network;
  AgentLink::Options options = network.link(1);
  options.left = ExitStatus{ExitCode::usage, "another config"};
  AgentLink link(std::move(options));
  REQUIRE(eventually([&] { return network.status(1).has_value(); }));
  REQUIRE(network.status(1)->left);
  CHECK(network.status(1)->left->message == "another config");
  CHECK_FALSE(network.status(1)->host.empty());
}

}  // namespace scaletrain
