// The exchanges of a pipeline: a queue for each neighbour, direction and channel. Included by device_communicator.cpp
// alone.
#pragma once

#include <compare>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/communicator.h"
#include "store/device_lane.h"

namespace scaletrain {

// A transfer that has been asked for.
struct PostedTransfer {
  DeviceLane::Call call{};
  DeviceMessage message{};
  Event ready{};
  bool is_issued = false;
  Event done{};
};

class DeviceExchanges final : public DeviceLanes {
 public:
  struct Key {
    DeviceMessage::Direction direction;
    int peer;
    Transfer::Channel channel;
    auto operator<=>(const Key&) const = default;
  };

  DeviceExchanges(CollectiveStatus::Group its_group, DeviceWatch& watch) : DeviceLanes(std::move(its_group), watch) {}

  bool is_busy() { return DeviceLanes::is_busy(watch().waits()); }
  void add(const Key& key, std::unique_ptr<DeviceLane> lane) { queues_[key].lane = &add_lane(std::move(lane)); }
  DeviceLane& lane_of(const Key& key) { return *queues_.at(key).lane; }
  bool has(const Key& key) const { return queues_.contains(key); }

  Event greet(const Key& key, std::byte* memory) {
    DeviceLane& lane = *queues_.at(key).lane;
    // Of the two members the sender is the first.
    const int peer = key.direction == DeviceMessage::Direction::send ? 1 : 0;
    const DeviceMessage message{key.direction, peer, memory, devices::first_message_bytes};
    lane.issue({&message, 1}, watch().waits());
    return lane.stream().record();
  }

  std::shared_ptr<PostedTransfer> post(const Key& key, DeviceLane::Call call, const View& data, Event ready) {
    auto posted = std::make_shared<PostedTransfer>();
    posted->call = std::move(call);
    posted->message = {key.direction, key.direction == DeviceMessage::Direction::send ? 1 : 0, devices::bytes_of(data),
                       data.num_bytes()};
    posted->ready = std::move(ready);
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_.at(key);
    queue.posted.push_back(posted);
    if (key.direction == DeviceMessage::Direction::send) issue(queue, posted.get());
    return posted;
  }

  // Up to it, in the order of their queue; `done` is there afterwards.
  void issue_up_to(const Key& key, const PostedTransfer& posted) {
    const std::lock_guard lock(mutex_);
    if (!posted.is_issued) issue(queues_.at(key), &posted);
  }
  void issue_posted() noexcept override {
    const std::lock_guard lock(mutex_);
    try {
      for (auto& [key, queue] : queues_) issue(queue, nullptr);
    } catch (const std::exception&) {  // NOLINT: it has ended the lanes
    }
  }

 private:
  struct Queue {
    DeviceLane* lane = nullptr;
    std::deque<std::shared_ptr<PostedTransfer>> posted{};
  };

  // Up to `last`; null: all.
  void issue(Queue& queue, const PostedTransfer* last) {
    while (!queue.posted.empty()) {
      const std::shared_ptr<PostedTransfer> next = std::move(queue.posted.front());
      queue.posted.pop_front();
      run(next->call, [&] {
        queue.lane->stream().after(next->ready);
        if (next->message.bytes > 0) queue.lane->issue({&next->message, 1}, watch().waits());
        next->done = queue.lane->stream().record();
        next->is_issued = true;
        queue.lane->add(next->call, next->ready, next->done);
      });
      watch().wake();
      if (next.get() == last) return;
    }
  }

  std::mutex mutex_;  // of whoever issues: the rank's thread, and the watch
  std::map<Key, Queue> queues_;
};

}  // namespace scaletrain
