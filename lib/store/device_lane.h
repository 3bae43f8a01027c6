// What device communicators are made of (device_communicator.h): groups of the network with what a rank has under way
// in them, and the thread that watches it. Internal to it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/device_network.h"
#include "base/clock.h"
#include "base/process/guarded_thread.h"
#include "base/process/work_count.h"
#include "comm/collective/collective_status.h"
#include "comm/communicator.h"
#include "comm/first_error.h"

namespace scaletrain {

namespace devices {

inline std::size_t index_of(int rank) {
  return static_cast<std::size_t>(rank);
}

inline std::byte* bytes_of(const View& view) {
  return static_cast<std::byte*>(view.data());
}
// Of a message, which only reads what it sends.
inline std::byte* bytes_of(const ConstView& view) {
  return static_cast<std::byte*>(const_cast<void*>(view.data()));
}

// What members send each other before the first call: everything is connected then.
inline constexpr std::size_t first_message_bytes = 256;

}  // namespace devices

// How long whoever waits waits, and who hears of it.
struct DeviceWaits {
  double deadline = 60.0;
  std::function<MonotonicTime()> vouched{};
  WorkCount* work = nullptr;
  CollectiveStatus* status = nullptr;
  double patience = 1.0;
};

// A group's messages, one call behind the other.
class DeviceLane {
 public:
  using Call = CollectiveStatus::Call;

  // peers: of the world, for messages.
  DeviceLane(std::unique_ptr<DeviceGroup> group, std::vector<Rank> peers)
      : group_(std::move(group)), peers_(std::move(peers)) {}

  DeviceGroup& group() { return *group_; }
  Stream& stream() { return group_->stream(); }
  // Returns when the GPU has been given them. PeerError, also when `seconds` have passed without a word of `vouched`.
  void issue(std::span<const DeviceMessage> messages, const DeviceWaits& waits);
  // Until the group has come together.
  void wait_until_ready(double seconds, const std::function<MonotonicTime()>& vouched);

  // Everything of a call has been issued: it begins when `ready` is done and has ended when `done` is.
  void add(Call call, Event ready, Event done);
  // Whether anything is under way; PeerError if it cannot come to its end.
  struct Look {
    bool is_busy = false;
    std::optional<MonotonicTime> since{};  // of the first call, if the device has come to it
    Call call{};                           // that one
  };
  Look look(const DeviceWaits& waits);
  // The call that a failure is told of; empty: none is under way.
  std::optional<Call> first_call();

 private:
  struct UnderWay {
    Call call;
    Event ready, done;
    std::optional<MonotonicTime> since{};
  };

  std::unique_ptr<DeviceGroup> group_;
  std::vector<Rank> peers_;
  std::mutex mutex_;  // for what follows
  std::deque<UnderWay> under_way_;
};

class DeviceWatch;

// The lanes of one communicator, which end together.
class DeviceLanes {
 public:
  DeviceLanes(CollectiveStatus::Group group, DeviceWatch& watch) : watch_(watch), group_(std::move(group)) {}
  virtual ~DeviceLanes() = default;
  DeviceLanes(const DeviceLanes&) = delete;
  DeviceLanes& operator=(const DeviceLanes&) = delete;

  const CollectiveStatus::Group& group() const { return group_; }
  FirstError& errors() { return errors_; }
  std::string named(const DeviceLane::Call& call) const;
  // Ends all that is under way and what is to come, in all of the rank's lanes: to end one, NCCL may wait for the whole
  // device, where others would wait for the same peer on and on. Any thread.
  void fail(const std::string& text) noexcept;
  // The same in these alone.
  void fail_alone(const std::string& text) noexcept;
  // Runs a part of a call; an error of a peer or of the device is named after it, ends the lanes, and is thrown.
  template <class Body>
  void run(const DeviceLane::Call& call, Body body) {
    errors_.throw_if_any();
    try {
      body();
      return;
    } catch (const PeerError& error) {
      fail(named(call) + ": " + error.what());
    } catch (...) {
      errors_.keep_current();
      fail(named(call) + ": this rank has failed");
    }
    errors_.throw_if_any();
  }

  // Of all lanes what has been under way for longest. Ends them when something has failed.
  DeviceLane::Look look(const DeviceWaits& waits) noexcept;
  // Issues what has been posted and waits for nobody to ask for it. Any thread; waits until NCCL has taken it.
  virtual void issue_posted() noexcept {}

 protected:
  DeviceWatch& watch() { return watch_; }
  DeviceLane& add_lane(std::unique_ptr<DeviceLane> lane);
  bool is_busy(const DeviceWaits& waits) { return look(waits).is_busy; }

 private:
  std::string first_call_of(DeviceLane& lane) const;

  DeviceWatch& watch_;
  CollectiveStatus::Group group_;
  FirstError errors_;
  std::vector<std::unique_ptr<DeviceLane>> lanes_;
};

// Watches all lanes of a rank, from the first ones on. What may wait, for NCCL to take a message or to end a group, is
// done by other threads than the one that looks: another of its own issues what is overdue, and who closes lanes ends
// their groups.
class DeviceWatch {
 public:
  explicit DeviceWatch(DeviceWaits waits) : waits_(std::move(waits)) {}
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  const DeviceWaits& waits() const { return waits_; }
  void watch(const std::shared_ptr<DeviceLanes>& lanes);
  // Nobody looks at them or issues theirs any more: by who is about to close them. Ends them with that text where a
  // message is just being issued.
  void forget(DeviceLanes& lanes, const std::string& text) noexcept;
  // Of all that are watched. Any thread.
  void fail_all(const std::string& text) noexcept;
  // Something is under way. By a thread that issues.
  void wake();

 private:
  void serve();
  bool look_at_all();
  bool look_at(const std::vector<std::shared_ptr<DeviceLanes>>& all);
  void issue_overdue();
  std::vector<std::shared_ptr<DeviceLanes>> watched() const;  // with the lock held

  DeviceWaits waits_;
  std::mutex mutex_;  // for what follows
  std::condition_variable changed_;
  std::vector<std::weak_ptr<DeviceLanes>> all_;
  bool is_awake_ = false;
  bool is_looking_ = false;
  bool is_overdue_ = false;               // what has been posted is to be issued
  const DeviceLanes* issuing_ = nullptr;  // for whom it is
  bool stops_ = false;
  GuardedThread looks_, issues_;  // last: they use the rest
};

}  // namespace scaletrain
