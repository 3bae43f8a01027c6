// Operations as CUDA graphs, on a runtime that runs on the host (tests/support/cuda/fake_runtime.cpp): what comes again
// is launched as graphs, nothing else is, and the results are those of operations.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/operation_graphs.h"
#include "base/error.h"
#include "support/cuda/fake_runtime.h"

using namespace scaletrain;
using cuda::OperationGraphs;

namespace {

constexpr std::int64_t length = 100;

// A backend that makes graphs, or not, with a stream and a few vectors.
class Gpu {
 public:
  explicit Gpu(bool graphs = true)
      : backend_(make_cuda_backend({.graphs = graphs})),
        stream_(backend_->make_stream()),
        memory_(backend_->allocate(num_vectors * vector_bytes)),
        pinned_(backend_->allocate_pinned(vector_bytes)) {
    backend_->prepare(*stream_);
  }

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  View vector(std::size_t index) const { return memory_.view(index * vector_bytes, DType::f32, {length}); }

  void fill(std::size_t index, double value) { backend_->run(*stream_, Fill{.output = vector(index), .value = value}); }
  // to = a + b
  void add(std::size_t a, std::size_t b, std::size_t to) {
    backend_->run(*stream_, Add{.a = vector(a), .b = vector(b), .output = vector(to)});
  }
  // What the host has changes from round to round, and no operation tells.
  void give(std::size_t index, float value) {
    stream_->synchronize();
    const std::vector<float> values(length, value);
    std::memcpy(pinned_.data(), values.data(), values.size() * sizeof(float));
    backend_->copy(*stream_, pinned_view(), vector(index));
  }
  // The host waits.
  float first_of(std::size_t index) {
    backend_->copy(*stream_, vector(index), pinned_view());
    stream_->synchronize();
    return *pinned_view().as<float>();
  }

 private:
  static constexpr std::size_t num_vectors = 8;
  static constexpr std::size_t vector_bytes = 512;

  View pinned_view() const { return pinned_.view(0, DType::f32, {length}); }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  Buffer memory_, pinned_;
};

// Of a call.
std::uint64_t launched(const std::function<void()>& call) {
  const std::uint64_t before = fake_runtime::graph_launches();
  call();
  return fake_runtime::graph_launches() - before;
}

// Vector 1 is that many times vector 0.
void multiply(Gpu& gpu, int times) {
  gpu.fill(1, 0.0);
  for (int time = 0; time < times; ++time) gpu.add(0, 1, 1);
}

}  // namespace

TEST_CASE("operations_that_come_a_third_time_are_launched_as_one_graph") {
  Gpu gpu;
  std::vector<std::uint64_t> launches;
  for (int round = 1; round <= 5; ++round) {
    gpu.give(0, static_cast<float>(round));
    launches.push_back(launched([&] {
      multiply(gpu, 20);
      CHECK(gpu.first_of(1) == 20.0F * static_cast<float>(round));
    }));
  }
  CHECK(launches == std::vector<std::uint64_t>{0, 0, 1, 1, 1});
  Gpu without(false);
  for (int round = 1; round <= 5; ++round)
    CHECK(launched([&] {
            multiply(without, 20);
            without.stream().synchronize();
          }) == 0);
}

TEST_CASE("what_comes_again_before_the_host_has_waited_is_a_graph_after_it") {
  Gpu gpu;
  CHECK(launched([&] {
          for (int time = 0; time < 4; ++time) {
            multiply(gpu, 10);
            gpu.stream().record();
          }
          gpu.stream().synchronize();
        }) == 0);
  gpu.give(0, 2.0F);
  CHECK(launched([&] {
          multiply(gpu, 10);
          CHECK(gpu.first_of(1) == 20.0F);
        }) == 1);
}

TEST_CASE("many_operations_are_graphs_of_bounded_length_and_few_are_none") {
  const auto most = static_cast<int>(OperationGraphs::most_of_a_graph);
  const auto least = static_cast<int>(OperationGraphs::least_of_a_graph);
  // multiply() has one operation more than it is told.
  const auto check = [](int times, std::uint64_t graphs) {
    CAPTURE(times);
    Gpu gpu;
    for (int round = 1; round <= 4; ++round) {
      gpu.give(0, static_cast<float>(round));
      CHECK(launched([&] {
              multiply(gpu, times);
              CHECK(gpu.first_of(1) == static_cast<float>(times * round));
            }) == (round > 2 ? graphs : 0));
    }
  };
  check(2 * most + least - 1, 3);
  check(2 * most, 2);
  check(2 * most - 1, 2);
  check(least - 1, 1);
  check(least - 2, 0);
}

