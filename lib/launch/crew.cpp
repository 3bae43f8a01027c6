#include "launch/crew.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "launch/crew_member.h"
#include "launch/launcher.h"
#include "launch/machine.h"
#include "launch/memory_kills.h"
#include "launch/slow_ranks.h"

namespace scaletrain {
namespace {

// How long the others may take to say the same after a failure that no restart mends, which they may all have found.
constexpr double alike_seconds = 1.0;
// Between two looks while the others may say more.
constexpr double settle_look_seconds = 0.05;

// Connections to the rendezvous besides the workers': some that were broken and made anew.
constexpr int spare_clients = 64;

// A worker's line each second, and eight in a heartbeat at least.
constexpr double longest_report = 1.0;
constexpr double reports_in_heartbeat = 8.0;

// For workers that hang to write what they are in; then for those among them that had to be woken up for it.
constexpr double dump_seconds = 1.3;
constexpr double woken_dump_seconds = 0.7;

// Exit codes that are the run's own result when a worker ends with them.
bool is_result(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::finished:
    case ExitCode::bug:
    case ExitCode::usage:
    case ExitCode::input:
    case ExitCode::diverged:
    case ExitCode::no_progress:
    case ExitCode::interrupted:
      return true;
    case ExitCode::peer:
      break;
  }
  return false;
}

class Crew {
 public:
  explicit Crew(const CrewOptions& options);
  ~Crew() { end_all(); }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  Attempt supervise();

 private:
  void start_workers();
  RendezvousAddress serve_rendezvous(const std::string& secret);
  void wait_for_news();
  void take_news();
  bool all_ended() const;
  // Whether the failures so far are to be acted upon; the first look at one begins the time to settle.
  bool is_failed();
  // Hands the interruption on; false if that ended the workers.
  bool forward_interruption();
  CrewMember* find_hung();
  CrewPulse pulse() const;
  Attempt ended_as_told(const EndOrder& order);
  void end_all();
  const CrewMember* cause() const;
  Attempt verdict(bool started) const;
  std::string described(const CrewMember& member) const;
  std::string name_of(const CrewMember& member) const;
  std::string hang_text(const CrewMember& member) const;
  std::string places_text() const;
  std::vector<std::int64_t> told_alike(const CrewMember& culprit) const;
  void tell_error(const CrewMember& culprit, Attempt& attempt) const;
  std::string memory_text() const;
  void warn_about_slow_ranks();
  void tell_recovery();
  std::optional<std::int64_t> count_memory_kills() const {
    return options_.memory_kills ? options_.memory_kills() : memory_kills();
  }
  void dump_all();
  static void wait_for_dumps(const std::vector<CrewMember*>& members, double seconds);

  const CrewOptions& options_;
  // Fine enough that a hang is seen within an eighth of the heartbeat; once a second is often enough for the lock.
  double tick_;
  std::unique_ptr<RendezvousServer> rendezvous_;      // of this start alone: nothing of an earlier one can be read
  std::vector<std::unique_ptr<CrewMember>> members_;  // by rank
  std::int64_t look_ = 0;
  std::optional<MonotonicTime> failed_since_;
  bool is_forwarded_ = false;
  bool is_recovered_ = false;
  std::optional<SlowRanks> slow_ranks_;  // of several workers
  MonotonicTime begin_ = monotonic_now();
  std::optional<std::int64_t> memory_kills_ = count_memory_kills();  // before this start
};

Crew::Crew(const CrewOptions& options)
    : options_(options),
      // Who takes orders looks for them more often: the others wait until all have ended.
      tick_(std::clamp(options.heartbeat / 8, 0.01, options.told_to_end ? 0.25 : 1.0)) {
  try {
    start_workers();
  } catch (...) {
    end_all();
    throw;
  }
}

void Crew::start_workers() {
  WorkerSlot slot{.world = options_.world, .data_degree = options_.data_degree};
  WorkerLaunch launch{.executable = options_.executable, .arguments = {}, .removed = launcher_variables()};
  std::vector<int> processors;
  if (options_.world > 1) {
    std::string secret = options_.rendezvous ? options_.rendezvous->secret : make_secret();
    slot.rendezvous = options_.rendezvous ? options_.rendezvous->address : serve_rendezvous(secret);
    launch.added = {"SCALETRAIN_SECRET=" + secret};
    const bool has_own_processors = available_processors() >= options_.count;
    if (has_own_processors) processors = affinity_processors();
    slot.sharers = has_own_processors ? 1 : options_.count;
  }
  if (options_.count > 1) {
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < options_.count; ++i)
      classes.push_back((options_.first_rank + i) / (options_.world / options_.stages));
    slow_ranks_.emplace(std::move(classes));
  }
  std::string pids;
  for (std::int64_t i = 0; i < options_.count; ++i) {
    slot.rank = Rank(options_.first_rank + i);
    slot.local_rank = i;
    launch.arguments = options_.arguments ? options_.arguments(options_.start, slot)
                                          : worker_arguments(options_, options_.start, slot);
    launch.processors = share_of_processors(processors, i, options_.count);
    members_.push_back(std::make_unique<CrewMember>(slot.rank, launch, make_channel(), tick_));
    pids += fmt::format(" {}", members_.back()->process.pid());
    // Without a process descriptor only the tick sees an end.
    if (members_.back()->process.descriptor() < 0) tick_ = std::min(tick_, 0.05);
  }
  if (options_.world == 1) {
    options_.log.info(fmt::format("worker{} started at step {}, generation {}", pids, options_.start.step,
                                  options_.start.generation));
    return;
  }
  const int threads = share_processors(available_processors(), options_.count).threads;
  const std::string share = options_.count == options_.world ? "" : fmt::format(" of {}", options_.world);
  options_.log.info(fmt::format("{}{} workers started at step {}, generation {}, {} thread{} each; rank {} and on:{}",
                                options_.count, share, options_.start.step, options_.start.generation, threads,
                                threads == 1 ? "" : "s", options_.first_rank, pids));
}

