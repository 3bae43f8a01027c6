// What executes the kernels of GPUs on the host must do what a GPU does, and notice what a GPU would not forgive.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "cuda_language.h"

using namespace scaletrain;

namespace {

constexpr unsigned all = 0xffffffffU;

__global__ void number_threads(int* output) {
  output[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] =
      static_cast<int>(1000 * blockIdx.y + 100 * blockIdx.x + threadIdx.x);
}

// Each lane gets what the lane with one bit flipped has; then what lane 5 has; then who voted.
__global__ void exchange_lanes(double* flipped, float* fifth, unsigned* votes) {
  const unsigned lane = threadIdx.x % 32;
  flipped[threadIdx.x] = __shfl_xor_sync(all, 1.5 * threadIdx.x, 4);
  fifth[threadIdx.x] = __shfl_sync(all, static_cast<float>(threadIdx.x), 5);
  votes[threadIdx.x] = __ballot_sync(all, lane % 3 == 0);
}

__global__ void reverse(const int* input, int* output, bool with_barrier) {
  auto* const shared = cuda::shared_memory<int>();
  shared[threadIdx.x] = input[threadIdx.x];
  if (with_barrier) __syncthreads();
  output[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void leave_before_barrier() {
  if (threadIdx.x == 40) return;
  __syncthreads();
}
__global__ void part_at_barriers() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncwarp();
  if (threadIdx.x >= 32) __syncwarp(0xffff);
}
__global__ void shuffle_without_a_lane() {
  if (threadIdx.x != 7) __shfl_xor_sync(all, 1, 1);
}
__global__ void read_shared(float* output) {
  output[threadIdx.x] = cuda::shared_memory<float>()[threadIdx.x];
}

std::string error_of(void (*kernel)()) {
  try {
    cuda::launch(nullptr, {dim3(3), 64}, kernel);
  } catch (const BugError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("threads_of_a_grid_are_numbered_as_a_gpu_numbers_them") {
  std::vector<int> output(2 * 3 * 64, -1);
  cuda::launch(nullptr, {dim3(3, 2), 64}, number_threads, output.data());
  for (int y = 0; y < 2; ++y)
    for (int x = 0; x < 3; ++x)
      for (int t = 0; t < 64; ++t)
        CHECK(output[static_cast<std::size_t>((y * 3 + x) * 64 + t)] == 1000 * y + 100 * x + t);
}

TEST_CASE("lanes_of_a_warp_exchange_values_and_votes") {
  std::vector<double> flipped(64);
  std::vector<float> fifth(64);
  std::vector<unsigned> votes(64);
  cuda::launch(nullptr, {dim3(1), 64}, exchange_lanes, flipped.data(), fifth.data(), votes.data());
  for (unsigned t = 0; t < 64; ++t) {
    CHECK(flipped[t] == 1.5 * (t ^ 4U));
    const unsigned fifth_of_warp = t - t % 32 + 5;
    CHECK(fifth[t] == static_cast<float>(fifth_of_warp));
    CHECK(votes[t] == 0x49249249U);
  }
}

TEST_CASE("a_missing_barrier_shows_because_launches_take_threads_in_another_order") {
  std::vector<int> input(96);
  std::vector<int> reversed(96);
  for (int i = 0; i < 96; ++i) {
    input[static_cast<std::size_t>(i)] = i;
    reversed[static_cast<std::size_t>(i)] = 95 - i;
  }
  for (const bool with_barrier : {true, false}) {
    for (int run = 0; run < 2; ++run) {
      std::vector<int> output(96);
      cuda::launch(nullptr, {dim3(1), 96, 96 * sizeof(int)}, reverse, input.data(), output.data(), with_barrier);
      CHECK((output == reversed) == with_barrier);
    }
  }
}

TEST_CASE("threads_that_wait_for_others_that_do_not_come_are_named") {
  CHECK(error_of(leave_before_barrier).find("waits at a barrier of the block") != std::string::npos);
  CHECK(error_of(leave_before_barrier).find("thread 40 of block") != std::string::npos);
  CHECK(error_of(part_at_barriers).find("a barrier of the warp of a part of a warp") != std::string::npos);
  CHECK(error_of(shuffle_without_a_lane).find("waits at a shuffle") != std::string::npos);
  CHECK(error_of(shuffle_without_a_lane).find("has ended") != std::string::npos);
}

TEST_CASE("shared_memory_holds_no_number_before_a_kernel_writes_one") {
  std::vector<float> output(32, 1.0F);
  cuda::launch(nullptr, {dim3(1), 32, 32 * sizeof(float)}, read_shared, output.data());
  for (const float value : output) CHECK(std::isnan(value));
}