TEST_CASE("operations_that_differ_in_an_address_or_a_number_are_not_taken_for_each_other") {
  Gpu gpu;
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    const int kind = round % 4;
    const auto begin = kind == 1 ? 5.0 : 3.0;
    const auto last = static_cast<std::size_t>(kind == 2 ? 4 : 2);
    gpu.fill(2, 0.0);
    gpu.fill(4, 0.0);
    gpu.stream().record();
    gpu.fill(0, 1.0);
    gpu.fill(1, begin);
    gpu.add(0, 1, 1);
    gpu.add(0, 1, 1);
    if (kind == 3) gpu.add(0, 1, 1);
    gpu.add(0, 1, last);
    const auto expected = static_cast<float>(begin + (kind == 3 ? 4.0 : 3.0));
    CHECK(gpu.first_of(2) == (kind == 2 ? 0.0F : expected));
    CHECK(gpu.first_of(4) == (kind == 2 ? expected : 0.0F));
  }
  // All four are graphs by now.
  CHECK(launched([&] {
          for (int round = 0; round < 2; ++round) {
            gpu.fill(0, 1.0);
            gpu.fill(1, round == 0 ? 3.0 : 5.0);
            gpu.add(0, 1, 1);
            gpu.add(0, 1, 1);
            gpu.add(0, 1, 2);
            CHECK(gpu.first_of(2) == (round == 0 ? 6.0F : 8.0F));
          }
        }) == 2);
}

TEST_CASE("who_waits_for_an_event_finds_what_graphs_have_made_and_they_what_others_have") {
  Gpu gpu;
  const auto other = gpu.backend().make_stream();
  const Buffer seen = gpu.backend().allocate_pinned(length * sizeof(float));
  const View place = seen.view(0, DType::f32, {length});
  for (int round = 1; round <= 6; ++round) {
    gpu.give(0, static_cast<float>(round));
    multiply(gpu, 30);
    other->after(gpu.stream().record());
    gpu.backend().copy(*other, gpu.vector(1), gpu.vector(5));
    gpu.stream().after(other->record());
    for (int time = 0; time < 5; ++time) gpu.add(5, 5, 5);
    bool is_called = false;
    gpu.stream().call([&] { is_called = true; });
    gpu.backend().copy(gpu.stream(), gpu.vector(5), place);
    const Event copied = gpu.stream().record();
    copied.wait();
    CHECK(is_called);
    CHECK(*place.as<float>() == 32.0F * 30.0F * static_cast<float>(round));
  }
}

TEST_CASE("whatever_else_is_asked_of_a_stream_comes_behind_what_is_kept_for_a_graph") {
  Gpu gpu;
  const auto other = gpu.backend().make_stream();
  const std::vector<std::function<void()>> asked = {
      [&] { gpu.stream().record(); }, [&] { gpu.stream().after(other->record()); }, [&] { gpu.stream().call([] {}); },
      [&] { gpu.backend().copy(gpu.stream(), gpu.vector(2), gpu.vector(3)); }, [&] { gpu.stream().synchronize(); }};
  for (int round = 0; round < 2; ++round) {
    multiply(gpu, 10);
    gpu.stream().synchronize();
  }
  for (std::size_t kind = 0; kind < asked.size(); ++kind) {
    CAPTURE(kind);
    CHECK(launched([&] { multiply(gpu, 10); }) == 0);
    CHECK(launched(asked[kind]) == 1);
  }
}

TEST_CASE("what_was_kept_for_a_graph_has_run_when_its_stream_has_ended") {
  const auto backend = make_cuda_backend({.graphs = true});
  const Buffer memory = backend->allocate(length * sizeof(float));
  const Buffer pinned = backend->allocate_pinned(length * sizeof(float));
  const auto reads = backend->make_stream();
  {
    const auto stream = backend->make_stream();
    backend->prepare(*stream);
    backend->run(*stream, Fill{.output = memory.view(0, DType::f32, {length}), .value = 7.0});
  }
  backend->copy(*reads, memory.view(0, DType::f32, {length}), pinned.view(0, DType::f32, {length}));
  reads->synchronize();
  CHECK(*pinned.view(0, DType::f32, {length}).as<float>() == 7.0F);
}

TEST_CASE("a_gpu_without_memory_for_a_graph_says_so") {
  Gpu gpu;
  multiply(gpu, 10);
  gpu.stream().synchronize();
  multiply(gpu, 10);
  ::setenv("SCALETRAIN_FAKE_GPU", "full GPU", 1);
  CHECK_THROWS_AS(gpu.stream().synchronize(), std::bad_alloc);
  ::unsetenv("SCALETRAIN_FAKE_GPU");
  // Later there may be.
  gpu.give(0, 1.0F);
  CHECK(launched([&] {
          multiply(gpu, 10);
          CHECK(gpu.first_of(1) == 10.0F);
        }) == 1);
}

TEST_CASE("operations_that_do_not_come_any_more_make_room_for_others") {
  Gpu gpu;
  const auto most = OperationGraphs::most_of_a_graph;
  // Each time others, until no more are kept.
  for (std::size_t operations = 0; operations < OperationGraphs::most_kept; operations += most)
    for (std::size_t i = 0; i < most; ++i) gpu.fill(2, static_cast<double>(operations + i));
  gpu.give(0, 1.0F);
  const auto round = [&] {
    multiply(gpu, 10);
    CHECK(gpu.first_of(1) == 10.0F);
  };
  for (std::uint64_t wait = 0; wait < OperationGraphs::idle_waits - 1; ++wait) CHECK(launched(round) == 0);
  for (int time = 0; time < 4; ++time) round();
  CHECK(launched(round) == 1);
}