RendezvousAddress Crew::serve_rendezvous(const std::string& secret) {
  rendezvous_ = std::make_unique<RendezvousServer>(
      RendezvousServer::Options{.bind_address = options_.served.host,
                                .port = options_.served.port,
                                .secret = secret,
                                .max_clients = static_cast<int>(options_.world) + spare_clients});
  return rendezvous_->address();
}

Attempt Crew::supervise() {
  for (;;) {
    wait_for_news();
    take_news();
    if (all_ended()) return verdict(true);
    if (is_failed()) {
      end_all();
      return verdict(true);
    }
    if (CrewMember* const hung = find_hung()) {
      dump_all();
      hung->hang_text = hang_text(*hung);
      end_all();
      return verdict(true);
    }
    if (const auto order = options_.told_to_end ? options_.told_to_end() : std::nullopt) {
      const CrewMember* const culprit = cause();
      if (culprit == nullptr || culprit->failure() != Failure::own) return ended_as_told(*order);
      // What is known here may be why the others are ended.
      end_all();
      return verdict(true);
    }
    if (!forward_interruption()) return verdict(false);
    if (options_.pulse) options_.pulse(pulse());
    warn_about_slow_ranks();
    tell_recovery();
    require_lock(options_);
  }
}

void Crew::wait_for_news() {
  std::vector<pollfd> sources;
  sources.reserve(2 * members_.size() + 1);
  for (const auto& member : members_) {
    if (member->lives()) sources.push_back({member->process.descriptor(), POLLIN, 0});
    if (member->is_open) sources.push_back({member->channel.descriptor(), POLLIN, 0});
  }
  if (!is_forwarded_) sources.push_back({options_.interrupts.descriptor(), POLLIN, 0});
  const double wait = failed_since_ ? std::min(tick_, settle_look_seconds) : tick_;
  ::poll(sources.data(), sources.size(), static_cast<int>(wait * 1000));
}

void Crew::take_news() {
  ++look_;
  int num_waiting = 0;
  bool has_ended = false;
  for (const auto& member : members_) {
    // First the end, then what it said before.
    if (member->lives()) {
      member->end = member->process.ended();
      has_ended = has_ended || !member->lives();
    }
    if (member->is_open) member->is_open = member->channel.drain();
    if (member->failed_at < 0 && member->failure() != Failure::none) member->failed_at = look_;
    if (member->lives() && member->status().waiting) ++num_waiting;
  }
  for (const auto& member : members_) {
    if (!member->lives()) continue;
    if (has_ended) member->silence.forgive();
    member->silence.observe(member->status(), num_waiting > (member->status().waiting ? 1 : 0));
  }
}

bool Crew::all_ended() const {
  return std::none_of(members_.begin(), members_.end(), [](const auto& member) { return member->lives(); });
}

