// What executes the kernels of GPUs on the host must do what a GPU does, and notice what a GPU would not forgive.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cuda_language.h"
#include "support/cuda/launched_kernels.h"

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

// c[i] of each lane, from a[16,16] and b[16,8] whose elements lie where the PTX ISA's tables for mma.m16n8k16 say: by
// element i of a lane's eight of a, four of b and four of c.
__global__ void multiply_by_tables(const float* a, const float* b, float* c) {
  const unsigned group = threadIdx.x / 4;
  const unsigned in_group = threadIdx.x % 4;
  const auto half_bits = [](float value) {
    const __half rounded = __float2half_rn(value);
    std::uint16_t bits = 0;
    std::memcpy(&bits, &rounded, sizeof bits);
    return unsigned{bits};
  };
  unsigned of_a[4] = {};
  unsigned of_b[2] = {};
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
    const unsigned column = in_group * 2 + (i & 1U) + (i >= 4 ? 8 : 0);
    of_a[i / 2] |= half_bits(a[row * 16 + column]) << (16 * (i % 2));
  }
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = in_group * 2 + (i & 1U) + (i >= 2 ? 8 : 0);
    of_b[i / 2] |= half_bits(b[row * 8 + group]) << (16 * (i % 2));
  }
  float of_c[4] = {};
  for (unsigned i = 0; i < 4; ++i) of_c[i] = c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1U)];
  cuda::multiply_matrices<__half>(of_c, of_a, of_b[0], of_b[1]);
  for (unsigned i = 0; i < 4; ++i) c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1U)] = of_c[i];
}

// Matrix m holds 100·m + 10·row + column; each lane's two elements of each matrix, in order.
__global__ void load_numbered(unsigned* loaded, bool transposed) {
  auto* const shared = cuda::shared_memory<std::uint16_t>();
  for (unsigned i = threadIdx.x; i < 4 * 64; i += 32)
    shared[i] = static_cast<std::uint16_t>(100 * (i / 64) + 10 * (i / 8 % 8) + i % 8);
  __syncwarp();
  unsigned matrices[4] = {};
  if (transposed)
    cuda::load_matrices_transposed(matrices, shared + threadIdx.x * 8);
  else
    cuda::load_matrices(matrices, shared + threadIdx.x * 8);
  for (unsigned m = 0; m < 4; ++m) loaded[threadIdx.x * 4 + m] = matrices[m];
}

__global__ void copy_and_read(const float* input, float* output, bool waits) {
  auto* const shared = cuda::shared_memory<float>();
  cuda::copy_async(shared + threadIdx.x * 4, input + threadIdx.x * 4);
  if (waits) cuda::wait_for_copies();
  __syncthreads();
  output[threadIdx.x] = shared[threadIdx.x];
}

// Each thread copies its part of the next stage over this one, which is read from behind.
__global__ void read_and_copy_next(const float* input, float* output, bool with_barrier) {
  auto* const stage = cuda::shared_memory<float>();
  cuda::copy_async(stage + threadIdx.x * 4, input + threadIdx.x * 4);
  cuda::wait_for_copies();
  __syncthreads();
  output[threadIdx.x] = stage[(blockDim.x - 1 - threadIdx.x) * 4];
  if (with_barrier) __syncthreads();
  cuda::copy_async(stage + threadIdx.x * 4, input + 256 + threadIdx.x * 4);
  __syncthreads();
  cuda::wait_for_copies();
}

// Which thread comes first, and whether its copy is there at once.
__global__ void tell_order(const float* input, int* order, float* output) {
  auto* const shared = cuda::shared_memory<float>();
  order[threadIdx.x] = order[32]++;
  cuda::copy_async(shared + threadIdx.x * 4, input + threadIdx.x * 4);
  output[threadIdx.x] = shared[threadIdx.x * 4];
  cuda::wait_for_copies();
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

TEST_CASE("matrices_multiply_whose_elements_lie_as_the_isa_tells") {
  std::vector<float> a(16 * 16);
  std::vector<float> b(16 * 8);
  std::vector<float> c(16 * 8, 1.0F);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 13) - 6;  // exact in fp16, as are the sums
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 7) - 3;
  cuda::launch(nullptr, {dim3(1), 32}, multiply_by_tables, a.data(), b.data(), c.data());
  for (std::size_t row = 0; row < 16; ++row)
    for (std::size_t column = 0; column < 8; ++column) {
      float sum = 1.0F;
      for (std::size_t k = 0; k < 16; ++k) sum += a[row * 16 + k] * b[k * 8 + column];
      CHECK(c[row * 8 + column] == sum);
    }
}

