#include "launch/workers/worker_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "host/launcher.h"
#include "host/machine.h"
#include "host/memory_kills.h"
#include "launch/watch/hang_judge.h"
#include "launch/watch/wait_notice.h"
#include "launch/workers/group_member.h"
#include "launch/workers/group_verdict.h"

namespace scaletrain {
namespace {

// How long the others may take to say the same after a failure that no restart mends, which they may all have found.
constexpr double alike_seconds = 1.0;
// Between two looks while the others may say more.
constexpr double settle_look_seconds = 0.05;

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

class WorkerGroup {
 public:
  explicit WorkerGroup(const GroupOptions& options);
  ~WorkerGroup() { end_all(); }
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  RoundResult supervise();

 private:
  void start_workers();
  // Ranks that share the processors of this place, those of other places included.
  std::int64_t num_sharers() const {
    return std::max<std::int64_t>(options_.count, std::ssize(options_.on_processors));
  }
  WorkerSlot slot_of(std::int64_t index) const;
  // Those near the GPU that this one of the ranks that see the same GPUs computes on; null: none are nearer.
  const NearProcessors* near_gpu_of(std::int64_t gpu_index) const;
  void tell_start(std::string_view pids) const;
  void tell_places(const std::vector<WorkerSlot>& slots) const;
  void wait_for_news();
  void take_news();
  bool all_ended() const;
  // Whether the failures so far are to be acted upon; the first look at one begins the time to settle.
  bool is_failed();
  // Marks the worker that hangs, if one does, and has all write what they are in.
  bool has_hung();
  // Hands the interruption on; false if that ended the workers.
  bool forward_interruption();
  GroupStatus status() const;
  // Tells the workers that they are looked after: none of them hangs, or whoever sees all hosts would have it ended.
  void vouch();
  void end_all();
  GroupView view() const;
  std::optional<std::vector<Pace>> paces() const;
  void warn_about_storage();
  std::optional<std::int64_t> count_memory_kills() const {
    return options_.memory_kills ? options_.memory_kills() : memory_kills();
  }
  bool memory_ran_out() const { return memory_kills_ && count_memory_kills().value_or(0) > *memory_kills_; }
  void dump_all();
  static void wait_for_dumps(const std::vector<GroupMember*>& members, double seconds);