bool Crew::is_failed() {
  double patience = std::numeric_limits<double>::infinity();
  for (const auto& member : members_) {
    if (member->failure() == Failure::none) continue;
    const bool is_explained = member->failure() == Failure::own && !member->lives();
    const bool is_mendable = is_explained && !(member->end->exit_code && is_result(*member->end->exit_code));
    patience = std::min(patience, is_mendable ? 0.0 : is_explained ? alike_seconds : options_.settle_seconds);
  }
  if (std::isinf(patience)) return false;
  if (!failed_since_) failed_since_ = monotonic_now();
  return seconds_since(*failed_since_) >= patience;
}

bool Crew::forward_interruption() {
  if (is_forwarded_) return true;
  const bool is_told = options_.told_to_leave && options_.told_to_leave();
  if (!options_.interrupts.interrupted() && !is_told) return true;
  // Once: a signal pending in a worker that is still starting up is not lost, and a second one would say nothing new.
  is_forwarded_ = true;
  const std::string why = options_.interrupts.interrupted() ? "interrupted" : "asked to leave";
  const bool is_one = members_.size() == 1;
  const auto is_starting = [](const auto& member) {
    const WorkerStatus& status = member->status();
    return member->lives() && (status.step < 0 || (status.waiting && status.progress == 0));
  };
  if (std::any_of(members_.begin(), members_.end(), is_starting)) {
    // Opening data or a large model can take longer than the time a scheduler grants; and while one rank is not there
    // the others have made no step.
    options_.log.info(
        fmt::format("{} while {} was starting up: there is nothing to save", why, is_one ? "the worker" : "a worker"));
    end_all();
    return false;
  }
  options_.log.info(why + (is_one ? ": the worker finishes its step, saves and leaves"
                                  : ": the workers finish their step, save and leave"));
  const int number = options_.interrupts.interrupted() ? SIGTERM : SIGUSR1;
  for (const auto& member : members_)
    if (member->lives()) member->process.signal(number);
  return true;
}

void Crew::warn_about_slow_ranks() {
  if (!slow_ranks_) return;
  std::vector<Pace> paces;
  for (const auto& member : members_) {
    if (!member->lives() || !member->status().pace) return;
    paces.push_back(*member->status().pace);
  }
  for (const SlowRanks::Slow& slow : slow_ranks_->observe(paces, seconds_since(begin_)))
    options_.log.warn(fmt::format(
        "rank {} is slow: it computes {:.3g} s in a step, its peers {:.3g} s, and all wait for it; look for what else "
        "runs on its processors, or a processor that is throttled",
        members_[slow.index]->rank.value(), slow.busy_seconds, slow.peers_seconds));
}

void Crew::tell_recovery() {
  if (!options_.failed_before || is_recovered_) return;
  const auto has_stepped = [this](const auto& member) { return member->status().step > options_.start.step; };
  is_recovered_ = std::all_of(members_.begin(), members_.end(), has_stepped);
  if (is_recovered_)
    options_.log.info(fmt::format("recovered: step {} was done {:.1f} s after the failure", options_.start.step + 1,
                                  seconds_since(*options_.failed_before)));
}

CrewPulse Crew::pulse() const {
  CrewPulse pulse;
  double still = std::numeric_limits<double>::infinity();
  pulse.step = std::numeric_limits<std::int64_t>::max();
  for (const auto& member : members_) {
    const WorkerStatus& status = member->status();
    pulse.progress += status.progress;
    if (!member->lives()) continue;
    ++(status.waiting ? pulse.waiting : pulse.working);
    pulse.step = std::min(pulse.step, status.step);
    still = std::min(still, member->silence.still_seconds());
    pulse.pids.push_back(member->process.pid());
  }
  if (pulse.pids.empty()) return CrewPulse{.progress = pulse.progress};
  pulse.still_seconds = still;
  return pulse;
}

Attempt Crew::ended_as_told(const EndOrder& order) {
  Attempt attempt;
  if (order.is_hang) {
    dump_all();
    attempt.message = places_text();
  }
  end_all();
  attempt.ended_for_others = true;
  attempt.step = members_.front()->status().step >= 0 ? members_.front()->status().step : options_.start.step;
  attempt.description =
      fmt::format("{} ended at step {}: {}", members_.size() == 1 ? "the worker was" : "the workers were", attempt.step,
                  order.reason);
  return attempt;
}

