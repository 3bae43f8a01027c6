// bf16 panels for processors with AVX-512 bf16 (Intel since 2020, AMD since 2022).
#define SCALETRAIN_LANES 16
#include <immintrin.h>

#include "backend/cpu/panel_kernels.h"

namespace scaletrain::cpu {

namespace {

#include "backend/cpu/simd.inc"
#include "backend/cpu/simd_bf16.inc"
#include "backend/cpu/simd_words.inc"

using Element = Bf16;
using Words = __m512bh;

constexpr char panel_name[] = "avx512_bf16";
constexpr char panel_title[] = "AVX-512 bf16";

SCALETRAIN_INLINE Words load_words(const char* p) {
  return reinterpret_cast<Words>(_mm512_loadu_si512(p));
}
SCALETRAIN_INLINE Words broadcast_word(const char* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return reinterpret_cast<Words>(_mm512_set1_epi32(word));
}
SCALETRAIN_INLINE V multiply_add(Words row, Words columns, V sum) {
  return _mm512_dpbf16_ps(sum, row, columns);
}

// The first `left` elements, zeros after them.
SCALETRAIN_INLINE __m512i load_elements(const Bf16* p, size_t left) {
  return _mm512_maskz_loadu_epi16(left >= 2 * lanes ? 0xffffffffU : (1U << left) - 1U, p);
}

// Two rows side by side, the second one zero where only one is left.
SCALETRAIN_INLINE __m512i words_of_rows(const Bf16* p, ptrdiff_t stride, size_t rows_left, __mmask16 mask) {
  const auto first = reinterpret_cast<V16>(_mm256_maskz_loadu_epi16(mask, p));
  const auto second = rows_left > 1 ? reinterpret_cast<V16>(_mm256_maskz_loadu_epi16(mask, p + stride)) : V16{};
  return reinterpret_cast<__m512i>(side_by_side(first, second));
}

template <bool full>
SCALETRAIN_INLINE V load_columns(const Bf16* p, size_t columns) {
  return full ? load(p) : load_masked(p, lanes_below(columns));
}
template <bool full>
SCALETRAIN_INLINE void store_columns(Bf16* p, V v, size_t columns) {
  if (full)
    store_rounded(p, v);
  else
    store_rounded(p, v, lanes_below(columns));
}

#include "backend/cpu/kernels_panels.inc"

}  // namespace

constinit const PanelKernels<Bf16> bf16_panels_avx512 = panel_table;

}  // namespace scaletrain::cpu
