#include "store/device_lane.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/deadline.h"

namespace scaletrain {

namespace {

// While something is under way: often enough that a peer's failure is told at once, and that costs nothing.
constexpr auto look_interval = std::chrono::milliseconds(5);
// NCCL gives the GPU what it was given within tens of microseconds.
constexpr auto issue_interval = std::chrono::microseconds(20);

// When a wait that began then ends, and the last word of who looks after the ranks.
bool is_over(MonotonicTime since, double seconds, const std::function<MonotonicTime()>& vouched) {
  const MonotonicTime last = vouched ? std::max(since, vouched()) : since;
  return monotonic_now() > deadline_after(seconds, last);
}

std::string ranks_text(const std::vector<Rank>& ranks) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(ranks.size());
  for (const Rank rank : ranks) numbers.push_back(rank.value());
  return fmt::format("{} {} (of the world)", numbers.size() == 1 ? "rank" : "ranks", fmt::join(numbers, ", "));
}

}  // namespace

void DeviceLane::wait_until_ready(double seconds, const std::function<MonotonicTime()>& vouched) {
  const MonotonicTime since = monotonic_now();
  while (!group_->is_ready()) {
    if (is_over(since, seconds, vouched))
      throw PeerError(fmt::format("waited {:g} s for {} to join", seconds, ranks_text(peers_)));
    std::this_thread::sleep_for(issue_interval);
  }
}

void DeviceLane::issue(std::span<const DeviceMessage> messages, const DeviceWaits& waits) {
  if (messages.empty()) return;
  group_->issue(messages);
  wait_until_ready(waits.deadline, waits.vouched);
}

void DeviceLane::add(Call call, Event ready, Event done) {
  const std::lock_guard lock(mutex_);
  under_way_.push_back({.call = std::move(call), .ready = std::move(ready), .done = std::move(done)});
}

DeviceLane::Look DeviceLane::look(const DeviceWaits& waits) {
  const std::lock_guard lock(mutex_);
  while (!under_way_.empty() && under_way_.front().done.is_done()) {
    under_way_.pop_front();
    count_work(waits.work);
  }
  if (under_way_.empty()) return {};
  group_->is_ready();  // throws what has gone wrong
  UnderWay& first = under_way_.front();
  if (!first.since && first.ready.is_done()) first.since = monotonic_now();
  if (first.since && is_over(*first.since, waits.deadline, waits.vouched)) {
    const double waited = seconds_since(*first.since);
    const std::string unwatched =
        waited < waits.deadline + 1.0
            ? ""
            : fmt::format(", the last {:g} of them without a word from who watches the ranks", waits.deadline);
    throw PeerError(fmt::format("waited {:g} s{} for {}; {} dead, stuck, or issued another collective",
                                unwatched.empty() ? waits.deadline : std::round(waited), unwatched, ranks_text(peers_),
                                peers_.size() == 1 ? "it is" : "one of them at least is"));
  }
  return {.is_busy = true, .since = first.since, .call = first.call};
}

std::optional<DeviceLane::Call> DeviceLane::first_call() {
  const std::lock_guard lock(mutex_);
  if (under_way_.empty()) return std::nullopt;
  return under_way_.front().call;
}

std::string DeviceLanes::first_call_of(DeviceLane& lane) const {
  const auto call = lane.first_call();
  return call ? named(*call) : "group " + group_.name;
}

std::string DeviceLanes::named(const DeviceLane::Call& call) const {
  return fmt::format("group {}: {} #{}", group_.name, call.collective, call.sequence);
}

void DeviceLanes::fail(const std::string& text) noexcept {
  fail_alone(text);
  watch_.fail_all(text);
}

void DeviceLanes::fail_alone(const std::string& text) noexcept {
  try {
    errors_.keep_peer(text);
  } catch (const std::bad_alloc&) {  // NOLINT: the lanes end all the same
  }
  for (const auto& lane : lanes_) lane->group().abort(text);
}

DeviceLane::Look DeviceLanes::look(const DeviceWaits& waits) noexcept {
  DeviceLane::Look longest;
  for (const auto& lane : lanes_) {
    try {
      const DeviceLane::Look look = lane->look(waits);
      longest.is_busy = longest.is_busy || look.is_busy;
      if (look.since && (!longest.since || *look.since < *longest.since)) {
        longest.since = look.since;
        longest.call = look.call;
      }
    } catch (const PeerError& error) {
      fail(fmt::format("{}: {}", first_call_of(*lane), error.what()));
      return {};
    } catch (...) {
      errors_.keep_current();
      fail(first_call_of(*lane) + ": this rank has failed");
      return {};
    }
  }
  return longest;
}

