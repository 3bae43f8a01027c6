#include "launch/crew.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "launch/launcher.h"
#include "launch/machine.h"
#include "launch/worker_process.h"

namespace scaletrain {
namespace {

// How long the others may take to say more after one has only lost its peer: what makes them lose it is under way.
constexpr double settle_seconds = 2.0;

// Connections to the rendezvous besides the workers': some that were broken and made anew.
constexpr int spare_clients = 64;

// How long a worker has been silent. Counts only time in which the agent itself was running: a machine that slept, or a
// job that was stopped as a whole and continued, is no hang.
class Silence {
 public:
  explicit Silence(double longest_tick) : longest_tick_(longest_tick) {}

  // To be called once per tick. others_wait: another worker is starting up or at its storage, so that this one may
  // stand in a collective for as long as that takes; its lines must keep coming.
  void observe(const WorkerStatus& status, bool others_wait) {
    const double elapsed = std::min(seconds_since(last_look_), 2 * longest_tick_);
    last_look_ = monotonic_now();
    const bool speaks = status.lines != seen_.lines;
    const bool moves = std::pair(status.progress, status.step) != std::pair(seen_.progress, seen_.step);
    const bool is_new_state = status.waiting != seen_.waiting;
    seen_ = status;
    mute_ = speaks ? 0.0 : mute_ + elapsed;
    if (status.waiting || moves || is_new_state) {
      still_ = 0.0;
    } else if (!others_wait) {
      still_ += elapsed;
    }
  }
  // What it may have waited for has ended: it has a heartbeat again to go on.
  void forgive() { still_ = 0.0; }
  double seconds() const { return std::max(mute_, still_); }
  double mute_seconds() const { return mute_; }

 private:
  double longest_tick_;
  double mute_ = 0.0;   // without a line
  double still_ = 0.0;  // working, without progress
  WorkerStatus seen_;
  MonotonicTime last_look_ = monotonic_now();
};

// How bad the news of a worker is; of several, the worst explains the others.
enum class Failure {
  none,       // lives, or ended as a run should
  lost_peer,  // says that another is gone
  own,        // anything else
};

Failure failure_of(ExitCode code) {
  if (code == ExitCode::finished || code == ExitCode::interrupted) return Failure::none;
  return code == ExitCode::peer ? Failure::lost_peer : Failure::own;
}

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

struct Member {
  Member(const WorkerLaunch& launch, ChannelPair pair, double tick)
      : process(launch, pair.worker), channel(std::move(pair.agent)), silence(tick) {}

  const WorkerStatus& status() const { return channel.status(); }
  bool lives() const { return !end; }

  WorkerProcess process;
  WorkerChannel channel;
  Silence silence;
  bool is_open = true;
  std::optional<ProcessEnd> end;
  bool killed = false;  // by us, for another's sake
  bool hung = false;
  std::int64_t failed_at = -1;  // in which look its failure was first seen; -1: none

  Failure failure() const {
    const Failure told = status().error ? failure_of(status().error->kind) : Failure::none;
    if (hung) return Failure::own;
    if (!end || killed) return told;
    if (!end->exit_code) return Failure::own;
    const auto code = static_cast<ExitCode>(*end->exit_code);
    return std::max(told, failure_of(code));
  }
};

class Crew {
 public:
  Crew(const AgentOptions& options, const StartPoint& start);
  ~Crew() { end_all(); }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  Attempt supervise();

 private:
  void start_workers();
  void wait_for_news();
  void take_news();
  bool all_ended() const;
  // Whether the failures so far are to be acted upon; the first look at one begins the time to settle.
  bool is_failed();
  // Hands the interruption on; false if that ended the workers.
  bool forward_interruption();
  bool has_hung_member();
  void end_all();
  const Member* cause() const;
  Attempt verdict(bool started) const;
  std::string described(const Member& member) const;
  std::string name_of(const Member& member) const;

