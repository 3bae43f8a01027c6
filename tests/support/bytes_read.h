// How much a thread has read by read(2) and the like; what it reads of mapped files does not count.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace scaletrain {

inline std::uint64_t bytes_read() {
  std::ifstream in("/proc/thread-self/io");
  std::string name;
  std::uint64_t value = 0;
  REQUIRE((in >> name >> value && name == "rchar:"));
  return value;
}

}  // namespace scaletrain
