#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "backend/backend.h"
#include "base/clock.h"

namespace scaletrain {

namespace {

// Products grow until one takes a thirtieth of the time, so that a slow backend keeps to it and a fast one is measured
// at a size that runs at full speed, in bursts of which some find a busy machine's caches and clock at their best. The
// largest has 48 MiB of operands.
constexpr std::int64_t smallest_size = 128;
constexpr std::int64_t largest_size = 2048;
constexpr double share_of_one = 1.0 / 30;
// On a busy machine the processor time that is asked for takes so many times as long, and no longer: by the clock alone
// it would be measured at a size that is too small to run at full speed.
constexpr double longest_by_clock = 10.0;
// Repetitions that bring nothing more, after which a start waits no longer for it.
constexpr int settled_after = 2;

// What a thread has run counts at its next tick or sleep, unless it is the one that asks: until the backend's threads,
// which spin for some microseconds after an operation, are asleep.
constexpr std::chrono::microseconds asleep_after{300};

double processor_seconds() {
  std::this_thread::sleep_for(asleep_after);
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Processor seconds that each of the backend's threads spends on one square product. What others do meanwhile on the
// same processors does not count: a machine that is busy now has the peak that it has when it is idle.
double time_product(Backend& backend, Stream& stream, const Buffer& memory, std::int64_t size) {
  const DType type = backend.compute_type();
  const Shape shape{size, size};
  const std::size_t bytes = static_cast<std::size_t>(shape.num_elements()) * size_of(type);
  const LinearForward product{.weight = {.values = memory.view(0, type, shape)},
                              .bias = {},
                              .input = memory.view(bytes, type, shape),
                              .addend = {},
                              .output = memory.view(2 * bytes, type, shape)};
  const double start = processor_seconds();
  backend.run(stream, product);
  stream.synchronize();
  return (processor_seconds() - start) / std::max(1, backend.num_threads());
}

}  // namespace

double calibrate_matmul(Backend& backend, Stream& stream, double seconds) {
  SCALETRAIN_CHECK(seconds > 0);
  const MonotonicTime start = monotonic_now();
  const double threads = std::max(1, backend.num_threads());
  const double begin = processor_seconds();
  const auto spent = [&] { return (processor_seconds() - begin) / threads; };
  const auto is_late = [&] { return seconds_since(start) > longest_by_clock * seconds; };
  double best = 0;
  for (std::int64_t size = smallest_size; size <= largest_size; size *= 2) {
    const Buffer memory = backend.allocate(3 * static_cast<std::size_t>(size * size) * size_of(backend.compute_type()));
    const auto cube = static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
    const auto measure = [&] {
      const double taken = time_product(backend, stream, memory, size);
      best = std::max(best, 2.0 * cube / std::max(taken, 1e-9));
      return taken;
    };
    measure();  // touches the memory and starts the threads
    const double taken = measure();
    // The next size takes eight times as long, twice.
    const bool last =
        size == largest_size || taken > share_of_one * seconds || spent() + 20 * taken > seconds || is_late();
    if (!last) continue;
    for (int settled = 0; settled < settled_after && spent() + taken < seconds && !is_late();) {
      const double before = best;
      measure();
      settled = best > 1.01 * before ? 0 : settled + 1;
    }
    break;
  }
  return best;
}

}  // namespace scaletrain
