// The coordinator's decisions, with statuses made up and a clock that the test moves.
#include "launch/coordinator.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "base/error.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

constexpr double heartbeat = 30.0;
constexpr double lease = 10.0;
constexpr double run_out = 15.0;

// Agents that do as they are told, unless the test says otherwise.
class Scene {
 public:
  explicit Scene(std::int64_t nodes, std::optional<std::int64_t> min_data = {}, std::int64_t max_restarts = 3)
      : nodes_(nodes),
        log_({.file = folder_.path() / "agent.log"}),
        coordinator_({.layout = {.ranks_per_node = 1, .replica = 1, .data = nodes},
                      .nodes = nodes,
                      .min_data = min_data,
                      .start = {.checkpoint = {}, .step = 0, .generation = 0},
                      .lock_id = "lock",
                      .max_restarts = max_restarts,
                      .heartbeat = heartbeat,
                      .join_seconds = 100.0,
                      .log = log_,
                      .next_start =
                          [this](const StartPoint& before) {
                            ++starts_asked;
                            return StartPoint{
                                .checkpoint = "c", .step = checkpoint_step, .generation = before.generation + 1};
                          },
                      .serve =
                          [this](std::int64_t world) {
                            ++served;
                            return WorkersRendezvous{{"127.0.0.1", static_cast<std::uint16_t>(1000 + served)},
                                                     "salt of " + std::to_string(world)};
                          },
                      .holds_lock = [this] { return holds_lock; }}) {}

  void come(std::int64_t node, const std::string& incarnation = "first") {
    NodeStatus status;
    status.node = node;
    status.incarnation = incarnation;
    statuses_[node] = status;
  }
  void come_all() {
    for (std::int64_t node = 0; node < nodes_; ++node) come(node);
  }
  NodeStatus& status(std::int64_t node) { return statuses_.at(node); }
  void silence(std::int64_t node) { silent_[node] = true; }
  void revive(std::int64_t node) { silent_[node] = false; }

  // Time passes in small steps; who is not silent gives signs of life.
  const Orders& pass(double seconds) {
    for (double end = now_ + seconds; now_ < end; now_ += 0.25) look();
    return coordinator_.orders();
  }
  const Orders& look() {
    std::vector<NodeStatus> list;
    for (auto& [node, status] : statuses_) {
      if (!silent_[node]) ++status.beat;
      list.push_back(status);
    }
    now_ += 0.01;
    return coordinator_.look(now_, list);
  }

  // The workers of all nodes of the attempt run, at this step.
  void run_all(std::int64_t step) {
    for (const NodeShare& share : orders().plan.shares) {
      NodeStatus& status = statuses_.at(share.node);
      status.attempt = orders().attempt;
      status.report.reset();
      status.pulse = {.progress = 10, .working = share.count, .step = step};
    }
    look();
  }
  void report(std::int64_t node, const Attempt& attempt) {
    NodeStatus& status = statuses_.at(node);
    status.attempt = orders().attempt;
    status.report = attempt;
    status.pulse = {};
  }
  void report_all(const Attempt& attempt) {
    for (const NodeShare& share : orders().plan.shares) report(share.node, attempt);
  }

