// A stranger on the host of a run who never stops: another user's process (where the test may make one) that connects
// to every port at which the run's processes listen, from the first to the last, again and again, faster than ranks do.
// It closes, says nothing, or sends garbage, and keeps hundreds of its connections open.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>

namespace scaletrain {

class HostileLoop {
 public:
  // Before the test has threads. Nobody is attacked yet.
  HostileLoop();
  ~HostileLoop();
  HostileLoop(const HostileLoop&) = delete;
  HostileLoop& operator=(const HostileLoop&) = delete;

  // From now on the ports of this process and of those that it has started.
  void attack(pid_t agent) { agent_ = agent; }
  // Connections that were made, and the ports that were found.
  long intrusions() const;
  std::set<std::uint16_t> ports() const;

 private:
  struct Shared;
  void look_for_ports();

  Shared* shared_;  // with the stranger's process
  int commands_ = -1;
  pid_t stranger_ = -1;
  std::atomic<pid_t> agent_{-1};
  std::atomic<bool> over_{false};
  mutable std::mutex mutex_;
  std::set<std::uint16_t> ports_;
  std::thread scout_;
};

}  // namespace scaletrain
