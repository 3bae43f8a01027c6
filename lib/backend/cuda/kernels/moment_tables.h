// Tables by which kernels find the codes of moments in 8 bits (backend/moment_codes.h): made when they are compiled, so
// that they lie in the module, and small enough to be copied to the shared memory of each thread block.
//
// A number's code is found in two reads. The leading bits of a float, its exponent and the first of its mantissa, name
// a bucket, in which no more than one number lies that is between two codes. The bucket's table has the code of what is
// below that, and a comparison with it the rest: exactly what a search among all of them finds.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "backend/moment_codes.h"
#include "cuda_language.h"

namespace scaletrain::cuda {

// What a code stands for, and from which number on the next one is nearer.
struct CodeNumbers {
  float values[256];
  float betweens[256];  // behind the last code: infinity
};

// mantissa_bits: those that keep numbers between codes apart.
template <int mantissa_bits, bool is_signed>
struct CodeBuckets {
  static constexpr int shift = 23 - mantissa_bits;
  // All that is smaller than 2^-22 has the bucket of that. Above 1 is what is not a number, of which each comparison is
  // false.
  static constexpr int lowest = 0x34800000 >> shift;
  static constexpr int highest = (0x3F800000 >> shift) + 1;
  static constexpr int of_a_sign = highest - lowest + 1;

  std::uint8_t below[(is_signed ? 2 : 1) * of_a_sign];

  // x: the bits of a float from -1 to 1, or from 0 to 1.
  static __host__ __device__ constexpr int bucket_of(std::uint32_t x) {
    const auto leading = static_cast<int>((x & 0x7FFFFFFFU) >> shift);
    const int bucket = (leading < lowest ? lowest : leading > highest ? highest : leading) - lowest;
    return is_signed && (x >> 31) != 0 ? bucket + of_a_sign : bucket;
  }
};

template <class Buckets>
__device__ inline int code_of(const CodeNumbers& numbers, const Buckets& buckets, float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int code = buckets.below[Buckets::bucket_of(bits)];
  return x >= numbers.betweens[code] ? code + 1 : code;
}

constexpr CodeNumbers make_code_numbers(const MomentCodes& codes) {
  CodeNumbers numbers{};
  for (int code = 0; code < 256; ++code) {
    numbers.values[code] = codes.values[static_cast<std::size_t>(code)];
    numbers.betweens[code] = code < 255 ? between_codes(codes, code) : std::numeric_limits<float>::infinity();
  }
  // Whatever is not zero has the smallest code at least.
  for (int code = 0; code < codes.smallest; ++code) numbers.betweens[code] = std::numeric_limits<float>::denorm_min();
  return numbers;
}

template <class Buckets>
constexpr Buckets make_code_buckets(const CodeNumbers& numbers, int smallest) {
  Buckets buckets{};
  const auto below = [&](int from, std::uint32_t bits) {
    while (std::bit_cast<float>(bits) >= numbers.betweens[from]) ++from;
    return from;
  };
  constexpr int last = Buckets::of_a_sign - 1;
  int code = 0;
  if constexpr (sizeof(Buckets) > Buckets::of_a_sign) {
    for (int bucket = last - 1; bucket >= 0; --bucket) {
      const auto largest = static_cast<std::uint32_t>(((bucket + Buckets::lowest + 1) << Buckets::shift) - 1);
      code = below(code, largest | 0x80000000U);
      buckets.below[Buckets::of_a_sign + bucket] = static_cast<std::uint8_t>(code);
    }
    buckets.below[Buckets::of_a_sign + last] = static_cast<std::uint8_t>(smallest);
  }
  for (int bucket = 0; bucket < last; ++bucket) {
    code = below(code, bucket == 0 ? 0U : static_cast<std::uint32_t>((bucket + Buckets::lowest) << Buckets::shift));
    buckets.below[bucket] = static_cast<std::uint8_t>(code);
  }
  buckets.below[last] = static_cast<std::uint8_t>(smallest);
  return buckets;
}

// What kernels copy to shared memory, in words of 16 bytes.
struct alignas(16) MomentTables {
  CodeNumbers first, second;
  CodeBuckets<6, true> first_buckets;
  CodeBuckets<7, false> second_buckets;
};

constexpr MomentTables make_moment_tables() {
  MomentTables tables{.first = make_code_numbers(first_moment_codes()),
                      .second = make_code_numbers(second_moment_codes()),
                      .first_buckets = {},
                      .second_buckets = {}};
  tables.first_buckets = make_code_buckets<CodeBuckets<6, true>>(tables.first, first_moment_codes().smallest);
  tables.second_buckets = make_code_buckets<CodeBuckets<7, false>>(tables.second, second_moment_codes().smallest);
  return tables;
}

// Whether each number between two codes, and the float below it, find what they are to: then no bucket has two.
template <class Buckets>
constexpr bool finds_codes(const CodeNumbers& numbers, const Buckets& buckets) {
  const auto code_at = [&](float x) {
    const int code = buckets.below[Buckets::bucket_of(std::bit_cast<std::uint32_t>(x))];
    return x >= numbers.betweens[code] ? code + 1 : code;
  };
  for (int code = 0; code < 255; ++code) {
    const float between = numbers.betweens[code];
    const auto bits = std::bit_cast<std::uint32_t>(between);
    if (code_at(between) != code + 1) return false;
    if (code_at(std::bit_cast<float>(between > 0 ? bits - 1 : bits + 1)) != code) return false;
  }
  return true;
}

}  // namespace scaletrain::cuda