  const Orders& orders() const { return coordinator_.orders(); }
  Coordinator& coordinator() { return coordinator_; }
  std::string log_text() const {
    std::ifstream in(folder_.path() / "agent.log");
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  int served = 0;
  int starts_asked = 0;
  std::int64_t checkpoint_step = 0;
  bool holds_lock = true;

 private:
  std::int64_t nodes_;
  TempFolder folder_;
  Log log_;
  Coordinator coordinator_;
  std::map<std::int64_t, NodeStatus> statuses_;
  std::map<std::int64_t, bool> silent_;
  double now_ = 1000.0;
};

Attempt ended(ExitCode code, std::int64_t step = 100) {
  Attempt attempt;
  attempt.result = code;
  attempt.step = step;
  attempt.description = "ended";
  return attempt;
}
Attempt killed(std::int64_t step) {
  Attempt attempt;
  attempt.step = step;
  attempt.rank = Rank(1);
  attempt.description = "rank 1: worker 5 was killed by signal 9";
  return attempt;
}
Attempt lost_peer(std::int64_t step) {
  Attempt attempt;
  attempt.step = step;
  attempt.lost_peer_only = true;
  attempt.description = "rank 0: worker 4 ended with exit code 4";
  return attempt;
}
Attempt ended_as_told(std::int64_t step) {
  Attempt attempt;
  attempt.step = step;
  attempt.ended_for_others = true;
  return attempt;
}
Attempt ended_while_starting() {
  Attempt attempt;
  attempt.started = false;
  return attempt;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("no worker starts before every node has come") {
  Scene scene(3);
  scene.come(0);
  scene.come(2);
  CHECK(scene.pass(9).command == NodeCommand::wait);
  CHECK_FALSE(says(scene.log_text(), "waiting for"));
  CHECK(scene.pass(50).command == NodeCommand::wait);
  CHECK(says(scene.log_text(), "waiting for the agent of node 1: 2 of 3 are there after 10."));
  CHECK(scene.log_text().find("waiting for") == scene.log_text().rfind("waiting for"));
  CHECK(scene.pass(30).command == NodeCommand::wait);
  CHECK(scene.log_text().find("waiting for") != scene.log_text().rfind("waiting for"));
  CHECK(scene.served == 0);
  scene.come(1);
  const Orders& orders = scene.look();
  CHECK(orders.command == NodeCommand::run);
  CHECK(orders.attempt == 1);
  CHECK(orders.plan.world == 3);
  CHECK(orders.plan.data == 3);
  CHECK(orders.plan.lock_id == "lock");
  CHECK(orders.plan.shares == std::vector<NodeShare>{{0, 0, 1}, {1, 1, 1}, {2, 2, 1}});
  CHECK(orders.plan.rendezvous.salt == "salt of 3");
}

TEST_CASE("nodes that do not come are named, and an elastic run begins without them") {
  Scene rigid(3);
  rigid.come(0);
  rigid.come(2);
  CHECK(rigid.pass(101).command == NodeCommand::over);
  CHECK(rigid.orders().code == ExitCode::peer);
  CHECK(says(rigid.orders().reason, "node 1 has not come"));
  Scene elastic(3, 2);
  elastic.come(0);
  elastic.come(2);
  CHECK(elastic.pass(99).command == NodeCommand::wait);
  CHECK(elastic.pass(2).command == NodeCommand::run);
  CHECK(elastic.orders().plan.data == 2);
  CHECK(elastic.orders().plan.shares == std::vector<NodeShare>{{0, 0, 1}, {2, 1, 1}});
  Scene too_few(3, 3);
  too_few.come(0);
  too_few.come(2);
  CHECK(too_few.pass(101).code == ExitCode::peer);
}

TEST_CASE("a node that cannot take part ends the start with its code") {
  Scene scene(2);
  scene.come(0);
  scene.come(1);
  scene.status(1).left = Departure{ExitCode::usage, "another config"};
  const Orders& orders = scene.look();
  CHECK(orders.command == NodeCommand::over);
  CHECK(orders.code == ExitCode::usage);
  CHECK(says(orders.reason, "node 1 could not start: another config"));
}

TEST_CASE("what all workers came to is the run's result") {
  for (const ExitCode code : {ExitCode::finished, ExitCode::interrupted}) {
    Scene scene(2);
    scene.come_all();
    scene.look();
    scene.run_all(1);
    scene.report(0, ended(code));
    CHECK(scene.pass(5).command == NodeCommand::run);  // the other is still on its way
    scene.report(1, ended(code));
    CHECK(scene.look().command == NodeCommand::over);
    CHECK(scene.orders().code == code);
    CHECK(scene.starts_asked == 0);
  }
}

TEST_CASE("a worker's own result ends all nodes with that code") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(7);
  Attempt diverged = ended(ExitCode::diverged, 7);
  diverged.message = "rank 1: no finite step";
  scene.report(1, diverged);
  CHECK(scene.look().command == NodeCommand::end);
  scene.report(0, ended_as_told(7));
  CHECK(scene.look().command == NodeCommand::over);
  CHECK(scene.orders().code == ExitCode::diverged);
  CHECK(says(scene.orders().reason, "node 1: rank 1: no finite step"));
}

TEST_CASE("a dead worker ends the others' and all start again from the newest checkpoint") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(17);
  scene.checkpoint_step = 10;
  // The first to tell has only lost its peer: for a moment the cause is waited for.
  scene.report(0, lost_peer(17));
  CHECK(scene.look().command == NodeCommand::run);
  scene.report(1, killed(17));
  CHECK(scene.look().command == NodeCommand::run);
  CHECK(scene.orders().attempt == 2);
  CHECK(scene.orders().plan.start.step == 10);
  CHECK(scene.orders().plan.start.generation == 1);
  CHECK(scene.served == 2);
  CHECK(says(scene.log_text(), "node 1: rank 1: worker 5 was killed by signal 9"));
  CHECK(says(scene.log_text(), "restart 1 of 3"));
}

