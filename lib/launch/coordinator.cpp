#include "launch/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

namespace scaletrain {
namespace {

// How long other nodes may take to say why, after one has only lost its peers.
constexpr double settle_seconds = 2.0;
// Between two looks that are further apart, the coordinator itself stood still.
constexpr double longest_look = 1.0;
// What agents get to hear that the run is over, at least.
constexpr double farewell_seconds = 5.0;
// For those on their way, when a run is over that not all have come to; who comes later finds a note.
constexpr double late_seconds = 2.0;
constexpr auto look_period = std::chrono::milliseconds(50);

bool is_failure(const Attempt& attempt) {
  if (!attempt.started || attempt.ended_for_others) return false;
  return !attempt.result || (*attempt.result != ExitCode::finished && *attempt.result != ExitCode::interrupted);
}
bool is_own_failure(const Attempt& attempt) {
  return is_failure(attempt) && !attempt.lost_peer_only;
}

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += fmt::format("{}{}", text.empty() ? "" : ", ", number);
  return text;
}

std::string plural(std::size_t count, const char* noun) {
  return fmt::format("{}{}", noun, count == 1 ? "" : "s");
}

}  // namespace

Coordinator::Coordinator(Options options)
    : options_(std::move(options)), policy_(options_.max_restarts, options_.start.step) {
  orders_.plan.start = options_.start;
}

const Orders& Coordinator::look(double now, const std::vector<NodeStatus>& statuses) {
  observe(now, statuses);
  if (orders_.command == NodeCommand::over) return orders_;
  try {
    if (is_running_) {
      supervise();
    } else {
      gather();
    }
  } catch (const UserError& error) {
    finish(ExitCode::usage, error.what());
  } catch (const InputError& error) {
    finish(ExitCode::input, error.what());
  } catch (const PeerError& error) {
    finish(ExitCode::peer, error.what());
  }
  return orders_;
}

void Coordinator::observe(double now, const std::vector<NodeStatus>& statuses) {
  if (last_look_) clock_ += std::clamp(now - *last_look_, 0.0, longest_look);
  last_look_ = now;
  for (const NodeStatus& status : statuses) {
    auto [found, is_new] = nodes_.try_emplace(status.node);
    Node& node = found->second;
    if (is_new || node.status.incarnation != status.incarnation) {
      if (is_running_)
        options_.log.info(fmt::format("the agent of node {} is {}", status.node, is_new ? "there" : "back"));
      node = {.status = status, .changed_at = clock_};
      continue;
    }
    if (node.is_lost) continue;  // its lease is out: it leaves when it sees that
    if (node.status.beat != status.beat) node.changed_at = clock_;
    node.status = status;
  }
  const double run_out = lease_run_out(agent_lease(options_.heartbeat));
  for (auto& [index, node] : nodes_) {
    if (node.is_lost || node.status.left) continue;
    is_interrupted_ = is_interrupted_ || node.status.is_interrupted;
    if (clock_ - node.changed_at < run_out) continue;
    node.is_lost = true;
    options_.log.warn(fmt::format("node {} is lost: nothing was heard of its agent for {}", index,
                                  duration_text(clock_ - node.changed_at)));
  }
}

std::vector<std::int64_t> Coordinator::present() const {
  std::vector<std::int64_t> indices;
  for (const auto& [index, node] : nodes_)
    if (is_present(node)) indices.push_back(index);
  return indices;
}

std::vector<std::int64_t> Coordinator::missing() const {
  const std::vector<std::int64_t> there = present();
  std::vector<std::int64_t> indices;
  for (std::int64_t node = 0; node < options_.nodes; ++node)
    if (std::find(there.begin(), there.end(), node) == there.end()) indices.push_back(node);
  return indices;
}

std::optional<Allotment> Coordinator::allotment() const {
  return allot_ranks(options_.layout, present(), options_.min_data.value_or(options_.layout.data));
}

