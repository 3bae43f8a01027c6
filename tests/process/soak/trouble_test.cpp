// Storage that does not answer for seconds and connections that are reset, one at a time: what the random faults do as
// well, here with what must follow.
#include <doctest/doctest.h>

#include <string>

#include "torment/tormented_run.h"

namespace scaletrain {
namespace {

Settings trouble_settings(bool background) {
  Settings settings = soak_settings(soak_of_two_ranks(), background);
  settings.emplace_back("supervise.heartbeat=60s");
  return settings;
}

void check_finished_as_undisturbed(const std::string& run) {
  const Trajectory found = trajectory_of(layout_folder(run));
  CHECK(found.steps == undisturbed_soak(soak_of_two_ranks()).steps);
  CHECK(found.evaluations == undisturbed_soak(soak_of_two_ranks()).evaluations);
  CHECK(problem_of_finished(layout_folder(run)) == "");
}

bool reaches(const std::string& run, Program& agent, long step) {
  return wait_until([&] { return newest_step(layout_folder(run)) >= step || !agent.running(); }, ranks_patience) &&
         agent.running();
}

}  // namespace

TEST_CASE("storage_that_does_not_answer_a_rank_for_seconds_holds_the_run_up_and_changes_nothing") {
  for (const bool background : {false, true}) {
    const std::string run = background ? "hung-in-background" : "hung-in-foreground";
    CAPTURE(run);
    const HangingStorage storage(run, layout_folder(run));
    Launch launch = layout_launch(run, trouble_settings(background));
    storage.attach(launch);
    Program agent(launch);
    for (const int rank : {0, 1}) {
      REQUIRE_MESSAGE(reaches(run, agent, 6 + 14 * rank), agent.errors());
      const auto workers = children_of(agent.pid());
      REQUIRE(workers.size() == 2);
      CHECK(storage.hang(workers[static_cast<std::size_t>(rank)], 2.0));
    }
    CHECK_MESSAGE(agent.wait(ranks_patience).exit_code == 0, agent.errors());
    CHECK_MESSAGE(beginnings_of(layout_folder(run)).count == 1, agent.errors());
    check_finished_as_undisturbed(run);
  }
}

TEST_CASE("a_reset_connection_of_a_rank_is_noticed_and_every_number_is_the_same") {
  const std::string run = "reset";
  Program agent(layout_launch(run, trouble_settings(true)));
  bool was_noticed = false;
  // Each of the first connections of each rank, whatever it is for.
  for (std::size_t choice = 0; choice < 6; ++choice) {
    if (!reaches(run, agent, static_cast<long>(4 + 8 * choice))) break;
    const auto workers = children_of(agent.pid());
    if (workers.size() != 2) continue;
    const int before = beginnings_of(layout_folder(run)).count;
    CHECK(reset_connection(workers[choice % 2], choice / 2));
    const bool goes_on = reaches(run, agent, static_cast<long>(10 + 8 * choice));
    was_noticed = was_noticed || beginnings_of(layout_folder(run)).count > before;
    if (!goes_on) break;
  }
  CHECK_MESSAGE(agent.wait(ranks_patience).exit_code == 0, agent.errors());
  CHECK_MESSAGE(was_noticed, agent.errors());
  check_finished_as_undisturbed(run);
}

}  // namespace scaletrain