// A rank that stands while another moves may only be waiting for it: the bubble of a pipeline, or a peer's longer
// stage, is no hang. One that says nothing at all is stopped, whatever the others do.
CrewMember* Crew::find_hung() {
  CrewMember* longest = nullptr;
  CrewMember* mutest = nullptr;
  CrewMember* missing = nullptr;  // longest in no collective
  bool is_any_moving = false;
  for (const auto& member : members_) {
    if (!member->lives()) continue;
    is_any_moving = is_any_moving || member->silence.seconds() < options_.heartbeat;
    if (longest == nullptr || member->silence.seconds() > longest->silence.seconds()) longest = member.get();
    if (!member->status().collective && (missing == nullptr || member->silence.seconds() > missing->silence.seconds()))
      missing = member.get();
    if (mutest == nullptr || member->silence.mute_seconds() > mutest->silence.mute_seconds()) mutest = member.get();
  }
  if (longest == nullptr) return nullptr;
  const bool is_still = options_.judges_stillness && !is_any_moving;
  if (!is_still && mutest->silence.mute_seconds() < options_.heartbeat) return nullptr;
  // Where all stand, those that still talk may only stand because they wait for the one that does not; and those that
  // are in a collective, for one that is in none.
  CrewMember* worst = longest;
  if (mutest->silence.mute_seconds() >= options_.heartbeat / 2) {
    worst = mutest;
  } else if (missing != nullptr) {
    worst = missing;
  }
  worst->hung = true;
  if (worst->failed_at < 0) worst->failed_at = look_;
  if (!failed_since_) failed_since_ = monotonic_now();
  worst->was_stopped = worst->process.is_stopped();
  worst->hang_step = worst->status().step >= 0 ? worst->status().step : options_.start.step;
  return worst;
}

// Each worker's log gets what the worker is in. First those that can answer, while nothing moves; then those that were
// stopped, which their peers would hear of.
void Crew::dump_all() {
  std::vector<CrewMember*> awake;
  std::vector<CrewMember*> stopped;
  for (const auto& member : members_)
    if (member->lives()) (member->process.is_stopped() ? stopped : awake).push_back(member.get());
  for (const CrewMember* member : awake) member->process.signal(SIGQUIT);
  wait_for_dumps(awake, dump_seconds);
  for (const CrewMember* member : stopped) {
    member->process.signal(SIGQUIT);
    member->process.signal(SIGCONT);
  }
  wait_for_dumps(stopped, woken_dump_seconds);
}

void Crew::wait_for_dumps(const std::vector<CrewMember*>& members, double seconds) {
  constexpr auto pause = std::chrono::milliseconds(10);
  const MonotonicTime begin = monotonic_now();
  const auto is_over = [](CrewMember* member) {
    if (member->is_open) member->is_open = member->channel.drain();
    if (!member->end && (member->end = member->process.ended())) member->killed = !member->hung;
    return !member->lives() || member->status().dumped.has_value();
  };
  while (!std::all_of(members.begin(), members.end(), is_over) && seconds_since(begin) < seconds)
    std::this_thread::sleep_for(pause);
}

void Crew::end_all() {
  for (const auto& member : members_) {
    if (!member->lives()) continue;
    member->killed = !member->hung;
    member->process.signal(SIGKILL);
  }
  for (const auto& member : members_) {
    if (!member->lives()) continue;
    if (!member->process.kill())
      options_.log.warn(fmt::format("{}worker {} was killed {:g} s ago and the kernel has not ended it; it is given up",
                                    name_of(*member), member->process.pid(), WorkerProcess::kill_seconds));
    if (member->is_open) member->is_open = member->channel.drain();
    member->end = member->process.ended();
    if (member->failed_at < 0 && member->failure() != Failure::none) member->failed_at = look_ + 1;
  }
}

// The worst failure; of equals the one seen first, then the lowest rank.
const CrewMember* Crew::cause() const {
  const CrewMember* found = nullptr;
  for (const auto& member : members_) {
    if (member->failure() == Failure::none) continue;
    if (found == nullptr || member->failure() > found->failure() ||
        (member->failure() == found->failure() && member->failed_at < found->failed_at))
      found = member.get();
  }
  return found;
}

