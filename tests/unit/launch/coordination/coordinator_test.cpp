// The coordinator from the first agent to the last: who is waited for, and how a run ends.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "coordinator_scene.h"

namespace scaletrain {

using Scene = CoordinatorScene;

TEST_CASE("no worker starts before every node has come") {
  Scene scene(3);
  scene.come(0);
  scene.come(2);
  CHECK(scene.pass(9).command == OrderKind::wait);
  CHECK_FALSE(contains(scene.log_text(), "waiting for"));
  CHECK(scene.pass(50).command == OrderKind::wait);
  CHECK(contains(scene.log_text(), "waiting for the agent of node 1: 2 of 3 are there after 10."));
  CHECK(scene.log_text().find("waiting for") == scene.log_text().rfind("waiting for"));
  CHECK(scene.pass(30).command == OrderKind::wait);
  CHECK(scene.log_text().find("waiting for") != scene.log_text().rfind("waiting for"));
  CHECK(scene.served == 0);
  scene.come(1);
  const Orders& orders = scene.look();
  CHECK(orders.command == OrderKind::run);
  CHECK(orders.round == 1);
  CHECK(orders.plan.world == 3);
  CHECK(orders.plan.data == 3);
  CHECK(orders.plan.lock_id == "lock");
  CHECK(orders.plan.shares == std::vector<PlaceShare>{{0, 0, 1}, {1, 1, 1}, {2, 2, 1}});
  CHECK(orders.plan.rendezvous.salt == "salt of 3");
}

TEST_CASE("nodes that do not come are named, and an elastic run begins without them") {
  Scene rigid(3);
  rigid.come(0);
  rigid.come(2);
  CHECK(rigid.pass(101).command == OrderKind::over);
  CHECK(rigid.orders().code == ExitCode::peer);
  CHECK(contains(rigid.orders().reason, "node 1 has not come"));
  Scene elastic(3, 2);
  elastic.come(0);
  elastic.come(2);
  CHECK(elastic.pass(99).command == OrderKind::wait);
  CHECK(elastic.pass(2).command == OrderKind::run);
  CHECK(elastic.orders().plan.data == 2);
  CHECK(elastic.orders().plan.shares == std::vector<PlaceShare>{{0, 0, 1}, {2, 1, 1}});
  Scene too_few(3, 3);
  too_few.come(0);
  too_few.come(2);
  CHECK(too_few.pass(101).code == ExitCode::peer);
}

TEST_CASE("a node that cannot take part ends the start with its code") {
  Scene scene(2);
  scene.come(0);
  scene.come(1);
  scene.status(1).left = ExitStatus{ExitCode::usage, "another config"};
  const Orders& orders = scene.look();
  CHECK(orders.command == OrderKind::over);
  CHECK(orders.code == ExitCode::usage);
  CHECK(contains(orders.reason, "node 1 could not start: another config"));
}

TEST_CASE("what all workers came to is the run's result") {
  for (const ExitCode code : {ExitCode::finished, ExitCode::interrupted}) {
    Scene scene(2);
    scene.begin();
    scene.run_all(1);
    scene.report(0, ended(code));
    CHECK(scene.pass(5).command == OrderKind::run);  // the other is still on its way
    scene.report(1, ended(code));
    CHECK(scene.look().command == OrderKind::over);
    CHECK(scene.orders().code == code);
    CHECK(scene.starts_asked == 0);
  }
}

TEST_CASE("a signal at one node makes all save and leave, and ends the run with 75") {
  Scene scene(2);
  scene.begin();
  scene.run_all(3);
  scene.status(1).is_interrupted = true;
  CHECK(scene.look().command == OrderKind::leave);
  scene.report_all(ended(ExitCode::interrupted, 4));
  CHECK(scene.look().command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::interrupted);
}

TEST_CASE("a signal while workers start ends them all") {
  Scene scene(2);
  scene.begin();
  scene.run_all(-1);
  scene.status(1).is_interrupted = true;
  scene.report(1, ended_while_starting());
  CHECK(scene.look().command == OrderKind::end);
  scene.report(0, ended_as_told(0));
  CHECK(scene.look().code == ExitCode::interrupted);
  Scene early(2);
  early.come(0);
  early.status(0).is_interrupted = true;
  CHECK(early.look().command == OrderKind::over);
  CHECK(early.orders().code == ExitCode::interrupted);
}

TEST_CASE("a coordinator that stood still blames nobody") {
  Scene scene(2);
  scene.begin();
  scene.run_all(3);
  AgentStatus first = scene.status(0);
  AgentStatus second = scene.status(1);
  // An hour later nothing has been read yet.
  CHECK(scene.coordinator().look(5000.0, {first, second}).command == OrderKind::run);
  ++first.beat;
  ++second.beat;
  CHECK(scene.coordinator().look(5000.1, {first, second}).command == OrderKind::run);
}

TEST_CASE("a lost lock ends the run before another round") {
  Scene scene(2);
  scene.begin();
  scene.run_all(3);
  scene.holds_lock = false;
  scene.report_all(killed(4));
  CHECK(scene.look().command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::peer);
  CHECK(contains(scene.orders().reason, "lock"));
}

TEST_CASE("the coordinator stays until the others have left") {
  Scene scene(2);
  scene.begin();
  scene.run_all(3);
  scene.report_all(ended(ExitCode::finished));
  scene.look();
  CHECK_FALSE(scene.coordinator().is_done());
  scene.status(1).left = ExitStatus{ExitCode::finished, ""};
  scene.look();
  CHECK(scene.coordinator().is_done());
  Scene silent(2);
  silent.begin();
  silent.run_all(3);
  silent.report_all(ended(ExitCode::finished));
  silent.pass(run_out - 1);
  CHECK_FALSE(silent.coordinator().is_done());
  silent.pass(2);
  CHECK(silent.coordinator().is_done());
}

TEST_CASE("who has not come when the run is over is not waited for, but for a moment") {
  Scene complete(2);
  complete.coordinator().finish(ExitCode::finished, "already complete");
  complete.come(0);
  complete.pass(1);
  CHECK_FALSE(complete.coordinator().is_done());
  complete.pass(1.5);
  CHECK(complete.coordinator().is_done());
  CHECK_FALSE(complete.coordinator().roster().have_all_left());
  Scene interrupted(2);
  interrupted.come(0);
  interrupted.status(0).is_interrupted = true;
  interrupted.look();
  CHECK_FALSE(interrupted.coordinator().is_done());
  interrupted.pass(2.5);
  CHECK(interrupted.coordinator().is_done());
  Scene late(2);
  late.coordinator().finish(ExitCode::finished, "already complete");
  late.come(0);
  late.pass(1);
  late.come(1);
  late.pass(3);
  CHECK_FALSE(late.coordinator().is_done());  // it is there, and has not heard it yet
  late.status(1).left = ExitStatus{ExitCode::finished, ""};
  late.look();
  CHECK(late.coordinator().is_done());
  CHECK(late.coordinator().roster().have_all_left());
}

TEST_CASE("an elastic run that began without a node ends as soon as those that are there have left") {
  Scene scene(3, 2);
  scene.come(0);
  scene.come(2);
  scene.pass(101);
  REQUIRE(scene.orders().command == OrderKind::run);
  scene.run_all(50);
  scene.report_all(ended(ExitCode::finished));
  scene.look();
  REQUIRE(scene.orders().command == OrderKind::over);
  scene.status(2).left = ExitStatus{ExitCode::finished, ""};
  scene.pass(2.5);
  CHECK(scene.coordinator().is_done());
  CHECK_FALSE(scene.coordinator().roster().have_all_left());
}

}  // namespace scaletrain
