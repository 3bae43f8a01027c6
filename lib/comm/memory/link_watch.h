// The thread of a process that looks after its memory links while no wait does: it reads what has come for a receive
// that nobody waits for, and learns first when a peer's end of a connection is closed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/file.h"
#include "base/process/guarded_thread.h"

namespace scaletrain {

class MemoryLink;

// Thread-safe. Outlives the transports whose links it watches.
class LinkWatch {
 public:
  // PeerError, or UserError where there are no descriptors left (throw_refused); std::system_error without a thread.
  LinkWatch();
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  void add(const std::shared_ptr<MemoryLink>& link);
  // After this it is not attended to any more, but for a turn that is under way.
  void remove(const MemoryLink& link) noexcept;
  // Has the thread attend to the link soon.
  void nudge(const MemoryLink& link);

 private:
  void run();
  bool turn();
  void ring() noexcept;

  FileDescriptor epoll_;
  FileDescriptor bell_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<MemoryLink>> links_;
  std::map<const MemoryLink*, std::uint64_t> ids_;
  std::vector<std::uint64_t> nudged_;
  std::uint64_t next_ = 1;  // 0 is the bell
  bool stopping_ = false;
  bool attends_to_all_ = false;  // of the thread alone
  GuardedThread thread_;
};

}  // namespace scaletrain
