#include "host/process/storage_probe.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "support/eventually.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

// By another thread, as a rank's work is; so many seconds of a processor, for which it may have to wait.
void compute(double seconds) {
  std::thread([seconds] {
    timespec used{};
    while (static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9 < seconds)
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  }).join();
}

}  // namespace

TEST_CASE("what a process reads, writes and computes moves the probe, its own looks do not") {
  const TempFolder folder;
  // What has been computed so far counts at the first look, and at no other.
  compute(0.4);
  // However long this machine takes for it.
  StorageProbe probe(1e6);
  const auto first = probe.look();
  if (!first) return;  // this kernel does not count
  CHECK(first->activity == 1);
  for (int i = 0; i < 300; ++i) probe.look();
  CHECK(probe.look()->activity == first->activity);
  std::thread([&] { std::ofstream(folder / "file") << std::string(1 << 20, 'x') << std::flush; }).join();
  const auto written = probe.look();
  CHECK(written->activity > first->activity);
  // But for the little that the probe itself reads between its two looks at a counter.
  CHECK(written->bytes + 4096 >= first->bytes + (1u << 20));
  compute(0.4);
  CHECK(probe.look()->activity > written->activity);
}

TEST_CASE(
    "what trickles while a process only waits moves no meter, however long it goes on and however late a look is") {
  constexpr std::uint64_t millisecond = 1'000'000;
  const MonotonicTime begin = monotonic_now();
  for (const int pause : {1, 3, 9, 10, 11, 35, 600}) {
    CAPTURE(pause);
    ActivityMeter meter(10.0, begin);
    // In ten seconds 10 KiB and 0.2 s, an hour long.
    bool has_moved = false;
    for (int second = pause; second < 3600; second += pause) {
      const auto so_far = static_cast<std::uint64_t>(second);
      has_moved |= meter.has_moved(so_far * 1024, so_far * 20 * millisecond, begin + std::chrono::seconds(second));
    }
    CHECK_FALSE(has_moved);
  }
}

TEST_CASE("what comes to something within a window moves the meter at every look, and only what is new counts") {
  constexpr std::uint64_t millisecond = 1'000'000;
  const MonotonicTime begin = monotonic_now();
  ActivityMeter meter(10.0, begin);
  const auto at = [&](int milliseconds) { return begin + std::chrono::milliseconds(milliseconds); };
  CHECK(meter.has_moved(1 << 20, 0, at(100)));
  CHECK_FALSE(meter.has_moved(1 << 20, 0, at(200)));
  CHECK(meter.has_moved(1 << 20, 400 * millisecond, at(300)));
  CHECK_FALSE(meter.has_moved(1 << 20, 400 * millisecond, at(400)));
  // Little by little, but within ten seconds since the last that counted.
  CHECK_FALSE(meter.has_moved((1 << 20) + (9 << 10), 400 * millisecond, at(5000)));
  CHECK(meter.has_moved((1 << 20) + (18 << 10), 400 * millisecond, at(9000)));
}

TEST_CASE("counters that are read as a little less than before move no meter") {
  const MonotonicTime begin = monotonic_now();
  ActivityMeter meter(10.0, begin);
  std::uint64_t bytes = 1 << 20;
  std::uint64_t nanoseconds = 1'000'000'000;
  CHECK(meter.has_moved(bytes, nanoseconds, begin));
  bool has_moved = false;
  for (int second = 1; second < 100; ++second)
    has_moved |= meter.has_moved(bytes -= 100, nanoseconds -= 1000, begin + std::chrono::seconds(second));
  CHECK_FALSE(has_moved);
}

// A thread that will not come back from a write to a full pipe until that is drained.
class StuckWriter {
 public:
  explicit StuckWriter(const std::filesystem::path& pipe) : path_(pipe) {
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    own_end_ = FileDescriptor(::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(own_end_);
    while (::write(own_end_.get(), block_.data(), block_.size()) > 0) continue;
    blocking_ = FileDescriptor(::open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
    REQUIRE(blocking_);
    thread_ = std::thread([this] {
      id_ = static_cast<pid_t>(::syscall(SYS_gettid));
      while (!may_write_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      written_ = ::write(blocking_.get(), block_.data(), block_.size());
    });
  }
  ~StuckWriter() {
    may_write_ = true;
    std::vector<char> drained(1 << 20);
    CHECK(::read(own_end_.get(), drained.data(), drained.size()) > 0);
    thread_.join();
    CHECK(written_ > 0);
  }
  StuckWriter(const StuckWriter&) = delete;
  StuckWriter& operator=(const StuckWriter&) = delete;

  void write() { may_write_ = true; }
  bool is_in_write() const {
    std::ifstream in("/proc/self/task/" + std::to_string(id_) + "/syscall");
    long number = -1;
    return (in >> number) && number == SYS_write;
  }
  std::string text() const { return "write of " + std::filesystem::canonical(path_).string(); }

 private:
  std::filesystem::path path_;
  std::vector<char> block_ = std::vector<char>(4096, 'x');
  FileDescriptor own_end_;
  FileDescriptor blocking_;
  std::atomic<pid_t> id_{0};
  std::atomic<bool> may_write_{false};
  ssize_t written_ = 0;
  std::thread thread_;
};

TEST_CASE("a thread whose write does not come back is found with its file, whatever calls other threads pass through") {
  const TempFolder folder;
  // The kernel lists the older thread first.
  StuckWriter passing(folder / "passing");
  StuckWriter stuck(folder / "stuck");
  stuck.write();
  StorageProbe probe;
  if (!probe.look()) return;  // this kernel does not count
  InStorage now;
  const auto look = [&] {
    now = probe.look().value();
    return !now.text.empty();
  };
  REQUIRE(eventually(look, 30.0));
  CHECK(now.text == stuck.text());
  CHECK(now.seconds >= StorageProbe::still_seconds);
  passing.write();
  REQUIRE(eventually([&] { return passing.is_in_write(); }, 30.0));
  for (int i = 0; i < 3; ++i) {
    look();
    CHECK(now.text == stuck.text());
  }
}

}  // namespace scaletrain
