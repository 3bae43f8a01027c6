#include "host/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/process/guarded_thread.h"
#include "base/text.h"
#include "host/machine.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Every lock file has this size and the counter a fixed width, so that rewriting the counter changes nothing but its
// digits: whoever reads meanwhile sees a whole lock, a full disk cannot refuse it, and a crash cannot tear it.
constexpr std::size_t lock_file_bytes = 1024;
constexpr std::uint64_t largest_lock_file = 64 << 10;

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// open(2) that a signal does not end: on network file systems it waits long enough to be interrupted.
FileDescriptor open_retried(const fs::path& path, int flags, mode_t mode = 0) {
  for (;;) {
    const int file = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    if (file >= 0 || errno != EINTR) return FileDescriptor(file);
  }
}

// flock on the guard file: reading the lock and replacing it are one step for everybody who takes it.
class Guard {
 public:
  enum class State { taken, busy, unsupported };

  // Waits up to `patience` seconds. InputError if the guard file cannot be opened.
  Guard(const fs::path& lock_path, double patience) {
    const fs::path path = lock_path.parent_path() / fmt::format(".{}.guard", lock_path.filename().string());
    // Not for everybody, whatever the umask: whoever may open it can hold it, and keep a start waiting.
    file_ = open_retried(path, O_RDWR | O_CREAT, 0660);
    if (!file_) throw_file_error(path, "opening the lock's guard", errno);
    const MonotonicTime start = monotonic_now();
    while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) {
        state_ = State::unsupported;
        return;
      }
      if (seconds_since(start) >= patience) {
        state_ = State::busy;
        return;
      }
      sleep_seconds(0.005);
    }
  }

  State state() const { return state_; }

 private:
  State state_ = State::taken;
  FileDescriptor file_;  // closing it ends the flock
};

// The file's bytes; nothing if there is none.
std::optional<std::string> read_lock_text(const fs::path& path) {
  const FileDescriptor file = open_retried(path, O_RDONLY | O_NONBLOCK);
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    throw_file_error(path, "opening the lock", errno);
  }
  std::string text(largest_lock_file, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_file_error(path, "reading the lock", errno);
    if (n == 0) break;
    size += static_cast<std::size_t>(n);
  }
  text.resize(size);
  return text;
}

LockHolder parse_lock(const std::string& text, const std::string& where) {
  const nlohmann::json object = parse_json(text, where, {.depth = 4, .bytes = largest_lock_file});
  LockHolder holder;
  holder.lock_id = json_string(object, "lock_id", where);
  holder.host = json_string(object, "host", where);
  holder.boot_id = json_string(object, "boot_id", where);
  holder.pid_namespace = json_string(object, "pid_namespace", where);
  holder.pid = json_integer(object, "pid", where);
  holder.start_ticks = json_unsigned(object, "start_ticks", where);
  holder.job_id = json_string(object, "job_id", where);
  holder.restart_count = json_integer(object, "restart_count", where);
  holder.since = json_string(object, "since", where);
  if (!from_hex(json_string(object, "counter", where), holder.counter))
    throw InputError(fmt::format("{}: counter: expected 16 hexadecimal digits", where));
  return holder;
}

std::optional<LockHolder> parse_if_well_formed(const std::optional<std::string>& text, const fs::path& path) {
  if (!text) return std::nullopt;
  try {
    return parse_lock(*text, path.string());
  } catch (const InputError&) {
    return std::nullopt;
  }
}

