// Whatever asks for memory and gets none, and when: the process says that memory ran out, leaves with 3, and nothing is
// lost. Never an abort, a bug that is to be reported, or a wait for somebody who is gone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "process/ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Of each kind of process, at moments that are spread over all its requests; SCALETRAIN_MEMORY_TRIES asks for more.
int num_tries() {
  const char* const text = std::getenv("SCALETRAIN_MEMORY_TRIES");
  return text == nullptr ? 8 : std::max(1, std::atoi(text));
}

// From one limit on the address space to the next.
double address_space_growth() {
  return 1.0 + 1.0 / num_tries();
}

// The processes of a launch whose command lines contain `process`: request number `at` is refused and, with
// count = 0, all that follow.
Launch with_scarce_memory(Launch launch, const std::string& process, long at, long count) {
  launch.environment.emplace_back("LD_PRELOAD", SCARCE_MEMORY_LIBRARY);
  launch.environment.emplace_back("SCARCE_PROCESS", process);
  launch.environment.emplace_back("SCARCE_AT", std::to_string(at));
  launch.environment.emplace_back("SCARCE_COUNT", std::to_string(count));
  launch.environment.emplace_back("SCARCE_TOTAL", (workspace() / "memory-requests").string());
  return launch;
}

// How many requests the process makes when none is refused.
long count_requests(const Launch& launch, const std::string& process) {
  const Ended end = run_program(with_scarce_memory(launch, process, 0, 0), ranks_patience);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  return std::stol(read_file(workspace() / "memory-requests"));
}

// The n-th of the moments: they fall evenly however many there are.
long moment(long requests, int n) {
  const double place = std::fmod(0.618033988749895 * (n + 1), 1.0);
  return 1 + static_cast<long>(place * static_cast<double>(requests));
}

// Zero: what was refused could be done without, as a line of a log or a save that the next one makes up for.
void check_classified(const Ended& end) {
  CAPTURE(end.errors);
  CHECK_FALSE(end.timed_out);
  CHECK(end.signal == 0);
  CHECK((end.exit_code == 0 || end.exit_code == 3));
  CHECK_FALSE(end.says("terminate called"));
  CHECK_FALSE(end.says("a bug"));
  if (end.exit_code == 3) CHECK((end.says("out of memory") || end.says("not enough memory")));
}

template <class Try>
void at_many_moments(long requests, Try attempt) {
  for (int n = 0; n < num_tries(); ++n) {
    const long at = moment(requests, n);
    for (const long count : {1L, 0L}) {
      CAPTURE(at);
      CAPTURE(count);
      attempt(at, count);
    }
  }
}

// made: a folder that the command makes, and that is not to be there when it begins.
void check_command(const std::vector<std::string>& arguments, const fs::path& made = {}) {
  CAPTURE(arguments.front());
  const Launch launch = workspace().launch(arguments);
  const auto begin_anew = [&made] {
    if (!made.empty()) fs::remove_all(made);
  };
  begin_anew();
  at_many_moments(count_requests(launch, arguments.front()), [&](long at, long count) {
    begin_anew();
    const Ended end = run_program(with_scarce_memory(launch, arguments.front(), at, count), ranks_patience);
    check_classified(end);
    if (!made.empty()) CHECK(fs::exists(made) == (end.exit_code == 0));
  });
}

const Settings six_steps = {"train.steps=6", "train.lr_schedule.warmup=2", "checkpoint={every: 2, keep: 100}",
                            "evaluate={every: 3, batches: 2}", "supervise.heartbeat=20s"};