void Coordinator::gather() {
  for (const auto& [index, node] : nodes_) {
    if (!node.status.left) continue;
    if (options_.min_data && node.status.left->code == ExitCode::peer) continue;
    return finish(node.status.left->code, fmt::format("node {} could not start: {}", index, node.status.left->message));
  }
  if (is_interrupted_)
    return finish(ExitCode::interrupted, "interrupted before any worker was running: run again to go on");
  const std::vector<std::int64_t> there = present();
  if (static_cast<std::int64_t>(there.size()) == options_.nodes) return begin();
  const std::vector<std::int64_t> absent = missing();
  const std::string agents =
      fmt::format("the {} of {} {}", plural(absent.size(), "agent"), plural(absent.size(), "node"), list_text(absent));
  if (clock_ < options_.join_seconds) {
    if (notice_.is_due(clock_))
      options_.log.info(fmt::format("waiting for {}: {} of {} {} there after {}; {} {}", agents, there.size(),
                                    options_.nodes, there.size() == 1 ? "is" : "are", duration_text(clock_),
                                    options_.min_data ? "the run begins without after" : "all must come within",
                                    duration_text(options_.join_seconds)));
    return;
  }
  const std::string text = fmt::format("{} {} not come within {}", agents, absent.size() == 1 ? "has" : "have",
                                       duration_text(options_.join_seconds));
  if (!options_.min_data || !allotment())
    return finish(ExitCode::peer,
                  text + ": was each started, with the same run folder and SCALETRAIN_SECRET? Run again to go on");
  options_.log.warn(text + ": the run begins without");
  begin();
}

void Coordinator::begin() {
  if (options_.holds_lock && !options_.holds_lock())
    throw PeerError("the run's lock was taken over by another agent or removed; nothing more is written here");
  const std::optional<Allotment> allotted = allotment();
  if (!allotted) {
    const std::string need = options_.min_data
                                 ? fmt::format("supervise.elastic.min_data: {} replicas", *options_.min_data)
                                 : fmt::format("{} replicas", options_.layout.data);
    return finish(ExitCode::interrupted,
                  fmt::format("nodes {} are left, which cannot carry {}: run again to go on from the newest checkpoint",
                              list_text(present()), need));
  }
  ++orders_.attempt;
  AttemptPlan& plan = orders_.plan;
  plan.lock_id = options_.lock_id;
  plan.shares = allotted->shares;
  plan.data = allotted->data;
  plan.world = plan.data * options_.layout.replica;
  plan.incarnations.clear();
  std::vector<std::int64_t> on;
  for (const NodeShare& share : plan.shares) {
    plan.incarnations.push_back(nodes_.at(share.node).status.incarnation);
    on.push_back(share.node);
  }
  plan.rendezvous = options_.serve(plan.world);
  orders_.command = NodeCommand::run;
  orders_.reason.clear();
  orders_.is_hang = false;
  reports_.assign(plan.shares.size(), std::nullopt);
  told_.clear();
  lost_peer_at_.reset();
  hang_.reset();
  is_growing_ = false;
  failed_before_ = std::exchange(failed_at_, std::nullopt);
  furthest_ = plan.start.step;
  is_running_ = true;
  options_.log.info(fmt::format("{} rank{} on {} {}, {} replica{}{}, from {}", plan.world, plan.world == 1 ? "" : "s",
                                plural(on.size(), "node"), list_text(on), plan.data, plan.data == 1 ? "" : "s",
                                plan.data < options_.layout.data ? fmt::format(" of {}", options_.layout.data) : "",
                                plan.start.checkpoint ? plan.start.checkpoint->string() : "the initial weights"));
}

void Coordinator::begin_again() {
  orders_.plan.start = options_.next_start(orders_.plan.start);
  failed_at_.reset();
  begin();
}

Coordinator::Share Coordinator::state_of(std::size_t share) const {
  if (reports_[share]) return Share::reported;
  const auto node = nodes_.find(orders_.plan.shares[share].node);
  const bool is_same = node != nodes_.end() && node->second.status.incarnation == orders_.plan.incarnations[share];
  return is_same && is_present(node->second) ? Share::running : Share::gone;
}