  const GroupOptions& options_;
  // Fine enough that a hang is seen within an eighth of the heartbeat; once a second is often enough for the lock.
  double tick_;
  std::vector<std::unique_ptr<GroupMember>> members_;  // by rank
  std::optional<HangJudge> judge_;                     // of them
  std::int64_t look_ = 0;
  std::optional<MonotonicTime> failed_since_;
  bool is_forwarded_ = false;
  StorageNotice storage_notice_;
  MonotonicTime vouched_{};
  std::optional<std::int64_t> memory_kills_ = count_memory_kills();  // before this start
};

WorkerGroup::WorkerGroup(const GroupOptions& options)
    : options_(options),
      // Orders are looked for in time: others wait until all have ended.
      tick_(std::clamp(options.heartbeat / 8, 0.01, 0.25)),
      storage_notice_(options.heartbeat) {
  try {
    start_workers();
    judge_.emplace(
        HangJudge::Options{
            .heartbeat = options.heartbeat, .longest_tick = tick_, .judges_world = options.count == options.world},
        members_.size());
  } catch (...) {
    end_all();
    throw;
  }
}

WorkerSlot WorkerGroup::slot_of(std::int64_t index) const {
  const Rank rank(options_.first_rank + index);
  const auto place_in = [&rank, index](const std::vector<std::int64_t>& ranks) {
    const auto at = std::find(ranks.begin(), ranks.end(), rank.value());
    return at == ranks.end() ? index : static_cast<std::int64_t>(at - ranks.begin());
  };
  WorkerSlot slot{
      .rank = rank, .world = options_.world, .num_gpus = options_.num_gpus, .data_degree = options_.data_degree};
  slot.local_rank = place_in(options_.on_host);
  if (options_.world > 1) slot.rendezvous = options_.rendezvous->address;
  if (options_.num_gpus > 0 && options_.world > 1) {
    slot.gpu_index = place_in(options_.on_gpus);
    slot.gpu_ranks = std::max<std::int64_t>(options_.count, std::ssize(options_.on_gpus));
  }
  if (const NearProcessors* const near = near_gpu_of(slot.gpu_index)) {
    slot.processors = near->processors;
    slot.sharers = 0;
    for (std::int64_t other = 0; other < slot.gpu_ranks; ++other) {
      const NearProcessors* const others = near_gpu_of(other);
      if (others != nullptr && *others == *near) ++slot.sharers;
    }
    return slot;
  }
  if (options_.world == 1) return slot;
  const std::int64_t sharers = num_sharers();
  if (available_processors() >= sharers) {
    slot.processors = share_of_processors(affinity_processors(), place_in(options_.on_processors), sharers);
  } else {
    slot.sharers = sharers;
  }
  return slot;
}

const NearProcessors* WorkerGroup::near_gpu_of(std::int64_t gpu_index) const {
  if (options_.near_gpus.empty()) return nullptr;
  const auto& near = options_.near_gpus.at(static_cast<std::size_t>(gpu_index % options_.num_gpus));
  return near ? &*near : nullptr;
}

// "rank 0 on processors 8-15 (node 1)", all ranks of a node together.
void WorkerGroup::tell_places(const std::vector<WorkerSlot>& slots) const {
  std::map<int, std::pair<const NearProcessors*, std::vector<std::int64_t>>> nodes;
  for (const WorkerSlot& slot : slots) {
    const NearProcessors* const near = near_gpu_of(slot.gpu_index);
    if (near == nullptr) continue;
    nodes[near->node].first = near;
    nodes[near->node].second.push_back(slot.rank.value());
  }
  std::string text;
  for (const auto& [node, place] : nodes)
    text += fmt::format("{}{} {} on processors {} (node {})", text.empty() ? "" : "; ",
                        place.second.size() == 1 ? "rank" : "ranks", fmt::join(place.second, ", "),
                        processors_text(place.first->processors), node);
  if (!text.empty()) options_.log.info("host threads run near their GPU: " + text);
}

void WorkerGroup::start_workers() {
  ChildLaunch launch{.executable = options_.executable, .arguments = {}, .removed = launcher_variables()};
  if (options_.world > 1) launch.added = {"SCALETRAIN_SECRET=" + options_.rendezvous->secret};
  std::string pids;
  std::vector<WorkerSlot> slots;
  for (std::int64_t i = 0; i < options_.count; ++i) {
    const WorkerSlot& slot = slots.emplace_back(slot_of(i));
    launch.arguments = options_.arguments ? options_.arguments(options_.start, slot) : worker_arguments(options_, slot);
    ChannelPair channel = make_channel();
    launch.arguments.insert(launch.arguments.end(), {"--channel", fmt::format("{}", channel.worker.get())});
    launch.processors = slot.processors;
    try {
      members_.push_back(std::make_unique<GroupMember>(slot.rank, launch, std::move(channel)));
    } catch (const PeerError& e) {
      throw PeerError(fmt::format("rank {}: {}", slot.rank.value(), e.what()));
    }
    pids += fmt::format(" {}", members_.back()->pid);
    // Without a process descriptor only the tick sees an end.
    if (members_.back()->process.descriptor() < 0) tick_ = std::min(tick_, 0.05);
  }
  tell_start(pids);
  tell_places(slots);
}

void WorkerGroup::tell_start(std::string_view pids) const {
  if (options_.world == 1) {
    options_.log.info(fmt::format("worker{} started at step {}, generation {}", pids, options_.start.step,
                                  options_.start.generation));
    return;
  }
  const std::string share = options_.count == options_.world ? "" : fmt::format(" of {}", options_.world);
  // On a GPU no thread of the host computes.
  const std::string threads =
      options_.num_gpus > 0
          ? ""
          : ", " + counted(share_processors(available_processors(), num_sharers()).threads, "thread") + " each";
  options_.log.info(fmt::format("{}{} workers started at step {}, generation {}{}; rank {} and on:{}", options_.count,
                                share, options_.start.step, options_.start.generation, threads, options_.first_rank,
                                pids));
}

RoundResult WorkerGroup::supervise() {
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
    if (options_.status) options_.status(status());
    vouch();
    warn_about_storage();
    require_lock(options_);
  }
}

void WorkerGroup::wait_for_news() {
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

void WorkerGroup::take_news() {
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

GroupView WorkerGroup::view() const {
  GroupView view{.world = options_.world, .start_step = options_.start.step, .memory_ran_out = [this] {
                   return memory_ran_out();
                 }};
  for (const auto& member : members_) view.members.push_back(member.get());
  return view;
}

bool WorkerGroup::all_ended() const {
  return std::none_of(members_.begin(), members_.end(), [](const auto& member) { return member->lives(); });
}

bool WorkerGroup::is_failed() {
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

bool WorkerGroup::forward_interruption() {
  if (is_forwarded_) return true;
  const bool is_told = options_.told_to_leave && options_.told_to_leave();
  if (!options_.interrupts.interrupted() && !is_told) return true;
  // Once: a signal pending in a worker that is still starting up is not lost, and a second one would say nothing new.
  is_forwarded_ = true;
  // What they have said before it came.
  for (const auto& member : members_) member->listen();
  const std::string why = options_.interrupts.interrupted() ? "interrupted" : "asked to leave";
  const bool is_one = members_.size() == 1;
  const auto is_starting = [](const auto& member) { return member->lives() && !member->status.has_worked; };
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
std::optional<std::vector<Pace>> WorkerGroup::paces() const {
  std::vector<Pace> paces;
  for (const auto& member : members_) {
    if (!member->lives() || !member->status.pace) return std::nullopt;
    paces.push_back(*member->status.pace);
  }
  return paces;
}

// Storage that does not answer may yet come back; for how long it is waited for, HangJudge knows.
void WorkerGroup::warn_about_storage() {
  const auto longest = judge_->longest_in_storage();
  const GroupMember* const member = longest ? members_[*longest].get() : nullptr;
  if (storage_notice_.is_due(member != nullptr ? member->status.storage->seconds : 0.0))
    options_.log.warn(storage_warning(member->rank.value(), *member->status.storage, options_.heartbeat));
}

GroupStatus WorkerGroup::status() const {
  GroupStatus group;
  group.step = std::numeric_limits<std::int64_t>::max();
  for (const auto& member : members_) {
    const WorkerStatus& status = member->status;
    group.progress += status.progress;
    if (!member->lives()) continue;
    ++(status.waiting ? group.waiting : group.working);
    group.step = std::min(group.step, status.step);
    group.pids.push_back(member->pid);
  }
  if (group.pids.empty()) return GroupStatus{.progress = group.progress};
  group.still_seconds = judge_->still_seconds();
  group.stalled_seconds = judge_->stalled_seconds();
  if (const auto longest = judge_->longest_in_storage()) {
    const GroupMember& member = *members_[*longest];
    group.stalled_text = storage_text(member.rank.value(), *member.status.storage);
  }
  group.paces = paces().value_or(std::vector<Pace>());
  return group;
}

void WorkerGroup::vouch() {
  // A look follows each line of each worker: once a tick is enough.
  if (seconds_since(vouched_) < tick_) return;
  vouched_ = monotonic_now();
  for (const auto& member : members_)
    if (member->lives()) member->channel.vouch();
}

bool WorkerGroup::has_hung() {
  const std::optional<HangJudge::Verdict> hang = judge_->find();
  if (!hang) return false;
  GroupMember& worst = *members_[hang->index];
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
void WorkerGroup::dump_all() {
  std::vector<GroupMember*> awake;
  std::vector<GroupMember*> stopped;
  for (const auto& member : members_)
    if (member->lives()) (member->process.is_stopped() ? stopped : awake).push_back(member.get());
  for (const GroupMember* member : awake) member->process.signal(SIGQUIT);
  wait_for_dumps(awake, dump_seconds);
  for (const GroupMember* member : stopped) {
    member->process.signal(SIGQUIT);
    member->process.signal(SIGCONT);
  }
  wait_for_dumps(stopped, woken_dump_seconds);
}

void WorkerGroup::wait_for_dumps(const std::vector<GroupMember*>& members, double seconds) {
  constexpr auto pause = std::chrono::milliseconds(10);
  const MonotonicTime begin = monotonic_now();
  const auto is_over = [](GroupMember* member) {
    member->listen();
    if (!member->end && (member->end = member->process.ended())) member->killed = !member->hung;
    return !member->lives() || member->status.dumped.has_value();
  };
  while (!std::all_of(members.begin(), members.end(), is_over) && seconds_since(begin) < seconds)
    std::this_thread::sleep_for(pause);
}

void WorkerGroup::end_all() {
  for (const auto& member : members_) {
    if (!member->lives()) continue;
    member->killed = !member->hung;
    member->process.signal(SIGKILL);
  }
  for (const auto& member : members_) {
    if (!member->lives()) continue;
    if (!member->process.kill())
      options_.log.warn(fmt::format("{}worker {} was killed {:g} s ago and the kernel has not ended it; it is given up",
                                    name_of(view(), *member), member->pid, ChildProcess::kill_seconds));
    member->listen();
    member->end = member->process.ended();
    if (member->failed_at < 0 && member->failure() != Failure::none) member->failed_at = look_ + 1;
  }
}

}  // namespace

void require_lock(const GroupOptions& options) {
  if (!options.holds_lock || options.holds_lock()) return;
  throw PeerError(
      fmt::format("{}: the lock was taken over by another agent or removed; the workers are ended, nothing more is "
                  "written here",
                  options.paths.lock().string()));
}

RoundResult run_worker_group(const GroupOptions& options) {
  SCALETRAIN_CHECK(options.heartbeat > 0 && options.count >= 1 && options.first_rank >= 0);
  SCALETRAIN_CHECK_LE(options.first_rank + options.count, options.world);
  SCALETRAIN_CHECK(options.rendezvous.has_value() || options.world == 1);
  // A restart may meet a shortage that passes: of processes, threads or descriptors, while others end.
  std::unique_ptr<WorkerGroup> group;
  for (int tries_left = options.start.generation > 0 ? start_tries : 1; group == nullptr;) {
    try {
      group = std::make_unique<WorkerGroup>(options);
    } catch (const PeerError& error) {
      if (--tries_left == 0 || options.interrupts.interrupted()) throw;
      options.log.warn(fmt::format("{}; tried again in {:g} s", error.what(), start_pause_seconds));
      std::this_thread::sleep_for(std::chrono::duration<double>(start_pause_seconds));
    }
  }
  return group->supervise();
}

std::vector<std::string> worker_arguments(const GroupOptions& options, const WorkerSlot& slot) {
  const StartPoint& start = options.start;
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
    if (slot.gpu_index > 0) add("--gpu-index", fmt::format("{}", slot.gpu_index));
    if (slot.gpu_ranks > 1) add("--gpu-ranks", fmt::format("{}", slot.gpu_ranks));
    if (!options.address.empty()) add("--address", options.address);
    add("--heartbeat", fmt::format("{}", options.heartbeat));
  }
  if (slot.num_gpus > 0) add("--gpus", fmt::format("{}", slot.num_gpus));
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

}  // namespace scaletrain