Settings six_steps_and(const Settings& more) {
  Settings settings = six_steps;
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// The run ends as one that nothing disturbed, if need be by the same command again; its folder is removed.
void check_ends_as(const Trajectory& expected, const std::string& name, const Launch& launch, const Ended& end) {
  if (end.exit_code != 0) {
    const Ended again = run_program(launch, ranks_patience);
    CHECK_MESSAGE(again.exit_code == 0, again.errors);
  }
  const Trajectory found = trajectory_of(layout_folder(name));
  CHECK(found.steps == expected.steps);
  CHECK(found.evaluations == expected.evaluations);
  check_no_process_left(name);
  fs::remove_all(layout_folder(name));
}

// Runs of these settings, in which `process` runs out of memory at many moments.
void check_runs(const std::string& name, const Settings& settings, const std::string& process) {
  CAPTURE(process);
  const std::string whole = name + "-whole";
  const long requests = count_requests(layout_launch(whole, settings), process);
  const Trajectory expected = trajectory_of(layout_folder(whole));
  REQUIRE(expected.last_step() == 6);
  at_many_moments(requests, [&](long at, long count) {
    const Launch launch = layout_launch(name, settings);
    const Ended end = run_program(with_scarce_memory(launch, process, at, count), ranks_patience);
    check_classified(end);
    check_ends_as(expected, name, launch, end);
  });
}

// Each process of the launch may have so much address space (ulimit -v), and no more.
Launch with_address_space(const Launch& launch, long mebibytes) {
  Launch limited = launch;
  limited.executable = "/bin/sh";
  limited.arguments = {"-c", "ulimit -v $0 && exec \"$@\"", std::to_string(mebibytes * 1024),
                       launch.executable.string()};
  limited.arguments.insert(limited.arguments.end(), launch.arguments.begin(), launch.arguments.end());
  return limited;
}

// A process that cannot even be loaded (by the system, before a line of the program is run) says nothing of its own.
bool can_be_loaded(long mebibytes) {
  return run_program(with_address_space(workspace().launch({"--version"}), mebibytes)).exit_code == 0;
}

// Threads take address space too: of one that the system refuses nothing else is told, nor is it tried again.
void check_told_of_address_space(const Ended& end) {
  CHECK_FALSE(end.timed_out);
  CHECK(end.signal == 0);
  CHECK_FALSE(end.says("terminate called"));
  CHECK_FALSE(end.says("a bug"));
  CHECK_FALSE(end.says("killed by signal"));  // of a worker
  CHECK_FALSE(end.says("restart 1 of"));
  CHECK((end.exit_code == 0 || end.exit_code == 3));
  if (end.exit_code == 0) return;
  CHECK((end.says("out of memory") || end.says("not enough memory")));
  CHECK(end.says("ulimit -v gives each process"));
}

// Under each of these limits, up to the first under which the run ends: it is told that memory ran out. The same
// command without the limit ends as if undisturbed.
void check_address_spaces(const std::string& name, const Settings& settings) {
  const std::string whole = name + "-whole";
  const Ended undisturbed = run_program(layout_launch(whole, settings), ranks_patience);
  REQUIRE_MESSAGE(undisturbed.exit_code == 0, undisturbed.errors);
  const Trajectory expected = trajectory_of(layout_folder(whole));
  int num_refused = 0;
  bool has_ended = false;
  for (double limit = 32; limit < (1 << 20) && !has_ended; limit *= address_space_growth()) {
    const auto mebibytes = static_cast<long>(limit);
    CAPTURE(mebibytes);
    if (!can_be_loaded(mebibytes)) continue;
    const Launch launch = layout_launch(name, settings);
    const Ended end = run_program(with_address_space(launch, mebibytes), ranks_patience);
    CAPTURE(end.errors);
    check_told_of_address_space(end);
    has_ended = end.exit_code == 0;
    if (!has_ended) ++num_refused;
    check_ends_as(expected, name, launch, end);
  }
  CHECK(has_ended);
  CHECK(num_refused >= 4);
}

}  // namespace

TEST_CASE("commands that read only say that memory ran out, whichever request is refused") {
  const std::string checkpoint_path = checkpoint(undisturbed_run(), 200).string();
  check_command({"check", "config.yaml"});
  check_command({"schema", "--json"});
  check_command({"evaluate", checkpoint_path, "--data", "held.txt"});
  check_command({"generate", checkpoint_path, "--prompt", "the old", "--max-tokens", "8"});
  check_command({"checkpoint", "verify", checkpoint_path});
  check_command({"checkpoint", "list", undisturbed_run().string()});
  check_command({"checkpoint", "inspect", checkpoint_path});
  check_command({"plot", undisturbed_run().string()});
  check_command({"completion", "bash"});
  check_command({"--version"});
}

TEST_CASE("the first requests of all, before main begins, are no exception") {
  for (const long at : {1L, 2L, 10L})
    for (const long count : {1L, 0L}) {
      CAPTURE(at);
      CAPTURE(count);
      const Launch launch = workspace().launch({"check", "config.yaml"});
      check_classified(run_program(with_scarce_memory(launch, "check", at, count), ranks_patience));
    }
}

TEST_CASE("so does an export, and what it has not finished is not there") {
  const fs::path folder = workspace() / "exported";
  check_command({"checkpoint", "export", checkpoint(undisturbed_run(), 200).string(), "--to", "huggingface", "--output",
                 folder.string()},
                folder);
}

