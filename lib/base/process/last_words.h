// The end of a process through an exception that nobody can catch: out of a destructor, out of a thread of a library,
// or out of the handling of another one, for want of memory above all. It ends with the exit code that its kind has
// (exit_code.h), and says why, without asking for memory; not by SIGABRT, which tells a user nothing.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// Once, at the start of a program that is to end so; replaces the handlers of std::terminate and of operator new, which
// throws std::bad_alloc as before.
void end_uncaught_with_last_words();

// What is said when memory runs out, of which some KiB are kept: that it did, and what this process needs, as soon as
// that is known. Replaces what was given before. By one thread.
void set_memory_words(std::string_view text) noexcept;
// Empty: none were given.
std::string memory_words();

}  // namespace scaletrain
