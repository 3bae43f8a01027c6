#include "launch/agent.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "launch/machine.h"
#include "launch/worker_channel.h"
#include "launch/worker_process.h"
#include "support/temp_folder.h"
#include "test_tools.h"

namespace scaletrain {
namespace {

const char* const helper = LAUNCH_TEST_HELPER;

using Words = std::vector<std::string>;

// Signals must be blocked before the watcher is made: base class first.
struct BlockedSignals {
  BlockedSignals() { block_interrupt_signals(); }
};

// An agent whose n-th worker plays the n-th script (the last one again and again).
struct Stage : BlockedSignals {
  explicit Stage(std::initializer_list<Words> worker_scripts)
      : scripts(worker_scripts),
        log(LogOptions{.file = folder / "agent.log"}),
        options{.paths = RunPaths(folder.path()),
                .start = {},
                .lock_id = "0123",
                .log = log,
                .interrupts = interrupts,
                .executable = helper} {
    options.heartbeat = 30.0;
    options.arguments = [this](const StartPoint& start) {
      starts.push_back(start);
      return scripts.at(std::min(starts.size(), scripts.size()) - 1);
    };
    options.next_start = [](const StartPoint& before) {
      return StartPoint{.checkpoint = before.checkpoint, .step = before.step, .generation = before.generation + 1};
    };
  }

  ExitCode run() { return run_agent(options); }
  std::string log_text() const { return TempFolder::read(folder / "agent.log"); }
  bool logged(const std::string& text) const { return log_text().find(text) != std::string::npos; }

