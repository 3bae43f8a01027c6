// The language of kernels (lib/backend/cuda/nvcc/cuda_language.h) for the host's compiler: the same sources run on the
// processor, so that every kernel is tested where there is no GPU, under the sanitizers too. A launch runs its blocks
// one after the other and has ended when it returns; the threads of a block are fibers that give way to each other
// where they meet: at barriers, shuffles and votes. Launches of a kernel by turns take threads in another order, and
// make asynchronous copies at once or as late as they may be made. What the hardware would not forgive is a BugError
// naming block and thread: threads that wait for others that have ended or wait elsewhere, a shuffle that not all lanes
// of its mask come to.
//
// Shared memory and device memory are the host's heap, so the address sanitizer sees accesses beyond their ends; shared
// memory is filled with NaN before a block begins.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "base/error.h"

namespace scaletrain::cuda {

// The thread that runs.
struct HostThread {
  uint3 thread_index{}, block_index{};
  dim3 block_size{}, grid_size{};
  std::byte* shared = nullptr;
  // Under way: made when the thread waits for them, so that who does not wait reads what was there before; or at once,
  // so that who copies to where others still read takes it from under them.
  struct CopyUnderWay {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  std::vector<CopyUnderWay> copies{};
  bool copies_at_once = false;
};
HostThread& this_thread();

void meet_block();
void meet_warp(unsigned mask);
// Hands over 8 bytes and gets those of another lane of the warp. All 32 lanes must come.
std::uint64_t meet_shuffle(unsigned mask, std::uint64_t value, unsigned from_lane);
unsigned meet_ballot(unsigned mask, bool vote);
// When all lanes of the warp have come, each with an address of its own: `work` once, with the addresses of all.
using WarpAddresses = const std::uint64_t (&)[32];
void meet_for(const char* what, void* address, void (*work)(WarpAddresses));

struct LaunchShape {
  dim3 blocks;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
};
constexpr std::size_t most_shared_bytes = 99 << 10;
// kernel: whatever tells it from others, and by which it is kept in mind.
void run_blocks(const LaunchShape& shape, const void* kernel, const std::function<void()>& body);
// When the stream's turn has come: fake_runtime.cpp.
void run_in_turn(cudaStream_t stream, std::function<void()> function);
// What a launch does before it, and whether there will be one.
cudaError_t begin_launch(const void* kernel);

void copy_async(void* shared, const void* global);
void copy_word_async(void* shared, const void* global);
void wait_for_copies();
void load_matrices(unsigned (&matrices)[4], const void* row);
void load_matrices_transposed(unsigned (&matrices)[4], const void* row);
template <class S>
void multiply_matrices(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high);
template <>
void multiply_matrices<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high);
template <>
void multiply_matrices<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high);
float approximate_exp2(float x);
inline void forget_results_of(unsigned&) {}

template <class T>
T* shared_memory() {
  return reinterpret_cast<T*>(this_thread().shared);
}

template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  const auto* const place = reinterpret_cast<const void*>(kernel);
  check(begin_launch(place), "the launch of a kernel");
  const std::tuple<Parameters...> kept(static_cast<Parameters>(arguments)...);
  run_in_turn(stream, [=] { run_blocks(shape, place, [&] { std::apply(kernel, kept); }); });
}

inline unsigned lane_of_this_thread() {
  return this_thread().thread_index.x % 32;
}
template <class T>
T shuffle(unsigned mask, T value, unsigned from_lane) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = meet_shuffle(mask, bits, from_lane);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace scaletrain::cuda

// CUDA's own names, as far as kernels use them.
#define threadIdx (::scaletrain::cuda::this_thread().thread_index)
#define blockIdx (::scaletrain::cuda::this_thread().block_index)
#define blockDim (::scaletrain::cuda::this_thread().block_size)
#undef __launch_bounds__
#define __launch_bounds__(...)
#define gridDim (::scaletrain::cuda::this_thread().grid_size)

inline void __syncthreads() {
  ::scaletrain::cuda::meet_block();
}
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  ::scaletrain::cuda::meet_warp(mask);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  return ::scaletrain::cuda::shuffle(mask, value,
                                     ::scaletrain::cuda::lane_of_this_thread() ^ static_cast<unsigned>(lane_mask));
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from_lane) {
  return ::scaletrain::cuda::shuffle(mask, value, static_cast<unsigned>(from_lane) % 32);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  return ::scaletrain::cuda::meet_ballot(mask, vote);
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
inline int max(int a, int b) {
  return a < b ? b : a;
}
[[noreturn]] inline void __trap() {
  throw ::scaletrain::BugError("a kernel trapped");
}
inline int atomicAdd(int* address, int value) {
  const int before = *address;
  *address += value;
  return before;
}
inline void sincospif(float x, float* sine, float* cosine) {
  constexpr double pi = 3.14159265358979323846;
  *sine = static_cast<float>(std::sin(pi * x));
  *cosine = static_cast<float>(std::cos(pi * x));
}
