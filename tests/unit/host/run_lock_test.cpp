#include "host/run_lock.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "host/machine.h"
#include "support/eventually.h"
#include "support/refused_files.h"
#include "support/temp_folder.h"
#include "support/text.h"

namespace scaletrain {
namespace {

constexpr double fast_period = 0.1;
// Three of them are far more than what is not to be waited for takes, on any machine.
constexpr double long_period = 60.0;

RunLockOptions fast() {
  return {.period = fast_period};
}

RunLockOptions slow() {
  return {.period = long_period};
}

RunLockOptions job(const std::string& id, std::int64_t restarts) {
  return {.period = fast_period, .job_id = id, .restart_count = restarts};
}

// A holder that nobody can ask about: another host.
LockHolder elsewhere() {
  LockHolder holder;
  holder.lock_id = "feedfacefeedfacefeedfacefeedface";
  holder.host = "node-17";
  holder.boot_id = "another-boot";
  holder.pid_namespace = "pid:[1]";
  holder.pid = 4711;
  holder.start_ticks = 1;
  holder.since = "2025-01-31T12:00:00Z";
  return holder;
}

// A holder on this machine.
LockHolder here(std::int64_t pid, std::uint64_t start_ticks) {
  LockHolder holder = elsewhere();
  holder.host = host_name();
  holder.boot_id = boot_id();
  holder.pid_namespace = pid_namespace();
  holder.pid = pid;
  holder.start_ticks = start_ticks;
  return holder;
}

pid_t ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

std::string refusal(const std::filesystem::path& path, const RunLockOptions& options) {
  return message_of<UserError>([&] { RunLock::acquire(path, options); });
}

std::size_t count_files(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

TEST_CASE("what is written is read back, in a file of one size") {
  const TempFolder folder;
  LockHolder holder = elsewhere();
  holder.job_id = "88";
  holder.restart_count = 3;
  holder.counter = 12345678901;
  const auto path = folder.write("lock.json", lock_text(holder));
  const auto read = read_lock(path);
  REQUIRE(read);
  CHECK(lock_text(*read) == lock_text(holder));
  CHECK(read->job_id == "88");
  CHECK(read->restart_count == 3);
  CHECK(read->counter == 12345678901);
  CHECK(lock_text(holder).size() == lock_text(elsewhere()).size());
  CHECK(lock_text(holder).back() == '\n');
}

TEST_CASE("the second of two holders leaves at once, naming the first, and changes nothing") {
  const TempFolder folder;
  const auto path = folder / "lock.json";
  const RunLock first = RunLock::acquire(path, slow());
  const std::string before = TempFolder::read(path);
  const std::size_t files = count_files(folder.path());
  const MonotonicTime start = monotonic_now();
  const std::string text = refusal(path, slow());
  CHECK(seconds_since(start) < long_period);  // a silent holder is given three
  CHECK(text.find(fmt::format("process {}", ::getpid())) != std::string::npos);
  CHECK(text.find(host_name()) != std::string::npos);
  CHECK(TempFolder::read(path) == before);
  CHECK(count_files(folder.path()) == files);
  CHECK(first.still_held());
}

TEST_CASE("release removes the lock, and another takes it") {
  const TempFolder folder;
  const auto path = folder / "lock.json";
  {
    const RunLock lock = RunLock::acquire(path, fast());
    CHECK(lock_is_held(path, lock.lock_id()));
    CHECK_FALSE(lock_is_held(path, "other"));
  }
  CHECK_FALSE(std::filesystem::exists(path));
  const RunLock again = RunLock::acquire(path, fast());
  CHECK(again.still_held());
}

TEST_CASE("the holder's counter moves") {
  const TempFolder folder;
  const auto path = folder / "lock.json";
  const RunLock lock = RunLock::acquire(path, {.period = 0.02});
  CHECK(eventually([&] { return read_lock(path)->counter >= 3; }));
  CHECK(lock.still_held());
}

TEST_CASE("rewriting the counter changes nothing but its digits") {
  LockHolder holder = elsewhere();
  const std::string before = lock_text(holder);
  holder.counter = 0x123456789abcdef0;
  const std::string after = lock_text(holder);
  REQUIRE(before.size() == after.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < before.size(); ++i) different += before[i] != after[i] ? 1 : 0;
  CHECK(different == 15);  // the sixteenth digit is 0 in both
}

TEST_CASE("a process of this machine that has ended holds nothing") {
  const TempFolder folder;
  const auto path = folder.write("lock.json", lock_text(here(ended_process(), 5)));
  const MonotonicTime start = monotonic_now();
  const RunLock lock = RunLock::acquire(path, slow());
  CHECK(seconds_since(start) < long_period);  // a silent holder is given three
  CHECK(lock.still_held());
}

TEST_CASE("a reused process id is not mistaken for the holder") {
  const TempFolder folder;
  const auto path = folder.write("lock.json", lock_text(here(::getpid(), *process_start_ticks(::getpid()) + 1)));
  const MonotonicTime start = monotonic_now();
  const RunLock lock = RunLock::acquire(path, slow());
  CHECK(seconds_since(start) < long_period);  // a silent holder is given three
  CHECK(lock.still_held());
}

TEST_CASE("a missing process of another pid namespace proves nothing: only silence does") {
  const TempFolder folder;
  LockHolder holder = here(ended_process(), 5);
  holder.pid_namespace = "pid:[1]";
  const auto path = folder.write("lock.json", lock_text(holder));
  const MonotonicTime start = monotonic_now();
  const RunLock lock = RunLock::acquire(path, fast());
  CHECK(seconds_since(start) >= 3 * fast_period);
}

TEST_CASE("a silent holder of another host is replaced after three periods, not before") {
  const TempFolder folder;
  const auto path = folder.write("lock.json", lock_text(elsewhere()));
  const MonotonicTime start = monotonic_now();
  const RunLock lock = RunLock::acquire(path, fast());
  CHECK(seconds_since(start) >= 3 * fast_period);
  CHECK(lock.still_held());
  CHECK_FALSE(lock_is_held(path, elsewhere().lock_id));
}

TEST_CASE(
    "a holder of this host before its reboot is replaced after three silent periods, whatever process has its pid") {
  const TempFolder folder;
  LockHolder holder = here(::getpid(), process_start_ticks(::getpid()).value_or(0));
  holder.boot_id = "the boot before";
  const auto path = folder.write("lock.json", lock_text(holder));
  const MonotonicTime start = monotonic_now();
  const RunLock lock = RunLock::acquire(path, fast());
  CHECK(seconds_since(start) >= 3 * fast_period);
  CHECK(lock.still_held());
}

TEST_CASE("only SLURM's job and restart count make a job the same") {
  const auto with = [](const char* name, const char* value) {
    if (value == nullptr) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value, 1);
    }
  };
  std::vector<std::pair<std::string, std::optional<std::string>>> before;
  for (const char* const name : {"SLURM_JOB_ID", "SLURM_RESTART_COUNT"}) {
    const char* const value = std::getenv(name);
    before.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
  }
  with("SLURM_JOB_ID", "17");
  with("SLURM_RESTART_COUNT", nullptr);
  CHECK(run_lock_options_from_environment().job_id == "17");
  CHECK(run_lock_options_from_environment().restart_count == 0);
  with("SLURM_RESTART_COUNT", "3");
  CHECK(run_lock_options_from_environment().restart_count == 3);
  with("SLURM_RESTART_COUNT", "three");
  CHECK_THROWS_AS(run_lock_options_from_environment(), UserError);
  with("SLURM_JOB_ID", nullptr);
  with("SLURM_RESTART_COUNT", nullptr);
  with("TORCHELASTIC_RUN_ID", "mine");
  with("TORCHELASTIC_RESTART_COUNT", "2");
  CHECK(run_lock_options_from_environment().job_id.empty());
  CHECK(run_lock_options_from_environment().restart_count == 0);
  with("TORCHELASTIC_RUN_ID", nullptr);
  with("TORCHELASTIC_RESTART_COUNT", nullptr);
  for (const auto& entry : before) with(entry.first.c_str(), entry.second ? entry.second->c_str() : nullptr);
}

TEST_CASE("whoever was kept from looking for long still watches a silent holder for three periods, and replaces it") {
  constexpr double period = 0.6;
  const TempFolder folder;
  const auto path = folder.write("lock.json", lock_text(elsewhere()));
  // As of one who is replacing the lock on slow storage.
  std::optional<FileDescriptor> guard(
      ::open((folder / ".lock.json.guard").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
  REQUIRE(::flock(guard->get(), LOCK_EX) == 0);
  std::thread other([&guard] {
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * period));
    guard.reset();
  });
  const MonotonicTime start = monotonic_now();
  const RunLock lock = RunLock::acquire(path, {.period = period});
  CHECK(seconds_since(start) >= 5 * period);
  CHECK(lock.still_held());
  other.join();
}

TEST_CASE("a damaged lock is replaced after three silent periods") {
  const TempFolder folder;
  const auto path = folder.write("lock.json", "{\"lock_id\": \"torn");
  const MonotonicTime start = monotonic_now();
  const RunLock lock = RunLock::acquire(path, fast());
  CHECK(seconds_since(start) >= 3 * fast_period);
  CHECK(lock.still_held());
}

TEST_CASE("a living holder of another host is left alone, and named within four periods") {
  const TempFolder folder;
  LockHolder holder = elsewhere();
  const auto path = folder.write("lock.json", lock_text(holder));
  std::atomic<bool> stop{false};
  std::thread living([&] {
    while (!stop) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ++holder.counter;
      // Not synced: the storage may be busy for longer than a period.
      std::filesystem::rename(folder.write("next", lock_text(holder)), path);
    }
  });
  const MonotonicTime start = monotonic_now();
  const std::string text = refusal(path, {.period = 5.0});
  CHECK(seconds_since(start) < 4 * 5.0);
  stop = true;
  living.join();
  CHECK(text.find("process 4711 on host node-17") != std::string::npos);
  CHECK(text.find("2025-01-31T12:00:00Z") != std::string::npos);
  CHECK(lock_is_held(path, holder.lock_id));
}

