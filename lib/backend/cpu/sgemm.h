// Matrix products of fp32 by oneDNN, each on the calling thread alone.
#pragma once

#include <cstdint>
#include <string>

namespace scaletrain::cpu {

struct ConstMatrix {
  const float* data = nullptr;
  std::int64_t stride = 0;  // elements between rows as they lie in memory
  bool transposed = false;
};

// c[m,n] = alpha · a[m,k] · b[k,n] + beta · c, row-major. With beta = 0 the old c is not read. A transposed operand
// lies in memory as [k,m] or [n,k].
struct Sgemm {
  std::int64_t m = 0, n = 0, k = 0;
  float alpha = 1.0F;
  ConstMatrix a, b;
  float beta = 0.0F;
  float* c = nullptr;
  std::int64_t c_stride = 0;
};

void sgemm(const Sgemm& product);

// oneDNN's name of the best instructions that it uses on this processor: "avx512_core_vnni".
std::string sgemm_instructions();

// "oneDNN 2.6.3 avx512_core_vnni": what the bits of a product depend on besides the shape.
std::string sgemm_description();

// What oneDNN may allocate inside one call for repacked blocks, whatever the shape.
inline constexpr std::size_t sgemm_scratch_bytes = std::size_t{8} << 20;

}  // namespace scaletrain::cpu
