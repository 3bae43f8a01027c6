#include "launch/coordination/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "launch/watch/hang_judge.h"
#include "telemetry/metrics.h"

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

bool is_failure(const RoundResult& round) {
  if (!round.started || round.ended_for_others) return false;
  return !round.result || (*round.result != ExitCode::finished && *round.result != ExitCode::interrupted);
}
bool is_own_failure(const RoundResult& round) {
  return is_failure(round) && !round.lost_peer_only;
}

// "0, 2, 5"; of many the first are enough.
std::string list_text(const std::vector<std::int64_t>& numbers) {
  constexpr std::size_t longest_list = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(numbers.size(), longest_list); ++i)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
  if (numbers.size() > longest_list) text += fmt::format(" and {} more", numbers.size() - longest_list);
  return text;
}

std::string plural(std::size_t count, const char* noun) {
  return fmt::format("{}{}", noun, count == 1 ? "" : "s");
}

}  // namespace

Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      roster_(options_.places, lease_run_out(agent_lease(options_.heartbeat)), kind(), options_.log),
      restarts_(
          {.max_restarts = options_.max_restarts,
           .first_step = options_.start.step,
           .log = options_.log,
           .next_start = [this](const StartPoint& before) { return options_.next_start(before); },
           .interrupted = [this] { return is_interrupted_ || (options_.interrupted && options_.interrupted()); }}) {
  orders_.plan.start = options_.start;
}

