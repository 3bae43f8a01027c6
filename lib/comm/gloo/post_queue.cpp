#include "comm/gloo/post_queue.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace scaletrain {

PostQueue::PostQueue(std::shared_ptr<gloo::transport::tcp::Device> device)
    : device_(std::move(device)), bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!bell_) throw PeerError(fmt::format("eventfd failed: {}", std::strerror(errno)));
  device_->registerDescriptor(bell_.get(), EPOLLIN, this);
}

PostQueue::~PostQueue() {
  device_->unregisterDescriptor(bell_.get(), this);
}

void PostQueue::add(Post& post) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = waiting_.empty();
    waiting_.push_back(&post);
  }
  // The loop empties the queue once it has been called: it is called for the first of several.
  if (is_first) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);
  }
}

void PostQueue::remove(Post& post) {
  std::unique_lock lock(mutex_);
  const auto place = std::find(waiting_.begin(), waiting_.end(), &post);
  if (place != waiting_.end()) waiting_.erase(place);
  posted_.wait(lock, [&] { return running_ != &post; });
}

void PostQueue::handleEvents(int /*events*/) {
  // Silenced first: what is added from here on either is seen below or rings again.
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(bell_.get(), &count, sizeof count);
  std::unique_lock lock(mutex_);
  while (!waiting_.empty()) {
    running_ = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    running_->post();
    lock.lock();
    running_ = nullptr;
    posted_.notify_all();
  }
}

}  // namespace scaletrain
