// Limits of the system on processes, threads and descriptors. They bind no root: the runs are another user's, of whom
// nothing else runs, which only root can start.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int ranks_of_limited_run = 4;

// Of a number that nobody is likely to have.
std::string limited_user() {
  return std::to_string(61000 + ::getpid() % 4000);
}

bool may_be_another_user() {
  if (::geteuid() == 0) return true;
  MESSAGE("not root: no other user's run can be started, nothing was tested");
  return false;
}

// Where another user may write.
const Workspace& open_workspace() {
  static const Workspace place;
  fs::permissions(place.path(), fs::perms::all);
  return place;
}

// Becomes the command, as the other user.
Launch as_limited_user(const std::vector<std::string>& command) {
  const std::string user = limited_user();
  std::vector<std::string> arguments = {"--reuid=" + user, "--regid=" + user, "--clear-groups"};
  arguments.insert(arguments.end(), command.begin(), command.end());
  return {.executable = "/usr/bin/setpriv", .arguments = std::move(arguments)};
}

// `limit`: for prlimit, which becomes the agent.
Launch limited_launch(const std::string& run, const std::string& limit, long steps) {
  Launch launch = open_workspace().launch(open_workspace().training(
      run, {"parallel.data=2", "parallel.tensor=2", "train.steps=" + std::to_string(steps),
            "checkpoint={every: 5, keep: 2}", "train.lr_schedule={type: constant, warmup: 10}"}));
  std::vector<std::string> command = {"prlimit", limit, launch.executable.string()};
  command.insert(command.end(), launch.arguments.begin(), launch.arguments.end());
  const Launch limited = as_limited_user(command);
  launch.executable = limited.executable;
  launch.arguments = limited.arguments;
  return launch;
}

// The number behind the words.
long number_behind(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  REQUIRE_MESSAGE(at != std::string::npos, text);
  return std::stol(text.substr(at + words.size()));
}

std::string both_limits(const std::string& name, long limit) {
  return "--" + name + "=" + std::to_string(limit) + ":" + std::to_string(limit);
}

// Refused with `few`, naming the limit and what is needed; with one less than that refused, with just that trained.
void check_refused_below_its_need(const std::string& name, long few, const std::string& limit_name,
                                  const std::string& before_need) {
  const std::string run = "limit-of-" + name;
  const Ended refused = run_program(limited_launch(run, both_limits(name, few), 10), ranks_patience);
  CHECK_MESSAGE(refused.exit_code == 2, refused.errors);
  CHECK_MESSAGE(refused.says(limit_name), refused.errors);
  CHECK_FALSE(refused.says("started"));
  CHECK_FALSE(fs::exists(open_workspace() / run));
  const long need = number_behind(refused.errors, before_need);
  CHECK(need > few);
  const Ended below = run_program(limited_launch(run, both_limits(name, need - 1), 10), ranks_patience);
  CHECK_MESSAGE(below.exit_code == 2, below.errors);
  // What was said to be needed is enough.
  const Ended trained = run_program(limited_launch(run, both_limits(name, need), 10), ranks_patience);
  CHECK_MESSAGE(trained.exit_code == 0, trained.errors);
  CHECK(newest_step(open_workspace() / run) == 10);
}

}  // namespace

TEST_CASE("a_limit_on_processes_that_leaves_a_start_no_room_is_named_before_anything_is_started") {
  if (may_be_another_user()) check_refused_below_its_need("nproc", 20, "RLIMIT_NPROC", "this start needs ");
}

TEST_CASE("a_limit_on_descriptors_that_leaves_a_start_no_room_is_named_before_anything_is_started") {
  if (may_be_another_user()) check_refused_below_its_need("nofile", 40, "RLIMIT_NOFILE", "of this run needs ");
}

TEST_CASE("a_limit_on_processes_that_is_met_in_the_middle_of_a_run_ends_it_by_name_and_uses_up_no_restarts") {
  if (!may_be_another_user()) return;
  const std::string run = "limit-in-the-middle";
  const fs::path folder = open_workspace() / run;
  Program agent(limited_launch(run, both_limits("nproc", 1000), 1000000));
  REQUIRE_MESSAGE(wait_until([&] { return newest_step(folder) >= 7 || !agent.running(); }, ranks_patience),
                  agent.errors());
  REQUIRE_MESSAGE(agent.running(), agent.errors());
  // From now on the user may have no more threads than there are: the next save's fails, in all workers alike.
  std::vector<pid_t> processes = workers_by_rank(agent, ranks_of_limited_run);
  processes.push_back(agent.pid());
  for (const pid_t process : processes) {
    const Ended lowered =
        run_program(as_limited_user({"prlimit", "--pid=" + std::to_string(process), both_limits("nproc", 1)}));
    REQUIRE_MESSAGE(lowered.exit_code == 0, lowered.errors);
  }
  const Ended& end = agent.wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 2, end.errors);
  CHECK_MESSAGE(end.says("RLIMIT_NPROC"), end.errors);
  CHECK_MESSAGE(end.says("and all are in use"), end.errors);  // what the workers told
  CHECK_MESSAGE(!end.says("restart 1"), end.errors);
  // What was saved is there.
  CHECK(!checkpoint_names(folder).empty());
}

}  // namespace scaletrain
