// How a process shows that it gets further.
#pragma once

#include <atomic>
#include <cstdint>

namespace scaletrain {

// Pieces of work that a process has finished: instructions of a schedule, parts of kernels, messages that have come.
// Whoever watches the process takes it for hung if it works and the count stands still for a heartbeat; so everything
// that may take long counts its parts. Any thread.
using WorkCount = std::atomic<std::uint64_t>;

// Null: nobody watches.
inline void count_work(WorkCount* count) noexcept {
  if (count != nullptr) count->fetch_add(1, std::memory_order_relaxed);
}

}  // namespace scaletrain
