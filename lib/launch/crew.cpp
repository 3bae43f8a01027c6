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
#include "launch/crew_verdict.h"
#include "launch/hang_judge.h"
#include "launch/launcher.h"
#include "launch/machine.h"
#include "launch/memory_kills.h"
#include "launch/slow_ranks.h"
#include "launch/wait_notice.h"

namespace scaletrain {
namespace {

// How long the others may take to say the same after a failure that no restart mends, which they may all have found.
constexpr double alike_seconds = 1.0;
// Between two looks while the others may say more.
constexpr double settle_look_seconds = 0.05;

// Connections to the rendezvous besides the workers': some that were broken and made anew.
constexpr int spare_clients = 64;

// For a restart that finds no process to be had.
constexpr int start_tries = 10;
constexpr double start_pause_seconds = 1.0;

// A worker's line each second, and eight in a heartbeat at least.
constexpr double longest_report = 1.0;
constexpr double reports_in_heartbeat = 8.0;

// For workers that hang to write what they are in; then for those among them that had to be woken up for it.
// Who can write has done so in a moment, unless the processors are busy with something else.
constexpr double dump_seconds = 4.0;
constexpr double woken_dump_seconds = 2.0;

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
  // Marks the worker that hangs, if one does, and has all write what they are in.
  bool has_hung();
  // Hands the interruption on; false if that ended the workers.
  bool forward_interruption();
  CrewPulse pulse() const;
  void end_all();
  CrewView view() const;
  std::optional<std::vector<Pace>> paces() const;
  void warn_about_slow_ranks();
  void warn_about_storage();
  void tell_recovery();
  std::optional<std::int64_t> count_memory_kills() const {
    return options_.memory_kills ? options_.memory_kills() : memory_kills();
  }
  bool memory_ran_out() const { return memory_kills_ && count_memory_kills().value_or(0) > *memory_kills_; }
  void dump_all();
  static void wait_for_dumps(const std::vector<CrewMember*>& members, double seconds);

