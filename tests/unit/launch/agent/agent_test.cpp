#include "launch/agent/agent.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "host/machine.h"
#include "host/process/child_process.h"
#include "launch/workers/worker_channel.h"
#include "support/eventually.h"
#include "unit/launch/agent_scene.h"

namespace scaletrain {
namespace {

using Scene = LoneScene;

GroupOptions group_options(const Scene& scene) {
  return {.paths = scene.options.paths,
          .start = {},
          .lock_id = scene.lead.lock_id,
          .heartbeat = scene.lead.heartbeat,
          .log = scene.options.log,
          .interrupts = scene.interrupts};
}

}  // namespace

TEST_CASE("a worker's result is the run's result and is not retried") {
  for (const int code : {0, 2, 3, 5, 6, 75}) {
    CAPTURE(code);
    Scene scene({Words{"exit", std::to_string(code)}});
    CHECK(static_cast<int>(scene.run()) == code);
    CHECK(scene.starts.size() == 1);
    CHECK(has_no_children());
  }
}

TEST_CASE("the message of a failed worker reaches the agent's log unchanged") {
  Scene scene({Words{"fail", "3", "corpus.bin: offset 17: 100% wrong, \"quoted\""}});
  CHECK(scene.run() == ExitCode::input);
  CHECK(scene.logged("corpus.bin: offset 17: 100% wrong, \"quoted\""));
}

TEST_CASE("a killed worker is restarted from the next start point, one generation on") {
  Scene scene(
      {Words{"die", "5", std::to_string(SIGKILL)}, Words{"die", "9", std::to_string(SIGSEGV)}, Words{"exit", "0"}});
  scene.lead.start = StartPoint{.checkpoint = "step-4", .step = 4, .generation = 2};
  scene.lead.next_start = [](const StartPoint& before) {
    return StartPoint{.checkpoint = "step-8", .step = 8, .generation = before.generation + 1};
  };
  CHECK(scene.run() == ExitCode::finished);
  REQUIRE(scene.starts.size() == 3);
  CHECK(scene.starts[0].generation == 2);
  CHECK(scene.starts[1].generation == 3);
  CHECK(scene.starts[2].generation == 4);
  CHECK(scene.starts[2].checkpoint == std::filesystem::path("step-8"));
  CHECK(scene.logged("killed by signal 9"));
  CHECK(scene.logged("at step 5"));
  CHECK(scene.logged("killed by signal 11"));
  CHECK(has_no_children());
}

TEST_CASE("a run that saves between its failures is not bounded by max_restarts") {
  Scene scene({Words{"die", "5", "9"}, Words{"die", "9", "9"}, Words{"die", "13", "9"}, Words{"exit", "0"}});
  scene.lead.max_restarts = 1;
  scene.lead.next_start = [](const StartPoint& before) {
    return StartPoint{.checkpoint = "newer", .step = before.step + 4, .generation = before.generation + 1};
  };
  CHECK(scene.run() == ExitCode::finished);
  CHECK(scene.starts.size() == 4);
}

TEST_CASE("a worker that lost its peer is restarted; used-up restarts end with 4") {
  Scene scene({Words{"exit", "4"}, Words{"die", "2", "9"}, Words{"die", "3", "9"}, Words{"exit", "0"}});
  scene.lead.max_restarts = 2;
  CHECK(scene.run() == ExitCode::peer);
  CHECK(scene.starts.size() == 3);
  CHECK(scene.logged("supervise.max_restarts"));
  CHECK(scene.log_text().ends_with("no checkpoint was written; to begin anew: start it again\n"));
}

TEST_CASE("a limit that leaves a failed run no room for another start ends it by name, whatever restarts are left") {
  for (const std::int64_t max_restarts : {0, 3}) {
    CAPTURE(max_restarts);
    Scene scene({Words{"fail", "4", "the system refused a thread"}, Words{"exit", "0"}});
    scene.lead.max_restarts = max_restarts;
    scene.options.check_round = [&](const PlaceShare&) {
      if (!scene.starts.empty()) throw UserError("RLIMIT_NPROC leaves no room");
    };
    CHECK(scene.run() == ExitCode::usage);
    CHECK(scene.starts.size() == 1);
    CHECK(scene.logged("RLIMIT_NPROC leaves no room. What the workers told: the system refused a thread"));
    CHECK_FALSE(scene.logged("restart 1"));
  }
}

TEST_CASE("a limit is no cause of what has another one: a killed worker is restarted, or ends the run, as ever") {
  Scene killed({Words{"die", "2", "9"}});
  killed.lead.max_restarts = 0;
  killed.options.check_round = [&](const PlaceShare&) {
    if (!killed.starts.empty()) throw UserError("RLIMIT_NPROC leaves no room");
  };
  CHECK(killed.run() == ExitCode::peer);
  CHECK_FALSE(killed.logged("RLIMIT_NPROC"));
  // And a shortage that has passed is no reason to end.
  Scene passed({Words{"fail", "4", "the system refused a thread"}, Words{"exit", "0"}});
  passed.options.check_round = [](const PlaceShare&) {};
  CHECK(passed.run() == ExitCode::finished);
  CHECK(passed.logged("restart 1 of 3"));
}

TEST_CASE("a start whose run another one has taken over names no command to go on") {
  Scene scene({Words{"exit", "0"}});
  scene.lead.holds_lock = [] { return false; };
  scene.options.holds_lock = scene.lead.holds_lock;
  CHECK(scene.run() == ExitCode::peer);
  CHECK(scene.logged("taken over by another start"));
  CHECK_FALSE(scene.logged("start it again"));
}

TEST_CASE("who interrupts a run before any worker is there is told how to go on") {
  Scene scene({Words{"exit", "0"}});
  ::kill(::getpid(), SIGTERM);
  REQUIRE(eventually([&] { return scene.interrupts.interrupted(); }));
  CHECK(scene.run() == ExitCode::interrupted);
  CHECK(scene.starts.empty());
  CHECK(scene.log_text().ends_with(
      "interrupted before any worker was running: no checkpoint was written; to begin anew: start it again\n"));
}

TEST_CASE("without restarts the first failure ends the run with 4") {
  Scene scene({Words{"die", "2", "9"}});
  scene.lead.max_restarts = 0;
  CHECK(scene.run() == ExitCode::peer);
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("the third failure at one step ends the run with 6, whatever failed between") {
  Scene scene({Words{"die", "7", "11"}, Words{"die", "6", "9"}, Words{"die", "7", "11"}, Words{"die", "7", "11"},
               Words{"exit", "0"}});
  scene.lead.max_restarts = 10;
  CHECK(scene.run() == ExitCode::no_progress);
  CHECK(scene.starts.size() == 4);
  CHECK(scene.logged("3 times at step 7"));
  // The end itself says why.
  const std::string text = scene.log_text();
  CHECK(text.find("killed by signal 11", text.find("no progress:")) != std::string::npos);
}

TEST_CASE("a worker that never tells a step counts as failing where it started") {
  Scene scene({Words{"exit", "4"}});
  scene.lead.start.step = 40;
  CHECK(scene.run() == ExitCode::no_progress);
  CHECK(scene.logged("3 times at step 40"));
}

TEST_CASE("a signal reaches the worker as SIGTERM; more signals during the save change nothing") {
  for (const int number : {SIGTERM, SIGUSR1, SIGINT}) {
    CAPTURE(number);
    Scene scene({Words{"save", "", "0.2"}});
    const std::filesystem::path file = scene.folder / "state";
    scene.scripts[0][0][1] = file.string();
    std::thread sender([&] {
      eventually([&] { return TempFolder::read(file) == "ready"; });
      ::kill(::getpid(), number);
      eventually([&] { return TempFolder::read(file).starts_with("sav"); });
      ::kill(::getpid(), number);
      ::kill(::getpid(), SIGTERM);
    });
    CHECK(scene.run() == ExitCode::interrupted);
    sender.join();
    CHECK(TempFolder::read(file) == "saved");
    CHECK(scene.starts.size() == 1);
  }
}

TEST_CASE("a signal that arrives while the worker is still starting ends it at once") {
  // Longer than any machine needs to end it.
  Scene scene({Words{"slow-start", "600"}});
  const MonotonicTime start = monotonic_now();
  std::thread sender([&] {
    eventually([&] { return scene.logged("started at step"); });
    ::kill(::getpid(), SIGTERM);
  });
  CHECK(scene.run() == ExitCode::interrupted);
  sender.join();
  CHECK(seconds_since(start) < 120.0);
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("a signal between two workers starts none") {
  Scene scene({Words{"die", "2", "9"}, Words{"exit", "0"}});
  scene.lead.next_start = [&](const StartPoint& before) {
    ::kill(::getpid(), SIGUSR1);
    eventually([&] { return scene.interrupts.interrupted(); });
    return before;
  };
  CHECK(scene.run() == ExitCode::interrupted);
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("a lost lock ends the worker and the run") {
  Scene scene({Words{"hang", "4"}});
  scene.lead.heartbeat = hang_heartbeat;  // the lock is asked about eight times in it
  int questions = 0;
  scene.options.holds_lock = [&questions] { return ++questions < 3; };
  CHECK_THROWS_AS(scene.run(), PeerError);
  CHECK(scene.starts.size() == 1);
  CHECK(has_no_children());
}

TEST_CASE("no usable checkpoint after a failure ends the run with that error") {
  Scene scene({Words{"die", "2", "9"}});
  scene.lead.next_start = [](const StartPoint&) -> StartPoint { throw InputError("every checkpoint is damaged"); };
  CHECK(scene.run() == ExitCode::input);
  CHECK(scene.end.status.message == "every checkpoint is damaged");
}

TEST_CASE("storage that cannot be read for a moment after a failure costs the moment, not the run") {
  Scene scene({Words{"die", "2", "9"}, Words{"exit", "0"}});
  int tries = 0;
  scene.lead.next_start = [&tries](const StartPoint& before) -> StartPoint {
    if (++tries < 3) throw FileAccessError("step-00000001: stale file handle");
    return before;
  };
  CHECK(scene.run() == ExitCode::finished);
  CHECK(tries == 3);
  CHECK(scene.logged("stale file handle; tried again"));
  CHECK(scene.logged("restart 1 of 3"));
}

TEST_CASE("an interruption while the storage cannot be read ends the run with 75, without waiting for the storage") {
  Scene scene({Words{"die", "2", "9"}});
  const MonotonicTime start = monotonic_now();
  scene.lead.next_start = [&scene](const StartPoint&) -> StartPoint {
    ::kill(::getpid(), SIGTERM);
    eventually([&] { return scene.interrupts.interrupted(); });
    throw FileAccessError("step-00000001: stale file handle");
  };
  CHECK(scene.run() == ExitCode::interrupted);
  CHECK(seconds_since(start) < 250.0);  // the storage is given five minutes
  CHECK(scene.starts.size() == 1);
  CHECK(scene.logged("interrupted while the checkpoints could not be read"));
}

TEST_CASE("a program that cannot be executed is named") {
  Scene scene({Words{"exit", "0"}});
  scene.options.executable = scene.folder / "missing";
  try {
    scene.run();
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
  ChildProcess agent({.executable = LAUNCH_TEST_HELPER, .arguments = {"agent", folder.path().string(), "1"}},
                     pair.worker);
  const auto pid_file = folder / "worker.pid.0";
  REQUIRE(eventually([&] { return std::filesystem::exists(pid_file); }));
  const std::int64_t pid = std::stoll(TempFolder::read(pid_file));
  REQUIRE(process_start_ticks(pid));
  agent.kill();
  CHECK(eventually([&] { return !process_start_ticks(pid); }));
}

TEST_CASE("a lone worker's command line says folder, lock, generation and checkpoint") {
  Scene scene({Words{"exit", "0"}});
  const std::string folder = scene.folder.path().string();
  GroupOptions options = group_options(scene);
  const auto arguments_of = [&options](const StartPoint& start) {
    options.start = start;
    return worker_arguments(options, WorkerSlot{});
  };
  CHECK(worker_arguments(options, WorkerSlot{.num_gpus = 2}) ==
        Words{"worker", "--run-folder", folder, "--lock", "0123", "--generation", "0", "--gpus", "2"});
  CHECK(arguments_of({.checkpoint = std::nullopt, .step = 0, .generation = 1}) ==
        Words{"worker", "--run-folder", folder, "--lock", "0123", "--generation", "1"});
  CHECK(arguments_of({.checkpoint = "c/step-1", .step = 1, .generation = 2}) ==
        Words{"worker", "--run-folder", folder, "--lock", "0123", "--generation", "2", "--from", "c/step-1"});
  CHECK(arguments_of({.checkpoint = "c/step-1", .step = 1, .generation = 2, .asked = "/c/step-1"}) ==
        Words{"worker", "--run-folder", folder, "--lock", "0123", "--generation", "2", "--from", "c/step-1", "--asked",
              "/c/step-1"});
}

TEST_CASE("a worker reports eight times in a heartbeat, and once a second at least") {
  Scene scene({Words{"exit", "0"}});
  const auto report = [&](double heartbeat) {
    scene.lead.heartbeat = heartbeat;
    const Words words = worker_arguments(group_options(scene), WorkerSlot{});
    const auto at = std::find(words.begin(), words.end(), "--report");
    return at == words.end() ? std::string("each second") : *(at + 1);
  };
  CHECK(report(60.0) == "each second");
  CHECK(report(8.0) == "each second");
  CHECK(report(2.0) == "0.25");
}

TEST_CASE("the command line of one of several workers says its place, never the secret") {
  Scene scene({Words{"exit", "0"}});
  scene.lead.heartbeat = 10.0;
  WorkerSlot slot{.rank = Rank(3), .world = 8, .local_rank = 3, .sharers = 2};
  slot.rendezvous = RendezvousAddress{.host = "127.0.0.1", .port = 4567};
  CHECK(worker_arguments(group_options(scene), slot) ==
        Words{"worker", "--run-folder", scene.folder.path().string(), "--lock", "0123", "--generation", "0", "--rank",
              "3", "--world", "8", "--rendezvous", "127.0.0.1:4567", "--sharers", "2", "--heartbeat", "10"});
}

}  // namespace scaletrain
