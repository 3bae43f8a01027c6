#include <algorithm>
#include <chrono>
#include <ctime>
#include <new>
#include <thread>
#include <vector>

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

// A GPU needs larger products to be full: of a third of a gigabyte in halves.
constexpr std::int64_t smallest_size_of_device = 512;
constexpr std::int64_t largest_size_of_device = 8192;
// Products that are issued together, so that the host is ahead of the device.
constexpr int products_together = 4;

// Fills matrices [rows, row's elements] that follow each other with copies of one varied row: of zeros a GPU makes
// products faster.
void fill_with_rows(Backend& backend, Stream& stream, const Buffer& memory, std::int64_t rows, std::int64_t row) {
  const DType type = backend.compute_type();
  std::vector<float> values(static_cast<std::size_t>(row));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / static_cast<float>(1u << 24) - 0.5F;
  }
  const Buffer image = backend.allocate_pinned(values.size() * size_of(type));
  convert_floats(DType::f32, values.data(), type, image.data(), values.size());
  const auto part = [&](std::int64_t first, std::int64_t count) {
    return memory.view(static_cast<std::size_t>(first * row) * size_of(type), type, Shape{count * row});
  };
  backend.copy(stream, image.view(0, type, Shape{row}), part(0, 1));
  for (std::int64_t filled = 1; filled < rows; filled *= 2) {
    const std::int64_t more = std::min(filled, rows - filled);
    backend.copy(stream, part(0, more), part(filled, more));
  }
  stream.synchronize();
}

// Of a device that runs beside the host: by the clock, while products run and not while they are prepared.
double calibrate_device(Backend& backend, Stream& stream, double seconds) {
  const DType type = backend.compute_type();
  double best = 0;
  double spent = 0;
  for (std::int64_t size = smallest_size_of_device; size <= largest_size_of_device; size *= 2) {
    const Shape shape{size, size};
    const std::size_t bytes = static_cast<std::size_t>(shape.num_elements()) * size_of(type);
    Buffer memory;
    try {
      memory = backend.allocate(3 * bytes);
    } catch (const std::bad_alloc&) {
      if (best == 0) throw;
      break;  // the model has taken it: smaller products have told enough
    }
    fill_with_rows(backend, stream, memory, 2 * size, size);
    const LinearForward product{.weight = {.values = memory.view(0, type, shape)},
                                .bias = {},
                                .input = memory.view(bytes, type, shape),
                                .addend = {},
                                .output = memory.view(2 * bytes, type, shape)};
    const auto measure = [&](int count) {
      const MonotonicTime begin = monotonic_now();
      for (int i = 0; i < count; ++i) backend.run(stream, product);
      stream.synchronize();
      return std::max(seconds_since(begin) / count, 1e-9);
    };
    measure(1);  // chooses a kernel and loads it
    const double work = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
    double taken = 0;
    for (int settled = 0; settled < settled_after && spent < seconds;) {
      taken = measure(products_together);
      spent += products_together * taken;
      settled = work / taken > 1.01 * best ? 0 : settled + 1;
      best = std::max(best, work / taken);
    }
    // The next size takes eight times as long, at least twice.
    if (spent + 16 * products_together * taken > seconds) break;
  }
  return best;
}

}  // namespace

double calibrate_matmul(Backend& backend, Stream& stream, double seconds) {
  SCALETRAIN_CHECK(seconds > 0);
  if (backend.space() == Space::device) return calibrate_device(backend, stream, seconds);
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
