#include "host/process/storage_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <climits>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "host/proc_text.h"

namespace scaletrain {
namespace {

// What moves the counter within a window: less is what a process does that only waits. In ten seconds a lock that is
// renewed moves 4 KiB, the threads that wait for messages of peers take 20 ms.
constexpr std::uint64_t activity_bytes = 16 << 10;
constexpr std::uint64_t activity_nanoseconds = 250'000'000;

enum class Argument { file, none };

struct StorageCall {
  long number;
  const char* name;
  Argument first;
};

// Those that exist on every processor, and the old ones where they do.
constexpr StorageCall storage_calls[] = {{SYS_read, "read", Argument::file},
                                         {SYS_pread64, "read", Argument::file},
                                         {SYS_readv, "read", Argument::file},
                                         {SYS_preadv, "read", Argument::file},
                                         {SYS_write, "write", Argument::file},
                                         {SYS_pwrite64, "write", Argument::file},
                                         {SYS_writev, "write", Argument::file},
                                         {SYS_pwritev, "write", Argument::file},
                                         {SYS_fsync, "fsync", Argument::file},
                                         {SYS_fdatasync, "fdatasync", Argument::file},
                                         {SYS_sync_file_range, "sync_file_range", Argument::file},
                                         {SYS_ftruncate, "ftruncate", Argument::file},
                                         {SYS_fallocate, "fallocate", Argument::file},
                                         {SYS_copy_file_range, "copy_file_range", Argument::file},
                                         {SYS_getdents64, "the reading of the folder", Argument::file},
                                         {SYS_fstat, "fstat", Argument::file},
                                         {SYS_close, "close", Argument::file},
                                         {SYS_flock, "flock", Argument::file},
                                         {SYS_openat, "the opening of a file", Argument::none},
                                         {SYS_renameat2, "a rename", Argument::none},
                                         {SYS_unlinkat, "the removal of a file", Argument::none},
                                         {SYS_mkdirat, "the making of a folder", Argument::none},
                                         {SYS_newfstatat, "a look at a file", Argument::none},
                                         {SYS_statx, "a look at a file", Argument::none},
                                         {SYS_faccessat, "a look at a file", Argument::none},
                                         {SYS_readlinkat, "a look at a file", Argument::none},
#ifdef SYS_open
                                         {SYS_open, "the opening of a file", Argument::none},
                                         {SYS_rename, "a rename", Argument::none},
                                         {SYS_renameat, "a rename", Argument::none},
                                         {SYS_unlink, "the removal of a file", Argument::none},
                                         {SYS_rmdir, "the removal of a folder", Argument::none},
                                         {SYS_mkdir, "the making of a folder", Argument::none},
                                         {SYS_stat, "a look at a file", Argument::none},
                                         {SYS_lstat, "a look at a file", Argument::none},
                                         {SYS_access, "a look at a file", Argument::none},
#endif
                                         {SYS_statfs, "a look at the file system", Argument::none}};

std::optional<std::uint64_t> parse_unsigned(std::string_view text, int base) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

// Bytes that went through calls to read and to write, and those that were fetched from a disk, which mapped files are
// read by; what was read in a call and fetched for it counts twice. By this or that file of /proc.
std::optional<std::uint64_t> moved_bytes(const std::string& path) {
  const std::string text = proc_text(path);
  std::uint64_t sum = 0;
  for (const std::string_view name : {"rchar: ", "wchar: ", "read_bytes: "}) {
    const std::size_t at = text.find(name);
    if (at == std::string::npos) return std::nullopt;
    const auto value = parse_unsigned(std::string_view(text).substr(at + name.size()), 10);
    if (!value) return std::nullopt;
    sum += *value;
  }
  return sum;
}

// By pages that were fetched for mapped files, which some file systems do not count as read, or from where memory was
// swapped to.
std::uint64_t faulted_bytes() {
  rusage process{};
  rusage thread{};
  if (::getrusage(RUSAGE_SELF, &process) != 0 || ::getrusage(RUSAGE_THREAD, &thread) != 0) return 0;
  const long faults = std::max(0L, process.ru_majflt - thread.ru_majflt);
  return static_cast<std::uint64_t>(faults) * 4096u;
}

std::uint64_t nanoseconds_of(clockid_t clock) {
  timespec time{};
  if (::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

// The file behind a descriptor; nothing for what is no file of a storage.
std::optional<std::string> file_behind(std::uint64_t descriptor) {
  std::array<char, PATH_MAX> buffer{};
  const std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t n = ::readlink(link.c_str(), buffer.data(), buffer.size());
  const std::string path(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  const auto is_below = [&path](std::string_view folder) { return path.starts_with(folder); };
  if (!is_below("/") || is_below("/dev/") || is_below("/proc/") || is_below("/sys/")) return std::nullopt;
  return path;
}

}  // namespace

bool ActivityMeter::has_moved(std::uint64_t bytes, std::uint64_t nanoseconds, MonotonicTime now) {
  const double windows = std::chrono::duration<double>(now - window_.begin).count() / window_seconds_;
  bytes = std::max(bytes, window_.bytes);
  nanoseconds = std::max(nanoseconds, window_.nanoseconds);
  const auto comes_to = [&](std::uint64_t moved, std::uint64_t enough) {
    return static_cast<double>(moved) >= static_cast<double>(enough) * std::max(1.0, windows);
  };
  const bool has_moved = comes_to(bytes - window_.bytes, activity_bytes) ||
                         comes_to(nanoseconds - window_.nanoseconds, activity_nanoseconds);
  if (has_moved || windows >= 1.0) window_ = {.bytes = bytes, .nanoseconds = nanoseconds, .begin = now};
  return has_moved;
}

std::optional<InStorage> StorageProbe::look() {
  const auto all = moved_bytes("/proc/self/io");
  const auto own = moved_bytes("/proc/thread-self/io");
  if (!all || !own) return std::nullopt;
  // Between the two this thread has read a little.
  bytes_ = std::max(bytes_, *all - std::min(*all, *own) + faulted_bytes());
  // And has gone on between these two: less than before may be left.
  const std::uint64_t process = nanoseconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const std::uint64_t computed = process - std::min(process, nanoseconds_of(CLOCK_THREAD_CPUTIME_ID));
  const MonotonicTime now = monotonic_now();
  if (meter_.has_moved(bytes_, computed, now)) {
    ++activity_;
    moved_ = now;
    last_.clear();
  }
  InStorage result{.activity = activity_, .bytes = bytes_};
  if (seconds_since(moved_) < still_seconds) return result;
  // Other threads may be seen in calls that only pass, as the one that renews a lock.
  std::vector<Found> found = find_calls();
  const Found* longest = nullptr;
  for (Found& one : found) {
    for (const Found& before : last_)
      if (before.call == one.call) one.looks += before.looks;
    if (longest == nullptr || one.looks > longest->looks) longest = &one;
  }
  if (longest != nullptr && longest->looks > 1) {
    result.text = longest->text;
    result.seconds = seconds_since(moved_);
  }
  last_ = std::move(found);
  return result;
}

std::vector<StorageProbe::Found> StorageProbe::find_calls() {
  std::vector<Found> all;
  for (const std::string& thread : names_in("/proc/self/task")) {
    // "NUMBER 0xARGUMENT ...", "running", or "-1 ..." for a thread that is in the kernel for another reason.
    const std::string text = proc_text("/proc/self/task/" + thread + "/syscall");
    const std::vector<std::string> words = split_text(text, ' ');
    const auto number = parse_unsigned(text, 10);
    if (!number || words.size() < 2 || !words[1].starts_with("0x")) continue;
    const auto is_it = [&number](const StorageCall& call) { return call.number == static_cast<long>(*number); };
    const auto* const call = std::find_if(std::begin(storage_calls), std::end(storage_calls), is_it);
    if (call == std::end(storage_calls)) continue;
    Found found{.call = {.thread = static_cast<pid_t>(parse_unsigned(thread, 10).value_or(0)),
                         .number = static_cast<std::int64_t>(*number)},
                .text = call->name};
    if (call->first == Argument::file) {
      found.call.file = parse_unsigned(std::string_view(words[1]).substr(2), 16).value_or(0);
      const auto file = file_behind(found.call.file);
      if (!file) continue;
      found.text = fmt::format("{} of {}", call->name, *file);
    }
    all.push_back(std::move(found));
  }
  return all;
}

}  // namespace scaletrain
