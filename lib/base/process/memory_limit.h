// The limit on the memory that this process may map: RLIMIT_AS (ulimit -v) or RLIMIT_DATA (ulimit -d). Stacks of
// threads count as much as the heap does, and of a stack that finds no room the system says EAGAIN, as it does of too
// many processes. Nothing here asks for memory or throws.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <system_error>

namespace scaletrain {

// A thread was refused since there is no room for its stack: memory has run out. False: anything else, above all a
// limit on processes. To be asked before much is freed.
bool is_out_of_memory(const std::system_error& error) noexcept;

// "; ulimit -v gives each process 236000 KiB of address space, ...": what to add to the words of a process that ran out
// of memory; empty where nothing limits it.
class MemoryLimitText {
 public:
  MemoryLimitText() noexcept;
  std::string_view view() const noexcept { return {text_.data(), count_}; }

 private:
  std::array<char, 160> text_{};
  std::size_t count_ = 0;
};

}  // namespace scaletrain