TEST_CASE("what the ranks of all nodes tell alike is nobody's in particular") {
  for (const bool is_alike : {true, false}) {
    Scene scene(2);
    scene.come_all();
    scene.look();
    scene.run_all(7);
    Attempt one = ended(ExitCode::diverged, 7);  // of a node with one worker
    one.rank = Rank(0);
    one.message = "rank 0: no finite step";
    scene.report(0, one);
    Attempt several = ended(ExitCode::diverged, 7);
    several.message = is_alike ? "no finite step" : "no finite loss";
    several.is_alike = true;
    scene.report(1, several);
    CHECK(scene.look().command == NodeCommand::over);
    CHECK(scene.orders().code == ExitCode::diverged);
    CHECK(says(scene.orders().reason, "all ranks: no finite step") == is_alike);
    CHECK(says(scene.orders().reason, "node 0: rank 0: no finite step") == !is_alike);
  }
}

TEST_CASE("how long it took to make good a failure is told once every node is further") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(17);
  CHECK_FALSE(says(scene.log_text(), "recovered"));
  scene.checkpoint_step = 10;
  scene.report(1, killed(17));
  scene.look();
  scene.pass(2.0);
  scene.report(0, ended_as_told(17));
  scene.look();
  CHECK(scene.orders().attempt == 2);
  scene.run_all(10);
  scene.status(0).pulse.step = 12;
  scene.pass(1.0);
  CHECK_FALSE(says(scene.log_text(), "recovered"));
  scene.run_all(11);
  scene.pass(5.0);
  scene.run_all(12);
  const std::string text = scene.log_text();
  CHECK(says(text, "recovered: step 11 was done 3."));
  CHECK(text.find("recovered") == text.rfind("recovered"));
}

TEST_CASE("workers that have lost a peer that nobody misses are started again") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(17);
  scene.report(0, lost_peer(17));
  CHECK(scene.pass(1.5).command == NodeCommand::run);
  CHECK(scene.pass(1.0).command == NodeCommand::end);
  scene.report(1, ended_as_told(17));
  CHECK(scene.look().attempt == 2);
}

TEST_CASE("the same step failing three times ends the run with 6, and used up restarts with 4") {
  Scene stuck(2);
  stuck.come_all();
  stuck.look();
  for (int i = 0; i < 3; ++i) {
    stuck.run_all(5);
    stuck.report_all(lost_peer(5));
    stuck.report(1, killed(5));
    stuck.look();
  }
  CHECK(stuck.orders().command == NodeCommand::over);
  CHECK(stuck.orders().code == ExitCode::no_progress);
  Scene used_up(2, {}, 1);
  used_up.come_all();
  used_up.look();
  for (int i = 0; i < 2; ++i) {
    used_up.run_all(5 + i);
    used_up.report_all(killed(5 + i));
    used_up.look();
  }
  CHECK(used_up.orders().command == NodeCommand::over);
  CHECK(used_up.orders().code == ExitCode::peer);
}

TEST_CASE("a hang is where no node moves, and not where one does") {
  Scene scene(3);
  scene.come_all();
  scene.look();
  scene.run_all(9);
  for (const std::int64_t node : {0, 2}) scene.status(node).pulse.still_seconds = 3 * heartbeat;
  scene.status(1).pulse.still_seconds = heartbeat - 1;
  CHECK(scene.look().command == NodeCommand::run);
  scene.status(1).pulse.still_seconds = heartbeat;
  CHECK(scene.look().command == NodeCommand::end);
  CHECK(scene.orders().is_hang);
  scene.checkpoint_step = 6;
  scene.report_all(ended_as_told(9));
  Attempt waited = ended_as_told(9);
  waited.message = "rank 2 waits in group data (ranks 1, 2): all_reduce #7";
  scene.report(2, waited);
  CHECK(scene.look().command == NodeCommand::run);
  CHECK(scene.orders().attempt == 2);
  CHECK_FALSE(scene.orders().is_hang);
  CHECK(says(scene.log_text(), "no rank on any node made progress"));
  CHECK(says(scene.log_text(), "; node 2: rank 2 waits in group data (ranks 1, 2): all_reduce #7; each rank's log"));
}

