#include "launch/coordination/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace scaletrain {
namespace {

constexpr double first_patience = 60.0;      // seconds, with a node that was lost twice
constexpr double longest_patience = 3600.0;  // and as long a presence makes good what was before

double patience_with(int losses) {
  if (losses <= 1) return 0.0;
  return std::min(longest_patience, std::ldexp(first_patience, std::min(losses - 2, 10)));
}

}  // namespace

void Roster::observe(double clock, const std::vector<AgentStatus>& statuses, bool is_running) {
  clock_ = clock;
  for (const AgentStatus& status : statuses) {
    if (is_given_up(status)) continue;
    auto [found, is_new] = known_.try_emplace(status.place);
    Agent& agent = found->second;
    if (is_new || agent.status.incarnation != status.incarnation) {
      welcome(agent, is_new, status, is_running);
      continue;
    }
    // A connection that was given up may bring an older one.
    if (status.beat < agent.status.beat) continue;
    if (agent.status.beat != status.beat) agent.changed_at = clock_;
    agent.status = status;
  }
  for (auto& [index, agent] : known_) {
    // The first place's agent is in the coordinator's own process.
    if (index == 0 || !agent.is_present() || clock_ - agent.changed_at < run_out_) continue;
    agent.is_lost = true;
    given_up_.emplace(index, agent.status.incarnation);
    log_.warn(fmt::format("{} {} is lost: nothing was heard of its agent for {}", kind_, index,
                          duration_text(clock_ - agent.changed_at)));
  }
}

void Roster::welcome(Agent& agent, bool is_new, const AgentStatus& status, bool is_running) {
  int losses = 0;
  if (!is_new) {
    given_up_.emplace(status.place, agent.status.incarnation);
    // Before the run begins nobody pays for it.
    if (is_running) losses = agent.changed_at - agent.came_at >= longest_patience ? 1 : agent.losses + 1;
  }
  agent = {.status = status, .came_at = clock_, .changed_at = clock_, .losses = losses};
  if (!is_running) return;
  if (status.left) {
    log_.warn(fmt::format("{} {} cannot take part: {}", kind_, status.place, status.left->message));
    return;
  }
  log_.info(fmt::format("the agent of {} {} is {}", kind_, status.place, is_new ? "there" : "back"));
  if (const double patience = patience_with(losses); patience > 0)
    log_.info(fmt::format("{} {} has come and gone {} times: the run makes use of it once it has stayed for {}", kind_,
                          status.place, losses, duration_text(patience)));
}

void Roster::dismiss(std::int64_t place) {
  Agent& known = known_.at(place);
  known.is_lost = true;
  given_up_.emplace(place, known.status.incarnation);
}

const Roster::Agent* Roster::find(std::int64_t place) const {
  const auto found = known_.find(place);
  return found == known_.end() ? nullptr : &found->second;
}

std::vector<std::int64_t> Roster::present() const {
  std::vector<std::int64_t> indices;
  for (const auto& [index, agent] : known_)
    if (agent.is_present()) indices.push_back(index);
  return indices;
}

std::vector<std::int64_t> Roster::steady() const {
  std::vector<std::int64_t> indices;
  for (const auto& [index, agent] : known_)
    if (agent.is_present() && clock_ - agent.came_at >= patience_with(agent.losses)) indices.push_back(index);
  return indices;
}

std::vector<std::int64_t> Roster::missing() const {
  std::vector<std::int64_t> indices;
  for (std::int64_t index = 0; index < places_; ++index)
    if (const Agent* const agent = find(index); agent == nullptr || !agent->is_present()) indices.push_back(index);
  return indices;
}

bool Roster::is_interrupted() const {
  return std::any_of(known_.begin(), known_.end(),
                     [](const auto& entry) { return entry.second.is_present() && entry.second.status.is_interrupted; });
}

bool Roster::have_all_left() const {
  return has_seen_all() && std::all_of(known_.begin(), known_.end(), [](const auto& entry) {
           return entry.first == 0 || (!entry.second.is_lost && entry.second.status.left);
         });
}

}  // namespace scaletrain
