// What a backend whose memory the host cannot touch catches (support/ranks/fenced_backend.h): every way in which code
// of the host could take device memory for its own.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>

#include "backend/host_access.h"
#include "backend/mirrored_buffer.h"
#include "base/process/guarded_thread.h"
#include "support/eventually.h"
#include "support/ranks/fenced_communicator.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/late_backend.h"
#include "support/ranks/ranks.h"

using namespace scaletrain;

namespace {

struct Fenced {
  std::unique_ptr<Backend> backend = std::make_unique<FencedBackend>(make_reference_backend(DType::f32));
  std::unique_ptr<Stream> stream = backend->make_stream();

  View put(Shape shape, const std::function<float(std::int64_t)>& value) {
    memory.push_back(backend->allocate(static_cast<std::size_t>(shape.num_elements()) * sizeof(float)));
    const View view = memory.back().view(0, DType::f32, shape);
    HostAccess(*backend).write(view, [&](const View& host) {
      for (std::int64_t i = 0; i < host.num_elements(); ++i) host.as<float>()[i] = value(i);
    });
    return view;
  }
  std::vector<float> get(const ConstView& view) const {
    std::vector<float> values;
    HostAccess(*backend).read(view, [&](const ConstView& host) {
      values.insert(values.end(), host.as<float>(), host.as<float>() + host.num_elements());
    });
    return values;
  }

  std::vector<Buffer> memory;
};

float one(std::int64_t) {
  return 1.0f;
}

// Whether a process that does this ends by it.
bool is_deadly(const std::function<void()>& touch) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // neither doctest nor a sanitizer tells of it
    touch();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

}  // namespace

TEST_CASE("a_host_that_reads_or_writes_at_a_devices_address_dies_there") {
  Fenced device;
  const View view = device.put({3000}, one);
  CHECK_FALSE(is_deadly([] {}));
  for (const std::int64_t index : {0, 1500, 2999}) {
    auto* const at = static_cast<volatile float*>(view.data()) + index;
    CHECK(is_deadly([at] { *at = 2.0f; }));
    CHECK(is_deadly([at] { static_cast<void>(*at); }));
  }
  CHECK(device.get(view) == std::vector<float>(3000, 1.0f));
}

TEST_CASE("views_and_windows_of_device_memory_open_only_to_who_may_reach_it") {
  Fenced device;
  const View view = device.put({8}, one);
  CHECK_THROWS_AS(view.as<float>(), BugError);
  CHECK_THROWS_AS(view.rows(2, 3).bytes(), BugError);
  HostAccess of_the_host;
  CHECK_THROWS_AS(of_the_host.write(view, [](const View&) {}), BugError);
  CHECK_THROWS_AS(of_the_host.read(view, [](const ConstView&) {}), BugError);
  // Not beyond its end, and not when it has been given back.
  const FencedMemory& memory = FencedMemory::of_process();
  CHECK_THROWS_AS(memory.values(View(view.data(), DType::f32, {9}, Space::device)), BugError);
  const View gone = Fenced().put({8}, one);
  CHECK_THROWS_AS(memory.values(gone), BugError);
}

TEST_CASE("operations_copies_and_transfers_refuse_what_a_device_could_not_do") {
  Fenced device;
  const View view = device.put({4}, one);
  std::array<float, 4> values{};
  const View host(values.data(), DType::f32, {4});
  CHECK_THROWS_AS(device.backend->run(*device.stream, Fill{.output = host}), BugError);
  CHECK_THROWS_AS(device.backend->run(*device.stream, Add{.a = view, .b = view, .output = host}), BugError);
  CHECK_THROWS_AS(device.backend->copy(*device.stream, view, host), BugError);
  CHECK_THROWS_AS(device.backend->copy(*device.stream, host, view), BugError);
  // The host's own backend has no way into it, nor has a transport between hosts.
  const auto of_host = make_reference_backend(DType::f32);
  CHECK_THROWS_AS(of_host->run(*device.stream, Fill{.output = view}), BugError);
  CHECK_THROWS_AS(of_host->copy(*device.stream, view, host), BugError);
  InProcessWorld world(1);
  const auto group = make_world_group(world, Rank(0), DirectOptions::Mode::caller);
  const std::array<std::int64_t, 1> counts{4};
  CHECK_THROWS_AS(group->all_reduce(*device.stream, view, ReduceOp::sum), BugError);
  CHECK_THROWS_AS(group->all_gather(*device.stream, view, counts, view), BugError);
  CHECK_THROWS_AS(group->reduce_scatter(*device.stream, view, counts, view), BugError);
  const auto single = make_single_communicator("single");
  CHECK_THROWS_AS(single->all_gather(*device.stream, view, counts, host), BugError);
}