DeviceLane& DeviceLanes::add_lane(std::unique_ptr<DeviceLane> lane) {
  lanes_.push_back(std::move(lane));
  return *lanes_.back();
}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
}

void DeviceWatch::watch(const std::shared_ptr<DeviceLanes>& lanes) {
  const std::lock_guard lock(mutex_);
  all_.push_back(lanes);
  if (!looks_.joinable()) looks_ = GuardedThread([this] { serve(); });
  if (!issues_.joinable()) issues_ = GuardedThread([this] { issue_overdue(); });
}

void DeviceWatch::forget(DeviceLanes& lanes, const std::string& text) noexcept {
  std::unique_lock lock(mutex_);
  std::erase_if(all_, [&](const auto& one) { return one.expired() || one.lock().get() == &lanes; });
  changed_.wait(lock, [this] { return !is_looking_; });
  if (issuing_ != &lanes) return;
  lock.unlock();
  lanes.fail(text);
  lock.lock();
  changed_.wait(lock, [&] { return issuing_ != &lanes; });
}

void DeviceWatch::fail_all(const std::string& text) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& one : all_)
    if (const auto lanes = one.lock()) lanes->fail_alone(text);
}

void DeviceWatch::wake() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_awake_, true)) return;
  }
  changed_.notify_all();
}

void DeviceWatch::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stops_ || is_awake_; });
    if (stops_) return;
    is_awake_ = false;
    lock.unlock();
    const bool is_busy = look_at_all();
    lock.lock();
    is_awake_ = is_awake_ || is_busy;
    changed_.wait_for(lock, look_interval, [this] { return stops_; });
  }
}

void DeviceWatch::issue_overdue() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stops_ || is_overdue_; });
    if (stops_) return;
    is_overdue_ = false;
    for (const std::weak_ptr<DeviceLanes>& next : std::vector(all_)) {
      // Who forgets lanes has them until they are: this thread is not their last owner either.
      const auto is_next = [&next](const auto& one) { return !one.owner_before(next) && !next.owner_before(one); };
      if (stops_ || std::none_of(all_.begin(), all_.end(), is_next)) continue;
      auto lanes = next.lock();
      if (!lanes) continue;
      issuing_ = lanes.get();
      lock.unlock();
      lanes->issue_posted();
      lanes.reset();
      lock.lock();
      issuing_ = nullptr;
      changed_.notify_all();
    }
  }
}

std::vector<std::shared_ptr<DeviceLanes>> DeviceWatch::watched() const {
  std::vector<std::shared_ptr<DeviceLanes>> all;
  for (const auto& one : all_)
    if (auto lanes = one.lock()) all.push_back(std::move(lanes));
  return all;
}

bool DeviceWatch::look_at_all() {
  std::vector<std::shared_ptr<DeviceLanes>> all;
  {
    const std::lock_guard lock(mutex_);
    is_looking_ = true;
    all = watched();
  }
  const bool is_busy = look_at(all);
  all.clear();  // of none of them the last owner: that one forgets them first
  {
    const std::lock_guard lock(mutex_);
    is_looking_ = false;
  }
  changed_.notify_all();
  return is_busy;
}

bool DeviceWatch::look_at(const std::vector<std::shared_ptr<DeviceLanes>>& all) {
  bool is_busy = false;
  std::optional<MonotonicTime> since;
  DeviceLane::Call call;
  const DeviceLanes* who = nullptr;
  for (const auto& lanes : all) {
    const DeviceLane::Look look = lanes->look(waits_);
    is_busy = is_busy || look.is_busy;
    if (look.since && (!since || *look.since < *since)) {
      since = look.since;
      call = look.call;
      who = lanes.get();
    }
  }
  if (waits_.status != nullptr) {
    if (who != nullptr)
      waits_.status->device_waits(who->group(), call, *since);
    else
      waits_.status->device_goes_on();
  }
  if (since && seconds_since(*since) > waits_.patience) {
    const std::lock_guard lock(mutex_);
    is_overdue_ = true;
  }
  return is_busy;
}

}  // namespace scaletrain
