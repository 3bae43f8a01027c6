// Processes that a launcher has started, one per rank: here by hand, with torchrun's variables.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const std::vector<int> both_finished = {0, 0};
const std::vector<int> both_interrupted = {75, 75};

}  // namespace

TEST_CASE("the_launchers_world_is_what_data_auto_means") {
  const Settings settings = {"parallel.data=auto", "parallel.zero=1"};
  LaunchedRanks ranks(2, "launched", settings);
  CHECK_MESSAGE(ranks.wait() == both_finished, ranks.errors());
  check_same_losses("launched");
  CHECK_FALSE(fs::exists(layout_folder("launched") / "rendezvous.json"));
  CHECK_FALSE(fs::exists(layout_folder("launched") / "lock.json"));
  check_no_process_left("launched");

  LaunchedRanks again(2, "launched", settings);
  CHECK(again.wait() == both_finished);
  CHECK(again.errors().find("already complete") != std::string::npos);
}

TEST_CASE("a_launchers_world_that_the_degrees_do_not_make_is_refused_by_every_rank") {
  LaunchedRanks ranks(3, "misfit", {"parallel.data=2", "parallel.tensor=2"});
  CHECK(ranks.wait() == std::vector<int>{2, 2, 2});
  CHECK(ranks.errors().find("4 ranks") != std::string::npos);
  CHECK(ranks.errors().find("the world has 3") != std::string::npos);
  CHECK_FALSE(fs::exists(layout_folder("misfit")));
}

TEST_CASE("what_rank_0_refuses_ends_every_rank_with_its_code") {
  const Settings settings = {"parallel.data=auto"};
  LaunchedRanks first(2, "refused", settings);
  REQUIRE_MESSAGE(first.wait() == both_finished, first.errors());
  LaunchedRanks second(2, "refused", {"parallel.data=auto", "model.hidden=64", "train.steps=100"});
  CHECK(second.wait() == std::vector<int>{2, 2});
  CHECK(second.rank(0).errors().find("model.hidden") != std::string::npos);
  CHECK(second.rank(1).errors().find("rank 0 failed (exit code 2)") != std::string::npos);
  check_no_process_left("refused");
}

TEST_CASE("a_signal_to_one_launched_rank_makes_all_save_and_ask_to_be_run_again") {
  const Settings settings = {"parallel.data=1", "parallel.tensor=2", "train.steps=500", "checkpoint.every=1000"};
  LaunchedRanks ranks(2, "signalled", settings);
  REQUIRE(wait_until([&] { return newest_step(layout_folder("signalled")) >= 3 || !ranks.rank(0).running(); },
                     ranks_patience));
  ranks.rank(1).signal(SIGTERM);
  CHECK_MESSAGE(ranks.wait() == both_interrupted, ranks.errors());
  const long reached = trajectory_of(layout_folder("signalled")).last_step();
  CHECK(fs::exists(checkpoint(layout_folder("signalled"), static_cast<int>(reached))));
}

TEST_CASE("a_launched_rank_that_dies_ends_the_others_with_4") {
  LaunchedRanks ranks(2, "bereft", {"parallel.data=auto", "train.steps=5000"});
  REQUIRE(wait_until([&] { return newest_step(layout_folder("bereft")) >= 3 || !ranks.rank(0).running(); },
                     ranks_patience));
  ranks.rank(1).signal(SIGKILL);
  CHECK(ranks.wait().front() == 4);
  check_no_process_left("bereft");
}

}  // namespace scaletrain