TEST_CASE(
    "a worker that runs out of memory ends the run with 3, and the next start goes on as if nothing had happened") {
  check_runs("scarce-worker", six_steps_and({"checkpoint.background=false"}), " worker ");
}

TEST_CASE("so does one that writes its checkpoints in the background") {
  check_runs("scarce-background", six_steps_and({"checkpoint.background=true"}), " worker ");
}

TEST_CASE("so does one that begins from somebody else's weights, and the agent that looks at them before") {
  const std::string source = "scarce-weights-source";
  const Ended trained = run_program(layout_launch(source, six_steps), ranks_patience);
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  const fs::path folder = workspace() / "weights-to-begin-from";
  const Ended exported =
      run_program(workspace().launch({"checkpoint", "export", checkpoint(layout_folder(source), 6).string(), "--to",
                                      "huggingface", "--output", folder.string()}),
                  ranks_patience);
  REQUIRE_MESSAGE(exported.exit_code == 0, exported.errors);
  const Settings settings = six_steps_and({"checkpoint.background=false", "model.init.from=" + folder.string()});
  check_runs("scarce-weights-worker", settings, " worker ");
  check_runs("scarce-weights-agent", settings, " run ");
}

TEST_CASE("so does each of several ranks") {
  const Settings two = six_steps_and({"parallel.pipeline=2"});
  check_runs("scarce-rank-0", two, " --rank 0 ");
  check_runs("scarce-rank-1", two, " --rank 1 ");
}

TEST_CASE("an agent that runs out of memory ends its workers and the run with 3, and the next start goes on") {
  check_runs("scarce-agent", six_steps_and({"checkpoint.background=false"}), " run ");
}

TEST_CASE("so does one that serves the rendezvous of several ranks") {
  check_runs("scarce-server", six_steps_and({"parallel.data=2"}), " run ");
}

TEST_CASE("so does one that resumes, and the next start resumes from the same checkpoint") {
  const std::string source = "scarce-source";
  const Ended first = run_program(layout_launch(source, six_steps), ranks_patience);
  REQUIRE_MESSAGE(first.exit_code == 0, first.errors);
  const std::string from = checkpoint(layout_folder(source), 4).string();
  for (const std::string process : {" run ", " worker "}) {
    CAPTURE(process);
    const auto launch_of = [&](const std::string& name) {
      Launch launch = layout_launch(name, six_steps);
      launch.arguments.insert(launch.arguments.end(), {"--resume", from});
      return launch;
    };
    const std::string whole = "scarce-resume-whole" + std::to_string(process.size());
    const long requests = count_requests(launch_of(whole), process);
    const Trajectory expected = trajectory_of(layout_folder(whole));
    REQUIRE(expected.last_step() == 6);
    at_many_moments(requests, [&](long at, long count) {
      const Launch launch = launch_of("scarce-resume");
      const Ended end = run_program(with_scarce_memory(launch, process, at, count), ranks_patience);
      check_classified(end);
      check_ends_as(expected, "scarce-resume", launch, end);
    });
  }
}

TEST_CASE("threads that find no address space end a run with 3, the limit and the plan, and use up no restarts") {
  const std::string name = "narrow-threads";
  int num_refused = 0;
  int num_planned = 0;
  for (long mebibytes = 60; mebibytes <= 240; mebibytes += 30) {
    CAPTURE(mebibytes);
    if (!can_be_loaded(mebibytes)) continue;
    const Launch launch = with_address_space(layout_launch(name, six_steps_and({"parallel.data=2"})), mebibytes);
    const Ended end = run_program(launch, ranks_patience);
    CAPTURE(end.errors);
    check_told_of_address_space(end);
    if (end.exit_code != 0) ++num_refused;
    if (end.says("kernel workspace")) ++num_planned;  // of a worker's
    check_no_process_left(name);
    fs::remove_all(layout_folder(name));
  }
  CHECK(num_refused >= 2);
  CHECK(num_planned >= 1);
}

TEST_CASE("under any limit on its address space a run ends by saying so") {
  check_address_spaces("narrow", six_steps_and({"checkpoint.background=true"}));
}

TEST_CASE("under any limit on their address space so do several ranks") {
  check_address_spaces("narrow-ranks", six_steps_and({"parallel.pipeline=2"}));
}

}  // namespace scaletrain
