// A coordinator with statuses made up and a clock that the test moves: what the tests of its decisions share.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "launch/coordination/coordinator.h"
#include "support/temp_folder.h"
#include "support/text.h"

namespace scaletrain {

inline constexpr double heartbeat = 30.0;
inline constexpr double lease = 10.0;
inline constexpr double run_out = 15.0;

inline RoundResult ended(ExitCode code, std::int64_t step = 100) {
  RoundResult round;
  round.result = code;
  round.step = step;
  round.description = "ended";
  return round;
}
inline RoundResult killed(std::int64_t step) {
  RoundResult round;
  round.step = step;
  round.rank = Rank(1);
  round.description = "rank 1: worker 5 was killed by signal 9";
  return round;
}
inline RoundResult lost_peer(std::int64_t step) {
  RoundResult round;
  round.step = step;
  round.lost_peer_only = true;
  round.description = "rank 0: worker 4 ended with exit code 4";
  return round;
}
inline RoundResult ended_as_told(std::int64_t step) {
  RoundResult round;
  round.step = step;
  round.ended_for_others = true;
  return round;
}
inline RoundResult ended_while_starting() {
  RoundResult round;
  round.started = false;
  return round;
}

// Agents that do as they are told, unless the test says otherwise.
class CoordinatorScene {
 public:
  explicit CoordinatorScene(std::int64_t nodes, std::optional<std::int64_t> min_data = {},
                            std::int64_t max_restarts = 3, std::int64_t stages = 1, bool is_per_node = true)
      : nodes_(nodes),
        log_({.file = folder_.path() / "agent.log"}),
        coordinator_({.layout = {.ranks_per_place = 1, .replica = 1, .data = nodes},
                      .places = nodes,
                      .is_per_node = is_per_node,
                      .stages = stages,
                      .min_data = min_data,
                      .start = {.checkpoint = {}, .step = 0, .generation = 0},
                      .lock_id = "lock",
                      .max_restarts = max_restarts,
                      .heartbeat = heartbeat,
                      .join_seconds = 100.0,
                      .log = log_,
                      .next_start =
                          [this](const StartPoint& before) {
                            ++starts_asked;
                            if (storage_is_away) throw FileAccessError("step-00000010: stale file handle");
                            return StartPoint{
                                .checkpoint = "c", .step = checkpoint_step, .generation = before.generation + 1};
                          },
                      .serve =
                          [this](std::int64_t world, bool is_one_host) {
                            ++served;
                            served_one_host = is_one_host;
                            return WorkersRendezvous{{"127.0.0.1", static_cast<std::uint16_t>(1000 + served)},
                                                     "salt of " + std::to_string(world)};
                          },
                      .holds_lock = [this] { return holds_lock; }}) {}

  void come(std::int64_t node, const std::string& incarnation = "first") {
    AgentStatus status;
    status.place = node;
    status.host = "host-" + std::to_string(node);
    status.machine = {status.host, status.host + "/all"};
    status.incarnation = incarnation;
    statuses_[node] = status;
  }
  void come_all() {
    for (std::int64_t node = 0; node < nodes_; ++node) come(node);
  }
  // All are there, and the first round begins.
  void begin() {
    come_all();
    look();
  }
  AgentStatus& status(std::int64_t node) { return statuses_.at(node); }
  std::map<std::int64_t, AgentStatus>& statuses() { return statuses_; }
  void silence(std::int64_t node) { silent_[node] = true; }
  void revive(std::int64_t node) { silent_[node] = false; }
  // Another agent of a node that was lost.
  void return_as(std::int64_t node, const std::string& incarnation) {
    revive(node);
    come(node, incarnation);
  }

  // Time passes in small steps; who is not silent gives signs of life.
  const Orders& pass(double seconds) {
    for (double end = now_ + seconds; now_ < end; now_ += 0.25) look();
    return coordinator_.orders();
  }
  const Orders& look() {
    std::vector<AgentStatus> list;
    for (auto& [node, status] : statuses_) {
      if (!silent_[node]) ++status.beat;
      list.push_back(status);
    }
    now_ += 0.01;
    return coordinator_.look(now_, list);
  }

  // The workers of all nodes of the round run, at this step.
  void run_all(std::int64_t step) {
    for (const PlaceShare& share : orders().plan.shares) {
      AgentStatus& status = statuses_.at(share.place);
      status.round = orders().round;
      status.report.reset();
      status.workers = {.progress = 10, .working = share.count, .step = step};
    }
    look();
  }
  void report(std::int64_t node, const RoundResult& round) {
    AgentStatus& status = statuses_.at(node);
    status.round = orders().round;
    status.report = round;
    status.workers = {};
  }
  void report_all(const RoundResult& round) {
    for (const PlaceShare& share : orders().plan.shares) report(share.place, round);
  }
  // A node of an elastic run is lost at this step; what is left goes on.
  void lose(std::int64_t node, std::int64_t step) {
    run_all(step);
    silence(node);
    for (const PlaceShare& share : orders().plan.shares)
      if (share.place != node) report(share.place, lost_peer(step));
    pass(run_out + 1);
  }

  const Orders& orders() const { return coordinator_.orders(); }
  Coordinator& coordinator() { return coordinator_; }
  std::string log_text() const {
    std::ifstream in(folder_.path() / "agent.log");
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  int served = 0;
  int starts_asked = 0;
  bool served_one_host = false;  // the last
  std::int64_t checkpoint_step = 0;
  bool holds_lock = true;
  bool storage_is_away = false;

 private:
  std::int64_t nodes_;
  TempFolder folder_;
  Log log_;
  Coordinator coordinator_;
  std::map<std::int64_t, AgentStatus> statuses_;
  std::map<std::int64_t, bool> silent_;
  double now_ = 1000.0;
};

}  // namespace scaletrain