void Coordinator::take_reports() {
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    const NodeStatus& status = nodes_.at(orders_.plan.shares[i].node).status;
    if (status.incarnation != orders_.plan.incarnations[i] || status.attempt != orders_.attempt) continue;
    furthest_ = std::max(furthest_, status.pulse.step);
    if (reports_[i] || !status.report) continue;
    reports_[i] = status.report;
    told_.push_back(i);
    if (is_failure(*status.report) && !failed_at_) failed_at_ = clock_;
    if (status.report->lost_peer_only && !lost_peer_at_) lost_peer_at_ = clock_;
  }
}

// The smallest of all nodes; nothing while one has no workers that run.
std::optional<double> Coordinator::still_seconds() const {
  double still = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    if (state_of(i) != Share::running) return std::nullopt;
    const NodeStatus& status = nodes_.at(orders_.plan.shares[i].node).status;
    if (status.attempt != orders_.attempt || status.pulse.working + status.pulse.waiting == 0) return std::nullopt;
    still = std::min(still, status.pulse.still_seconds);
  }
  return still;
}

std::optional<std::string> Coordinator::reason_to_end() {
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    const std::int64_t node = orders_.plan.shares[i].node;
    if (state_of(i) == Share::gone) {
      const auto found = nodes_.find(node);
      const bool is_silent = found != nodes_.end() && found->second.is_lost;
      if (!failed_at_) failed_at_ = is_silent ? found->second.changed_at : clock_;
      return fmt::format("node {} is gone", node);
    }
    if (!reports_[i]) continue;
    if (is_own_failure(*reports_[i])) return fmt::format("workers of node {} failed", node);
    if (!reports_[i]->started) return fmt::format("node {} was interrupted while starting up", node);
  }
  if (lost_peer_at_ && clock_ - *lost_peer_at_ >= settle_seconds) return "workers have lost their peers";
  if (const auto still = still_seconds(); still && *still >= options_.heartbeat) {
    hang_ = fmt::format("no rank on any node made progress for {} at step {} (supervise.heartbeat)",
                        duration_text(*still), last_step());
    if (!failed_at_) failed_at_ = clock_;
    orders_.is_hang = true;
    return hang_;
  }
  return std::nullopt;
}

bool Coordinator::can_grow() const {
  if (!options_.min_data || orders_.plan.data == options_.layout.data) return false;
  const auto more = allotment();
  return more && more->data > orders_.plan.data;
}

void Coordinator::tell_recovery() {
  if (!failed_before_ || failed_at_) return;
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    const NodeStatus& status = nodes_.at(orders_.plan.shares[i].node).status;
    if (state_of(i) != Share::running || status.attempt != orders_.attempt ||
        status.pulse.step <= orders_.plan.start.step)
      return;
  }
  options_.log.info(fmt::format("recovered: step {} was done {:.1f} s after the failure", orders_.plan.start.step + 1,
                                clock_ - *failed_before_));
  failed_before_.reset();
}

void Coordinator::supervise() {
  take_reports();
  tell_recovery();
  bool is_over = true;
  for (std::size_t i = 0; i < reports_.size(); ++i) is_over = is_over && state_of(i) != Share::running;
  if (is_over) return conclude();
  if (orders_.command == NodeCommand::end) return;
  if (const auto reason = reason_to_end()) {
    orders_.command = NodeCommand::end;
    orders_.reason = *reason;
    return;
  }
  if (orders_.command != NodeCommand::run) return;
  if (is_interrupted_) {
    orders_.command = NodeCommand::leave;
    options_.log.info("interrupted: the workers of all nodes finish their step, save and leave");
  } else if (can_grow()) {
    is_growing_ = true;
    orders_.command = NodeCommand::leave;
    options_.log.info("there are nodes for more replicas: the workers save, and more go on");
  }
}