  const CrewOptions& options_;
  // Fine enough that a hang is seen within an eighth of the heartbeat; once a second is often enough for the lock.
  double tick_;
  std::unique_ptr<RendezvousServer> rendezvous_;      // of this start alone: nothing of an earlier one can be read
  std::vector<std::unique_ptr<CrewMember>> members_;  // by rank
  std::optional<HangJudge> judge_;                    // of them
  std::int64_t look_ = 0;
  std::optional<MonotonicTime> failed_since_;
  bool is_forwarded_ = false;
  bool is_recovered_ = false;
  std::optional<SlowRanks> slow_ranks_;  // of several workers
  StorageNotice storage_notice_;
  MonotonicTime begin_ = monotonic_now();
  std::optional<std::int64_t> memory_kills_ = count_memory_kills();  // before this start
};

Crew::Crew(const CrewOptions& options)
    : options_(options),
      // Who takes orders looks for them more often: the others wait until all have ended.
      tick_(std::clamp(options.heartbeat / 8, 0.01, options.told_to_end ? 0.25 : 1.0)),
      storage_notice_(options.heartbeat) {
  try {
    start_workers();
    judge_.emplace(
        HangJudge::Options{
            .heartbeat = options.heartbeat, .longest_tick = tick_, .judges_world = options.judges_stillness},
        members_.size());
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
  if (options_.count > 1 && options_.judges_pace) {
    const std::vector<std::int64_t> all = classes_of_stages(options_.world, options_.stages);
    slow_ranks_.emplace(std::vector<std::int64_t>(all.begin() + options_.first_rank,
                                                  all.begin() + options_.first_rank + options_.count));
  }
  std::string pids;
  for (std::int64_t i = 0; i < options_.count; ++i) {
    slot.rank = Rank(options_.first_rank + i);
    slot.local_rank = i;
    launch.arguments = options_.arguments ? options_.arguments(options_.start, slot)
                                          : worker_arguments(options_, options_.start, slot);
    launch.processors = share_of_processors(processors, i, options_.count);
    members_.push_back(std::make_unique<CrewMember>(slot.rank, launch, make_channel()));
    pids += fmt::format(" {}", members_.back()->pid);
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
    if (all_ended()) return verdict_of(view(), true);
    if (is_failed() || has_hung()) {
      end_all();
      return verdict_of(view(), true);
    }
    if (const auto order = options_.told_to_end ? options_.told_to_end() : std::nullopt) {
      const MemberState* const culprit = cause_of(view());
      if (culprit != nullptr && culprit->failure() == Failure::own) {
        // What is known here may be why the others are ended.
        end_all();
        return verdict_of(view(), true);
      }
      if (order->is_hang) dump_all();
      end_all();
      return ended_as_told(view(), *order);
    }
    if (!forward_interruption()) return verdict_of(view(), false);
    if (options_.pulse) options_.pulse(pulse());
    warn_about_slow_ranks();
    warn_about_storage();
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
  std::vector<const WorkerStatus*> statuses;
  for (const auto& member : members_) {
    // First the end, then what it said before.
    if (member->lives()) member->end = member->process.ended();
    member->listen();
    if (member->failed_at < 0 && member->failure() != Failure::none) member->failed_at = look_;
    statuses.push_back(member->lives() ? &member->status : nullptr);
  }
  judge_->observe(statuses);
}

CrewView Crew::view() const {
  CrewView view{.world = options_.world,
                .start_step = options_.start.step,
                .failed_since = failed_since_,
                .memory_ran_out = [this] { return memory_ran_out(); }};
  for (const auto& member : members_) view.members.push_back(member.get());
  return view;
}

bool Crew::all_ended() const {
  return std::none_of(members_.begin(), members_.end(), [](const auto& member) { return member->lives(); });
}

bool Crew::is_failed() {
  double patience = std::numeric_limits<double>::infinity();
  for (const auto& member : members_) {
    if (member->failure() == Failure::none) continue;
    const bool is_explained = member->failure() == Failure::own && !member->lives();
    const bool is_mendable = is_explained && !has_runs_result(*member);
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
  // What they have said before it came.
  for (const auto& member : members_) member->listen();
  const std::string why = options_.interrupts.interrupted() ? "interrupted" : "asked to leave";
  const bool is_one = members_.size() == 1;
  const auto is_starting = [](const auto& member) {
    const WorkerStatus& status = member->status;
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

// Nothing until each has told one.
std::optional<std::vector<Pace>> Crew::paces() const {
  std::vector<Pace> paces;
  for (const auto& member : members_) {
    if (!member->lives() || !member->status.pace) return std::nullopt;
    paces.push_back(*member->status.pace);
  }
  return paces;
}

void Crew::warn_about_slow_ranks() {
  if (!slow_ranks_) return;
  const auto now = paces();
  if (!now) return;
  for (const SlowRanks::Slow& slow : slow_ranks_->observe(*now, seconds_since(begin_)))
    options_.log.warn(slow_rank_text(members_[slow.index]->rank.value(), slow));
}

// Storage that does not answer may yet come back; for how long it is waited for, HangJudge knows.
void Crew::warn_about_storage() {
  const auto longest = judge_->longest_in_storage();
  const CrewMember* const member = longest ? members_[*longest].get() : nullptr;
  if (storage_notice_.is_due(member != nullptr ? member->status.storage->seconds : 0.0))
    options_.log.warn(storage_warning(member->rank.value(), *member->status.storage, options_.heartbeat));
}

void Crew::tell_recovery() {
  if (!options_.failed_before || is_recovered_) return;
  const auto has_stepped = [this](const auto& member) { return member->status.step > options_.start.step; };
  is_recovered_ = std::all_of(members_.begin(), members_.end(), has_stepped);
  if (is_recovered_)
    options_.log.info(fmt::format("recovered: step {} was done {:.1f} s after the failure", options_.start.step + 1,
                                  seconds_since(*options_.failed_before)));
}

CrewPulse Crew::pulse() const {
  CrewPulse pulse;
  pulse.step = std::numeric_limits<std::int64_t>::max();
  for (const auto& member : members_) {
    const WorkerStatus& status = member->status;
    pulse.progress += status.progress;
    if (!member->lives()) continue;
    ++(status.waiting ? pulse.waiting : pulse.working);
    pulse.step = std::min(pulse.step, status.step);
    pulse.pids.push_back(member->pid);
  }
  if (pulse.pids.empty()) return CrewPulse{.progress = pulse.progress};
  pulse.still_seconds = judge_->still_seconds();
  pulse.stalled_seconds = judge_->stalled_seconds();
  if (const auto longest = judge_->longest_in_storage()) {
    const CrewMember& member = *members_[*longest];
    pulse.stalled_text = storage_text(member.rank.value(), *member.status.storage);
  }
  pulse.paces = paces().value_or(std::vector<Pace>());
  return pulse;
}

bool Crew::has_hung() {
  const std::optional<HangJudge::Verdict> hang = judge_->find();
  if (!hang) return false;
  CrewMember& worst = *members_[hang->index];
  worst.hung = true;
  if (worst.failed_at < 0) worst.failed_at = look_;
  if (!failed_since_) failed_since_ = monotonic_now();
  worst.was_stopped = worst.process.is_stopped();
  worst.hang_step = worst.status.step >= 0 ? worst.status.step : options_.start.step;
  // The signal takes it out of the call that it is in, and what it says next tells of none.
  const std::optional<InStorage> storage = worst.status.storage;
  dump_all();
  worst.status.storage = storage;
  worst.hang_text = hang_text(view(), worst, *hang);
  return true;
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
    member->listen();
    if (!member->end && (member->end = member->process.ended())) member->killed = !member->hung;
    return !member->lives() || member->status.dumped.has_value();
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
                                    name_of(view(), *member), member->pid, WorkerProcess::kill_seconds));
    member->listen();
    member->end = member->process.ended();
    if (member->failed_at < 0 && member->failure() != Failure::none) member->failed_at = look_ + 1;
  }
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
  // A restart may meet a shortage that passes: of processes, threads or descriptors, while others end.
  const bool is_restart = options.failed_before || options.start.generation > 0;
  std::unique_ptr<Crew> crew;
  for (int tries_left = is_restart ? start_tries : 1; crew == nullptr;) {
    try {
      crew = std::make_unique<Crew>(options);
    } catch (const PeerError& error) {
      if (--tries_left == 0 || options.interrupts.interrupted()) throw;
      options.log.warn(fmt::format("{}; tried again in {:g} s", error.what(), start_pause_seconds));
      std::this_thread::sleep_for(std::chrono::duration<double>(start_pause_seconds));
    }
  }
  return crew->supervise();
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
  // A command line has its limits; the whole of it is in the agent's log.
  constexpr std::size_t longest_cause = 2000;
  if (!start.cause.empty()) add("--cause", start.cause.substr(0, longest_cause));
  return arguments;
}

double collective_deadline(double heartbeat) {
  return 10 * heartbeat;
}

}  // namespace scaletrain
