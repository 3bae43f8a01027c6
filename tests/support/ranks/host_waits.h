// How often a host thread has blocked for a device or for other ranks. Late streams and fenced communicators count here
// what blocks the thread that calls them: a rank of run_ranks has a thread of its own, so that its count is its host's.
#pragma once

#include <cstdint>

namespace scaletrain {

// Of the calling thread, since it began.
inline std::uint64_t& host_waits() {
  thread_local std::uint64_t count = 0;
  return count;
}

}  // namespace scaletrain
