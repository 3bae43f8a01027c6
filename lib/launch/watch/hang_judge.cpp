#include "launch/watch/hang_judge.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/error.h"

namespace scaletrain {
namespace {

// Bytes per second of a disk that is shared by many: the same that a save's deadline reckons with.
constexpr double slowest_write = 10e6;
// Seconds: more than what a host keeps to be written later needs, whatever was read and written before.
constexpr double longest_writeback = 3600.0;

}  // namespace

void Silence::observe(const WorkerStatus& status, bool others_wait, MonotonicTime now) {
  const double elapsed = std::min(std::chrono::duration<double>(now - last_look_).count(), 2 * longest_tick_);
  last_look_ = now;
  const bool speaks = status.lines != seen_.lines;
  const bool moves = std::pair(status.progress, status.step) != std::pair(seen_.progress, seen_.step);
  const bool is_new_state = status.waiting != seen_.waiting;
  const auto activity_of = [](const WorkerStatus& of) { return of.storage ? of.storage->activity : 0; };
  const bool is_active = activity_of(status) != activity_of(seen_);
  const bool is_unknown = status.waiting && !status.storage;
  if (is_new_state) bytes_before_wait_ = status.storage ? status.storage->bytes : 0;
  seen_ = status;
  mute_ = speaks ? 0.0 : mute_ + elapsed;
  idle_ = moves || is_new_state || is_active || is_unknown ? 0.0 : idle_ + elapsed;
  if (status.waiting || moves || is_new_state) {
    still_ = 0.0;
  } else if (!others_wait) {
    still_ += elapsed;
  }
}

double Silence::seconds() const {
  return std::max(mute_, still_);
}

double Silence::writeback_seconds() const {
  if (!seen_.waiting || !seen_.storage || seen_.storage->bytes < bytes_before_wait_) return 0.0;
  const auto bytes = static_cast<double>(seen_.storage->bytes - bytes_before_wait_);
  return std::min(bytes / slowest_write, longest_writeback);
}

HangJudge::HangJudge(const Options& options, std::size_t num_ranks, MonotonicTime now)
    : options_(options), silences_(num_ranks, Silence(options.longest_tick, now)), lives_(num_ranks, false) {}

void HangJudge::observe(const std::vector<const WorkerStatus*>& ranks, MonotonicTime now) {
  SCALETRAIN_CHECK_EQ(ranks.size(), silences_.size());
  int num_waiting = 0;
  bool has_ended = false;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != nullptr && ranks[i]->waiting) ++num_waiting;
    has_ended = has_ended || (lives_[i] && ranks[i] == nullptr);
    lives_[i] = ranks[i] != nullptr;
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!lives_[i]) continue;
    if (has_ended) silences_[i].forgive();
    silences_[i].observe(*ranks[i], num_waiting > (ranks[i]->waiting ? 1 : 0), now);
  }
}

std::optional<HangJudge::Verdict> HangJudge::find() const {
  if (const auto found = find_mute_or_still()) return found;
  if (!options_.judges_world || stalled_seconds() < storage_patience(options_.heartbeat)) return std::nullopt;
  std::size_t worst = longest_in_storage().value_or(silences_.size());
  if (worst == silences_.size()) {
    const auto key = [this](std::size_t i) {
      return std::pair(silences_[i].seen().waiting, silences_[i].idle_seconds());
    };
    for (std::size_t i = 0; i < silences_.size(); ++i)
      if (lives_[i] && (worst == silences_.size() || key(i) > key(worst))) worst = i;
  }
  return Verdict{.index = worst, .kind = HangKind::storage, .seconds = silences_[worst].idle_seconds()};
}

std::optional<HangJudge::Verdict> HangJudge::find_mute_or_still() const {
  const Silence* longest = nullptr;
  const Silence* mutest = nullptr;
  const Silence* missing = nullptr;  // longest in no collective
  bool is_any_moving = false;
  for (std::size_t i = 0; i < silences_.size(); ++i) {
    if (!lives_[i]) continue;
    const Silence& silence = silences_[i];
    is_any_moving = is_any_moving || silence.seconds() < options_.heartbeat;
    if (longest == nullptr || silence.seconds() > longest->seconds()) longest = &silence;
    if (!silence.seen().collective && (missing == nullptr || silence.seconds() > missing->seconds()))
      missing = &silence;
    if (mutest == nullptr || silence.mute_seconds() > mutest->mute_seconds()) mutest = &silence;
  }
  if (longest == nullptr) return std::nullopt;
  const bool is_still = options_.judges_world && !is_any_moving;
  if (!is_still && mutest->mute_seconds() < options_.heartbeat) return std::nullopt;
  const Silence* worst = longest;
  HangKind kind = HangKind::still;
  if (mutest->mute_seconds() >= options_.heartbeat / 2) {
    worst = mutest;
    kind = HangKind::mute;
  } else if (missing != nullptr) {
    worst = missing;
  }
  return Verdict{
      .index = static_cast<std::size_t>(worst - silences_.data()), .kind = kind, .seconds = worst->seconds()};
}

double HangJudge::still_seconds() const {
  double smallest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < silences_.size(); ++i)
    if (lives_[i]) smallest = std::min(smallest, silences_[i].still_seconds());
  return smallest == std::numeric_limits<double>::infinity() ? 0.0 : smallest;
}

double HangJudge::stalled_seconds() const {
  double smallest = std::numeric_limits<double>::infinity();
  double writeback = 0.0;
  for (std::size_t i = 0; i < silences_.size(); ++i) {
    if (!lives_[i]) continue;
    smallest = std::min(smallest, silences_[i].idle_seconds());
    writeback = std::max(writeback, silences_[i].writeback_seconds());
  }
  return smallest == std::numeric_limits<double>::infinity() ? 0.0 : std::max(0.0, smallest - writeback);
}

std::optional<std::size_t> HangJudge::longest_in_storage() const {
  std::optional<std::size_t> longest;
  const auto seconds = [this](std::size_t i) { return silences_[i].seen().storage->seconds; };
  for (std::size_t i = 0; i < silences_.size(); ++i) {
    const auto& storage = silences_[i].seen().storage;
    if (!lives_[i] || !storage || storage->text.empty()) continue;
    if (!longest || seconds(i) > seconds(*longest)) longest = i;
  }
  return longest;
}

}  // namespace scaletrain
