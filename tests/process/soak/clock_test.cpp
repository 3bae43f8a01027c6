// A wall clock that is set by an hour, either way, while a run goes on and between two starts: nothing follows it but
// the times that are written for people.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <ctime>

#include "torment/tormented_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr long hour = 3600;

void set_clock(long seconds_off) {
  const fs::path made = workspace().write("clock.part", std::to_string(seconds_off));
  fs::rename(made, workspace() / "clock");
}

// Time-based saves every half hour: none is due unless a clock says so. A heartbeat that an hour is far beyond.
Launch launch_of(const std::string& run) {
  Settings settings = soak_settings(soak_of_two_ranks(), true);
  settings.insert(settings.end(), {"checkpoint.every=30m", "supervise.heartbeat=60s", "supervise.max_restarts=0"});
  Launch launch = layout_launch(run, settings);
  launch.environment.emplace_back("LD_PRELOAD", MOVED_CLOCK_LIBRARY);
  launch.environment.emplace_back("MOVED_CLOCK", (workspace() / "clock").string());
  return launch;
}

void reach(const std::string& run, Program& agent, long step) {
  REQUIRE(wait_until([&] { return newest_step(layout_folder(run)) >= step || !agent.running(); }, ranks_patience));
}

// How far the clock of the last line of rank 0's log is from ours.
double seconds_off_in_log(const std::string& run) {
  const std::string log = read_file(layout_folder(run) / "logs" / "rank-00000.log");
  REQUIRE(log.size() > 20);
  const std::string line = log.substr(log.rfind('\n', log.size() - 2) + 1);
  std::tm time{};
  REQUIRE(::strptime(line.c_str(), "%Y-%m-%dT%H:%M:%S", &time) != nullptr);
  return std::difftime(::timegm(&time), std::time(nullptr));
}

void check_as_undisturbed(const std::string& run) {
  const Trajectory found = trajectory_of(layout_folder(run));
  CHECK(found.steps == undisturbed_soak(soak_of_two_ranks()).steps);
  CHECK(found.evaluations == undisturbed_soak(soak_of_two_ranks()).evaluations);
  check_no_process_left(run);
}

}  // namespace

TEST_CASE("a_clock_that_is_set_by_an_hour_either_way_while_a_run_goes_on_has_no_effect") {
  for (const long off : {hour, -hour}) {
    CAPTURE(off);
    const std::string run = "clock-set-" + std::to_string(off);
    set_clock(0);
    Program agent(launch_of(run));
    reach(run, agent, 10);
    set_clock(off);
    reach(run, agent, 25);
    set_clock(-off);
    const Ended& end = agent.wait(ranks_patience);
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    // The library was there, and only the end was saved.
    const double seen = seconds_off_in_log(run);
    CHECK(seen * static_cast<double>(-off) > 0);
    CHECK(std::abs(seen) > static_cast<double>(hour) / 2);
    CHECK(checkpoint_names(layout_folder(run)) ==
          std::vector<std::string>{checkpoint("", soak_steps).filename().string()});
    check_as_undisturbed(run);
  }
}

TEST_CASE("a_clock_that_was_set_by_an_hour_either_way_between_two_starts_has_no_effect") {
  for (const long off : {hour, -hour}) {
    for (const int number : {SIGTERM, SIGKILL}) {
      CAPTURE(off);
      CAPTURE(number);
      const std::string run = "clock-between-" + std::to_string(off) + "-" + std::to_string(number);
      set_clock(0);
      {
        Program agent(launch_of(run));
        reach(run, agent, 20);
        // After the second of them the dead agent's lock and leases are there.
        agent.signal(number);
        agent.wait(ranks_patience);
        check_no_process_left(run);
      }
      set_clock(off);
      const Ended end = run_program(launch_of(run), ranks_patience);
      CHECK_MESSAGE(end.exit_code == 0, end.errors);
      CHECK(end.says("resuming from") == (number == SIGTERM));
      check_as_undisturbed(run);
    }
  }
}

}  // namespace scaletrain
