// How long it takes from a kill to the first new step of the quickstart's model on its eight ranks. For
// scripts/soak.sh (--no-skip), and for a machine that has nothing else to do.
#include <doctest/doctest.h>

#include <csignal>
#include <iostream>

#include "torment/tormented.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double bar = 5.0;  // seconds
constexpr int tries = 5;

TEST_CASE("the_quickstart_goes_on_within_five_seconds_of_a_kill" * doctest::skip()) {
  const fs::path source = SCALETRAIN_SOURCE_FOLDER;
  REQUIRE_MESSAGE(fs::exists(source / "build" / "quickstart-data"), "scripts/soak.sh makes the quickstart's data");
  const fs::path run = workspace() / "quickstart";
  Program agent(workspace().launch({"run", (source / "configs" / "quickstart.yaml").string(), "--set",
                                    "run.directory=" + run.string(), "--set", "checkpoint.every=5", "--set",
                                    "log.every=1", "--set", "supervise.max_restarts=100", "--set", "train.steps=450"}));
  std::vector<double> recoveries;
  for (int i = 0; i < tries; ++i) {
    // Never twice the same step, and a checkpoint since the last one.
    const long step = newest_step(run) + 8;
    REQUIRE(wait_until([&] { return newest_step(run) >= step || !agent.running(); }, 300.0));
    const auto workers = children_of(agent.pid());
    REQUIRE_MESSAGE(workers.size() == 8, agent.errors());
    const int before = beginnings_of(run).count;
    const double killed = test_clock();
    ::kill(workers[static_cast<std::size_t>(3 * i) % workers.size()], SIGKILL);
    REQUIRE(wait_until(
        [&] {
          sleep_for(0.003);
          return beginnings_of(run).has_gone_on(before) || !agent.running();
        },
        300.0));
    REQUIRE_MESSAGE(agent.running(), agent.errors());
    recoveries.push_back(test_clock() - killed);
  }
  agent.signal(SIGTERM);
  CHECK_MESSAGE(agent.wait(ranks_patience).exit_code == 75, agent.errors());
  std::cout << "quickstart, eight ranks, from kill -9 of one to the first new step:";
  for (const double seconds : recoveries) std::cout << " " << seconds;
  std::cout << " s, median " << median_of(recoveries) << " s\n" << std::flush;
  CHECK(median_of(recoveries) <= bar);
}

}  // namespace
}  // namespace scaletrain