const Orders& Coordinator::look(double now, const std::vector<AgentStatus>& statuses) {
  if (last_look_) clock_ += std::clamp(now - *last_look_, 0.0, longest_look);
  last_look_ = now;
  roster_.observe(clock_, statuses, is_running_ || is_seeking_);
  is_interrupted_ = is_interrupted_ || roster_.is_interrupted();
  if (orders_.command == OrderKind::over) return orders_;
  try {
    if (is_running_) {
      supervise();
    } else if (is_seeking_) {
      seek_start();
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

std::optional<Allotment> Coordinator::allotment(const std::vector<std::int64_t>& places) const {
  return allot_ranks(options_.layout, places, options_.min_data.value_or(options_.layout.data));
}

void Coordinator::gather() {
  for (const auto& [index, agent] : roster_.agents()) {
    if (agent.is_lost && !options_.is_per_node)
      return finish(ExitCode::peer, place_text(index) + " is lost: its process is gone, or its host or the network");
    if (!agent.status.left) continue;
    if (options_.min_data && agent.status.left->code == ExitCode::peer) continue;
    return finish(agent.status.left->code,
                  fmt::format("{} could not start: {}", place_text(index), agent.status.left->message));
  }
  if (is_interrupted_) return finish(ExitCode::interrupted, "interrupted before any worker was running");
  const std::vector<std::int64_t> there = roster_.present();
  if (static_cast<std::int64_t>(there.size()) == options_.places) return begin();
  const std::vector<std::int64_t> absent = roster_.missing();
  const std::string agents = fmt::format("the {} of {}", plural(absent.size(), "agent"), places_text(absent));
  if (clock_ < options_.join_seconds) {
    if (notice_.is_due(clock_))
      options_.log.info(fmt::format("waiting for {}: {} of {} {} there after {}; {} {}", agents, there.size(),
                                    options_.places, there.size() == 1 ? "is" : "are", duration_text(clock_),
                                    options_.min_data ? "the run begins without after" : "all must come within",
                                    duration_text(options_.join_seconds)));
    return;
  }
  const std::string text = fmt::format("{} {} not come within {}", agents, absent.size() == 1 ? "has" : "have",
                                       duration_text(options_.join_seconds));
  if (!options_.min_data || !allotment(there))
    return finish(ExitCode::peer, text + ": see that each is started, with the same run folder and SCALETRAIN_SECRET");
  options_.log.warn(text + ": the run begins without");
  begin();
}

void Coordinator::begin() {
  if (options_.holds_lock && !options_.holds_lock())
    throw PeerError("the run's lock was taken over by another start or removed; nothing more is written here");
  // Those that come and go only where it cannot be done without them.
  std::optional<Allotment> allotted = allotment(roster_.steady());
  if (!allotted) allotted = allotment(roster_.present());
  if (!allotted) {
    const std::string need = options_.min_data
                                 ? fmt::format("supervise.elastic.min_data: {} replicas", *options_.min_data)
                                 : fmt::format("{} replicas", options_.layout.data);
    return finish(ExitCode::interrupted,
                  fmt::format("{} are left, which cannot carry {}", places_text(roster_.present()), need));
  }
  ++orders_.round;
  RoundPlan& plan = orders_.plan;
  plan.lock_id = options_.lock_id;
  plan.shares = allotted->shares;
  plan.data = allotted->data;
  plan.world = plan.data * options_.layout.replica;
  plan.incarnations.clear();
  std::vector<std::int64_t> on;
  std::vector<PlaceMachine> machines;
  bool is_one_host = true;
  for (const PlaceShare& share : plan.shares) {
    const AgentStatus& status = roster_.agents().at(share.place).status;
    plan.incarnations.push_back(status.incarnation);
    machines.push_back(status.machine);
    is_one_host = is_one_host && status.machine.host == machines.front().host;
    on.push_back(share.place);
  }
  // A node is a host of its own.
  if (!options_.is_per_node) find_neighbours(plan.shares, machines);
  plan.rendezvous = options_.serve(plan.world, is_one_host);
  orders_.command = OrderKind::run;
  orders_.reason.clear();
  orders_.is_hang = false;
  reports_.assign(plan.shares.size(), std::nullopt);
  told_.clear();
  lost_peer_at_.reset();
  hang_.reset();
  slow_ranks_.reset();
  if (plan.world > 1) slow_ranks_.emplace(classes_of_stages(plan.world, options_.stages));
  is_growing_ = false;
  began_at_ = clock_;
  failed_before_ = std::exchange(failed_at_, std::nullopt);
  furthest_ = plan.start.step;
  is_running_ = true;
  if (options_.places == 1) return;
  options_.log.info(fmt::format("{}{}, {}{}, from {}", counted(plan.world, "rank"),
                                options_.is_per_node ? " on " + places_text(on) : "", counted(plan.data, "replica"),
                                plan.data < options_.layout.data ? fmt::format(" of {}", options_.layout.data) : "",
                                plan.start.checkpoint ? plan.start.checkpoint->string() : "the initial weights"));
}

const AgentStatus& Coordinator::status_of(std::size_t share) const {
  return roster_.agents().at(orders_.plan.shares[share].place).status;
}

Coordinator::Share Coordinator::state_of(std::size_t share) const {
  if (reports_[share]) return Share::reported;
  const Roster::Agent* const agent = roster_.find(orders_.plan.shares[share].place);
  const bool is_same = agent != nullptr && agent->status.incarnation == orders_.plan.incarnations[share];
  return is_same && agent->is_present() ? Share::running : Share::gone;
}

void Coordinator::take_reports() {
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    const AgentStatus& status = status_of(i);
    if (status.incarnation != orders_.plan.incarnations[i] || status.round != orders_.round) continue;
    furthest_ = std::max(furthest_, status.workers.step);
    if (status.workers.step > orders_.plan.start.step) proven_.insert(status.incarnation);
    if (reports_[i] || !status.report) continue;
    reports_[i] = status.report;
    told_.push_back(i);
    if (is_failure(*status.report) && !failed_at_) failed_at_ = clock_;
    if (status.report->lost_peer_only && !lost_peer_at_) lost_peer_at_ = clock_;
  }
}

// By what the smallest of all nodes tells; nothing can be said while one has no workers that run.
void Coordinator::judge_stillness() {
  double still = std::numeric_limits<double>::infinity();
  double stalled = still;
  std::string storage;
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    if (state_of(i) != Share::running) return;
    const AgentStatus& status = status_of(i);
    if (status.round != orders_.round || status.workers.working + status.workers.waiting == 0) return;
    still = std::min(still, status.workers.still_seconds);
    stalled = std::min(stalled, status.workers.stalled_seconds);
    if (!status.workers.stalled_text.empty())
      storage += fmt::format("; {}{}", options_.is_per_node ? place_text(status.place) + ": " : "",
                             status.workers.stalled_text);
  }
  if (still >= options_.heartbeat) {
    hang_ = fmt::format("no rank anywhere made progress for {} at step {} (supervise.heartbeat)", duration_text(still),
                        last_step());
  } else if (stalled >= storage_patience(options_.heartbeat)) {
    hang_ = fmt::format("no rank anywhere has computed, read or written anything for {} at step {}{}",
                        duration_text(stalled), last_step(), storage);
  }
}

std::optional<std::string> Coordinator::reason_to_end() {
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    const std::int64_t place = orders_.plan.shares[i].place;
    if (state_of(i) == Share::gone) {
      const Roster::Agent* const found = roster_.find(place);
      const bool is_silent = found != nullptr && found->is_lost;
      if (!failed_at_) failed_at_ = is_silent ? found->changed_at : clock_;
      return place_text(place) + " is gone";
    }
    if (!reports_[i]) continue;
    if (is_own_failure(*reports_[i])) return fmt::format("workers of {} failed", place_text(place));
    if (!reports_[i]->started) return fmt::format("{} was interrupted while starting up", place_text(place));
  }
  if (lost_peer_at_ && clock_ - *lost_peer_at_ >= settle_seconds) return "workers have lost their peers";
  judge_stillness();
  if (!hang_) return std::nullopt;
  if (!failed_at_) failed_at_ = clock_;
  orders_.is_hang = true;
  return hang_;
}

