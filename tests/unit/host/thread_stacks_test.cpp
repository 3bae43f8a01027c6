#include "host/process/thread_stacks.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/file.h"
#include "support/eventually.h"
#include "support/temp_folder.h"
#include "support/text.h"

namespace scaletrain {
namespace {

// A thread of this name that counts until it is told to end.
class CountingThread {
 public:
  CountingThread() {
    thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "counting");
      while (!is_over_) {
        ++count_;
        ::usleep(1000);
      }
    });
  }
  ~CountingThread() {
    is_over_ = true;
    thread_.join();
  }
  CountingThread(const CountingThread&) = delete;
  CountingThread& operator=(const CountingThread&) = delete;

  long count() const { return count_; }

 private:
  std::atomic<bool> is_over_{false};
  std::atomic<long> count_{0};
  std::thread thread_;
};

// Of a process with such a thread, which ends with what write_last_stacks has written.
int write_stacks_and_end(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    prepare_thread_stacks();
    const CountingThread thread;
    if (!eventually([&] { return thread.count() > 0; })) ::_exit(1);
    write_last_stacks(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const long before = thread.count();
    ::usleep(50'000);
    ::_exit(thread.count() == before ? 7 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("what other threads do is told without touching them") {
  const CountingThread thread;
  REQUIRE(eventually([&] { return thread.count() > 0; }));
  const std::string text = other_threads_text();
  CHECK(contains(text, "(counting): state "));
  CHECK_FALSE(contains(text, ", main)"));  // it is this one that asks
  const long before = thread.count();
  CHECK(eventually([&] { return thread.count() > before; }));
}

TEST_CASE("each other thread's stack is written below its line, and the thread stands from then on") {
  const TempFolder folder;
  const std::string path = (folder / "log").string();
  CHECK(write_stacks_and_end(path) == 7);
  const std::string text = TempFolder::read(path);
  CAPTURE(text);
  const std::size_t line = text.find("(counting): state ");
  REQUIRE(line != std::string::npos);
  CHECK(text.find("test_host", line) != std::string::npos);  // the program, in one of its frames
  CHECK_FALSE(contains(text, "no stack"));
}

}  // namespace scaletrain
