// A worker group that is one host's share of a larger world: what it leaves to others, and what it obeys.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "launch/workers/worker_group.h"
#include "support/blocked_signals.h"
#include "support/temp_folder.h"
#include "unit/launch/agent_scene.h"

namespace scaletrain {
namespace {

// The second host of three: ranks 4 and on of twelve.
struct Share : BlockedSignals {
  explicit Share(std::initializer_list<Words> worker_scripts)
      : scripts(worker_scripts),
        log(LogOptions{.file = folder / "agent.log"}),
        options{.paths = RunPaths(folder.path()),
                .start = {},
                .lock_id = "0123",
                .first_rank = 4,
                .count = static_cast<std::int64_t>(scripts.size()),
                .world = 12,
                .rendezvous = RanksRendezvous{.address = {.host = "10.1.2.3", .port = 4567}, .secret = "their secret"},
                .heartbeat = 30.0,
                .log = log,
                .interrupts = interrupts,
                .executable = LAUNCH_TEST_HELPER} {
    options.start.step = 3;
    options.arguments = [this](const StartPoint&, const WorkerSlot& slot) {
      slots.push_back(slot);
      return scripts.at(static_cast<std::size_t>(slot.local_rank));
    };
  }

  bool logged(const std::string& text) const {
    return TempFolder::read(folder / "agent.log").find(text) != std::string::npos;
  }
  std::string file(const std::string& name) const { return (folder / name).string(); }