TEST_CASE("matrices_are_loaded_by_rows_or_transposed") {
  std::vector<unsigned> loaded(32 * 4);
  for (const bool transposed : {false, true}) {
    cuda::launch(nullptr, {dim3(1), 32, 4 * 64 * sizeof(std::uint16_t)}, load_numbered, loaded.data(), transposed);
    for (unsigned lane = 0; lane < 32; ++lane)
      for (unsigned m = 0; m < 4; ++m)
        for (unsigned i = 0; i < 2; ++i) {
          const unsigned along = 2 * (lane % 4) + i;
          const unsigned across = lane / 4;
          const unsigned expected = 100 * m + (transposed ? 10 * along + across : 10 * across + along);
          CHECK((loaded[lane * 4 + m] >> (16 * i) & 0xffffU) == expected);
        }
  }
}

TEST_CASE("who_does_not_wait_for_its_copies_does_not_find_them_in_every_other_launch") {
  alignas(16) float input[128];
  for (int i = 0; i < 128; ++i) input[i] = static_cast<float>(i);
  for (const bool waits : {true, false}) {
    int num_found = 0;
    for (int run = 0; run < 2; ++run) {
      std::vector<float> output(32);
      cuda::launch(nullptr, {dim3(1), 32, sizeof input}, copy_and_read, input, output.data(), waits);
      const bool is_found = output[31] == 31.0F;
      for (std::size_t i = 0; i < 32; ++i)
        CHECK((is_found ? output[i] == static_cast<float>(i) : std::isnan(output[i])));
      num_found += is_found ? 1 : 0;
    }
    CHECK(num_found == (waits ? 2 : 1));
  }
}

TEST_CASE("who_copies_to_where_others_still_read_takes_it_from_under_them") {
  alignas(16) float input[2 * 256];
  for (int i = 0; i < 2 * 256; ++i) input[i] = static_cast<float>(i);
  for (const bool with_barrier : {true, false}) {
    int num_right = 0;
    for (int run = 0; run < 2; ++run) {
      std::vector<float> output(64);
      cuda::launch(nullptr, {dim3(1), 64, 256 * sizeof(float)}, read_and_copy_next, input, output.data(), with_barrier);
      bool is_right = true;
      for (std::size_t i = 0; i < 64; ++i) is_right = is_right && output[i] == static_cast<float>(252 - 4 * i);
      num_right += is_right ? 1 : 0;
    }
    CHECK(num_right == (with_barrier ? 2 : 1));
  }
}

TEST_CASE("a_kernel_takes_threads_in_every_order_with_copies_of_every_kind_whatever_is_launched_between") {
  alignas(16) float input[128];
  for (int i = 0; i < 128; ++i) input[i] = static_cast<float>(i);
  std::set<std::pair<int, bool>> seen;
  for (int run = 0; run < 4; ++run) {
    int order[64] = {};
    std::vector<float> output(32);
    for (int other = 0; other < 3; ++other)
      cuda::launch(nullptr, {dim3(1), 32, sizeof input}, copy_and_read, input, output.data(), true);
    cuda::launch(nullptr, {dim3(1), 32, 16 * 32}, tell_order, input, order, output.data());
    seen.emplace(order[0], output[0] == 0.0F);
  }
  CHECK(seen.size() == 4);
}

TEST_CASE("kernels_that_ran_are_told_by_name") {
  std::vector<int> output(64);
  cuda::launch(nullptr, {dim3(1), 64}, number_threads, output.data());
  const std::vector<std::string> names = cuda::names_of_kernels_that_ran();
  const auto is_named = [&](const char* name) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& one) { return one.find(name) != std::string::npos; });
  };
  CHECK(is_named("::number_threads(int*)"));
  CHECK(names.size() == cuda::kernels_that_ran().size());
}
