// How much a thread has read by read(2) and the like; what it reads of mapped files does not count.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace scaletrain {

inline std::uint64_t thread_io(const std::string& wanted) {
  std::ifstream in("/proc/thread-self/io");
  std::string name;
  std::uint64_t value = 0;
  while (in >> name >> value && name != wanted) {
  }
  REQUIRE(name == wanted);
  return value;
}

inline std::uint64_t bytes_read() {
  return thread_io("rchar:");
}

// How often.
inline std::uint64_t reads_made() {
  return thread_io("syscr:");
}

}  // namespace scaletrain