Attempt Crew::verdict(bool started) const {
  Attempt attempt;
  attempt.started = started;
  attempt.failed_at = failed_since_;
  const CrewMember* const culprit = started ? cause() : nullptr;
  const CrewMember& shown = culprit != nullptr ? *culprit : *members_.front();
  attempt.step = shown.status().step >= 0 ? shown.status().step : options_.start.step;
  if (shown.hung) attempt.step = shown.hang_step;
  attempt.description = described(shown);
  if (!started) return attempt;
  if (culprit != nullptr) {
    attempt.rank = culprit->rank;
    attempt.lost_peer_only = culprit->failure() == Failure::lost_peer;
  }
  if (culprit == nullptr) {
    // A run that ended: if some say finished and some interrupted, there may be something left to do.
    const bool is_interrupted = std::any_of(members_.begin(), members_.end(), [](const auto& member) {
      return member->end && member->end->exit_code == static_cast<int>(ExitCode::interrupted);
    });
    attempt.result = is_interrupted ? ExitCode::interrupted : ExitCode::finished;
    if (members_.size() > 1)
      attempt.description = fmt::format("all {} workers ended at step {}", members_.size(), attempt.step);
    return attempt;
  }
  if (culprit->status().error) {
    tell_error(*culprit, attempt);
    // It said what was wrong and was ended before it could leave.
    const ExitCode told = culprit->status().error->kind;
    if (culprit->killed && is_result(static_cast<int>(told))) attempt.result = told;
  } else {
    for (const auto& member : members_) {
      if (!member->status().error) continue;
      attempt.message = name_of(*member) + member->status().error->message;
      break;
    }
  }
  if (!culprit->hung && !culprit->killed && culprit->end->exit_code && is_result(*culprit->end->exit_code))
    attempt.result = static_cast<ExitCode>(*culprit->end->exit_code);
  return attempt;
}

std::string Crew::name_of(const CrewMember& member) const {
  return options_.world == 1 ? std::string() : fmt::format("rank {}: ", member.rank.value());
}

// The ranks whose error is this one's, word for word.
std::vector<std::int64_t> Crew::told_alike(const CrewMember& culprit) const {
  std::vector<std::int64_t> ranks;
  for (const auto& member : members_) {
    const auto& error = member->status().error;
    if (error && error->kind == culprit.status().error->kind && error->message == culprit.status().error->message)
      ranks.push_back(member->rank.value());
  }
  return ranks;
}

// Whose error it is, and its words.
void Crew::tell_error(const CrewMember& culprit, Attempt& attempt) const {
  const std::vector<std::int64_t> ranks = told_alike(culprit);
  std::string who = name_of(culprit);
  if (ranks.size() > 1) {
    attempt.is_alike = ranks.size() == members_.size();
    who = attempt.is_alike ? "" : fmt::format("ranks {}: ", fmt::join(ranks, ", "));
    attempt.description = fmt::format("{} {} workers failed alike at step {}", attempt.is_alike ? "all" : "some of the",
                                      members_.size(), attempt.step);
  }
  attempt.message = who + culprit.status().error->message;
}

// What each is in while all of the world stand: first those in no collective, for whom the others may wait.
std::string Crew::places_text() const {
  constexpr std::size_t longest_list = 8;
  std::string missing;
  std::string waiting;
  std::size_t num_missing = 0;
  std::size_t num_waiting = 0;
  for (const auto& member : members_) {
    if (const auto in = member->collective()) {
      if (++num_waiting == 1) waiting = fmt::format("rank {} waits in {}", member->rank.value(), *in);
    } else if (++num_missing <= longest_list) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", member->rank.value());
    }
  }
  if (num_missing > longest_list) missing += fmt::format(" and {} more", num_missing - longest_list);
  if (num_waiting > 1) waiting += fmt::format(", and {} more wait", num_waiting - 1);
  if (missing.empty()) return waiting;
  return fmt::format("rank{} {} in no collective{}{}", num_missing == 1 ? "" : "s", missing,
                     waiting.empty() ? "" : "; ", waiting);
}