TEST_CASE("a lock that cannot be read now is neither held nor taken over: the reason is told" *
          doctest::skip(!descriptors_may_run_out)) {
  const TempFolder folder;
  const auto path = folder / "lock.json";
  const RunLock lock = RunLock::acquire(path, fast());
  std::string reason;
  {
    const DescriptorLimit limit(0);
    try {
      lock_is_held(path, lock.lock_id());
    } catch (const FileAccessError& error) {
      reason = error.what();
    }
  }
  CHECK(reason.find(path.string() + ": opening the lock failed: Too many open files") != std::string::npos);
  CHECK(reason.find("nothing is committed") != std::string::npos);
  CHECK(lock_is_held(path, lock.lock_id()));
  CHECK_FALSE(lock_is_held(folder / "none.json", lock.lock_id()));
}

TEST_CASE("the same job with a higher restart count takes over at once, and the old holder learns it") {
  const TempFolder folder;
  const auto path = folder / "lock.json";
  // The old one looks often.
  std::optional<RunLock> old = RunLock::acquire(path, job("7", 0));
  CHECK_FALSE(refusal(path, job("7", 0)).empty());
  CHECK_FALSE(refusal(path, job("8", 5)).empty());
  CHECK(old->still_held());
  const MonotonicTime start = monotonic_now();
  const RunLock fresh = RunLock::acquire(path, {.period = long_period, .job_id = "7", .restart_count = 1});
  CHECK(seconds_since(start) < long_period);  // a silent holder is given three
  CHECK(fresh.still_held());
  CHECK_FALSE(old->still_held());
  CHECK(eventually([&] { return old->lost(); }));
  old.reset();
  CHECK(fresh.still_held());
  CHECK_FALSE(fresh.lost());
}