std::int64_t Coordinator::last_step() const {
  std::int64_t step = furthest_;
  for (const auto& report : reports_)
    if (report) step = std::max(step, report->step);
  return step;
}

std::string Coordinator::reported_text(std::size_t share) const {
  const Attempt& report = *reports_[share];
  return fmt::format("node {}: {}{}{}{}", orders_.plan.shares[share].node, report.is_alike ? "all its ranks: " : "",
                     report.message.value_or(""), report.message ? "; " : "", report.description);
}

// What all nodes' ranks told word for word is nobody's in particular. One rank's words begin with its name.
std::string Coordinator::failure_text(std::size_t share) const {
  const Attempt& first = *reports_[share];
  const auto name_length = [](const Attempt& report) {
    const std::string name = report.rank && !report.is_alike ? fmt::format("rank {}: ", report.rank->value()) : "";
    return report.message && report.message->starts_with(name) ? name.size() : 0;
  };
  const bool is_alike =
      reports_.size() > 1 && first.message && std::all_of(reports_.begin(), reports_.end(), [&](const auto& report) {
        return report && is_own_failure(*report) && report->message &&
               report->message->substr(name_length(*report)) == first.message->substr(name_length(first));
      });
  if (!is_alike) return reported_text(share);
  return fmt::format("all ranks: {}; the workers of all nodes failed alike at step {}",
                     first.message->substr(name_length(first)), first.step);
}

// What the workers that were ended for a hang were in.
std::string Coordinator::places_text() const {
  std::string text;
  for (std::size_t i = 0; i < reports_.size(); ++i)
    if (reports_[i] && reports_[i]->ended_for_others && reports_[i]->message)
      text += fmt::format("; node {}: {}", orders_.plan.shares[i].node, *reports_[i]->message);
  return text + "; each rank's log has its stack traces";
}

std::optional<std::string> Coordinator::lost_text() const {
  std::vector<std::int64_t> lost;
  std::string told;
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    if (state_of(i) != Share::gone) continue;
    const std::int64_t index = orders_.plan.shares[i].node;
    lost.push_back(index);
    const auto& left = nodes_.at(index).status.left;
    if (left && !left->message.empty()) told += ": " + left->message;
  }
  if (lost.empty()) return std::nullopt;
  return fmt::format("{} {} {} lost{}", plural(lost.size(), "node"), list_text(lost), lost.size() == 1 ? "is" : "are",
                     told);
}

// Of several failures the first that no other explains is the cause; so in crew.h among the workers of one node.
void Coordinator::conclude() {
  is_running_ = false;
  for (const std::size_t share : told_) {
    const Attempt& report = *reports_[share];
    if (!is_own_failure(report)) continue;
    if (report.result) return finish(*report.result, failure_text(share));
    return conclude_failure(failure_text(share), report.step);
  }
  if (hang_) return conclude_failure(*hang_ + places_text(), last_step());
  if (const auto lost = lost_text()) {
    for (std::size_t i = 0; i < reports_.size(); ++i) {
      const auto& left = nodes_.at(orders_.plan.shares[i].node).status.left;
      const bool is_telling = state_of(i) == Share::gone && left && left->code != ExitCode::interrupted;
      // Another attempt would meet what is wrong there, unless it can do without that node.
      if (is_telling && (!options_.min_data || left->code != ExitCode::peer)) return finish(left->code, *lost);
    }
    if (!options_.min_data)
      return finish(ExitCode::interrupted, *lost + ": run again to go on from the newest checkpoint");
    return conclude_failure(*lost, last_step());
  }
  for (const std::size_t share : told_)
    if (is_failure(*reports_[share])) return conclude_failure(reported_text(share), reports_[share]->step);
  conclude_without_failure();
}

