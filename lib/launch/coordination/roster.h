// Which agents a run has, from their statuses as they come: who is there, who is lost, and whose word counts. For the
// coordinator; without clocks of its own.
//
// Of each place one agent counts, known by its incarnation. When it is lost, or another has come in its place, nothing
// is believed of it any more: what it said may arrive late, when a network that was cut is whole again.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launch/coordination/messages.h"
#include "telemetry/log.h"

namespace scaletrain {

class Roster {
 public:
  struct Agent {
    AgentStatus status{};
    double came_at = 0.0;     // this agent
    double changed_at = 0.0;  // its last sign of life
    bool is_lost = false;
    int losses = 0;  // how often one before it has gone, without long presence between
    bool is_present() const { return !is_lost && !status.left; }
  };

  // run_out: seconds without a sign of life after which a place is lost; but the first, whose agent is the
  // coordinator's. kind: what a place is called, "node" or "rank".
  Roster(std::int64_t places, double run_out, const char* kind, Log& log)
      : places_(places), run_out_(run_out), kind_(kind), log_(log) {}

  // clock: seconds that do not go back. Changes are logged while the run is on.
  void observe(double clock, const std::vector<AgentStatus>& statuses, bool is_running);

  // The agent is not believed, nor counted upon, any more.
  void dismiss(std::int64_t place);

  const Agent* find(std::int64_t place) const;
  const std::map<std::int64_t, Agent>& agents() const { return known_; }
  std::vector<std::int64_t> present() const;
  // Those of them whose presence is likely to last. A node that was lost once is given the same trust as any, one that
  // comes and goes must stay for a minute, then two, four, up to an hour: each time that it is made use of and lost
  // costs all others the steps since the last checkpoint.
  std::vector<std::int64_t> steady() const;
  std::vector<std::int64_t> missing() const;
  bool is_interrupted() const;
  // Every place's agent has come, at some time.
  bool has_seen_all() const { return static_cast<std::int64_t>(known_.size()) == places_; }
  // Every agent but the first place's has left, and said so.
  bool have_all_left() const;
  // Whether the status is of an agent that is not believed any more.
  bool is_given_up(const AgentStatus& status) const { return given_up_.contains({status.place, status.incarnation}); }

 private:
  void welcome(Agent& agent, bool is_new, const AgentStatus& status, bool is_running);

  std::int64_t places_;
  double run_out_;
  const char* kind_;
  Log& log_;
  double clock_ = 0.0;
  std::map<std::int64_t, Agent> known_;
  std::set<std::pair<std::int64_t, std::string>> given_up_;  // places' incarnations
};

}  // namespace scaletrain