bool Coordinator::can_grow() const {
  if (!options_.min_data || orders_.plan.data == options_.layout.data) return false;
  const auto more = allotment(roster_.steady());
  return more && more->data > orders_.plan.data;
}

void Coordinator::warn_about_slow_ranks() {
  if (!slow_ranks_) return;
  std::vector<Pace> paces;
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    const AgentStatus& status = status_of(i);
    const std::vector<Pace>& told = status.workers.paces;
    if (state_of(i) != Share::running || status.round != orders_.round ||
        static_cast<std::int64_t>(told.size()) != orders_.plan.shares[i].count)
      return;
    paces.insert(paces.end(), told.begin(), told.end());
  }
  for (const SlowRanks::Slow& slow : slow_ranks_->observe(paces, clock_ - began_at_)) {
    const auto rank = static_cast<std::int64_t>(slow.index);
    std::size_t share = 0;
    while (rank >= orders_.plan.shares[share].first + orders_.plan.shares[share].count) ++share;
    const std::string where =
        options_.places == 1
            ? ""
            : fmt::format("{} ({}): ", place_text(orders_.plan.shares[share].place), status_of(share).host);
    options_.log.warn(where + slow_rank_text(rank, slow));
  }
}

void Coordinator::tell_recovery() {
  if (!failed_before_ || failed_at_) return;
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    const AgentStatus& status = status_of(i);
    if (state_of(i) != Share::running || status.round != orders_.round ||
        status.workers.step <= orders_.plan.start.step)
      return;
  }
  options_.log.info(fmt::format("recovered: step {} was done {:.1f} s after the failure", orders_.plan.start.step + 1,
                                clock_ - *failed_before_));
  failed_before_.reset();
}

void Coordinator::supervise() {
  take_reports();
  tell_recovery();
  warn_about_slow_ranks();
  bool is_over = true;
  for (std::size_t i = 0; i < reports_.size(); ++i) is_over = is_over && state_of(i) != Share::running;
  if (is_over) return conclude();
  if (orders_.command == OrderKind::end) return;
  if (const auto reason = reason_to_end()) {
    orders_.command = OrderKind::end;
    orders_.reason = *reason;
    return;
  }
  if (orders_.command != OrderKind::run) return;
  if (is_interrupted_) {
    orders_.command = OrderKind::leave;
    if (options_.places > 1) options_.log.info("interrupted: all workers finish their step, save and leave");
  } else if (can_grow()) {
    is_growing_ = true;
    orders_.command = OrderKind::leave;
    options_.log.info("there are nodes for more replicas: the workers save, and more go on");
  }
}

std::int64_t Coordinator::last_step() const {
  std::int64_t step = furthest_;
  for (const auto& report : reports_)
    if (report) step = std::max(step, report->step);
  return step;
}

