// What is said about a hang, and by whom. The report itself is written by the program that ../helper_main.cpp is.
#include "launch/watch/hang_report.h"

#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <thread>

#include "base/clock.h"
#include "comm/collective/collective_status.h"
#include "comm/communicator.h"
#include "host/process/child_process.h"
#include "launch/workers/worker_channel.h"
#include "support/eventually.h"
#include "support/ranks/host_stream.h"
#include "unit/launch/agent_scene.h"

namespace scaletrain {
namespace {

// A communicator whose calls look at the status while they run, and while their tickets are waited for.
class Looking final : public Communicator {
 public:
  explicit Looking(const CollectiveStatus& status) : status_(status) {}

  const std::string& group_name() const override { return name_; }
  int size() const override { return 3; }
  int rank_in_group() const override { return 0; }
  Ticket all_reduce(Stream&, View, ReduceOp) override { return look(); }
  Ticket reduce_scatter(Stream&, ConstView, std::span<const std::int64_t>, View) override { return look(); }
  Ticket all_gather(Stream&, ConstView, std::span<const std::int64_t>, View) override { return look(); }
  Ticket all_to_all(Stream&, ConstView, std::span<const std::int64_t>, View, std::span<const std::int64_t>) override {
    return look();
  }
  Ticket exchange(Stream&, std::span<const Transfer>) override { return look(); }
  void abort() noexcept override {}

  std::string seen_in_call;
  std::string seen_in_wait;

 private:
  struct State final : Ticket::State {
    explicit State(Looking& owner) : looking(owner) {}
    void before(Stream&) override { wait(); }
    void wait() override {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      looking.seen_in_wait = looking.status_.wait().value().text;
    }
    Looking& looking;
  };
  Ticket look() {
    seen_in_call = status_.wait().value().text;
    return Ticket(std::make_unique<State>(*this));
  }

