// The coordinator of places with one worker each, which a launcher has started; and of a single place.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "coordinator_scene.h"

namespace scaletrain {
namespace {

// Places that a launcher has started, one per rank.
struct Ranks : CoordinatorScene {
  explicit Ranks(std::int64_t world) : CoordinatorScene(world, {}, 3, 1, false) {}
};

}  // namespace

TEST_CASE("places with one worker each are told by the coordinator which ranks share their host, processors and GPUs") {
  Ranks scene(4);
  scene.come_all();
  const auto put = [&scene](std::int64_t rank, const char* host, const char* processors) {
    scene.status(rank).machine = {host, processors};
  };
  // Two hosts, as a launcher fills them round robin; on the first all run anywhere, on the other each has its own.
  put(0, "a", "a/all");
  put(1, "b", "b/first");
  put(2, "a", "a/all");
  put(3, "b", "b/second");
  REQUIRE(scene.look().command == OrderKind::run);
  const std::vector<PlaceShare>& shares = scene.orders().plan.shares;
  CHECK(shares ==
        std::vector<PlaceShare>{
            {0, 0, 1, {0, 2}, {0, 2}}, {1, 1, 1, {1, 3}, {1}}, {2, 2, 1, {0, 2}, {0, 2}}, {3, 3, 1, {1, 3}, {3}}});
  CHECK_FALSE(scene.served_one_host);
  // On GPUs, of which the second host gives each its own.
  Ranks on_gpus(4);
  on_gpus.come_all();
  for (const std::int64_t rank : {0, 2}) on_gpus.status(rank).machine = {"a", "a/all", "a/gpus"};
  on_gpus.status(1).machine = {"b", "b/first", "b/gpu 0"};
  on_gpus.status(3).machine = {"b", "b/second", "b/gpu 1"};
  REQUIRE(on_gpus.look().command == OrderKind::run);
  CHECK(on_gpus.orders().plan.shares == std::vector<PlaceShare>{{0, 0, 1, {0, 2}, {0, 2}, {0, 2}},
                                                                {1, 1, 1, {1, 3}, {1}, {1}},
                                                                {2, 2, 1, {0, 2}, {0, 2}, {0, 2}},
                                                                {3, 3, 1, {1, 3}, {3}, {3}}});
  Ranks together(2);
  together.come_all();
  for (const std::int64_t rank : {0, 1}) together.status(rank).machine = {"a", "a/all"};
  together.look();
  CHECK(together.served_one_host);
}

TEST_CASE("a worker that dies where each place has one is a restart of all, told by its rank") {
  Ranks scene(3);
  scene.begin();
  scene.run_all(17);
  scene.report(1, killed(17));
  CHECK(scene.look().command == OrderKind::end);
  for (const std::int64_t rank : {0, 2}) scene.report(rank, ended_as_told(17));
  CHECK(scene.look().command == OrderKind::run);
  CHECK(scene.orders().round == 2);
  CHECK(contains(scene.log_text(), "rank 1: worker 5 was killed by signal 9"));
  CHECK_FALSE(contains(scene.log_text(), "rank 1: rank 1"));
  CHECK(contains(scene.log_text(), "restart 1 of 3"));
}

TEST_CASE(
    "a lost place with one worker ends the run with 4 once its worker must be dead: its launcher brings it back") {
  Ranks scene(3);
  scene.begin();
  scene.run_all(17);
  scene.silence(2);
  for (const std::int64_t rank : {0, 1}) scene.report(rank, lost_peer(17));
  CHECK(scene.pass(run_out - 1).command == OrderKind::end);
  CHECK(scene.pass(2).command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::peer);
  CHECK(contains(scene.orders().reason, "rank 2 is lost"));
}

TEST_CASE("a place with one worker that is lost while others are awaited ends the start with 4") {
  Ranks scene(3);
  scene.come(0);
  scene.come(1);
  scene.pass(5);
  scene.silence(1);
  CHECK(scene.pass(run_out + 1).command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::peer);
  CHECK(contains(scene.orders().reason, "rank 1 is lost"));
  // A node may be started again meanwhile.
  CoordinatorScene nodes(3);
  nodes.come(0);
  nodes.come(1);
  nodes.pass(5);
  nodes.silence(1);
  CHECK(nodes.pass(run_out + 1).command == OrderKind::wait);
}

TEST_CASE("of many that have not come the first are named") {
  Ranks scene(20);
  for (const std::int64_t rank : {0, 3, 4}) scene.come(rank);
  CHECK(scene.pass(101).code == ExitCode::peer);
  CHECK(contains(scene.orders().reason, "the agents of ranks 1, 2, 5, 6, 7, 8, 9, 10 and 9 more have not come within"));
}

TEST_CASE("a single place is not named: there are no others") {
  CoordinatorScene scene(1);
  scene.begin();
  scene.run_all(17);
  scene.report(0, killed(17));
  CHECK(scene.look().command == OrderKind::run);
  CHECK(contains(scene.log_text(), " rank 1: worker 5 was killed by signal 9"));
  scene.run_all(20);
  CHECK(contains(scene.log_text(), "recovered: step 1 was done"));
  scene.report(0, ended(ExitCode::input));
  CHECK(scene.look().command == OrderKind::over);
  CHECK(scene.coordinator().is_done());
  CHECK_FALSE(contains(scene.log_text(), "node"));
  CHECK_FALSE(contains(scene.orders().reason, "node"));
}

// A decision costs no more than a walk over all places: figures are in the README.
TEST_CASE("a coordinator of four thousand places begins, restarts and ends a run as any other") {
  constexpr std::int64_t world = 4000;
  Ranks scene(world);
  scene.begin();
  CHECK(scene.orders().plan.world == world);
  scene.run_all(17);
  scene.report(1234, killed(17));
  CHECK(scene.look().command == OrderKind::end);
  for (std::int64_t rank = 0; rank < world; ++rank)
    if (rank != 1234) scene.report(rank, ended_as_told(17));
  CHECK(scene.look().command == OrderKind::run);
  scene.run_all(30);
  scene.report_all(ended(ExitCode::finished));
  CHECK(scene.look().command == OrderKind::over);
  CHECK(scene.orders().code == ExitCode::finished);
  CHECK(scene.log_text().size() < 2000);
}

}  // namespace scaletrain
