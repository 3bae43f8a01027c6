// What the agent makes of workers that stand still. In a program of its own: nearly all of its time is waiting.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "base/clock.h"
#include "support/eventually.h"
#include "unit/launch/agent_scene.h"

namespace scaletrain {
namespace {

using Scene = LoneScene;

const std::string longer_than_a_heartbeat = std::to_string(1.3 * hang_heartbeat);

}  // namespace

TEST_CASE("a worker without progress is killed within the heartbeat and restarted, naming the step") {
  Scene scene({Words{"hang", "12"}, Words{"exit", "0"}});
  scene.lead.heartbeat = hang_heartbeat;
  const MonotonicTime start = monotonic_now();
  CHECK(scene.run() == ExitCode::finished);
  CHECK(seconds_since(start) >= hang_heartbeat);
  CHECK(scene.starts.size() == 2);
  CHECK(scene.logged("made no progress"));
  CHECK(scene.logged("raise supervise.heartbeat if one part of a layer's work takes longer on this machine"));
  CHECK(scene.logged("at step 12"));
  CHECK(has_no_children());
}

TEST_CASE("a stopped worker is noticed although it was waiting for storage") {
  Scene scene({Words{"die", "0", std::to_string(SIGSTOP)}, Words{"exit", "0"}});
  scene.lead.heartbeat = hang_heartbeat;
  CHECK(scene.run() == ExitCode::finished);
  CHECK(scene.starts.size() == 2);
}

TEST_CASE("a slow worker and one that waits for storage are left alone") {
  Scene slow({Words{"work", longer_than_a_heartbeat}});
  slow.lead.heartbeat = hang_heartbeat;
  CHECK(slow.run() == ExitCode::finished);
  CHECK(slow.starts.size() == 1);

  Scene waiting({Words{"wait", longer_than_a_heartbeat}});
  waiting.lead.heartbeat = hang_heartbeat;
  CHECK(waiting.run() == ExitCode::finished);
  CHECK(waiting.starts.size() == 1);
}

TEST_CASE("a worker that dies or hangs after the interruption is not restarted") {
  Scene scene({Words{"hang", "4", ""}, Words{"exit", "0"}});
  const std::filesystem::path file = scene.folder / "state";
  scene.scripts[0][0][2] = file.string();
  scene.lead.heartbeat = hang_heartbeat;
  std::thread sender([&] {
    eventually([&] { return TempFolder::read(file) == "ready"; });
    ::kill(::getpid(), SIGTERM);
  });
  CHECK(scene.run() == ExitCode::interrupted);
  sender.join();
  CHECK(scene.starts.size() == 1);
  CHECK(scene.logged("after the interruption"));
  CHECK(has_no_children());
}

}  // namespace scaletrain