  TempFolder folder;
  std::vector<Words> scripts;
  Log log;
  InterruptWatcher interrupts;
  AgentOptions options;
  std::vector<StartPoint> starts;
};

bool has_no_children() {
  return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
}

}  // namespace

TEST_CASE("a worker's result is the run's result and is not retried") {
  for (const int code : {0, 1, 2, 3, 5, 6, 75}) {
    CAPTURE(code);
    Stage stage({Words{"exit", std::to_string(code)}});
    CHECK(static_cast<int>(stage.run()) == code);
    CHECK(stage.starts.size() == 1);
    CHECK(has_no_children());
  }
}

TEST_CASE("the message of a failed worker reaches the agent's log unchanged") {
  Stage stage({Words{"fail", "3", "corpus.bin: offset 17: 100% wrong, \"quoted\""}});
  CHECK(stage.run() == ExitCode::input);
  CHECK(stage.logged("corpus.bin: offset 17: 100% wrong, \"quoted\""));
}

TEST_CASE("a killed worker is restarted from the next start point, one generation on") {
  Stage stage(
      {Words{"die", "5", std::to_string(SIGKILL)}, Words{"die", "9", std::to_string(SIGSEGV)}, Words{"exit", "0"}});
  stage.options.start = StartPoint{.checkpoint = "step-4", .step = 4, .generation = 2};
  stage.options.next_start = [](const StartPoint& before) {
    return StartPoint{.checkpoint = "step-8", .step = 8, .generation = before.generation + 1};
  };
  CHECK(stage.run() == ExitCode::finished);
  REQUIRE(stage.starts.size() == 3);
  CHECK(stage.starts[0].generation == 2);
  CHECK(stage.starts[1].generation == 3);
  CHECK(stage.starts[2].generation == 4);
  CHECK(stage.starts[2].checkpoint == std::filesystem::path("step-8"));
  CHECK(stage.logged("killed by signal 9"));
  CHECK(stage.logged("at step 5"));
  CHECK(stage.logged("killed by signal 11"));
  CHECK(has_no_children());
}

TEST_CASE("a worker that lost its peer is restarted; used-up restarts end with 4") {
  Stage stage({Words{"exit", "4"}, Words{"die", "2", "9"}, Words{"die", "3", "9"}, Words{"exit", "0"}});
  stage.options.max_restarts = 2;
  CHECK(stage.run() == ExitCode::peer);
  CHECK(stage.starts.size() == 3);
  CHECK(stage.logged("supervise.max_restarts"));
}

TEST_CASE("without restarts the first failure ends the run with 4") {
  Stage stage({Words{"die", "2", "9"}});
  stage.options.max_restarts = 0;
  CHECK(stage.run() == ExitCode::peer);
  CHECK(stage.starts.size() == 1);
}

TEST_CASE("the third failure at one step ends the run with 6, whatever failed between") {
  Stage stage({Words{"die", "7", "11"}, Words{"die", "6", "9"}, Words{"die", "7", "11"}, Words{"die", "7", "11"},
               Words{"exit", "0"}});
  stage.options.max_restarts = 10;
  CHECK(stage.run() == ExitCode::no_progress);
  CHECK(stage.starts.size() == 4);
  CHECK(stage.logged("3 times at step 7"));
  // The end itself says why.
  const std::string text = stage.log_text();
  CHECK(text.find("killed by signal 11", text.find("no progress:")) != std::string::npos);
}

TEST_CASE("a worker that never tells a step counts as failing where it started") {
  Stage stage({Words{"exit", "4"}});
  stage.options.start.step = 40;
  CHECK(stage.run() == ExitCode::no_progress);
  CHECK(stage.logged("3 times at step 40"));
}

TEST_CASE("a worker without progress is killed within the heartbeat and restarted, naming the step") {
  Stage stage({Words{"hang", "12"}, Words{"exit", "0"}});
  stage.options.heartbeat = 0.6;
  const MonotonicTime start = monotonic_now();
  CHECK(stage.run() == ExitCode::finished);
  CHECK(seconds_since(start) >= 0.6);
  CHECK(stage.starts.size() == 2);
  CHECK(stage.logged("made no progress"));
  CHECK(stage.logged("raise supervise.heartbeat, or lower train.micro_batch or model.context"));
  CHECK(stage.logged("at step 12"));
  CHECK(has_no_children());
}

TEST_CASE("a stopped worker is noticed although it was waiting for storage") {
  Stage stage({Words{"die", "0", std::to_string(SIGSTOP)}, Words{"exit", "0"}});
  stage.options.heartbeat = 0.6;
  CHECK(stage.run() == ExitCode::finished);
  CHECK(stage.starts.size() == 2);
}

TEST_CASE("a slow worker and one that waits for storage are left alone") {
  Stage slow({Words{"work", "1.2"}});
  slow.options.heartbeat = 0.6;
  CHECK(slow.run() == ExitCode::finished);
  CHECK(slow.starts.size() == 1);

  Stage waiting({Words{"wait", "1.2"}});
  waiting.options.heartbeat = 0.6;
  CHECK(waiting.run() == ExitCode::finished);
  CHECK(waiting.starts.size() == 1);
}

TEST_CASE("a signal reaches the worker as SIGTERM; more signals during the save change nothing") {
  for (const int number : {SIGTERM, SIGUSR1, SIGINT}) {
    CAPTURE(number);
    Stage stage({Words{"save", "", "0.2"}});
    const std::filesystem::path file = stage.folder / "state";
    stage.scripts[0][1] = file.string();
    std::thread sender([&] {
      eventually([&] { return TempFolder::read(file) == "ready"; });
      ::kill(::getpid(), number);
      eventually([&] { return TempFolder::read(file) == "saving"; });
      ::kill(::getpid(), number);
      ::kill(::getpid(), SIGTERM);
    });
    CHECK(stage.run() == ExitCode::interrupted);
    sender.join();
    CHECK(TempFolder::read(file) == "saved");
    CHECK(stage.starts.size() == 1);
  }
}

TEST_CASE("a signal that arrives while the worker is still starting ends it at once") {
  // As long as a worker that reads a large corpus takes.
  Stage stage({Words{"slow-start", "60"}});
  const MonotonicTime start = monotonic_now();
  std::thread sender([&] {
    eventually([&] { return stage.logged("started at step"); });
    ::kill(::getpid(), SIGTERM);
  });
  CHECK(stage.run() == ExitCode::interrupted);
  sender.join();
  CHECK(seconds_since(start) < 10.0);
  CHECK(stage.starts.size() == 1);
}

TEST_CASE("a signal between two workers starts none") {
  Stage stage({Words{"die", "2", "9"}, Words{"exit", "0"}});
  stage.options.next_start = [&](const StartPoint& before) {
    ::kill(::getpid(), SIGUSR1);
    eventually([&] { return stage.interrupts.interrupted(); });
    return before;
  };
  CHECK(stage.run() == ExitCode::interrupted);
  CHECK(stage.starts.size() == 1);
}

TEST_CASE("a worker that dies or hangs after the interruption is not restarted") {
  Stage stage({Words{"hang", "4", ""}, Words{"exit", "0"}});
  const std::filesystem::path file = stage.folder / "state";
  stage.scripts[0][2] = file.string();
  stage.options.heartbeat = 0.6;
  std::thread sender([&] {
    eventually([&] { return TempFolder::read(file) == "ready"; });
    ::kill(::getpid(), SIGTERM);
  });
  CHECK(stage.run() == ExitCode::interrupted);
  sender.join();
  CHECK(stage.starts.size() == 1);
  CHECK(stage.logged("after the interruption"));
  CHECK(has_no_children());
}

TEST_CASE("a lost lock ends the worker and the run") {
  Stage stage({Words{"hang", "4"}});
  stage.options.heartbeat = 1.0;
  int questions = 0;
  stage.options.holds_lock = [&questions] { return ++questions < 3; };
  CHECK_THROWS_AS(stage.run(), PeerError);
  CHECK(stage.starts.size() == 1);
  CHECK(has_no_children());
}

TEST_CASE("no usable checkpoint after a failure ends the run with that error") {
  Stage stage({Words{"die", "2", "9"}});
  stage.options.next_start = [](const StartPoint&) -> StartPoint { throw InputError("every checkpoint is damaged"); };
  CHECK_THROWS_WITH_AS(stage.run(), "every checkpoint is damaged", InputError);
}

TEST_CASE("a program that cannot be executed is named") {
  Stage stage({Words{"exit", "0"}});
  stage.options.executable = stage.folder / "missing";
  try {
    stage.run();
    FAIL("expected a PeerError");
  } catch (const PeerError& error) {
    CHECK(std::string(error.what()).find("missing cannot be executed: No such file") != std::string::npos);
  }
  CHECK(has_no_children());
}

TEST_CASE("the worker dies with a killed agent") {
  block_interrupt_signals();
  const TempFolder folder;
  const ChannelPair pair = make_channel();
  WorkerProcess agent(helper, {"agent", folder.path().string()}, pair.worker);
  const auto pid_file = folder / "worker.pid";
  REQUIRE(eventually([&] { return std::filesystem::exists(pid_file); }));
  const std::int64_t pid = std::stoll(TempFolder::read(pid_file));
  REQUIRE(process_start_ticks(pid));
  agent.kill();
  CHECK(eventually([&] { return !process_start_ticks(pid); }, 5.0));
}

TEST_CASE("the worker's command line says folder, lock, generation and checkpoint") {
  Stage stage({Words{"exit", "0"}});
  const std::string folder = stage.folder.path().string();
  CHECK(worker_arguments(stage.options, StartPoint{.checkpoint = std::nullopt, .step = 0, .generation = 1}) ==
        Words{"worker", "--run-folder", folder, "--lock", "0123", "--generation", "1"});
  CHECK(worker_arguments(stage.options, StartPoint{.checkpoint = "c/step-1", .step = 1, .generation = 2}) ==
        Words{"worker", "--run-folder", folder, "--lock", "0123", "--generation", "2", "--from", "c/step-1"});
  const StartPoint asked{.checkpoint = "c/step-1", .step = 1, .generation = 2, .asked = "/c/step-1"};
  CHECK(worker_arguments(stage.options, asked) == Words{"worker", "--run-folder", folder, "--lock", "0123",
                                                        "--generation", "2", "--from", "c/step-1", "--asked",
                                                        "/c/step-1"});
}

}  // namespace scaletrain
