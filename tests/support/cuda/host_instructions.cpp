// Instructions of tensor cores and what feeds them, by the layouts that the PTX ISA gives for their operands.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "cuda_language.h"

namespace scaletrain::cuda {

namespace {

constexpr unsigned lanes = 32;

void require_aligned(const void* address, const char* what, std::size_t bytes = 16) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    throw BugError(std::string(what) + " of an address that is no multiple of " + std::to_string(bytes));
}

void begin_copy(void* shared, const void* global, std::size_t bytes) {
  require_aligned(shared, "cp.async", bytes);
  require_aligned(global, "cp.async", bytes);
  if (this_thread().copies_at_once)
    std::memcpy(shared, global, bytes);
  else
    this_thread().copies.push_back({shared, global, bytes});
}

// What a lane brings to ldmatrix, and takes away.
struct Loading {
  const void* row;
  unsigned* matrices;
};

template <bool transposed>
void load_for_warp(WarpAddresses of_lanes) {
  // Row r of matrix m, as lane 8m + r tells.
  std::array<std::array<std::array<std::uint16_t, 8>, 8>, 4> matrices{};
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const auto& loading = *reinterpret_cast<const Loading*>(of_lanes[lane]);
    require_aligned(loading.row, "ldmatrix");
    std::memcpy(matrices[lane / 8][lane % 8].data(), loading.row, 16);
  }
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const auto& loading = *reinterpret_cast<const Loading*>(of_lanes[lane]);
    const unsigned group = lane / 4;
    const unsigned pair = 2 * (lane % 4);
    for (unsigned m = 0; m < 4; ++m) {
      const unsigned low = transposed ? matrices[m][pair][group] : matrices[m][group][pair];
      const unsigned high = transposed ? matrices[m][pair + 1][group] : matrices[m][group][pair + 1];
      loading.matrices[m] = low | high << 16;
    }
  }
}

// What a lane brings to mma.m16n8k16.
struct Multiplying {
  float* c;
  const unsigned* a;
  unsigned b_low, b_high;
};

template <class S>
std::array<float, 2> pair_of(unsigned bits) {
  static_assert(2 * sizeof(S) == sizeof bits);
  const auto pair = std::bit_cast<std::array<S, 2>>(bits);
  return {static_cast<float>(pair[0]), static_cast<float>(pair[1])};
}

template <class S>
void multiply_for_warp(WarpAddresses of_lanes) {
  std::array<std::array<float, 16>, 16> a{};  // [row, k]
  std::array<std::array<float, 8>, 16> b{};   // [k, column]
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const auto& own = *reinterpret_cast<const Multiplying*>(of_lanes[lane]);
    const unsigned group = lane / 4;
    const unsigned pair = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) {
      const auto values = pair_of<S>(own.a[i]);
      for (unsigned j = 0; j < 2; ++j) a[group + 8 * (i % 2)][pair + 8 * (i / 2) + j] = values[j];
    }
    const auto low = pair_of<S>(own.b_low);
    const auto high = pair_of<S>(own.b_high);
    for (unsigned j = 0; j < 2; ++j) {
      b[pair + j][group] = low[j];
      b[pair + 8 + j][group] = high[j];
    }
  }
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const auto& own = *reinterpret_cast<const Multiplying*>(of_lanes[lane]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + 8 * (i / 2);
      const unsigned column = 2 * (lane % 4) + i % 2;
      float sum = own.c[i];
      for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      own.c[i] = sum;
    }
  }
}

template <class S>
void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
  Multiplying own{c, a, b_low, b_high};
  meet_for("mma", &own, multiply_for_warp<S>);
}

}  // namespace

void copy_async(void* shared, const void* global) {
  begin_copy(shared, global, 16);
}
void copy_word_async(void* shared, const void* global) {
  begin_copy(shared, global, 4);
}

void wait_for_copies() {
  for (const auto& copy : this_thread().copies) std::memcpy(copy.to, copy.from, copy.bytes);
  this_thread().copies.clear();
}

void load_matrices(unsigned (&matrices)[4], const void* row) {
  Loading own{row, matrices};
  meet_for("ldmatrix", &own, load_for_warp<false>);
}
void load_matrices_transposed(unsigned (&matrices)[4], const void* row) {
  Loading own{row, matrices};
  meet_for("ldmatrix", &own, load_for_warp<true>);
}

template <>
void multiply_matrices<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
  multiply<__nv_bfloat16>(c, a, b_low, b_high);
}
template <>
void multiply_matrices<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
  multiply<__half>(c, a, b_low, b_high);
}

// Off by what the instruction may be off, always to the same side.
float approximate_exp2(float x) {
  const float power = std::exp2(x) * (1.0F + 0x1p-22F);
  return power < std::numeric_limits<float>::min() ? 0.0F : power;
}

}  // namespace scaletrain::cuda
