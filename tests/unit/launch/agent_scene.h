// An agent in a folder of its own, whose workers play scripts instead of training (helper_main.cpp): what the tests of
// the agent share.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "launch/agent.h"
#include "support/temp_folder.h"
#include "test_tools.h"

namespace scaletrain {

using Words = std::vector<std::string>;  // one worker's script: its command line
using Scripts = std::vector<Words>;      // a crew's, by rank

// Where a worker's standing still is the subject: longer than a busy machine takes to start one, or leaves it without a
// turn.
inline constexpr double hang_heartbeat = 3.0;

// The n-th crew plays the n-th scripts, the last ones again and again.
struct AgentScene : BlockedSignals {
  explicit AgentScene(std::vector<Scripts> crew_scripts)
      : scripts(std::move(crew_scripts)),
        log(LogOptions{.file = folder / "agent.log"}),
        options{.paths = RunPaths(folder.path()),
                .start = {},
                .lock_id = "0123",
                .log = log,
                .interrupts = interrupts,
                .executable = LAUNCH_TEST_HELPER} {
    options.heartbeat = 30.0;
    options.world = static_cast<std::int64_t>(scripts.front().size());
    options.arguments = [this](const StartPoint& start, const WorkerSlot& slot) {
      if (slot.rank == Rank(0)) starts.push_back(start);
      slots.push_back(slot);
      return scripts.at(std::min(starts.size(), scripts.size()) - 1).at(static_cast<std::size_t>(slot.rank.value()));
    };
    options.next_start = [](const StartPoint& before) {
      return StartPoint{.checkpoint = before.checkpoint, .step = before.step, .generation = before.generation + 1};
    };
  }

  ExitCode run() { return run_agent(options); }
  std::string log_text() const { return TempFolder::read(folder / "agent.log"); }
  bool logged(const std::string& text) const { return log_text().find(text) != std::string::npos; }
  std::string file(const std::string& name) const { return (folder / name).string(); }

  TempFolder folder;
  std::vector<Scripts> scripts;
  Log log;
  InterruptWatcher interrupts;
  AgentOptions options;
  std::vector<StartPoint> starts;  // asked of rank 0
  std::vector<WorkerSlot> slots;   // of all ranks
};

// Of one worker, whose n-th start plays the n-th script.
struct LoneScene : AgentScene {
  explicit LoneScene(const std::vector<Words>& worker_scripts) : AgentScene(crews_of_one(worker_scripts)) {}

 private:
  static std::vector<Scripts> crews_of_one(const std::vector<Words>& worker_scripts) {
    std::vector<Scripts> crews;
    crews.reserve(worker_scripts.size());
    for (const Words& script : worker_scripts) crews.push_back(Scripts{script});
    return crews;
  }
};

inline bool has_no_children() {
  return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
}

}  // namespace scaletrain