TEST_CASE("a node that is still starting its workers is no hang") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(9);
  scene.status(0).pulse.still_seconds = 3 * heartbeat;
  scene.status(1).attempt = 0;
  scene.status(1).pulse = {};
  CHECK(scene.pass(5).command == NodeCommand::run);
}

TEST_CASE("a lost node is waited for until its workers must be dead, then the run ends with 75") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(17);
  scene.silence(1);
  scene.report(0, lost_peer(17));
  CHECK(scene.pass(3).command == NodeCommand::end);
  CHECK(scene.pass(run_out - 4).command == NodeCommand::end);
  CHECK(scene.pass(2).command == NodeCommand::over);
  CHECK(scene.orders().code == ExitCode::interrupted);
  CHECK(says(scene.orders().reason, "node 1 is lost"));
  CHECK(scene.served == 1);
  CHECK(lease_run_out(agent_lease(heartbeat)) == run_out);
  CHECK(agent_lease(heartbeat) == lease);
}

TEST_CASE("an elastic run goes on with the replicas that are left, and grows when a node is back") {
  Scene scene(3, 2);
  scene.come_all();
  scene.look();
  scene.run_all(17);
  scene.checkpoint_step = 10;
  scene.silence(1);
  for (const std::int64_t node : {0, 2}) scene.report(node, lost_peer(17));
  CHECK(scene.pass(run_out - 1).attempt == 1);
  CHECK(scene.pass(2).command == NodeCommand::run);
  CHECK(scene.orders().attempt == 2);
  CHECK(scene.orders().plan.data == 2);
  CHECK(scene.orders().plan.shares == std::vector<NodeShare>{{0, 0, 1}, {2, 1, 1}});
  scene.run_all(12);
  // The lost one wakes up: it is not believed.
  scene.revive(1);
  CHECK(scene.pass(3).command == NodeCommand::run);
  scene.come(1, "second");
  CHECK(scene.look().command == NodeCommand::leave);
  scene.checkpoint_step = 13;
  scene.report_all(ended(ExitCode::interrupted, 13));
  CHECK(scene.look().command == NodeCommand::run);
  CHECK(scene.orders().attempt == 3);
  CHECK(scene.orders().plan.data == 3);
  CHECK(scene.orders().plan.start.step == 13);
  CHECK(scene.orders().plan.incarnations == std::vector<std::string>{"first", "second", "first"});
}

TEST_CASE("an elastic run with too few nodes left ends with 75") {
  Scene scene(3, 2);
  scene.come_all();
  scene.look();
  scene.run_all(17);
  scene.silence(1);
  scene.silence(2);
  scene.report(0, lost_peer(17));
  CHECK(scene.pass(run_out + 1).command == NodeCommand::over);
  CHECK(scene.orders().code == ExitCode::interrupted);
  CHECK(says(scene.orders().reason, "min_data: 2 replicas"));
}

TEST_CASE("an agent that is back before it was missed has no part in the attempt that it died in") {
  Scene scene(2, 1);
  scene.come_all();
  scene.look();
  scene.run_all(17);
  scene.come(1, "second");
  CHECK(scene.look().command == NodeCommand::end);
  scene.report(0, ended_as_told(17));
  CHECK(scene.look().command == NodeCommand::run);
  CHECK(scene.orders().attempt == 2);
  CHECK(scene.orders().plan.data == 2);
  CHECK(scene.orders().plan.incarnations == std::vector<std::string>{"first", "second"});
}

TEST_CASE("a signal at one node makes all save and leave, and ends the run with 75") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(3);
  scene.status(1).is_interrupted = true;
  CHECK(scene.look().command == NodeCommand::leave);
  scene.report_all(ended(ExitCode::interrupted, 4));
  CHECK(scene.look().command == NodeCommand::over);
  CHECK(scene.orders().code == ExitCode::interrupted);
}

TEST_CASE("a signal while workers start ends them all") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(-1);
  scene.status(1).is_interrupted = true;
  scene.report(1, ended_while_starting());
  CHECK(scene.look().command == NodeCommand::end);
  scene.report(0, ended_as_told(0));
  CHECK(scene.look().code == ExitCode::interrupted);
  Scene early(2);
  early.come(0);
  early.status(0).is_interrupted = true;
  CHECK(early.look().command == NodeCommand::over);
  CHECK(early.orders().code == ExitCode::interrupted);
}

