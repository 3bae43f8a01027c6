// How bad input may end: with the right code and words, soon and small.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/program.h"

namespace scaletrain {

// The second is one of computing: how long a loaded machine lets a process wait says nothing about the program.
inline constexpr double refusal_cpu_seconds = 1.0;
inline constexpr double refusal_wall_seconds = 10.0;
inline constexpr long refusal_bytes = 64l << 20;

inline void check_refused(const Ended& end, int exit_code, const std::vector<std::string>& words) {
  INFO(end.errors.substr(0, 2000));
  CHECK(end.signal == 0);
  CHECK_FALSE(end.timed_out);
  CHECK(end.exit_code == exit_code);
  for (const std::string& word : words) CHECK_MESSAGE(end.says(word), "the message lacks: ", word);
  CHECK(end.cpu_seconds <= refusal_cpu_seconds);
  CHECK(end.seconds <= refusal_wall_seconds);
  CHECK(end.peak_bytes <= refusal_bytes);
}

}  // namespace scaletrain
