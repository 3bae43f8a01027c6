// The coordinator when nodes go and come.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "coordinator_scene.h"

namespace scaletrain {

using Scene = CoordinatorScene;

TEST_CASE("a lost node is waited for until its workers must be dead, then the run ends with 75") {
  Scene scene(2);
  scene.begin();
  scene.run_all(17);
  scene.silence(1);
  scene.report(0, lost_peer(17));
  CHECK(scene.pass(3).command == OrderKind::end);
  CHECK(scene.pass(run_out - 4).command == OrderKind::end);
  CHECK(scene.pass(2).command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::interrupted);
  CHECK(contains(scene.orders().reason, "node 1 is lost"));
  CHECK(scene.served == 1);
  CHECK(lease_run_out(agent_lease(heartbeat)) == run_out);
  CHECK(agent_lease(heartbeat) == lease);
}

TEST_CASE("an elastic run goes on with the replicas that are left, and grows when a node is back") {
  Scene scene(3, 2);
  scene.begin();
  scene.run_all(17);
  scene.checkpoint_step = 10;
  scene.silence(1);
  for (const std::int64_t node : {0, 2}) scene.report(node, lost_peer(17));
  CHECK(scene.pass(run_out - 1).round == 1);
  CHECK(scene.pass(2).command == OrderKind::run);
  CHECK(scene.orders().round == 2);
  CHECK(scene.orders().plan.data == 2);
  CHECK(scene.orders().plan.shares == std::vector<PlaceShare>{{0, 0, 1}, {2, 1, 1}});
  scene.run_all(12);
  // The lost one wakes up: it is not believed.
  scene.revive(1);
  CHECK(scene.pass(3).command == OrderKind::run);
  scene.come(1, "second");
  CHECK(scene.look().command == OrderKind::leave);
  scene.checkpoint_step = 13;
  scene.report_all(ended(ExitCode::interrupted, 13));
  CHECK(scene.look().command == OrderKind::run);
  CHECK(scene.orders().round == 3);
  CHECK(scene.orders().plan.data == 3);
  CHECK(scene.orders().plan.start.step == 13);
  CHECK(scene.orders().plan.incarnations == std::vector<std::string>{"first", "second", "first"});
}

TEST_CASE("an elastic run with too few nodes left ends with 75") {
  Scene scene(3, 2);
  scene.begin();
  scene.run_all(17);
  scene.silence(1);
  scene.silence(2);
  scene.report(0, lost_peer(17));
  CHECK(scene.pass(run_out + 1).command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::interrupted);
  CHECK(contains(scene.orders().reason, "min_data: 2 replicas"));
}

TEST_CASE("an agent that is back before it was missed has no part in the round that it died in") {
  Scene scene(2, 1);
  scene.begin();
  scene.run_all(17);
  scene.come(1, "second");
  CHECK(scene.look().command == OrderKind::end);
  scene.report(0, ended_as_told(17));
  CHECK(scene.look().command == OrderKind::run);
  CHECK(scene.orders().round == 2);
  CHECK(scene.orders().plan.data == 2);
  CHECK(scene.orders().plan.incarnations == std::vector<std::string>{"first", "second"});
}

TEST_CASE("of two nodes that are lost at once both are waited for, and the rest goes on") {
  Scene scene(4, 2);
  scene.begin();
  scene.run_all(17);
  scene.checkpoint_step = 10;
  scene.silence(1);
  scene.pass(1);
  scene.silence(3);
  for (const std::int64_t node : {0, 2}) scene.report(node, lost_peer(17));
  CHECK(scene.pass(run_out - 0.5).round == 1);  // the first is out, the second may still have workers
  CHECK(scene.pass(2).round == 2);
  CHECK(scene.orders().plan.shares == std::vector<PlaceShare>{{0, 0, 1}, {2, 1, 1}});
  CHECK(contains(scene.log_text(), "nodes 1, 3 are lost"));
  CHECK(scene.starts_asked == 1);
}

TEST_CASE("lost nodes use up no restarts, crashes between them do") {
  Scene scene(8, 1, 2);
  scene.begin();
  for (std::int64_t node = 1; node <= 5; ++node) {
    scene.lose(node, 20 + node);
    REQUIRE(scene.orders().round == node + 1);
    REQUIRE(scene.orders().command == OrderKind::run);
  }
  CHECK(contains(scene.log_text(), "a lost node uses up no restart (0 of 2 are used)"));
  for (std::int64_t crash = 1; crash <= 2; ++crash) {
    scene.run_all(30 + crash);
    scene.report_all(killed(30 + crash));
    REQUIRE(scene.look().command == OrderKind::run);
  }
  CHECK(contains(scene.log_text(), "restart 2 of 2"));
  scene.lose(6, 40);
  REQUIRE(scene.orders().command == OrderKind::run);
  scene.run_all(41);
  scene.report_all(killed(41));
  CHECK(scene.look().command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::peer);
}

TEST_CASE("crashes at one step are counted past lost nodes, and a step that loses nodes again and again is given up") {
  Scene crashing(8, 1, 100);
  crashing.begin();
  for (std::int64_t crash = 1; crash <= 3; ++crash) {
    crashing.run_all(5);
    crashing.report_all(killed(5));
    crashing.look();
    if (crash < 3) crashing.lose(crash, 5);
  }
  CHECK(crashing.orders().command == OrderKind::over);
  CHECK(crashing.orders().code == ExitCode::no_progress);
  Scene losing(12, 1);
  losing.begin();
  for (std::int64_t node = 1; node <= 10; ++node) {
    REQUIRE(losing.orders().command == OrderKind::run);
    losing.lose(node, 5);
  }
  CHECK(losing.orders().command == OrderKind::over);
  CHECK(losing.orders().code == ExitCode::no_progress);
  CHECK(contains(losing.orders().reason, "nodes were lost 10 times at step 5"));
}

TEST_CASE("without restarts an elastic run still goes on without a lost node") {
  Scene scene(3, 1, 0);
  scene.begin();
  scene.checkpoint_step = 10;
  scene.lose(1, 17);
  CHECK(scene.orders().command == OrderKind::run);
  CHECK(scene.orders().plan.start.step == 10);
}

TEST_CASE("the last word of an agent that was given up does not harm its successor") {
  Scene scene(2, 1);
  scene.begin();
  scene.lose(1, 17);
  AgentStatus late = scene.status(1);
  late.left = ExitStatus{ExitCode::usage, "late"};
  scene.return_as(1, "second");
  scene.run_all(18);
  CHECK(scene.look().command == OrderKind::leave);
  scene.report(0, ended(ExitCode::interrupted, 19));
  REQUIRE(scene.look().round == 3);
  scene.run_all(20);
  const AgentStatus successor = scene.status(1);
  scene.status(1) = late;  // the place where both write
  CHECK(scene.look().command == OrderKind::run);
  late.left.reset();
  late.report = killed(17);
  scene.status(1) = late;
  CHECK(scene.pass(3).command == OrderKind::run);
  scene.status(1) = successor;
  CHECK(scene.pass(run_out - 1).command == OrderKind::run);
  CHECK(scene.orders().round == 3);
  // An older status of the living agent, over a connection that was given up.
  AgentStatus older = successor;
  older.beat = 1;
  older.report = killed(20);
  scene.status(1) = older;
  scene.look();
  CHECK(scene.orders().round == 3);
  CHECK(scene.orders().command == OrderKind::run);
}

TEST_CASE("before the start the last word of one that was given up ends nothing") {
  Scene scene(3, 1);
  scene.come_all();
  scene.silence(1);
  scene.statuses().erase(2);
  scene.pass(run_out + 1);
  scene.return_as(1, "second");
  scene.look();
  const AgentStatus successor = scene.status(1);
  scene.come(1, "first");
  scene.status(1).left = ExitStatus{ExitCode::usage, "late"};
  CHECK(scene.look().command == OrderKind::wait);
  scene.status(1) = successor;
  scene.come(2);
  CHECK(scene.look().command == OrderKind::run);
  CHECK(scene.orders().plan.incarnations == std::vector<std::string>{"first", "second", "first"});
}

TEST_CASE("a node that comes and goes must stay for longer each time before the run has it again") {
  Scene scene(3, 1);
  scene.begin();
  scene.lose(2, 17);
  // After its first loss it is trusted at once.
  scene.return_as(2, "second");
  scene.run_all(18);
  REQUIRE(scene.look().command == OrderKind::leave);
  scene.report_all(ended(ExitCode::interrupted, 19));
  scene.look();
  REQUIRE(scene.orders().plan.data == 3);
  scene.lose(2, 20);
  scene.return_as(2, "third");
  scene.run_all(21);
  CHECK(scene.pass(55).command == OrderKind::run);
  // A crash meanwhile is no occasion to make use of it.
  scene.report_all(killed(22));
  scene.look();
  CHECK(scene.orders().plan.data == 2);
  scene.run_all(23);
  CHECK(scene.pass(7).command == OrderKind::leave);
  scene.report_all(ended(ExitCode::interrupted, 24));
  scene.look();
  REQUIRE(scene.orders().plan.data == 3);
  scene.lose(2, 25);
  scene.return_as(2, "fourth");
  scene.run_all(26);
  CHECK(scene.pass(115).command == OrderKind::run);
  CHECK(scene.pass(10).command == OrderKind::leave);
}

TEST_CASE("a node that comes and goes is made use of where the run cannot do without") {
  Scene scene(2, 1);
  scene.begin();
  scene.lose(1, 17);
  for (const char* const incarnation : {"second", "third"}) {
    scene.return_as(1, incarnation);
    if (incarnation == std::string("second")) {
      scene.run_all(18);
      scene.report_all(ended(ExitCode::interrupted, 19));
      scene.look();
      scene.lose(1, 20);
    }
  }
  scene.run_all(21);
  REQUIRE(scene.look().command == OrderKind::run);
  CHECK(scene.coordinator().roster().steady() == std::vector<std::int64_t>{0});
  CHECK(scene.coordinator().roster().present() == std::vector<std::int64_t>{0, 1});
  Scene needed(3, 2);
  needed.begin();
  needed.lose(1, 17);
  needed.return_as(1, "second");
  needed.run_all(18);
  needed.report_all(ended(ExitCode::interrupted, 19));
  needed.look();
  needed.lose(1, 20);
  needed.return_as(1, "third");
  needed.run_all(21);
  needed.lose(2, 22);
  CHECK(needed.orders().command == OrderKind::run);
  CHECK(needed.orders().plan.shares == std::vector<PlaceShare>{{0, 0, 1}, {1, 1, 1}});
}

TEST_CASE("for an agent that cannot take part no run is interrupted") {
  Scene scene(2, 1);
  scene.begin();
  scene.lose(1, 17);
  scene.run_all(18);
  scene.return_as(1, "second");
  scene.status(1).left = ExitStatus{ExitCode::usage, "another config"};
  CHECK(scene.pass(3).command == OrderKind::run);
  CHECK(scene.orders().round == 2);
  CHECK(contains(scene.log_text(), "node 1 cannot take part: another config"));
}

TEST_CASE("a node that is lost while the workers save and leave costs the save alone") {
  Scene scene(3, 1);
  scene.begin();
  scene.lose(1, 17);
  scene.return_as(1, "second");
  scene.run_all(18);
  REQUIRE(scene.look().command == OrderKind::leave);
  scene.silence(2);
  scene.pass(run_out + 1);
  CHECK(scene.orders().command == OrderKind::end);
  scene.report(0, ended_as_told(18));
  scene.look();
  CHECK(scene.orders().command == OrderKind::run);
  CHECK(scene.orders().plan.shares == std::vector<PlaceShare>{{0, 0, 1}, {1, 1, 1}});
}

TEST_CASE("a node that comes when the workers are at their last step changes nothing") {
  Scene scene(2, 1);
  scene.begin();
  scene.lose(1, 17);
  scene.run_all(49);
  scene.return_as(1, "second");
  REQUIRE(scene.look().command == OrderKind::leave);
  scene.report(0, ended(ExitCode::finished, 50));
  CHECK(scene.look().command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::finished);
}

TEST_CASE("a node that comes with trouble of its own is dismissed with its code, and the run goes on without it") {
  for (const bool is_result : {true, false}) {
    Scene scene(3, 1, 0);
    scene.begin();
    scene.lose(2, 17);
    scene.run_all(18);
    scene.return_as(2, "second");
    scene.look();
    scene.report_all(ended(ExitCode::interrupted, 19));
    scene.checkpoint_step = 19;
    scene.look();
    REQUIRE(scene.orders().plan.data == 3);
    scene.run_all(19);
    RoundResult trouble = is_result ? ended(ExitCode::input, 19) : killed(19);
    trouble.message = "rank 2: a.txt: there is no such file";
    scene.report(2, trouble);
    scene.look();
    for (const std::int64_t node : {0, 1}) scene.report(node, lost_peer(19));
    scene.look();
    REQUIRE(scene.orders().command == OrderKind::run);
    CHECK(scene.orders().plan.shares == std::vector<PlaceShare>{{0, 0, 1}, {1, 1, 1}});
    REQUIRE(scene.orders().dismissed.size() == 1);
    const Dismissal& dismissal = scene.orders().dismissed.front();
    CHECK(dismissal.incarnation == "second");
    CHECK(dismissal.status.code == (is_result ? ExitCode::input : ExitCode::peer));
    CHECK(contains(dismissal.status.message, "a.txt: there is no such file"));
    CHECK(parse_orders(to_text(scene.orders())).dismissed.front().status.message == dismissal.status.message);
    // It goes on talking until it has heard that.
    scene.run_all(20);
    CHECK(scene.pass(3).command == OrderKind::run);
    CHECK(scene.orders().round == 4);
  }
}

TEST_CASE("trouble that all have, or of a node that has made steps, or of the first start, ends the run") {
  for (const int kind : {0, 1, 2}) {
    Scene scene(3, 1);
    scene.begin();
    RoundResult trouble = ended(ExitCode::input, 19);
    trouble.message = "rank 2: a.txt: there is no such file";
    if (kind < 2) {
      scene.lose(2, 17);
      scene.run_all(18);
      scene.return_as(2, "second");
      scene.look();
      scene.report_all(ended(ExitCode::interrupted, 19));
      scene.checkpoint_step = 19;
      scene.look();
      scene.run_all(kind == 0 ? 19 : 20);
      if (kind == 0) scene.report_all(trouble);
    }
    if (kind > 0) {
      scene.report_all(lost_peer(19));
      scene.report(2, trouble);
    }
    scene.look();
    CHECK(scene.orders().command == OrderKind::over);
    CHECK(scene.orders().code == ExitCode::input);
  }
}

}  // namespace scaletrain
