// What every fuzz target implements. Linked with libFuzzer, or with replay_main.cpp, which runs it on given files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// libFuzzer's entry. Returns 0; an exception that leaves it is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace scaletrain::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace scaletrain::fuzz