bool write_counter(const FileDescriptor& file, const LockHolder& holder) {
  const std::string text = lock_text(holder);
  for (;;) {
    const ssize_t n = ::pwrite(file.get(), text.data(), text.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    return n == static_cast<ssize_t>(text.size());
  }
}

// Replaces the file by rename and keeps it open: a holder that is replaced in turn can then only ever write to its own
// old file, however late it wakes up. The folder is not synced: a lock needs to be seen by others, not to outlive a
// power cut.
//
// Where there seemed to be no lock the new one is linked instead: the directory of a network file system may be seen
// late, and a link is refused by the server itself if there is one after all. Nothing then.
FileDescriptor place_lock(const fs::path& path, const LockHolder& holder, bool is_missing) {
  const fs::path temporary = path.parent_path() / fmt::format(".{}.{}.tmp", path.filename().string(), holder.lock_id);
  FileDescriptor file = open_retried(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (file && write_counter(file, holder) && ::fsync(file.get()) == 0) {
    if (is_missing && ::link(temporary.c_str(), path.c_str()) == 0) {
      ::unlink(temporary.c_str());
      return file;
    }
    if (is_missing && errno == EEXIST) {
      ::unlink(temporary.c_str());
      // A server whose answer was lost is asked once more, and finds the link that it has made.
      return lock_is_held(path, holder.lock_id) ? std::move(file) : FileDescriptor();
    }
    // Or the file system has no links.
    if (::rename(temporary.c_str(), path.c_str()) == 0) return file;
  }
  const int error = errno;
  ::unlink(temporary.c_str());
  throw InputError(fmt::format("{}: writing the lock failed: {}", path.string(), std::strerror(error)));
}

// Whether the holder's process can be asked for: a pid means something only in this boot of this host and in this pid
// namespace.
bool is_on_this_machine(const LockHolder& holder) {
  return holder.host == host_name() && !holder.boot_id.empty() && holder.boot_id == boot_id() &&
         !holder.pid_namespace.empty() && holder.pid_namespace == pid_namespace();
}

bool is_alive(const LockHolder& holder) {
  return process_start_ticks(holder.pid) == holder.start_ticks;
}

LockHolder describe_this_process(const RunLockOptions& options) {
  LockHolder holder;
  holder.lock_id = random_id();
  holder.host = host_name();
  holder.boot_id = boot_id();
  holder.pid_namespace = pid_namespace();
  holder.pid = ::getpid();
  holder.start_ticks = process_start_ticks(holder.pid).value_or(0);
  holder.job_id = options.job_id;
  holder.restart_count = options.restart_count;
  holder.since = wall_clock_text();
  return holder;
}

[[noreturn]] void refuse(const fs::path& path, const std::optional<LockHolder>& holder) {
  const std::string folder = path.parent_path().string();
  if (!holder) {
    throw UserError(
        fmt::format("{}: the run folder is being used by another process, which {} does not name yet; wait for it "
                    "to end or choose another run.directory",
                    folder, path.filename().string()));
  }
  const std::string job = holder->job_id.empty() ? "" : fmt::format(", job {}", holder->job_id);
  throw UserError(
      fmt::format("{}: the run folder is in use by process {} on host {}{} since {}; wait for it to end, stop it, or "
                  "choose another run.directory",
                  folder, holder->pid, holder->host, job, holder->since));
}

enum class Verdict { free, held, wait };

// Judges the lock from what the file says now and what this watcher has seen so far.
class LockWatch {
 public:
  LockWatch(const RunLockOptions& options, fs::path path) : options_(options), path_(std::move(path)) {}

  Verdict judge(const std::optional<std::string>& text) {
    holder_ = parse_if_well_formed(text, path_);
    if (!text) return Verdict::free;
    if (holder_) {
      const bool is_same_job = !options_.job_id.empty() && holder_->job_id == options_.job_id;
      if (is_same_job && options_.restart_count > holder_->restart_count) return Verdict::free;
      if (is_on_this_machine(*holder_)) return is_alive(*holder_) ? Verdict::held : Verdict::free;
    }
    if (!seen_) {
      seen_ = text;
      since_ = monotonic_now();
      return Verdict::wait;
    }
    // Somebody wrote the file meanwhile: somebody lives.
    if (*seen_ != *text) return Verdict::held;
    return seconds_since(since_) >= options_.silent_periods * options_.period ? Verdict::free : Verdict::wait;
  }

  const std::optional<LockHolder>& holder() const { return holder_; }

 private:
  RunLockOptions options_;
  fs::path path_;
  std::optional<LockHolder> holder_;
  std::optional<std::string> seen_;
  MonotonicTime since_{};
};

// Writes the lock; nothing if somebody else has it afterwards.
std::optional<FileDescriptor> take(const fs::path& path, const LockHolder& mine, bool is_missing, Guard::State guard,
                                   double period) {
  FileDescriptor file = place_lock(path, mine, is_missing);
  if (!file) return std::nullopt;
  if (guard != Guard::State::taken) {
    // Without flock two may get here at once: the last rename wins, and everybody looks after all have written.
    sleep_seconds(period / 2);
    if (!lock_is_held(path, mine.lock_id)) return std::nullopt;
  }
  return file;
}

}  // namespace

struct RunLock::State {
  State(fs::path lock_path, LockHolder holder, FileDescriptor lock_file, double period_seconds)
      : path(std::move(lock_path)), mine(std::move(holder)), period(period_seconds), file(std::move(lock_file)) {
    thread = GuardedThread([this] { run(); });
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    thread.join();
    try {
      const Guard guard(path, period);
      if (guard.state() != Guard::State::busy && lock_is_held(path, mine.lock_id)) ::unlink(path.c_str());
    } catch (const std::exception&) {
      return;  // The folder is gone or unreadable, or memory is; the file, if it is there, falls silent.
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void run() {
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, std::chrono::duration<double>(period), [this] { return stopping; })) {
      lock.unlock();
      renew();
      lock.lock();
    }
  }

  // A file system that fails for a while costs a period, not the run: whether the lock is still held is asked before
  // every commit.
  void renew() {
    try {
      const auto text = read_lock_text(path);
      const auto holder = parse_if_well_formed(text, path);
      // One look may miss a file that is there, on a network file system.
      missed = text ? 0 : missed + 1;
      if (missed >= 2 || (holder && holder->lock_id != mine.lock_id)) {
        is_lost.store(true, std::memory_order_release);
        return;
      }
      if (missed > 0) return;
      ++mine.counter;
      // The sync is for network file systems, where other hosts see only what was sent.
      if (write_counter(file, mine)) ::fdatasync(file.get());
    } catch (const InputError&) {
      return;
    } catch (const std::bad_alloc&) {
      return;  // as if the file system had failed
    }
  }

  const fs::path path;
  LockHolder mine;  // the counter belongs to the thread
  const double period;
  int missed = 0;  // looks in a row that found no file; the thread's
  std::atomic<bool> is_lost{false};
  FileDescriptor file;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  GuardedThread thread;
};

RunLock::RunLock(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunLock::~RunLock() = default;
RunLock::RunLock(RunLock&&) noexcept = default;
RunLock& RunLock::operator=(RunLock&&) noexcept = default;

RunLock RunLock::acquire(const fs::path& path, const RunLockOptions& options) {
  SCALETRAIN_CHECK(options.period > 0 && options.silent_periods > 0);
  const LockHolder mine = describe_this_process(options);
  LockWatch watch(options, path);
  const MonotonicTime start = monotonic_now();
  // With the guard and with others that want the lock; a silent holder is watched for as long as it takes, however
  // slowly the storage answers meanwhile.
  const double patience = (options.silent_periods + 0.5) * options.period;
  for (;;) {
    bool is_watching = false;
    {
      const Guard guard(path, options.period / 10);
      if (guard.state() != Guard::State::busy) {
        const std::optional<std::string> text = read_lock_text(path);
        const Verdict verdict = watch.judge(text);
        is_watching = verdict == Verdict::wait;
        if (verdict == Verdict::held) refuse(path, watch.holder());
        if (verdict == Verdict::free) {
          auto file = take(path, mine, !text, guard.state(), options.period);
          if (file) return RunLock(std::make_unique<State>(path, mine, std::move(*file), options.period));
        }
      }
    }
    if (!is_watching && seconds_since(start) >= patience) refuse(path, watch.holder());
    sleep_seconds(options.period / 20);
  }
}

const std::string& RunLock::lock_id() const {
  return state_->mine.lock_id;
}

bool RunLock::still_held() const {
  return lock_is_held(state_->path, state_->mine.lock_id);
}

bool RunLock::lost() const {
  return state_->is_lost.load(std::memory_order_acquire);
}

bool lock_is_held(const fs::path& path, const std::string& lock_id) {
  try {
    const auto holder = read_lock(path);
    return holder && holder->lock_id == lock_id;
  } catch (const FileAccessError& error) {
    throw FileAccessError(fmt::format(
        "whether this process still holds the lock cannot be told, so nothing is committed: {}", error.what()));
  } catch (const InputError&) {
    return false;
  }
}

std::optional<LockHolder> read_lock(const fs::path& path) {
  const auto text = read_lock_text(path);
  if (!text) return std::nullopt;
  return parse_lock(*text, path.string());
}

std::string lock_text(const LockHolder& holder) {
  const nlohmann::json object = {{"lock_id", holder.lock_id}, {"host", holder.host},
                                 {"boot_id", holder.boot_id}, {"pid_namespace", holder.pid_namespace},
                                 {"pid", holder.pid},         {"start_ticks", holder.start_ticks},
                                 {"job_id", holder.job_id},   {"restart_count", holder.restart_count},
                                 {"since", holder.since},     {"counter", to_hex(holder.counter)}};
  std::string text = object.dump();
  text.resize(std::max(text.size() + 1, lock_file_bytes), ' ');
  text.back() = '\n';
  return text;
}

RunLockOptions run_lock_options_from_environment() {
  RunLockOptions options;
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job != nullptr) options.job_id = job;
  const char* restarts = std::getenv("SLURM_RESTART_COUNT");
  if (restarts == nullptr) return options;
  const std::string_view text(restarts);
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 0)
    throw UserError(fmt::format("SLURM_RESTART_COUNT is {}; expected a number of restarts", quoted(text)));
  options.restart_count = count;
  return options;
}

}  // namespace scaletrain