TEST_CASE("what_is_written_arrives_and_what_is_read_is_what_operations_made_late_or_at_once") {
  for (const bool is_late : {false, true}) {
    CAPTURE(is_late);
    Fenced device;
    if (is_late) {
      device.backend = std::make_unique<LateBackend>(std::move(device.backend));
      device.stream = device.backend->make_stream();
    }
    // Read in several pieces of host_access.h, the last one not full; written in many that are filled sooner than
    // copied.
    const std::int64_t count = 2 * (host_access_piece_bytes / sizeof(float)) + 5;
    device.memory.push_back(device.backend->allocate(static_cast<std::size_t>(count) * sizeof(float)));
    const View all = device.memory.back().view(0, DType::f32, {count});
    {
      HostAccess access(*device.backend);
      for (std::int64_t first = 0; first < count; first += 4'999) {
        const View part = all.rows(first, std::min<std::int64_t>(4'999, count - first));
        access.write(part, [first](const View& host) {
          for (std::int64_t i = 0; i < host.num_elements(); ++i)
            host.as<float>()[i] = static_cast<float>((first + i) % 1000);
        });
      }
      access.finish();
    }
    device.backend->run(*device.stream, Add{.a = all, .b = all, .output = all});
    device.stream->synchronize();
    const std::vector<float> found = device.get(all);
    REQUIRE(std::ssize(found) == count);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < count; ++i)
      wrong += found[static_cast<std::size_t>(i)] == static_cast<float>(2 * (i % 1000)) ? 0 : 1;
    CHECK(wrong == 0);
  }
}

// Each waits inside until all others are there: as many pieces as threads.
TEST_CASE("as_many_threads_as_were_announced_write_at_once") {
  constexpr int threads = 16;
  constexpr std::int64_t each = 1000;
  Fenced device;
  device.memory.push_back(device.backend->allocate(threads * each * sizeof(float)));
  const View all = device.memory.back().view(0, DType::f32, {threads * each});
  HostAccess access(*device.backend, {.threads = threads, .longest_write = each * sizeof(float)});
  std::atomic<int> inside{0};
  std::atomic<int> without_others{0};
  std::vector<GuardedThread> writers;
  writers.reserve(threads);
  for (int thread = 0; thread < threads; ++thread)
    writers.emplace_back([&, thread] {
      access.write(all.rows(thread * each, each), [&](const View& host) {
        ++inside;
        if (!eventually([&] { return inside == threads; }, 20.0)) ++without_others;
        std::fill_n(host.as<float>(), each, static_cast<float>(thread));
      });
    });
  for (GuardedThread& writer : writers) writer.join_and_rethrow();
  access.finish();
  CHECK(without_others.load() == 0);
  const std::vector<float> found = device.get(all);
  for (int thread = 0; thread < threads; ++thread)
    CHECK(std::count(found.begin() + thread * each, found.begin() + (thread + 1) * each, static_cast<float>(thread)) ==
          each);
}

TEST_CASE("an_image_of_device_memory_changes_when_it_is_copied_and_not_before") {
  Fenced device;
  const MirroredBuffer numbers(*device.backend, 4 * sizeof(float));
  const View host = numbers.host(0, DType::f32, {4});
  const View on_device = numbers.device(0, DType::f32, {4});
  host.as<float>()[3] = 5.0f;
  CHECK(device.get(on_device) == std::vector<float>{0, 0, 0, 0});
  numbers.to_device(*device.stream);
  device.backend->run(*device.stream, Add{.a = on_device, .b = on_device, .output = on_device});
  CHECK(host.as<float>()[3] == 5.0f);
  numbers.to_host(*device.stream, on_device.rows(2, 1));
  CHECK(host.as<float>()[3] == 5.0f);
  numbers.to_host(*device.stream);
  CHECK(host.as<float>()[3] == 10.0f);
  CHECK(host.space() == Space::pinned);
  // Of a host's backend they are one.
  const auto of_host = make_reference_backend(DType::f32);
  const MirroredBuffer shared(*of_host, sizeof(float));
  CHECK(shared.host(0, DType::f32, {1}).data() == shared.device(0, DType::f32, {1}).data());
}

TEST_CASE("groups_of_fenced_ranks_sum_what_lies_beyond_the_hosts_reach") {
  InProcessWorld world(2);
  run_threads(world, [&](Rank rank) {
    Fenced device;
    const View view = device.put({5000}, [rank](std::int64_t i) { return static_cast<float>(i + rank.value()); });
    FencedCommunicator group(make_world_group(world, rank, DirectOptions::Mode::queue), MemoryReach::device);
    group.all_reduce(*device.stream, view, ReduceOp::sum).before(*device.stream);
    const std::vector<float> found = device.get(view);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < 5000; ++i)
      wrong += found[static_cast<std::size_t>(i)] == static_cast<float>(2 * i + 1) ? 0 : 1;
    if (wrong != 0) throw BugError("a wrong sum");
  });
}
