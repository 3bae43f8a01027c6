// f32 panels for processors with AVX-512.
#define SCALETRAIN_LANES 16
#include <immintrin.h>

#include "backend/cpu/panel_kernels.h"

namespace scaletrain::cpu {

namespace {

#include "backend/cpu/simd.inc"
#include "backend/cpu/simd_words.inc"

using Element = float;
using Words = V;

constexpr char panel_name[] = "avx512";
constexpr char panel_title[] = "AVX-512";

SCALETRAIN_INLINE Words load_words(const char* p) {
  Words words;
  __builtin_memcpy(&words, p, sizeof words);
  return words;
}
SCALETRAIN_INLINE Words broadcast_word(const char* p) {
  float word;
  __builtin_memcpy(&word, p, sizeof word);
  return splat(word);
}
SCALETRAIN_INLINE V multiply_add(Words row, Words columns, V sum) {
  return fma(row, columns, sum);
}

// The first `left` elements, zeros after them.
SCALETRAIN_INLINE __m512i load_elements(const float* p, size_t left) {
  return _mm512_maskz_loadu_epi32(lanes_below(left), p);
}

SCALETRAIN_INLINE __m512i words_of_rows(const float* p, ptrdiff_t, size_t, __mmask16 mask) {
  return _mm512_maskz_loadu_epi32(mask, p);
}

SCALETRAIN_INLINE V load_masked(const float* p, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, p);
}

SCALETRAIN_INLINE void store_rounded(float* p, V v) {
  store(p, v);
}
SCALETRAIN_INLINE void store_rounded(float* p, V v, __mmask16 mask) {
  _mm512_mask_storeu_ps(p, mask, v);
}

#include "backend/cpu/kernels_panels.inc"

}  // namespace

constinit const PanelKernels<float> f32_panels_avx512 = panel_table;

}  // namespace scaletrain::cpu
