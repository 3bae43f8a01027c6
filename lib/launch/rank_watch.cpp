#include "launch/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "launch/crew_verdict.h"

namespace scaletrain {
namespace {

constexpr const char* hang_key = "watch/hang";
constexpr const char* heard_key = "watch/heard";
constexpr const char* over_text = "over";

// Between two looks: eight in a heartbeat at least.
constexpr double longest_period = 1.0;
constexpr double looks_in_heartbeat = 8.0;
constexpr double connect_seconds = 20.0;
// Of a heartbeat that the rendezvous was silent for, in which it is asked whether it is there once more.
constexpr double second_chance = 0.25;

std::string key_of(std::int64_t rank) {
  return fmt::format("watch/{}", rank);
}

}  // namespace

RankWatch::RankWatch(Options options)
    : options_(std::move(options)),
      period_(std::min(longest_period, options_.heartbeat / looks_in_heartbeat)),
      store_(options_.connect(connect_seconds)),
      storage_notice_(options_.heartbeat) {
  SCALETRAIN_CHECK(options_.heartbeat > 0 && options_.world > 1);
  if (options_.judges) {
    peers_.resize(static_cast<std::size_t>(options_.world));
    judge_.emplace(HangJudge::Options{.heartbeat = options_.heartbeat, .longest_tick = period_}, peers_.size());
    slow_ranks_.emplace(classes_of_stages(options_.world, options_.stages));
  }
  thread_ = std::thread([this] { run(); });
}

RankWatch::~RankWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void RankWatch::changed() {
  {
    const std::lock_guard lock(mutex_);
    has_changed_ = true;
  }
  wake_.notify_all();
}

void RankWatch::run() {
  const auto period = std::chrono::duration<double>(period_);
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    lock.unlock();
    const MonotonicTime asked = monotonic_now();
    std::optional<std::string> hang;
    try {
      hang = look();
    } catch (const std::exception&) {
      hang = judge_rendezvous(seconds_since(asked));
      // Who has lost the rendezvous for good hears so where it waits for its peers.
      if (!hang && !store_) return;
    }
    lock.lock();
    if (hang && !is_stopping_) {
      lock.unlock();
      options_.hangs(*hang);
      return;
    }
    wake_.wait_for(lock, period, [this] { return is_stopping_ || has_changed_; });
    has_changed_ = false;
  }
  lock.unlock();
  if (!store_) return;  // lost while the rank came to its end
  try {
    store_->set(key_of(options_.rank), over_text);
  } catch (const std::exception&) {
    return;  // nobody is left to look at it
  }
}

std::optional<std::string> RankWatch::look() {
  store_->set(key_of(options_.rank), fmt::format("{}\n{}", ++beat_, status_lines(options_.status())));
  if (options_.judges) return judge();
  auto hang = store_->find(hang_key);
  if (hang) store_->add(heard_key, 1);
  return hang;
}

std::optional<std::string> RankWatch::judge() {
  std::vector<const WorkerStatus*> statuses;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    auto text = store_->find(key_of(static_cast<std::int64_t>(rank)));
    if (text && *text != peer.text) {
      peer.is_over = *text == over_text;
      peer.parser.feed(*text);
      peer.text = std::move(*text);
    }
    statuses.push_back(peer.text.empty() || peer.is_over ? nullptr : &peer.parser.status());
  }
  judge_->observe(statuses);
  const std::optional<HangJudge::Verdict> hang = judge_->find();
  if (!hang) {
    warn_about_slow_ranks();
    warn_about_storage();
    return std::nullopt;
  }
  std::string text = hang_text(*hang);
  store_->set(hang_key, text);
  wait_for_hearing(hang->index);
  return text;
}

// Whoever is stopped hears nothing.
void RankWatch::wait_for_hearing(std::size_t hung) {
  std::int64_t others = 0;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    if (static_cast<std::int64_t>(rank) != options_.rank && rank != hung && !peers_[rank].text.empty() &&
        !peers_[rank].is_over)
      ++others;
  const MonotonicTime begin = monotonic_now();
  while (store_->add(heard_key, 0) < others && seconds_since(begin) < hearing_seconds)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void RankWatch::warn_about_slow_ranks() {
  std::vector<Pace> paces;
  for (const Peer& peer : peers_) {
    if (peer.is_over || !peer.parser.status().pace) return;
    paces.push_back(*peer.parser.status().pace);
  }
  for (const SlowRanks::Slow& slow : slow_ranks_->observe(paces, seconds_since(begin_)))
    options_.warn(slow_rank_text(static_cast<std::int64_t>(slow.index), slow));
}

void RankWatch::warn_about_storage() {
  const auto longest = judge_->longest_in_storage();
  const InStorage* const storage = longest ? &*peers_[*longest].parser.status().storage : nullptr;
  if (storage_notice_.is_due(storage != nullptr ? storage->seconds : 0.0))
    options_.warn(storage_warning(static_cast<std::int64_t>(*longest), *storage, options_.heartbeat));
}

std::optional<std::string> RankWatch::judge_rendezvous(double silent_seconds) {
  store_.reset();
  const bool was_silent = silent_seconds >= options_.heartbeat;
  // Whose own process stood still finds it answer again.
  try {
    store_ = options_.connect(std::max(period_, second_chance * options_.heartbeat));
    return std::nullopt;
  } catch (const std::exception&) {
    if (!was_silent) return std::nullopt;
  }
  const WorkerStatus status = options_.status();
  return fmt::format(
      "rank 0, which serves the rendezvous, gave no sign of life for {} (supervise.heartbeat): it is stopped, or its "
      "host or the network to it failed; rank {} is in {} at step {}",
      duration_text(silent_seconds), options_.rank, status.collective ? status.collective->text : "no collective",
      status.step);
}

std::string RankWatch::hang_text(const HangJudge::Verdict& hang) const {
  std::vector<MemberState> members(peers_.size());
  CrewView view{.world = options_.world};
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    MemberState& member = members[rank];
    member.rank = Rank(static_cast<std::int64_t>(rank));
    member.status = peers_[rank].parser.status();
    if (peers_[rank].is_over) member.end = ProcessEnd{.exit_code = 0};
    view.members.push_back(&member);
  }
  const MemberState& worst = members[hang.index];
  const HangWords words = hang_words(view, worst, hang);
  return fmt::format("rank {} {} at step {} (supervise.heartbeat){}{}; all ranks end; {}; stack traces are in {}",
                     hang.index, words.what, worst.status.step, words.place, words.others, words.remedy,
                     rank_log_path("", static_cast<std::int64_t>(hang.index)).parent_path().string());
}

}  // namespace scaletrain
