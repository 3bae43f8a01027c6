// An agent in a folder of its own, whose workers play scripts instead of training (helper_main.cpp): what the tests of
// the agent share.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/agent/agent.h"
#include "launch/coordination/coordinator.h"
#include "launch/meeting/meeting.h"
#include "support/blocked_signals.h"
#include "support/temp_folder.h"

namespace scaletrain {

using Words = std::vector<std::string>;  // one worker's script: its command line
using Scripts = std::vector<Words>;      // a worker group's, by rank

// Where a worker's standing still is the subject: longer than a busy machine takes to start one, or leaves it without a
// turn.
inline constexpr double hang_heartbeat = 3.0;

// The n-th group plays the n-th scripts, the last ones again and again.
struct AgentScene : BlockedSignals {
  explicit AgentScene(std::vector<Scripts> group_scripts)
      : scripts(std::move(group_scripts)),
        log(LogOptions{.file = folder / "agent.log"}),
        meeting(Meeting::join({.paths = RunPaths(folder.path()), .place = lone_place()}, {}, noted)),
        lead{.lock_id = "0123",
             .heartbeat = 30.0,
             .log = log,
             .next_start =
                 [](const StartPoint& before) {
                   return StartPoint{
                       .checkpoint = before.checkpoint, .step = before.step, .generation = before.generation + 1};
                 },
             .serve = [this](std::int64_t world,
                             bool is_one_host) { return meeting->serve_workers(world, is_one_host); },
             .interrupted = [this] { return interrupts.interrupted(); }},
        options{.paths = RunPaths(folder.path()),
                .meeting = *meeting,
                .log = log,
                .interrupts = interrupts,
                .executable = LAUNCH_TEST_HELPER} {
    const auto world = static_cast<std::int64_t>(scripts.front().size());
    lead.layout = {.ranks_per_place = world, .replica = 1, .data = world};
    options.arguments = [this](const StartPoint& start, const WorkerSlot& slot) {
      if (slot.rank == Rank(0)) starts.push_back(start);
      slots.push_back(slot);
      return scripts.at(std::min(starts.size(), scripts.size()) - 1).at(static_cast<std::size_t>(slot.rank.value()));
    };
  }

  // An error of the agent's own is thrown.
  ExitCode run() {
    Coordinator coordinator(lead);
    options.heartbeat = lead.heartbeat;
    end = run_first_agent(options, coordinator);
    if (end.error) std::rethrow_exception(end.error);
    return end.status.code;
  }
  std::string log_text() const { return TempFolder::read(folder / "agent.log"); }
  bool logged(const std::string& text) const { return log_text().find(text) != std::string::npos; }
  std::string file(const std::string& name) const { return (folder / name).string(); }

  TempFolder folder;
  std::vector<Scripts> scripts;
  Log log;
  InterruptWatcher interrupts;
  std::optional<ExitStatus> noted;
  std::unique_ptr<Meeting> meeting;
  Coordinator::Options lead;
  AgentOptions options;
  AgentEnd end;
  std::vector<StartPoint> starts;  // asked of rank 0
  std::vector<WorkerSlot> slots;   // of all ranks
};

// Of one worker, whose n-th start plays the n-th script.
struct LoneScene : AgentScene {
  explicit LoneScene(const std::vector<Words>& worker_scripts) : AgentScene(groups_of_one(worker_scripts)) {}

 private:
  static std::vector<Scripts> groups_of_one(const std::vector<Words>& worker_scripts) {
    std::vector<Scripts> groups;
    groups.reserve(worker_scripts.size());
    for (const Words& script : worker_scripts) groups.push_back(Scripts{script});
    return groups;
  }
};

inline bool has_no_children() {
  return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
}

}  // namespace scaletrain
