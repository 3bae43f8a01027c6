#include "base/process/last_words.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/process/exit_code.h"
#include "base/process/memory_limit.h"

namespace scaletrain {
namespace {

// In static memory: there may be no other.
std::array<char, 8192> memory_words_room{};
std::atomic<std::size_t> num_memory_words{0};
std::atomic<bool> is_ending{false};
// A request for memory was refused, and has been thrown. An exception that leaves a destructor while another is on its
// way is in nobody's hands any more: this is all that tells what it was.
std::atomic<bool> is_memory_refused{false};

void note_refusal() {
  is_memory_refused.store(true, std::memory_order_relaxed);
  throw std::bad_alloc();
}

void say(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

[[noreturn]] void end_with(ExitCode code, std::string_view what, std::string_view more) {
  say("scaletrain: ");
  say(what);
  say(more);
  say("\n");
  ::_exit(static_cast<int>(code));
}

[[noreturn]] void end_without_memory() {
  const std::size_t count = num_memory_words.load(std::memory_order_acquire);
  if (count == 0)
    end_with(ExitCode::input, "out of memory; `scaletrain check` prints what a run needs", MemoryLimitText().view());
  end_with(ExitCode::input, {memory_words_room.data(), count}, "");
}

[[noreturn]] void last_words() {
  // Of several threads the first one speaks; it ends the others.
  if (is_ending.exchange(true))
    for (;;) ::pause();
  if (!std::current_exception()) {
    if (is_memory_refused.load(std::memory_order_relaxed)) end_without_memory();
    end_with(ExitCode::bug, "a bug: terminated without an exception", "");
  }
  try {
    throw;
  } catch (const std::bad_alloc&) {
    end_without_memory();
  } catch (const UserError& error) {
    end_with(ExitCode::usage, error.what(), "");
  } catch (const InputError& error) {
    end_with(ExitCode::input, error.what(), "");
  } catch (const PeerError& error) {
    end_with(ExitCode::peer, error.what(), "");
  } catch (const DivergedError& error) {
    end_with(ExitCode::diverged, error.what(), "");
  } catch (const std::system_error& error) {
    if (is_out_of_memory(error)) end_without_memory();
    end_with(ExitCode::peer, "the system refused what the program asked for: ", error.what());
  } catch (const std::exception& error) {
    end_with(ExitCode::bug, "a bug: an exception that nobody caught: ", error.what());
  } catch (...) {
    end_with(ExitCode::bug, "a bug: an exception of no known kind that nobody caught", "");
  }
}

}  // namespace

void end_uncaught_with_last_words() {
  std::set_terminate(last_words);
  std::set_new_handler(note_refusal);
}

void set_memory_words(std::string_view text) noexcept {
  num_memory_words.store(0, std::memory_order_release);
  const std::size_t count = std::min(text.size(), memory_words_room.size());
  std::memcpy(memory_words_room.data(), text.data(), count);
  num_memory_words.store(count, std::memory_order_release);
}

std::string memory_words() {
  return {memory_words_room.data(), num_memory_words.load(std::memory_order_acquire)};
}

}  // namespace scaletrain