// A rank's words begin with its name.
std::string Coordinator::reported_text(std::size_t share) const {
  const RoundResult& report = *reports_[share];
  const std::string place =
      options_.places > 1 && options_.is_per_node ? place_text(orders_.plan.shares[share].place) + ": " : std::string();
  const char* const all = options_.places > 1 ? "all its ranks: " : "all ranks: ";
  return fmt::format("{}{}{}{}{}", place, report.is_alike ? all : "", report.message.value_or(""),
                     report.message ? "; " : "", report.description);
}

std::string Coordinator::place_text(std::int64_t place) const {
  return fmt::format("{} {}", kind(), place);
}

std::string Coordinator::places_text(const std::vector<std::int64_t>& places) const {
  return fmt::format("{} {}", plural(places.size(), kind()), list_text(places));
}

// What all nodes' ranks told word for word is nobody's in particular. One rank's words begin with its name.
std::string Coordinator::failure_text(std::size_t share) const {
  const RoundResult& first = *reports_[share];
  const auto name_length = [](const RoundResult& report) {
    const std::string name = report.rank && !report.is_alike ? fmt::format("rank {}: ", report.rank->value()) : "";
    return report.message && report.message->starts_with(name) ? name.size() : 0;
  };
  const bool is_alike =
      reports_.size() > 1 && first.message && std::all_of(reports_.begin(), reports_.end(), [&](const auto& report) {
        return report && is_own_failure(*report) && report->message &&
               report->message->substr(name_length(*report)) == first.message->substr(name_length(first));
      });
  if (!is_alike) return reported_text(share);
  return fmt::format("all ranks: {}; all workers failed alike at step {}", first.message->substr(name_length(first)),
                     first.step);
}

// What the workers that were ended for a hang were in.
std::string Coordinator::places_text() const {
  constexpr int longest_list = 8;
  std::string text;
  int count = 0;
  for (std::size_t i = 0; i < reports_.size(); ++i)
    if (reports_[i] && reports_[i]->ended_for_others && reports_[i]->message && ++count <= longest_list)
      text += fmt::format("; {}{}", options_.is_per_node ? place_text(orders_.plan.shares[i].place) + ": " : "",
                          *reports_[i]->message);
  if (count > longest_list) text += fmt::format("; and {} more", count - longest_list);
  return text + "; each rank's log has its stack traces";
}

std::optional<std::string> Coordinator::lost_text() const {
  std::vector<std::int64_t> lost;
  std::string told;
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    if (state_of(i) != Share::gone) continue;
    lost.push_back(orders_.plan.shares[i].place);
    const auto& left = status_of(i).left;
    if (left && !left->message.empty()) told += ": " + left->message;
  }
  if (lost.empty()) return std::nullopt;
  return fmt::format("{} {} lost{}", places_text(lost), lost.size() == 1 ? "is" : "are", told);
}

bool Coordinator::is_newcomer(std::size_t share) const {
  return options_.min_data && !proven_.empty() && !proven_.contains(orders_.plan.incarnations[share]);
}

// A node that lacks a mount, or whose disk is full, is no reason to end a run that does well without it.
bool Coordinator::dismiss_newcomers() {
  std::vector<std::size_t> guilty;
  for (const std::size_t share : told_) {
    if (!is_own_failure(*reports_[share])) continue;
    if (!is_newcomer(share)) return false;  // what is wrong is wrong with all
    guilty.push_back(share);
  }
  const auto is_guilty = [&](std::int64_t place) {
    return std::any_of(guilty.begin(), guilty.end(),
                       [&](std::size_t share) { return orders_.plan.shares[share].place == place; });
  };
  std::vector<std::int64_t> rest = roster_.present();
  rest.erase(std::remove_if(rest.begin(), rest.end(), is_guilty), rest.end());
  if (guilty.empty() || !allotment(rest)) return false;
  for (const std::size_t share : guilty) {
    const std::int64_t place = orders_.plan.shares[share].place;
    options_.log.error(fmt::format("{}; the run made steps without {}, and goes on without it", reported_text(share),
                                   place_text(place)));
    roster_.dismiss(place);
    std::vector<Dismissal>& dismissed = orders_.dismissed;
    dismissed.erase(std::remove_if(dismissed.begin(), dismissed.end(),
                                   [place](const Dismissal& before) { return before.place == place; }),
                    dismissed.end());
    dismissed.push_back(
        {.place = place,
         .incarnation = orders_.plan.incarnations[share],
         .status = {.code = reports_[share]->result.value_or(ExitCode::peer), .message = reported_text(share)}});
  }
  return true;
}

