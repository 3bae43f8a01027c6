// How much memory of this process is resident, in bytes.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace scaletrain {

// A line of /proc/self/status.
inline std::uint64_t memory_status(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::uint64_t kibibytes = 0;
  while (status >> word)
    if (word == name + ":") status >> kibibytes;
  return kibibytes << 10;
}

inline std::uint64_t resident_memory() {
  return memory_status("VmRSS");
}
// At most, so far.
inline std::uint64_t peak_memory() {
  return memory_status("VmHWM");
}

}  // namespace scaletrain