  const AgentOptions& options_;
  const StartPoint& start_;
  // Fine enough that a hang is seen within an eighth of the heartbeat; once a second is often enough for the lock.
  double tick_;
  std::unique_ptr<RendezvousServer> rendezvous_;  // of this start alone: nothing of an earlier one can be read
  std::vector<std::unique_ptr<Member>> members_;  // by rank
  std::int64_t look_ = 0;
  std::optional<MonotonicTime> failed_since_;
  bool is_forwarded_ = false;
};

Crew::Crew(const AgentOptions& options, const StartPoint& start)
    : options_(options), start_(start), tick_(std::clamp(options.heartbeat / 8, 0.01, 1.0)) {
  try {
    start_workers();
  } catch (...) {
    end_all();
    throw;
  }
}

void Crew::start_workers() {
  const bool is_alone = options_.world == 1;
  WorkerSlot slot{.world = options_.world};
  WorkerLaunch launch{.executable = options_.executable, .arguments = {}, .removed = launcher_variables()};
  std::vector<int> processors;
  if (!is_alone) {
    const std::string secret = make_secret();
    const int max_clients = static_cast<int>(options_.world) + spare_clients;
    rendezvous_ = std::make_unique<RendezvousServer>(RendezvousServer::Options{.bind_address = options_.rendezvous.host,
                                                                               .port = options_.rendezvous.port,
                                                                               .secret = secret,
                                                                               .max_clients = max_clients});
    launch.added = {"SCALETRAIN_SECRET=" + secret};
    slot.rendezvous = rendezvous_->address();
    const bool has_own_processors = available_processors() >= options_.world;
    if (has_own_processors) processors = affinity_processors();
    slot.sharers = has_own_processors ? 1 : options_.world;
  }
  std::string pids;
  for (std::int64_t rank = 0; rank < options_.world; ++rank) {
    slot.rank = Rank(rank);
    launch.arguments = options_.arguments ? options_.arguments(start_, slot) : worker_arguments(options_, start_, slot);
    launch.processors = share_of_processors(processors, rank, options_.world);
    members_.push_back(std::make_unique<Member>(launch, make_channel(), tick_));
    pids += fmt::format(" {}", members_.back()->process.pid());
    // Without a process descriptor only the tick sees an end.
    if (members_.back()->process.descriptor() < 0) tick_ = std::min(tick_, 0.05);
  }
  if (is_alone) {
    options_.log.info(fmt::format("worker{} started at step {}, generation {}", pids, start_.step, start_.generation));
  } else {
    const int threads = share_processors(available_processors(), options_.world).threads;
    options_.log.info(fmt::format("{} workers started at step {}, generation {}, {} thread{} each; rank 0 and on:{}",
                                  options_.world, start_.step, start_.generation, threads, threads == 1 ? "" : "s",
                                  pids));
  }
}

Attempt Crew::supervise() {
  for (;;) {
    wait_for_news();
    take_news();
    if (all_ended()) return verdict(true);
    if (is_failed() || has_hung_member()) {
      end_all();
      return verdict(true);
    }
    if (!forward_interruption()) return verdict(false);
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
  ::poll(sources.data(), sources.size(), static_cast<int>(tick_ * 1000));
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
  bool is_any = false;
  bool is_explained = false;
  for (const auto& member : members_) {
    if (member->failure() == Failure::none) continue;
    is_any = true;
    is_explained = is_explained || (member->failure() == Failure::own && !member->lives());
  }
  if (!is_any) return false;
  if (!failed_since_) failed_since_ = monotonic_now();
  return is_explained || seconds_since(*failed_since_) >= settle_seconds;
}

bool Crew::forward_interruption() {
  if (is_forwarded_ || !options_.interrupts.interrupted()) return true;
  // Once: a signal pending in a worker that is still starting up is not lost, and a second one would say nothing new.
  is_forwarded_ = true;
  const char* const workers = members_.size() == 1 ? "the worker" : "a worker";
  const auto is_starting = [](const auto& member) {
    const WorkerStatus& status = member->status();
    return member->lives() && (status.step < 0 || (status.waiting && status.progress == 0));
  };
  if (std::any_of(members_.begin(), members_.end(), is_starting)) {
    // Opening data or a large model can take longer than the time a scheduler grants; and while one rank is not there
    // the others have made no step.
    options_.log.info(fmt::format("interrupted while {} was starting up: there is nothing to save", workers));
    end_all();
    return false;
  }
  options_.log.info(members_.size() == 1 ? "interrupted: the worker finishes its step, saves and leaves"
                                         : "interrupted: the workers finish their step, save and leave");
  for (const auto& member : members_)
    if (member->lives()) member->process.signal(SIGTERM);
  return true;
}

// A rank that stands while another moves may only be waiting for it: the bubble of a pipeline, or a peer's longer
// stage, is no hang. One that says nothing at all is stopped, whatever the others do.
bool Crew::has_hung_member() {
  Member* longest = nullptr;
  Member* mutest = nullptr;
  bool is_any_moving = false;
  for (const auto& member : members_) {
    if (!member->lives()) continue;
    is_any_moving = is_any_moving || member->silence.seconds() < options_.heartbeat;
    if (longest == nullptr || member->silence.seconds() > longest->silence.seconds()) longest = member.get();
    if (mutest == nullptr || member->silence.mute_seconds() > mutest->silence.mute_seconds()) mutest = member.get();
  }
  if (longest == nullptr) return false;
  if (is_any_moving && mutest->silence.mute_seconds() < options_.heartbeat) return false;
  // Where all stand, those that still talk may only stand because they wait for the one that does not.
  Member* const worst = mutest->silence.mute_seconds() >= options_.heartbeat / 2 ? mutest : longest;
  worst->hung = true;
  if (worst->failed_at < 0) worst->failed_at = look_;
  return true;
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
const Member* Crew::cause() const {
  const Member* found = nullptr;
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
  const Member* const culprit = started ? cause() : nullptr;
  const Member& shown = culprit != nullptr ? *culprit : *members_.front();
  attempt.step = shown.status().step >= 0 ? shown.status().step : start_.step;
  attempt.description = described(shown);
  if (!started) return attempt;
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
    attempt.message = name_of(*culprit) + culprit->status().error->message;
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

std::string Crew::name_of(const Member& member) const {
  if (members_.size() == 1) return {};
  const auto at = std::find_if(members_.begin(), members_.end(), [&](const auto& m) { return m.get() == &member; });
  return fmt::format("rank {}: ", at - members_.begin());
}

std::string Crew::described(const Member& member) const {
  const std::string who = fmt::format("{}worker {}", name_of(member), member.process.pid());
  const std::int64_t step = member.status().step >= 0 ? member.status().step : start_.step;
  if (member.hung) {
    const bool was_waiting = member.status().waiting;
    const std::string_view what =
        was_waiting ? "gave no sign of life (it was starting up or waiting for storage)" : "made no progress";
    const std::string_view remedy = was_waiting
                                        ? "raise supervise.heartbeat if this machine or its storage can be that slow"
                                        : "raise supervise.heartbeat, or lower train.micro_batch or model.context, if "
                                          "one layer of one micro-batch takes longer";
    return fmt::format("{} {} for {} at step {} (supervise.heartbeat) and was killed; {}", who, what,
                       duration_text(member.silence.seconds()), step, remedy);
  }
  if (!member.end || member.killed) return fmt::format("{} was ended at step {}", who, step);
  if (!member.end->exit_code)
    return fmt::format("{} was killed by signal {} ({}) at step {}", who, member.end->signal,
                       ::strsignal(member.end->signal), step);
  return fmt::format("{} ended with exit code {} at step {}", who, *member.end->exit_code, step);
}

}  // namespace

void require_lock(const AgentOptions& options) {
  if (!options.holds_lock || options.holds_lock()) return;
  throw PeerError(
      fmt::format("{}: the lock was taken over by another agent or removed; the workers are ended, nothing more is "
                  "written here",
                  options.paths.lock().string()));
}

Attempt run_crew(const AgentOptions& options, const StartPoint& start) {
  Crew crew(options, start);
  return crew.supervise();
}

}  // namespace scaletrain