  TempFolder folder;
  std::vector<Words> scripts;
  Log log;
  InterruptWatcher interrupts;
  GroupOptions options;
  std::vector<WorkerSlot> slots;
};

}  // namespace

TEST_CASE("a share's workers get the world's ranks, the other host's rendezvous and its secret") {
  Share share({Words{"place", ""}, Words{"exit", "0"}});
  share.scripts[0][1] = share.file("place");
  share.options.data_degree = 6;
  CHECK(run_worker_group(share.options).result == ExitCode::finished);
  REQUIRE(share.slots.size() == 2);
  CHECK(share.slots[1].rank == Rank(5));
  CHECK(share.slots[1].local_rank == 1);
  CHECK(share.slots[1].world == 12);
  CHECK(share.slots[1].data_degree == 6);
  CHECK(share.slots[1].sharers <= 2);
  REQUIRE(share.slots[1].rendezvous);
  CHECK(share.slots[1].rendezvous->host == "10.1.2.3");
  CHECK(split_text(TempFolder::read(share.file("place")), ' ').at(0) == "their");
  CHECK(share.logged("2 of 12 workers started"));
}

TEST_CASE("the command line of a share's worker says its place on the host and the data degree") {
  Share share({Words{"exit", "0"}});
  const WorkerSlot slot{.rank = Rank(5),
                        .world = 12,
                        .local_rank = 1,
                        .sharers = 1,
                        .rendezvous = RendezvousAddress{.host = "10.1.2.3", .port = 4567},
                        .data_degree = 6};
  const Words words = worker_arguments(share.options, slot);
  const auto value_of = [&words](const char* name) {
    const auto at = std::find(words.begin(), words.end(), name);
    return at == words.end() ? std::string("missing") : *(at + 1);
  };
  CHECK(value_of("--rank") == "5");
  CHECK(value_of("--local-rank") == "1");
  CHECK(value_of("--world") == "12");
  CHECK(value_of("--data") == "6");
  CHECK(value_of("--rendezvous") == "10.1.2.3:4567");
}

TEST_CASE("a share names the failed rank of the world and says when it only lost a peer") {
  Share dies({Words{"work", "60"}, Words{"die", "7", "9"}});
  const RoundResult death = run_worker_group(dies.options);
  CHECK_FALSE(death.result);
  CHECK(death.rank == Rank(5));
  CHECK(death.step == 7);
  CHECK_FALSE(death.lost_peer_only);
  CHECK(death.description.find("rank 5: worker") == 0);

  Share loses({Words{"fail", "4", "data: nothing from rank 0"}, Words{"work", "60"}});
  loses.options.settle_seconds = 0.5;
  const RoundResult loss = run_worker_group(loses.options);
  CHECK_FALSE(loss.result);
  CHECK(loss.lost_peer_only);
  CHECK(loss.message == "rank 4: data: nothing from rank 0");
  CHECK(has_no_children());
}

TEST_CASE("a share that stands still as a whole is left to whoever sees the other hosts") {
  // Both talk and do not move for longer than a heartbeat, as ranks that wait for another host's do.
  Share share({Words{"later", "60", "0", ""}, Words{"later", "60", "0", ""}});
  share.options.heartbeat = 3.0;
  // What the one who judges needs: the time goes on counting.
  double still = 0.0;
  share.options.status = [&](const GroupStatus& workers) { still = workers.still_seconds; };
  share.options.told_to_end = [&]() -> std::optional<EndOrder> {
    if (still > 1.2 * share.options.heartbeat) return EndOrder{.reason = "nobody moves"};
    return std::nullopt;
  };
  const RoundResult round = run_worker_group(share.options);
  CAPTURE(round.description);
  CHECK(round.ended_for_others);
}

TEST_CASE("a share judges its mute workers itself") {
  Share share({Words{"work", "60"}, Words{"die", "4", std::to_string(SIGSTOP)}});
  share.options.heartbeat = 3.0;
  const RoundResult round = run_worker_group(share.options);
  CAPTURE(round.description);
  CHECK_FALSE(round.result);
  CHECK(round.rank == Rank(5));
  CHECK(has_no_children());
}

TEST_CASE("a workers counts who works and who waits, and is not still while one moves") {
  Share share({Words{"work", "60"}, Words{"wait", "60"}});
  share.options.heartbeat = 8.0;
  GroupStatus last;
  int num_statuses = 0;
  share.options.status = [&](const GroupStatus& workers) {
    last = workers;
    ++num_statuses;
  };
  share.options.told_to_end = [&]() -> std::optional<EndOrder> {
    if (last.working == 1 && last.waiting == 1 && last.progress > 10 && last.step == 3)
      return EndOrder{.reason = "host b was lost"};
    return std::nullopt;
  };
  const RoundResult round = run_worker_group(share.options);
  CAPTURE(round.description);
  CHECK(round.ended_for_others);
  CHECK_FALSE(round.result);
  CHECK(round.description.find("host b was lost") != std::string::npos);
  CHECK(last.pids.size() == 2);
  CHECK(last.still_seconds == 0.0);
  CHECK(num_statuses > 1);
  CHECK(has_no_children());
}

TEST_CASE("a share that is told of a hang has its workers report before they end") {
  Share share({Words{"stuck", "4", ""}});
  share.scripts[0][2] = share.file("rank4");
  GroupStatus last;
  share.options.heartbeat = 8.0;
  share.options.status = [&](const GroupStatus& workers) { last = workers; };
  share.options.told_to_end = [&]() -> std::optional<EndOrder> {
    if (last.still_seconds > 0.2) return EndOrder{.reason = "nobody moves", .is_hang = true};
    return std::nullopt;
  };
  const RoundResult round = run_worker_group(share.options);
  CAPTURE(round.description);
  CHECK(round.ended_for_others);
  CHECK(round.message == "rank 4 waits in group data (ranks 0, 1): all_reduce #7");
  CHECK(TempFolder::read(share.file("rank4")).find("end of the report") != std::string::npos);
}

TEST_CASE("a worker that the kernel ended for want of memory is said to be one, probably") {
  for (const bool grows : {true, false}) {
    CAPTURE(grows);
    Share share({Words{"die", "7", "9"}});
    int asked = 0;
    share.options.memory_kills = [&] { return grows ? ++asked : 5; };
    const RoundResult round = run_worker_group(share.options);
    CHECK((round.description.find("for want of memory") != std::string::npos) == grows);
  }
}

TEST_CASE("told to leave, every worker is asked once to save; the group ends with 75") {
  Share share({Words{"count", ""}, Words{"count", ""}});
  share.scripts[0][1] = share.file("state0");
  share.scripts[1][1] = share.file("state1");
  share.options.heartbeat = 4.0;
  share.options.told_to_leave = [&] {
    return TempFolder::read(share.file("state0")) == "ready" && TempFolder::read(share.file("state1")) == "ready";
  };
  CHECK(run_worker_group(share.options).result == ExitCode::interrupted);
  CHECK(TempFolder::read(share.file("state0")) == "1");
  CHECK(TempFolder::read(share.file("state1")) == "1");
  CHECK(share.logged("asked to leave"));
}

TEST_CASE("told to leave while a worker starts up, the group ends at once") {
  Share share({Words{"hang", "0"}, Words{"slow-start", "60"}});
  share.options.told_to_leave = [] { return true; };
  const MonotonicTime begin = monotonic_now();
  const RoundResult round = run_worker_group(share.options);
  CHECK_FALSE(round.started);
  CHECK(seconds_since(begin) < 50.0);
  CHECK(has_no_children());
}

}  // namespace scaletrain