void Coordinator::conclude_without_failure() {
  const auto is_any = [this](auto condition) {
    return std::any_of(reports_.begin(), reports_.end(),
                       [&](const auto& report) { return report && condition(*report); });
  };
  const bool is_cut = is_any([](const Attempt& report) { return !report.started || report.ended_for_others; });
  if (!is_cut && !is_any([](const Attempt& report) { return report.result == ExitCode::interrupted; }))
    return finish(ExitCode::finished, fmt::format("the ranks of all nodes ended at step {}", reports_.front()->step));
  if (is_growing_ && !is_interrupted_) return begin_again();
  finish(ExitCode::interrupted,
         is_cut ? "interrupted while workers were starting up: there is nothing to save" : "interrupted");
}

void Coordinator::conclude_failure(const std::string& what, std::int64_t step) {
  options_.log.error(what);
  if (policy_.failed(step) == RestartPolicy::Decision::no_progress)
    return finish(ExitCode::no_progress,
                  fmt::format("no progress: failed {} times at step {}; not restarted any more. The last time: {}",
                              RestartPolicy::failures_at_one_step, step, what));
  if (is_interrupted_)
    return finish(ExitCode::interrupted,
                  "workers were lost after the interruption: steps since the last checkpoint will be repeated by the "
                  "next run");
  if (policy_.max_restarts() > 0) orders_.plan.start = options_.next_start(orders_.plan.start);
  if (policy_.restarting(orders_.plan.start.step) == RestartPolicy::Decision::used_up)
    return finish(ExitCode::peer,
                  fmt::format("all {} restarts since the furthest checkpoint are used up (supervise.max_restarts); run "
                              "again to go on from the newest checkpoint, if there is one. The last failure: {}",
                              policy_.max_restarts(), what));
  options_.log.info(fmt::format("restart {} of {}", policy_.used(), policy_.max_restarts()));
  begin();
}

void Coordinator::finish(ExitCode code, const std::string& reason) {
  is_running_ = false;
  orders_.command = NodeCommand::over;
  orders_.code = code;
  orders_.reason = reason;
  over_at_ = clock_;
}

bool Coordinator::is_lost(const NodeStatus& status) const {
  const auto found = nodes_.find(status.node);
  return found != nodes_.end() && found->second.is_lost && found->second.status.incarnation == status.incarnation;
}

bool Coordinator::is_done() const {
  if (orders_.command != NodeCommand::over) return false;
  const double over_for = clock_ - over_at_;
  const bool is_well = orders_.code == ExitCode::finished && !is_interrupted_;
  const double late = has_seen_all() ? 0.0 : is_well ? options_.join_seconds : late_seconds;
  if (over_for < late) return false;
  if (over_for >= std::max(farewell_seconds, lease_run_out(agent_lease(options_.heartbeat)))) return true;
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [this](const auto& entry) { return entry.first == 0 || !is_present(entry.second); });
}

void run_coordinator(Coordinator& coordinator, KeyValueStore& store, std::int64_t nodes) {
  const MonotonicTime begin = monotonic_now();
  std::string published;
  std::vector<std::string> texts(static_cast<std::size_t>(nodes));
  std::map<std::int64_t, NodeStatus> statuses;
  while (!coordinator.is_done()) {
    for (std::int64_t node = 0; node < nodes; ++node) {
      auto text = store.find(status_key(node));
      std::string& before = texts[static_cast<std::size_t>(node)];
      if (!text || *text == before) continue;
      statuses[node] = parse_status(*text);
      before = std::move(*text);
    }
    std::vector<NodeStatus> list;
    list.reserve(statuses.size());
    for (const auto& entry : statuses) list.push_back(entry.second);
    coordinator.look(seconds_since(begin), list);
    for (const NodeStatus& status : list) {
      if (!coordinator.is_lost(status)) continue;
      store.remove(status_key(status.node));
      texts[static_cast<std::size_t>(status.node)].clear();
      statuses.erase(status.node);
    }
    if (std::string orders = to_text(coordinator.orders()); orders != published) {
      publish_orders(store, coordinator.orders());
      published = std::move(orders);
    }
    std::this_thread::sleep_for(look_period);
  }
}

}  // namespace scaletrain