  const CollectiveStatus& status_;
  std::string name_ = "data";
};

}  // namespace

TEST_CASE("the status names the collective that is called or waited for, and counts the time") {
  CollectiveStatus status;
  auto owned = std::make_unique<Looking>(status);
  Looking& looking = *owned;
  const auto communicator = make_reporting_communicator(std::move(owned), {Rank(1), Rank(3), Rank(5)}, status);
  CHECK_FALSE(status.wait());
  communicator->all_reduce(host_stream(), View(), ReduceOp::sum).wait();
  CHECK(looking.seen_in_call == "group data (ranks 1, 3, 5): all_reduce #0");
  CHECK(looking.seen_in_wait == "group data (ranks 1, 3, 5): all_reduce #0");
  Ticket second = communicator->all_reduce(host_stream(), View(), ReduceOp::max);
  const std::vector<Transfer> transfers = {{.direction = Transfer::Direction::receive, .peer = 2, .data = View()}};
  communicator->exchange(host_stream(), transfers).wait();
  CHECK(looking.seen_in_wait == "group data (ranks 1, 3, 5): exchange #0 with rank 5");
  second.wait();
  CHECK(looking.seen_in_wait == "group data (ranks 1, 3, 5): all_reduce #1");
  CHECK_FALSE(status.wait());
  CHECK(status.waited_seconds() >= 0.06);
}

TEST_CASE("a rank whose threads are in no call waits in that of its device, which is no time that they wait") {
  CollectiveStatus status;
  const CollectiveStatus::Group group{.name = "data", .ranks = {Rank(1), Rank(3)}};
  const CollectiveStatus::Call of_device{.collective = "reduce_scatter", .sequence = 4, .with = {}};
  status.device_waits(group, of_device, monotonic_now() - std::chrono::seconds(7));
  REQUIRE(status.wait());
  CHECK(status.wait()->text == "group data (ranks 1, 3): reduce_scatter #4");
  CHECK(status.wait()->seconds >= 7.0);
  {
    const CollectiveStatus::Call of_thread{.collective = "all_reduce", .sequence = 2, .with = {}};
    const CollectiveStatus::Scope scope(status, group, of_thread);
    CHECK(status.wait()->text == "group data (ranks 1, 3): all_reduce #2");
  }
  CHECK(status.wait()->text == "group data (ranks 1, 3): reduce_scatter #4");
  status.device_goes_on();
  CHECK_FALSE(status.wait());
  CHECK(status.waited_seconds() < 1.0);
}

TEST_CASE("what a rank's own device still computes is no time that it waits for others") {
  struct Computing final : Event::State {
    bool is_done() override { return false; }
    void wait() override { std::this_thread::sleep_for(std::chrono::milliseconds(300)); }
  };
  struct Device final : Stream {
    void synchronize() override {}
    void call(std::function<void()> function) override { function(); }
    Event record() override { return Event(std::make_shared<Computing>()); }
  };
  CollectiveStatus status;
  const auto communicator =
      make_reporting_communicator(std::make_unique<Looking>(status), {Rank(0), Rank(1), Rank(2)}, status);
  Device device;
  const MonotonicTime begun = monotonic_now();
  communicator->all_reduce(device, View(), ReduceOp::sum).before(device);
  const double whole = seconds_since(begun);
  CHECK(whole >= 0.32);
  CHECK(status.waited_seconds() >= 0.02);
  CHECK(status.waited_seconds() <= whole - 0.3);
}

TEST_CASE("every hung worker's log gets what it is in and a stack before it is killed") {
  AgentScene scene(
      {Scripts{Words{"stuck", "4", ""}, Words{"stuck", "4", ""}}, Scripts{Words{"exit", "0"}, Words{"exit", "0"}}});
  for (std::size_t rank = 0; rank < 2; ++rank) scene.scripts[0][rank][2] = scene.file("rank" + std::to_string(rank));
  scene.lead.heartbeat = hang_heartbeat;
  CHECK(scene.run() == ExitCode::finished);
  CHECK(scene.starts.size() == 2);
  for (const char* const name : {"rank0", "rank1"}) {
    const std::string report = TempFolder::read(scene.file(name));
    CAPTURE(report);
    CHECK(report.find("taken for hung by the agent: in all_reduce #7") != std::string::npos);
    CHECK(report.find(", main): state") != std::string::npos);
    // Its own program, and the thread that blocks beside main.
    CHECK(report.find("launch_test_helper") != std::string::npos);
    CHECK(report.find("end of the report") != std::string::npos);
  }
  CHECK(scene.logged("group data (ranks 0, 1): all_reduce #7"));
  CHECK(has_no_children());
}

TEST_CASE("a stopped worker is said to be stopped, and writes its report all the same") {
  AgentScene scene({Scripts{Words{"stuck", "4", ""}, Words{"stuck", "4", "", "stop"}},
                    Scripts{Words{"exit", "0"}, Words{"exit", "0"}}});
  for (std::size_t rank = 0; rank < 2; ++rank) scene.scripts[0][rank][2] = scene.file("rank" + std::to_string(rank));
  scene.lead.heartbeat = hang_heartbeat;
  CHECK(scene.run() == ExitCode::finished);
  CHECK(scene.starts.size() == 2);
  CHECK(scene.logged("rank 1: worker"));
  CHECK(scene.logged("is stopped as a whole"));
  CHECK(scene.logged("rank 0 waits in group data (ranks 0, 1): all_reduce #7"));
  const std::string report = TempFolder::read(scene.file("rank1"));
  CHECK(report.find("end of the report") != std::string::npos);
  // The agent names the collective that the report does, not that of the last line before the stop.
  CHECK(report.find("taken for hung by the agent: in all_reduce #8") != std::string::npos);
  CHECK(scene.logged("(supervise.heartbeat), in group data (ranks 0, 1): all_reduce #8 and was killed"));
  CHECK(has_no_children());
}

TEST_CASE("of workers that stand, the one that is in no collective is to blame") {
  AgentScene scene({Scripts{Words{"stuck", "4", ""}, Words{"hang", "4"}, Words{"stuck", "4", ""}},
                    Scripts{Words{"exit", "0"}, Words{"exit", "0"}, Words{"exit", "0"}}});
  scene.scripts[0][0][2] = scene.file("rank0");
  scene.scripts[0][2][2] = scene.file("rank2");
  scene.lead.heartbeat = hang_heartbeat;
  CHECK(scene.run() == ExitCode::finished);
  CHECK(scene.logged("rank 1: worker"));
  CHECK(scene.logged("in no collective and was killed; rank 0 waits in group data"));
  CHECK(scene.logged("and 1 more wait"));
}

TEST_CASE("a worker that somebody else asks reports without touching its threads, and goes on") {
  block_interrupt_signals();
  const TempFolder folder;
  const ChannelPair pair = make_channel();
  const std::string file = (folder / "log").string();
  // The helper in between is the parent; this process is somebody else.
  ChildProcess agent({.executable = LAUNCH_TEST_HELPER, .arguments = {"agent-of-stuck", folder.path().string()}},
                     pair.worker);
  REQUIRE(eventually([&] { return std::filesystem::exists(folder / "pid"); }));
  const auto pid = static_cast<pid_t>(std::stoll(TempFolder::read(folder / "pid")));
  ::kill(pid, SIGQUIT);
  CHECK(eventually([&] { return TempFolder::read(file).find(", main): state") != std::string::npos; }));
  const std::string report = TempFolder::read(file);
  CHECK(report.find("asked by SIGQUIT: in all_reduce #7") != std::string::npos);
  CHECK(report.find("launch_test_helper(") == std::string::npos);
  CHECK(::kill(pid, 0) == 0);
  agent.kill();
}

}  // namespace scaletrain
