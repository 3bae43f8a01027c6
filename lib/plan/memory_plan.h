// Bytes of one rank at its peak, by purpose.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace scaletrain {

struct MemoryItem {
  std::string purpose;  // "master weights", "gradients", "optimizer state", "activations", ...
  std::size_t bytes = 0;
  bool is_of_host = false;  // lies in the host's memory, wherever the rank computes
};

// What the driver of a device takes of its memory for each process, before that asks for any.
inline constexpr const char* process_memory = "CUDA and its kernels";

struct MemoryPlan {
  std::vector<MemoryItem> items;
  std::size_t total() const;
  std::size_t total_of_host() const;  // of the items that are
  // A line per item that is not empty, and the sum: shown by check, and beside an out-of-memory error.
  std::string text() const;
};

}  // namespace scaletrain
