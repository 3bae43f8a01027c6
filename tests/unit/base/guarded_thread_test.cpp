// Exceptions do not leave threads, and what finds nobody ends the process with its own exit code.
#include "base/process/guarded_thread.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/process/exit_code.h"
#include "base/process/exit_status.h"
#include "base/process/last_words.h"

using namespace scaletrain;

namespace {

struct End {
  int exit_code = -1;  // -1: a signal
  std::string errors{};
};

// What becomes of a process that does this.
End end_of(const std::function<void()>& deed) {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    ::close(pipe[0]);
    end_uncaught_with_last_words();
    deed();
    ::_exit(99);
  }
  ::close(pipe[1]);
  End end;
  std::array<char, 4096> bytes{};
  for (ssize_t n = 0; (n = ::read(pipe[0], bytes.data(), bytes.size())) > 0;)
    end.errors.append(bytes.data(), static_cast<std::size_t>(n));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  return end;
}

// Out of where nothing can be caught, in a thread that this project has not started.
template <class Error>
End end_by(const Error& error) {
  return end_of([&error] { std::thread([&error] { throw error; }).join(); });
}

// Of this process: it has as much as it ever had, and no room for a thread.
void limit_address_space(rlim_t more_kibibytes) {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word && word != "VmPeak:") continue;
  rlim_t kibibytes = 0;
  in >> kibibytes;
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = (kibibytes + more_kibibytes) << 10;
  ::setrlimit(RLIMIT_AS, &limit);
}

void refuse_thread() {
  throw std::system_error(EAGAIN, std::generic_category());
}

ExitStatus status_of_refused_thread() {
  try {
    refuse_thread();
  } catch (const std::system_error&) {
    return exit_status_of(std::current_exception());
  }
  return {};
}

void find_no_memory() {
  throw std::bad_alloc();
}

struct ThrowsInTheEnd {
  ~ThrowsInTheEnd() { find_no_memory(); }  // what must not be done, and is
};

}  // namespace

TEST_CASE("what a thread throws is carried to who waits for it, once") {
  GuardedThread thread([] { throw InputError("file.bin: torn"); });
  CHECK_THROWS_WITH_AS(thread.join_and_rethrow(), "file.bin: torn", InputError);
  CHECK(thread.failed());
  thread.join_and_rethrow();
  GuardedThread fine([] {});
  fine.join_and_rethrow();
  CHECK_FALSE(fine.failed());
}

TEST_CASE("a thread that failed is known to have before anybody waits for it") {
  GuardedThread thread([] { throw std::bad_alloc(); });
  while (!thread.failed()) std::this_thread::yield();
  CHECK(thread.joinable());
  CHECK_THROWS_AS(thread.join_and_rethrow(), std::bad_alloc);
  CHECK_FALSE(thread.joinable());
}

TEST_CASE("a thread is waited for when its owner goes, and its error goes with it") {
  std::atomic<bool> is_over{false};
  {
    const GuardedThread thread([&is_over] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      is_over = true;
      throw PeerError("nobody hears it");
    });
  }
  CHECK(is_over);
  GuardedThread moved;
  CHECK_FALSE(moved.joinable());
  moved = GuardedThread([] { throw PeerError("gone"); });
  GuardedThread other(std::move(moved));
  CHECK_THROWS_AS(other.join_and_rethrow(), PeerError);
  CHECK_FALSE(moved.joinable());  // NOLINT: it was moved from, and says so
}

TEST_CASE("an exception that nobody can catch ends the process with the exit code of its kind") {
  CHECK(end_by(UserError("train.steps: no")).exit_code == static_cast<int>(ExitCode::usage));
  CHECK(end_by(InputError("manifest.json: torn")).exit_code == static_cast<int>(ExitCode::input));
  CHECK(end_by(PeerError("rank 3 is gone")).exit_code == static_cast<int>(ExitCode::peer));
  CHECK(end_by(DivergedError("NaN")).exit_code == static_cast<int>(ExitCode::diverged));
  CHECK(end_by(std::system_error(EAGAIN, std::generic_category())).exit_code == static_cast<int>(ExitCode::peer));
  CHECK(end_by(std::runtime_error("surprise")).exit_code == static_cast<int>(ExitCode::bug));
  CHECK(end_by(17).exit_code == static_cast<int>(ExitCode::bug));
  CHECK(end_by(PeerError("rank 3 is gone")).errors == "scaletrain: rank 3 is gone\n");
  CHECK(end_by(std::runtime_error("surprise")).errors.find("a bug") != std::string::npos);
}

TEST_CASE(
    "a thread that is refused while address space is used up has found no memory, with room left a limit on threads") {
  const auto tell_status = [](rlim_t more_kibibytes) {
    return end_of([more_kibibytes] {
      limit_address_space(more_kibibytes);
      const ExitStatus status = status_of_refused_thread();
      std::ignore = ::write(STDERR_FILENO, status.message.data(), status.message.size());
      ::_exit(static_cast<int>(status.code));
    });
  };
  const End narrow = tell_status(1 << 10);
  CHECK(narrow.exit_code == static_cast<int>(ExitCode::input));
  CHECK(narrow.errors.starts_with("out of memory; "));
  CHECK(narrow.errors.find("; ulimit -v gives each process ") != std::string::npos);
  const End wide = tell_status(1 << 20);
  CHECK(wide.exit_code == static_cast<int>(ExitCode::peer));
  CHECK(wide.errors.find("ulimit -u") != std::string::npos);
  const End uncaught = end_of([] {
    limit_address_space(1 << 10);
    []() noexcept { refuse_thread(); }();
  });
  CHECK(uncaught.exit_code == static_cast<int>(ExitCode::input));
  CHECK(uncaught.errors.find("; ulimit -v gives each process ") != std::string::npos);
}

TEST_CASE("a thread that is refused is told with the limit that was met, anything else without one") {
  const End told = end_of([] {
    set_limit_finder([] { return std::string("pids.max allows 7, and all are in use"); });
    const ExitStatus status = status_of_refused_thread();
    std::ignore = ::write(STDERR_FILENO, status.message.data(), status.message.size());
    ::_exit(static_cast<int>(status.code));
  });
  CHECK(told.exit_code == static_cast<int>(ExitCode::peer));
  CHECK(told.errors.ends_with("; pids.max allows 7, and all are in use"));
  const auto other = exit_status_of(std::make_exception_ptr(std::system_error(EMFILE, std::generic_category())));
  CHECK(other.message.find("ulimit -n") != std::string::npos);
  CHECK(other.message.find("ulimit -u") == std::string::npos);
}

TEST_CASE("memory that runs out where nothing can be caught is told with what the process needs") {
  const End plain = end_by(std::bad_alloc());
  CHECK(plain.exit_code == static_cast<int>(ExitCode::input));
  CHECK(plain.errors == "scaletrain: out of memory; `scaletrain check` prints what a run needs\n");
  const End planned = end_of([] {
    set_memory_words("rank 3: out of memory:\n  masters 8 GiB");
    const ThrowsInTheEnd thrower;
  });
  CHECK(planned.exit_code == static_cast<int>(ExitCode::input));
  CHECK(planned.errors == "scaletrain: rank 3: out of memory:\n  masters 8 GiB\n");
  const End cut = end_of([] {
    set_memory_words(std::string(100'000, 'x'));
    const ThrowsInTheEnd thrower;
  });
  CHECK(cut.exit_code == static_cast<int>(ExitCode::input));
  CHECK(cut.errors.size() > 1000);
}
