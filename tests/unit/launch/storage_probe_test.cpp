#include "launch/storage_probe.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "support/temp_folder.h"
#include "test_tools.h"

namespace scaletrain {

TEST_CASE("what a process reads, writes and computes moves the probe, its own looks do not") {
  const TempFolder folder;
  StorageProbe probe;
  const auto first = probe.look();
  if (!first) return;  // this kernel does not count
  for (int i = 0; i < 300; ++i) probe.look();
  CHECK(probe.look()->activity == first->activity);
  // By another thread, as a rank's work is.
  std::thread([&] { std::ofstream(folder / "file") << std::string(1 << 20, 'x') << std::flush; }).join();
  const auto written = probe.look();
  CHECK(written->activity > first->activity);
  // But for the little that the probe itself reads between its two looks at a counter.
  CHECK(written->bytes + 4096 >= first->bytes + (1u << 20));
  std::thread([] {
    const MonotonicTime begin = monotonic_now();
    timespec used{};
    while (used.tv_sec == 0 && used.tv_nsec < 400'000'000 && seconds_since(begin) < 60.0)
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  }).join();
  CHECK(probe.look()->activity > written->activity);
}

TEST_CASE("what trickles while a process only waits moves no meter, however long it goes on and however late a look is") {
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

TEST_CASE("a thread whose write does not come back is found with its file") {
  const TempFolder folder;
  const std::filesystem::path path = folder / "full";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const FileDescriptor pipe(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(pipe);
  const std::vector<char> block(4096, 'x');
  while (::write(pipe.get(), block.data(), block.size()) > 0) continue;
  const FileDescriptor blocking(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(blocking);
  std::thread writer([&] { CHECK(::write(blocking.get(), block.data(), block.size()) > 0); });
  StorageProbe probe;
  std::string text;
  double seconds = 0.0;
  const bool is_found = eventually(
      [&] {
        const auto now = probe.look();
        if (!now) return true;
        text = now->text;
        seconds = now->seconds;
        return !text.empty();
      },
      30.0);
  std::vector<char> drained(1 << 20);
  CHECK(::read(pipe.get(), drained.data(), drained.size()) > 0);
  writer.join();
  CHECK(is_found);
  if (!probe.look()) return;
  CHECK(text == "write of " + std::filesystem::canonical(path).string());
  CHECK(seconds >= StorageProbe::still_seconds);
}

}  // namespace scaletrain
