#include "comm/memory/link_watch.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/memory/memory_link.h"
#include "comm/rendezvous/rendezvous_socket.h"

namespace scaletrain {

LinkWatch::LinkWatch() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!epoll_ || !bell_) throw_refused("no epoll or eventfd is to be had", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, bell_.get(), &event) != 0) throw_refused("epoll watches nothing", errno);
  thread_ = GuardedThread([this] { run(); });
}

LinkWatch::~LinkWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ring();
}

void LinkWatch::add(const std::shared_ptr<MemoryLink>& link) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_++;
  links_.emplace(id, link);
  ids_.emplace(link.get(), id);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link->connection(), &event) == 0) return;
  const int error = errno;
  links_.erase(id);
  ids_.erase(link.get());
  throw_refused(error == ENOSPC ? "epoll watches no more (raise fs.epoll.max_user_watches)" : "epoll watches no more",
                error);
}

void LinkWatch::remove(const MemoryLink& link) noexcept {
  const std::lock_guard lock(mutex_);
  const auto id = ids_.find(&link);
  if (id == ids_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.connection(), nullptr);
  links_.erase(id->second);
  ids_.erase(id);
}

void LinkWatch::nudge(const MemoryLink& link) {
  {
    const std::lock_guard lock(mutex_);
    const auto id = ids_.find(&link);
    if (id == ids_.end()) return;
    nudged_.push_back(id->second);
  }
  ring();
}

void LinkWatch::ring() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);
}

void LinkWatch::run() {
  constexpr auto rest_after_shortage = std::chrono::milliseconds(20);
  for (;;) {
    try {
      if (!turn()) return;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(rest_after_shortage);
      attends_to_all_ = true;  // the word of some may have been taken and not been looked after
      ring();
    }
  }
}

// False at the end.
bool LinkWatch::turn() {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
  SCALETRAIN_CHECK(count >= 0 || errno == EINTR);
  std::vector<std::shared_ptr<MemoryLink>> links;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    const auto add_link = [&](std::uint64_t id) {
      const auto entry = links_.find(id);
      if (entry == links_.end()) return;
      if (auto link = entry->second.lock()) links.push_back(std::move(link));
    };
    for (int i = 0; i < count; ++i) add_link(events[static_cast<std::size_t>(i)].data.u64);
    for (const std::uint64_t id : nudged_) add_link(id);
    if (attends_to_all_) {
      for (const auto& [id, link] : links_) add_link(id);
    }
    attends_to_all_ = false;
    nudged_.clear();
    std::uint64_t rung = 0;
    [[maybe_unused]] const auto got = ::read(bell_.get(), &rung, sizeof rung);
  }
  for (const auto& link : links) link->attend();
  return true;
}

}  // namespace scaletrain
