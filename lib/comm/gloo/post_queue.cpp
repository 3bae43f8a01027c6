#include "comm/gloo/post_queue.h"

#include <gloo/transport/tcp/device.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "base/file.h"
#include "comm/rendezvous/rendezvous_socket.h"

namespace scaletrain {

class PostQueue::Handler final : public gloo::transport::tcp::Handler {
 public:
  explicit Handler(std::shared_ptr<gloo::transport::tcp::Device> device);
  ~Handler() override;
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

  void add(Post& post);
  void remove(Post& post);
  void handleEvents(int events) override;

 private:
  std::shared_ptr<gloo::transport::tcp::Device> device_;
  FileDescriptor bell_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Post*> waiting_;
  Post* running_ = nullptr;
};

PostQueue::Handler::Handler(std::shared_ptr<gloo::transport::tcp::Device> device)
    : device_(std::move(device)), bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!bell_) throw_refused("no eventfd is to be had", errno);
  device_->registerDescriptor(bell_.get(), EPOLLIN, this);
}

PostQueue::Handler::~Handler() {
  device_->unregisterDescriptor(bell_.get(), this);
  // The loop does not call again; taking the lock orders its last call before the end of all this.
  const std::lock_guard lock(mutex_);
}

void PostQueue::Handler::add(Post& post) {
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

void PostQueue::Handler::remove(Post& post) {
  std::unique_lock lock(mutex_);
  const auto place = std::find(waiting_.begin(), waiting_.end(), &post);
  if (place != waiting_.end()) waiting_.erase(place);
  posted_.wait(lock, [&] { return running_ != &post; });
}

void PostQueue::Handler::handleEvents(int /*events*/) {
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

PostQueue::PostQueue(std::shared_ptr<gloo::transport::tcp::Device> device)
    : handler_(std::make_unique<Handler>(std::move(device))) {}

PostQueue::~PostQueue() = default;

void PostQueue::add(Post& post) {
  handler_->add(post);
}

void PostQueue::remove(Post& post) {
  handler_->remove(post);
}

}  // namespace scaletrain
