// What the other threads of this process do: in the kernel, and by their stacks.
//
// To see another thread's stack a handler is run on it: the only place where a handler ever runs on a compute thread,
// whose generated code may keep data below the stack pointer. So it is done only in a process that is ended afterwards
// whatever is found; and the handler does not return, so that nothing is computed from what it may have overwritten.
//
// A thread that comes to its handler late (it was in the kernel) finds that the report has gone on, and writes nowhere.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// Before the first stack is asked for: what a handler may not do any more.
void prepare_thread_stacks();

// "  thread 123 (scaletrain, main): state S, in the kernel at futex_wait", a line for each thread but the caller's. It
// touches none of them.
std::string other_threads_text();

// The same, and each thread's stack below its line; takes about a second at the longest. The threads stand for good
// then, in the middle of anything and with any lock: what the caller does until the process ends may ask for none, nor
// for memory.
void write_last_stacks(int file);

// Without a lock of any library; what the file does not take is lost.
void write_unlocked(int file, std::string_view text);

}  // namespace scaletrain