// Of several failures the first that no other explains is the cause; so in worker_group.h among the workers of one
// node.
void Coordinator::conclude() {
  is_running_ = false;
  if (!is_interrupted_ && dismiss_newcomers()) {
    restarts_.resume(orders_.plan.start, "a node that had come could not take part");
    return seek_start();
  }
  for (const std::size_t share : told_) {
    const RoundResult& report = *reports_[share];
    if (!is_own_failure(report)) continue;
    if (report.result) return finish(*report.result, failure_text(share));
    return conclude_failure({.what = failure_text(share), .step = report.step});
  }
  if (hang_) return conclude_failure({.what = *hang_ + places_text(), .step = last_step()});
  if (const auto lost = lost_text()) {
    for (std::size_t i = 0; i < reports_.size(); ++i) {
      const auto& left = status_of(i).left;
      const bool is_telling = state_of(i) == Share::gone && left && left->code != ExitCode::interrupted;
      // Another round would meet what is wrong there, unless it can do without that node.
      if (is_telling && (!options_.min_data || left->code != ExitCode::peer))
        return finish(left->code,
                      fmt::format("{} could not go on: {}", place_text(orders_.plan.shares[i].place), left->message));
    }
    if (!options_.min_data) return finish(options_.is_per_node ? ExitCode::interrupted : ExitCode::peer, *lost);
    return conclude_failure({.what = *lost, .step = last_step(), .is_lost_place = true});
  }
  for (const std::size_t share : told_)
    if (is_failure(*reports_[share]))
      return conclude_failure({.what = reported_text(share), .step = reports_[share]->step});
  conclude_without_failure();
}

void Coordinator::conclude_without_failure() {
  const auto is_any = [this](auto condition) {
    return std::any_of(reports_.begin(), reports_.end(),
                       [&](const auto& report) { return report && condition(*report); });
  };
  const bool is_cut = is_any([](const RoundResult& report) { return !report.started || report.ended_for_others; });
  if (!is_cut && !is_any([](const RoundResult& report) { return report.result == ExitCode::interrupted; }))
    return finish(ExitCode::finished, options_.places == 1
                                          ? reports_.front()->description
                                          : fmt::format("all ranks ended at step {}", reports_.front()->step));
  if (is_growing_ && !is_interrupted_) {
    restarts_.resume(orders_.plan.start, std::string(grown));
    failed_at_.reset();
    return seek_start();
  }
  finish(ExitCode::interrupted,
         is_cut ? "interrupted while workers were starting up: there is nothing to save" : "interrupted");
}

void Coordinator::conclude_failure(const Restarts::Failure& failure) {
  options_.log.error(failure.what);
  restarts_.failed(failure, orders_.plan.start);
  seek_start();
}

// At every look until it is found: storage that does not answer may keep it for minutes, in which nodes go and come and
// are interrupted.
void Coordinator::seek_start() {
  is_seeking_ = true;
  const auto outcome = restarts_.outcome(*last_look_);
  if (!outcome) return;
  is_seeking_ = false;
  if (outcome->end) return finish(*outcome->end, outcome->reason);
  if (is_interrupted_ || (options_.interrupted && options_.interrupted()))
    return finish(ExitCode::interrupted, "interrupted while no worker was running");
  orders_.plan.start = outcome->start;
  begin();
}

void Coordinator::finish(ExitCode code, const std::string& reason) {
  is_running_ = false;
  is_seeking_ = false;
  orders_.command = OrderKind::over;
  orders_.code = code;
  orders_.reason = reason;
  over_at_ = clock_;
}

bool Coordinator::is_done() const {
  if (orders_.command != OrderKind::over) return false;
  const double over_for = clock_ - over_at_;
  if (!roster_.has_seen_all() && over_for < late_seconds) return false;
  if (over_for >= std::max(farewell_seconds, lease_run_out(agent_lease(options_.heartbeat)))) return true;
  return std::all_of(roster_.agents().begin(), roster_.agents().end(),
                     [](const auto& entry) { return entry.first == 0 || !entry.second.is_present(); });
}

}  // namespace scaletrain