TEST_CASE("after a signal a failure is not mended any more") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(3);
  scene.status(0).is_interrupted = true;
  scene.look();
  scene.report_all(lost_peer(4));
  scene.report(1, killed(4));
  CHECK(scene.look().command == NodeCommand::over);
  CHECK(scene.orders().code == ExitCode::interrupted);
}

TEST_CASE("a coordinator that stood still blames nobody") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(3);
  NodeStatus first = scene.status(0);
  NodeStatus second = scene.status(1);
  // An hour later nothing has been read yet.
  CHECK(scene.coordinator().look(5000.0, {first, second}).command == NodeCommand::run);
  ++first.beat;
  ++second.beat;
  CHECK(scene.coordinator().look(5000.1, {first, second}).command == NodeCommand::run);
}

TEST_CASE("a lost lock ends the run before another attempt") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(3);
  scene.holds_lock = false;
  scene.report_all(killed(4));
  CHECK(scene.look().command == NodeCommand::over);
  CHECK(scene.orders().code == ExitCode::peer);
  CHECK(says(scene.orders().reason, "lock"));
}

TEST_CASE("the coordinator stays until the others have left") {
  Scene scene(2);
  scene.come_all();
  scene.look();
  scene.run_all(3);
  scene.report_all(ended(ExitCode::finished));
  scene.look();
  CHECK_FALSE(scene.coordinator().is_done());
  scene.status(1).left = Departure{ExitCode::finished, ""};
  scene.look();
  CHECK(scene.coordinator().is_done());
  Scene silent(2);
  silent.come_all();
  silent.look();
  silent.run_all(3);
  silent.report_all(ended(ExitCode::finished));
  silent.pass(run_out - 1);
  CHECK_FALSE(silent.coordinator().is_done());
  silent.pass(2);
  CHECK(silent.coordinator().is_done());
}

TEST_CASE("those who have not come are awaited where all is well, and for a moment where it is not") {
  Scene complete(2);
  complete.coordinator().finish(ExitCode::finished, "already complete");
  complete.come(0);
  complete.pass(90);
  CHECK_FALSE(complete.coordinator().is_done());
  complete.come(1);
  complete.status(1).left = Departure{ExitCode::finished, ""};
  complete.look();
  CHECK(complete.coordinator().is_done());
  Scene interrupted(2);
  interrupted.come(0);
  interrupted.status(0).is_interrupted = true;
  interrupted.look();
  CHECK_FALSE(interrupted.coordinator().is_done());
  interrupted.pass(2.5);
  CHECK(interrupted.coordinator().is_done());
}

TEST_CASE("statuses and orders read back as they were written") {
  NodeStatus status;
  status.node = 3;
  status.incarnation = "x";
  status.beat = 1ull << 60;
  status.attempt = 2;
  status.report = killed(17);
  status.report->message = "rank 1: \"quoted\"\n";
  status.report->result = ExitCode::input;
  status.report->is_alike = true;
  status.pulse = {.progress = 7, .working = 1, .waiting = 2, .step = 9, .still_seconds = 0.5};
  status.is_interrupted = true;
  status.left = Departure{ExitCode::bug, "why"};
  const NodeStatus same = parse_status(to_text(status));
  CHECK(to_text(same) == to_text(status));
  CHECK(same.report->result == ExitCode::input);
  CHECK(same.report->rank == Rank(1));
  CHECK(same.report->is_alike);
  CHECK(same.beat == status.beat);
  CHECK(same.pulse.still_seconds == 0.5);
  CHECK(same.left->message == "why");
  Orders orders;
  orders.command = NodeCommand::leave;
  orders.attempt = 4;
  orders.plan = {.start = {.checkpoint = "/c", .step = 5, .generation = 6, .asked = "a"},
                 .lock_id = "l",
                 .shares = {{1, 2, 3}},
                 .incarnations = {"i"},
                 .world = 7,
                 .data = 8,
                 .rendezvous = {{"h", 9}, "s"}};
  orders.reason = "r";
  orders.is_hang = true;
  orders.code = ExitCode::interrupted;
  const Orders read = parse_orders(to_text(orders));
  CHECK(to_text(read) == to_text(orders));
  CHECK(read.plan.start.checkpoint == "/c");
  CHECK(read.plan.rendezvous.address.port == 9);
  CHECK(read.code == ExitCode::interrupted);
  CHECK_THROWS_AS(parse_orders("{}"), InputError);
  CHECK_THROWS_AS(parse_status("nonsense"), InputError);
}

}  // namespace scaletrain
