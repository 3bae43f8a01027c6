// The coordinator when workers fail, hang or are slow.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "coordinator_scene.h"

namespace scaletrain {

using Scene = CoordinatorScene;

TEST_CASE("a worker's own result ends all nodes with that code") {
  Scene scene(2);
  scene.begin();
  scene.run_all(7);
  RoundResult diverged = ended(ExitCode::diverged, 7);
  diverged.message = "rank 1: no finite step";
  scene.report(1, diverged);
  CHECK(scene.look().command == OrderKind::end);
  scene.report(0, ended_as_told(7));
  CHECK(scene.look().command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::diverged);
  CHECK(contains(scene.orders().reason, "node 1: rank 1: no finite step"));
}

TEST_CASE("a dead worker ends the others' and all start again from the newest checkpoint") {
  Scene scene(2);
  scene.begin();
  scene.run_all(17);
  scene.checkpoint_step = 10;
  // The first to tell has only lost its peer: for a moment the cause is waited for.
  scene.report(0, lost_peer(17));
  CHECK(scene.look().command == OrderKind::run);
  scene.report(1, killed(17));
  CHECK(scene.look().command == OrderKind::run);
  CHECK(scene.orders().round == 2);
  CHECK(scene.orders().plan.start.step == 10);
  CHECK(scene.orders().plan.start.generation == 1);
  CHECK(scene.served == 2);
  CHECK(contains(scene.log_text(), "node 1: rank 1: worker 5 was killed by signal 9"));
  CHECK(contains(scene.log_text(), "restart 1 of 3"));
}

TEST_CASE("storage that cannot be read after a failure is asked again for five minutes, while nodes are listened to") {
  const auto fail = [](Scene& scene) {
    scene.begin();
    scene.run_all(17);
    scene.storage_is_away = true;
    scene.report_all(killed(17));
    scene.look();
  };
  Scene back(2);
  fail(back);
  CHECK(back.starts_asked == 1);
  CHECK(back.pass(100).round == 1);
  CHECK(back.starts_asked > 50);
  CHECK(back.starts_asked <= 101);
  back.storage_is_away = false;
  back.checkpoint_step = 10;
  CHECK(back.pass(2).round == 2);
  CHECK(back.orders().command == OrderKind::run);
  CHECK(back.orders().plan.start.step == 10);
  CHECK(contains(back.log_text(), "restart 1 of 3"));
  const std::string text = back.log_text();
  CHECK(text.find("stale file handle") == text.rfind("stale file handle"));

  Scene away(2);
  fail(away);
  CHECK(away.pass(295).command != OrderKind::over);
  CHECK(away.pass(20).command == OrderKind::over);
  CHECK(away.orders().code == ExitCode::input);
  CHECK(contains(away.orders().reason, "stale file handle"));

  // A signal at any node, and the loss of one.
  Scene interrupted(2);
  fail(interrupted);
  interrupted.pass(10);
  interrupted.status(1).is_interrupted = true;
  CHECK(interrupted.look().command == OrderKind::over);
  CHECK(interrupted.orders().code == ExitCode::interrupted);

  Scene smaller(3, 2);
  fail(smaller);
  smaller.silence(1);
  smaller.pass(run_out + 1);
  smaller.storage_is_away = false;
  CHECK(smaller.pass(2).command == OrderKind::run);
  CHECK(smaller.orders().round == 2);
  CHECK(smaller.orders().plan.shares == std::vector<PlaceShare>{{0, 0, 1}, {2, 1, 1}});
}

TEST_CASE("what the ranks of all nodes tell alike is nobody's in particular") {
  for (const bool is_alike : {true, false}) {
    Scene scene(2);
    scene.begin();
    scene.run_all(7);
    RoundResult one = ended(ExitCode::diverged, 7);  // of a node with one worker
    one.rank = Rank(0);
    one.message = "rank 0: no finite step";
    scene.report(0, one);
    RoundResult several = ended(ExitCode::diverged, 7);
    several.message = is_alike ? "no finite step" : "no finite loss";
    several.is_alike = true;
    scene.report(1, several);
    CHECK(scene.look().command == OrderKind::over);
    CHECK(scene.orders().code == ExitCode::diverged);
    CHECK(contains(scene.orders().reason, "all ranks: no finite step") == is_alike);
    CHECK(contains(scene.orders().reason, "node 0: rank 0: no finite step") == !is_alike);
  }
}

TEST_CASE("how long it took to make good a failure is told once every node is further") {
  Scene scene(2);
  scene.begin();
  scene.run_all(17);
  CHECK_FALSE(contains(scene.log_text(), "recovered"));
  scene.checkpoint_step = 10;
  scene.report(1, killed(17));
  scene.look();
  scene.pass(2.0);
  scene.report(0, ended_as_told(17));
  scene.look();
  CHECK(scene.orders().round == 2);
  scene.run_all(10);
  scene.status(0).workers.step = 12;
  scene.pass(1.0);
  CHECK_FALSE(contains(scene.log_text(), "recovered"));
  scene.run_all(11);
  scene.pass(5.0);
  scene.run_all(12);
  const std::string text = scene.log_text();
  CHECK(contains(text, "recovered: step 11 was done 3."));
  CHECK(text.find("recovered") == text.rfind("recovered"));
}

TEST_CASE("workers that have lost a peer that nobody misses are started again") {
  Scene scene(2);
  scene.begin();
  scene.run_all(17);
  scene.report(0, lost_peer(17));
  CHECK(scene.pass(1.5).command == OrderKind::run);
  CHECK(scene.pass(1.0).command == OrderKind::end);
  scene.report(1, ended_as_told(17));
  CHECK(scene.look().round == 2);
}

TEST_CASE("the same step failing three times ends the run with 6, and used up restarts with 4") {
  Scene stuck(2);
  stuck.begin();
  for (int i = 0; i < 3; ++i) {
    stuck.run_all(5);
    stuck.report_all(lost_peer(5));
    stuck.report(1, killed(5));
    stuck.look();
  }
  CHECK(stuck.orders().command == OrderKind::over);
  CHECK(stuck.orders().code == ExitCode::no_progress);
  Scene used_up(2, {}, 1);
  used_up.begin();
  for (int i = 0; i < 2; ++i) {
    used_up.run_all(5 + i);
    used_up.report_all(killed(5 + i));
    used_up.look();
  }
  CHECK(used_up.orders().command == OrderKind::over);
  CHECK(used_up.orders().code == ExitCode::peer);
}

TEST_CASE("a hang is where no node moves, and not where one does") {
  Scene scene(3);
  scene.begin();
  scene.run_all(9);
  for (const std::int64_t node : {0, 2}) scene.status(node).workers.still_seconds = 3 * heartbeat;
  scene.status(1).workers.still_seconds = heartbeat - 1;
  CHECK(scene.look().command == OrderKind::run);
  scene.status(1).workers.still_seconds = heartbeat;
  CHECK(scene.look().command == OrderKind::end);
  CHECK(scene.orders().is_hang);
  scene.checkpoint_step = 6;
  scene.report_all(ended_as_told(9));
  RoundResult waited = ended_as_told(9);
  waited.message = "rank 2 waits in group data (ranks 1, 2): all_reduce #7";
  scene.report(2, waited);
  CHECK(scene.look().command == OrderKind::run);
  CHECK(scene.orders().round == 2);
  CHECK_FALSE(scene.orders().is_hang);
  CHECK(contains(scene.log_text(), "no rank anywhere made progress"));
  CHECK(
      contains(scene.log_text(), "; node 2: rank 2 waits in group data (ranks 1, 2): all_reduce #7; each rank's log"));
}

TEST_CASE("a node that is still starting its workers is no hang") {
  Scene scene(2);
  scene.begin();
  scene.run_all(9);
  scene.status(0).workers.still_seconds = 3 * heartbeat;
  scene.status(1).round = 0;
  scene.status(1).workers = {};
  CHECK(scene.pass(5).command == OrderKind::run);
}

TEST_CASE("after a signal a failure is not mended any more") {
  Scene scene(2);
  scene.begin();
  scene.run_all(3);
  scene.status(0).is_interrupted = true;
  scene.look();
  scene.report_all(lost_peer(4));
  scene.report(1, killed(4));
  CHECK(scene.look().command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::interrupted);
}

TEST_CASE("a rank that is slower than its peers on other nodes is warned about with its host") {
  Scene scene(3);
  scene.begin();
  // Each step takes the other ranks 0.1 s of work, this one 0.5 s.
  for (std::int64_t second = 0; second < 30; ++second) {
    scene.run_all(second * 2);
    for (const std::int64_t node : {0, 1, 2})
      scene.status(node).workers.paces = {
          {.steps = second * 2, .busy_seconds = static_cast<double>(second) * (node == 1 ? 1.0 : 0.2)}};
    scene.pass(1.0);
  }
  const std::string text = scene.log_text();
  CHECK(contains(text, "node 1 (host-1): rank 1 is slow: it computes 0.5 s in a step, its peers 0.1 s"));
  CHECK(text.find("is slow") == text.rfind("is slow"));
  CHECK(scene.orders().command == OrderKind::run);
}

TEST_CASE("nodes of different pipeline stages are not compared, and all ranks must have told") {
  for (const bool is_pipeline : {false, true}) {
    Scene scene(2, {}, 3, is_pipeline ? 2 : 1);
    scene.begin();
    for (std::int64_t second = 0; second < 30; ++second) {
      scene.run_all(second * 2);
      for (const std::int64_t node : {0, 1})
        if (is_pipeline || node == 1)
          scene.status(node).workers.paces = {
              {.steps = second * 2, .busy_seconds = static_cast<double>(second) * (node == 1 ? 1.0 : 0.2)}};
      scene.pass(1.0);
    }
    CHECK_FALSE(contains(scene.log_text(), "is slow"));
  }
}

TEST_CASE("storage in which no node does anything any more is a hang") {
  Scene scene(2);
  scene.begin();
  scene.run_all(9);
  for (const std::int64_t node : {0, 1}) {
    scene.status(node).workers.working = 0;
    scene.status(node).workers.waiting = 1;
    scene.status(node).workers.stalled_seconds = 20 * heartbeat;
  }
  scene.status(1).workers.stalled_text = "rank 1 has been in fsync for 600 s";
  scene.status(0).workers.stalled_seconds = heartbeat;
  CHECK(scene.look().command == OrderKind::run);  // one of them moves
  scene.status(0).workers.stalled_seconds = 20 * heartbeat;
  CHECK(scene.look().command == OrderKind::end);
  CHECK(scene.orders().is_hang);
  CHECK(contains(scene.orders().reason, "node 1: rank 1 has been in fsync for 600 s"));
}

}  // namespace scaletrain