TEST_CASE("runs outside a job system are never the same job") {
  const TempFolder folder;
  const auto path = folder / "lock.json";
  const RunLock first = RunLock::acquire(path, job("", 0));
  CHECK_FALSE(refusal(path, job("", 9)).empty());
}

TEST_CASE("a holder whose lock file was removed learns it and does not write it again") {
  const TempFolder folder;
  const auto path = folder / "lock.json";
  const RunLock lock = RunLock::acquire(path, {.period = 0.02});
  // Between two rewrites of the holder's thread.
  CHECK(eventually([&] {
    std::filesystem::remove(path);
    return lock.lost();
  }));
  CHECK_FALSE(lock.still_held());
}

TEST_CASE("of many that find a stale lock at the same time one takes it") {
  for (int round = 0; round < 5; ++round) {
    const TempFolder folder;
    const auto path = folder.write("lock.json", lock_text(here(ended_process(), 5)));
    std::atomic<int> winners{0};
    std::atomic<int> losers{0};
    std::atomic<bool> go{false};
    std::vector<std::optional<RunLock>> locks(8);
    std::vector<std::thread> threads;
    threads.reserve(locks.size());
    for (auto& slot : locks) {
      threads.emplace_back([&winners, &losers, &go, &slot, path] {
        while (!go) std::this_thread::yield();
        try {
          slot = RunLock::acquire(path, {.period = 1.0});
          ++winners;
        } catch (const UserError&) {
          ++losers;
        }
      });
    }
    go = true;
    for (auto& thread : threads) thread.join();
    CHECK(winners == 1);
    CHECK(losers == 7);
  }
}

}  // namespace scaletrain