// How the worker was when it was taken for hung, what it is in, and who waits for it.
std::string Crew::hang_text(const CrewMember& member) const {
  const WorkerStatus& status = member.status();
  std::string what = "made no progress";
  std::string remedy =
      "raise supervise.heartbeat, or lower train.micro_batch or model.context, if one layer of one micro-batch takes "
      "longer";
  if (member.was_stopped) {
    what = "is stopped as a whole (SIGSTOP, or a debugger) and gave no sign of life";
    remedy = "something outside the run stopped it";
  } else if (status.waiting) {
    what = "gave no sign of life (it was starting up or waiting for storage)";
    remedy = "raise supervise.heartbeat if this machine or its storage can be that slow";
  }
  std::string others;
  int num_others = 0;
  for (const auto& other : members_) {
    const auto in = other->collective();
    if (other.get() == &member || !in || (!other->lives() && !other->status().dumped)) continue;
    if (++num_others == 1) others = fmt::format("; rank {} waits in {}", other->rank.value(), *in);
  }
  if (num_others > 1) others += fmt::format(", and {} more wait", num_others - 1);
  std::string place;
  if (const auto in = member.collective()) {
    place = ", in " + *in;
  } else if (options_.world > 1) {
    place = ", in no collective";
  }
  return fmt::format(
      "{}worker {} {} for {} at step {} (supervise.heartbeat){} and was killed{}; {}; stack traces are in {}",
      name_of(member), member.process.pid(), what, duration_text(member.silence.seconds()), member.hang_step, place,
      others, remedy, rank_log_path("", member.rank.value()).string());
}

// What may be behind a SIGKILL that nobody here sent.
std::string Crew::memory_text() const {
  if (!memory_kills_ || count_memory_kills().value_or(0) <= *memory_kills_) return {};
  return "; the kernel has ended processes for want of memory since the start, so this is the probable cause: "
         "`scaletrain check` prints what a rank needs";
}

std::string Crew::described(const CrewMember& member) const {
  const std::string who = fmt::format("{}worker {}", name_of(member), member.process.pid());
  const std::int64_t step = member.status().step >= 0 ? member.status().step : options_.start.step;
  if (member.hung) return member.hang_text;
  if (!member.end || member.killed) return fmt::format("{} was ended at step {}", who, step);
  if (!member.end->exit_code)
    return fmt::format("{} was killed by signal {} ({}) at step {}{}", who, member.end->signal,
                       ::strsignal(member.end->signal), step, member.end->signal == SIGKILL ? memory_text() : "");
  return fmt::format("{} ended with exit code {} at step {}", who, *member.end->exit_code, step);
}

}  // namespace

void require_lock(const CrewOptions& options) {
  if (!options.holds_lock || options.holds_lock()) return;
  throw PeerError(
      fmt::format("{}: the lock was taken over by another agent or removed; the workers are ended, nothing more is "
                  "written here",
                  options.paths.lock().string()));
}

Attempt run_crew(const CrewOptions& options) {
  SCALETRAIN_CHECK(options.heartbeat > 0 && options.count >= 1 && options.first_rank >= 0);
  SCALETRAIN_CHECK(options.stages >= 1 && options.world % options.stages == 0);
  SCALETRAIN_CHECK_LE(options.first_rank + options.count, options.world);
  SCALETRAIN_CHECK(options.rendezvous.has_value() || options.count == options.world);
  Crew crew(options);
  return crew.supervise();
}

std::vector<std::string> worker_arguments(const CrewOptions& options, const StartPoint& start, const WorkerSlot& slot) {
  std::vector<std::string> arguments = {"worker",        "--run-folder", options.paths.folder.string(),      "--lock",
                                        options.lock_id, "--generation", fmt::format("{}", start.generation)};
  const auto add = [&arguments](const char* name, std::string value) {
    arguments.emplace_back(name);
    arguments.push_back(std::move(value));
  };
  if (slot.rendezvous) {
    add("--rank", fmt::format("{}", slot.rank.value()));
    if (slot.local_rank != slot.rank.value()) add("--local-rank", fmt::format("{}", slot.local_rank));
    add("--world", fmt::format("{}", slot.world));
    add("--rendezvous", fmt::format("{}:{}", slot.rendezvous->host, slot.rendezvous->port));
    add("--sharers", fmt::format("{}", slot.sharers));
    add("--deadline", fmt::format("{}", collective_deadline(options.heartbeat)));
  }
  if (slot.data_degree) add("--data", fmt::format("{}", *slot.data_degree));
  if (const double report = options.heartbeat / reports_in_heartbeat; report < longest_report)
    add("--report", fmt::format("{}", report));
  if (start.checkpoint) {
    add("--from", start.checkpoint->string());
    if (!start.asked.empty()) add("--asked", start.asked);
  }
  return arguments;
}

double collective_deadline(double heartbeat) {
  return 10 * heartbeat;
}

}  // namespace scaletrain
