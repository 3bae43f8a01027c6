// The update of AdamW whose moments are in 8 bits.
//
// A warp has as many consecutive elements as the largest block of moments, in packs of four: lane l those at 4·l of
// each half. So a block lies in one warp, or several in one, and its largest moments are found by shuffles alone. A
// thread block goes through several such parts: what each must read first, the tables of codes, is read once for all.
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/moment_tables.h"
#include "backend/cuda/kernels/spans.h"

namespace scaletrain::cuda {

namespace {

constexpr MomentTables made_tables = make_moment_tables();
static_assert(finds_codes(made_tables.first, made_tables.first_buckets));
static_assert(finds_codes(made_tables.second, made_tables.second_buckets));
static_assert(made_tables.second.values[0] == 0.0F);  // neither these moments nor their codes are negative
__device__ const MomentTables tables_of_module = made_tables;

constexpr int lanes = 32;
constexpr int pack_of_moments = updated_at_once;
constexpr int packs_of_thread = 2;
constexpr int elements_between_packs = lanes * pack_of_moments;
constexpr int elements_of_warp = packs_of_thread * elements_between_packs;
static_assert(elements_of_warp == most_in_moment_block && pack_of_moments <= least_in_moment_block);
constexpr int elements_of_threads = elements_of_warp * static_cast<int>(threads_of_block) / lanes;

template <class S>
struct BlockAdamWBuffers {
  float* param;
  std::uint8_t* first_codes;
  std::uint8_t* second_codes;
  float* first_scales;
  float* second_scales;
  const float* gradient;
  S* compute_weights;  // or null
  const StepScalars* step;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  int block_bits;  // a block has 1 << block_bits elements
  int parts;       // of elements_of_threads each, that a thread block goes through

  // From an element on that begins a block.
  __device__ BlockAdamWBuffers from(std::int64_t begin) const {
    BlockAdamWBuffers rest = *this;
    rest.param += begin;
    rest.first_codes += begin;
    rest.second_codes += begin;
    rest.first_scales += begin >> block_bits;
    rest.second_scales += begin >> block_bits;
    rest.gradient += begin;
    if (compute_weights != nullptr) rest.compute_weights += begin;
    return rest;
  }
};

// What a thread block reads once.
struct SharedMoments {
  MomentTables tables;
  float inverse_correction1, inverse_correction2;
};

template <class S>
using PackOf = Pack<S, pack_of_moments>;

// What the compiler reads and writes by one instruction, whatever a pack consists of.
template <std::size_t bytes>
using WordOf = std::conditional_t<bytes == 16, uint4, std::conditional_t<bytes == 8, std::uint64_t, std::uint32_t>>;

// whole: the pack is read and written at once; else element by element.
template <bool whole, class S>
__device__ inline PackOf<S> load_pack(const S* p) {
  PackOf<S> pack;
  if constexpr (whole) {
    const auto word = *reinterpret_cast<const WordOf<sizeof pack>*>(p);
    static_assert(sizeof word == sizeof pack);
    memcpy(&pack, &word, sizeof pack);
  } else {
#pragma unroll
    for (int i = 0; i < pack_of_moments; ++i) pack.values[i] = p[i];
  }
  return pack;
}
template <bool whole, class S>
__device__ inline void store_pack(S* p, const PackOf<S>& pack) {
  if constexpr (whole) {
    WordOf<sizeof pack> word;
    static_assert(sizeof word == sizeof pack);
    memcpy(&word, &pack, sizeof pack);
    *reinterpret_cast<WordOf<sizeof pack>*>(p) = word;
  } else {
#pragma unroll
    for (int i = 0; i < pack_of_moments; ++i) p[i] = pack.values[i];
  }
}

// The span where this lane was last: mostly it is still there. Elements are counted from where its thread block begins.
struct SpanOfLane {
  int first = 0, end = 0;
  float learning_rate = 0.0F, weight_decay = 0.0F;

  // False where an element is in no span.
  __device__ bool moves_to(int at, std::int64_t begin, int count, const Spans& spans, const StepScalars* step) {
    if (at >= first && at < end) return true;
    const Spans::Span* const span = span_of(spans, begin + at);
    if (span == nullptr) return false;
    first = span->first > begin ? static_cast<int>(span->first - begin) : 0;
    end = span->end < begin + count ? static_cast<int>(span->end - begin) : count;
    learning_rate = static_cast<float>(step->learning_rate * span->rate_factor);
    weight_decay = span->weight_decay;
    return true;
  }
};

// A block's largest moment, and what makes dividing by it short: its reciprocal, to the nearest float, where it is in
// the range in which that gives the quotient to the bit; else 0.
struct BlockScale {
  float size, inverse;
};
__device__ inline BlockScale scale_of(float size) {
  return {size, size >= 0x1p-80F && size <= 1.0F ? 1.0F / size : 0.0F};
}

// moments[i] / scale, rounded to nearest. The quotient by the reciprocal is off by no more than 1.5 units of its last
// bit. What remains of the dividend betters it: then it is one of the two neighbours of the true quotient, the
// remainder is exact, and the second time it is the nearest (Markstein 1990, theorem 8.3 of Muller et al., Handbook of
// Floating-Point Arithmetic). Only of quotients below 2^-23, which all have the lowest bucket, remainders may lose
// bits; as a scale of at most 1 makes nothing smaller, none of them becomes zero.
__device__ inline void divide(const float (&moments)[pack_of_moments], const BlockScale& scale,
                              float (&quotients)[pack_of_moments]) {
  if (scale.inverse > 0.0F) {
#pragma unroll
    for (int i = 0; i < pack_of_moments; ++i) {
      float quotient = moments[i] * scale.inverse;
      quotient = fmaf(fmaf(-scale.size, quotient, moments[i]), scale.inverse, quotient);
      quotients[i] = fmaf(fmaf(-scale.size, quotient, moments[i]), scale.inverse, quotient);
    }
  } else {
#pragma unroll
    for (int i = 0; i < pack_of_moments; ++i) quotients[i] = scale.size > 0.0F ? moments[i] / scale.size : 0.0F;
  }
}

template <bool whole, class Buckets>
__device__ inline void encode_pack(const float (&moments)[pack_of_moments], const BlockScale& scale,
                                   const CodeNumbers& numbers, const Buckets& buckets, std::uint8_t* codes) {
  float quotients[pack_of_moments];
  divide(moments, scale, quotients);
  PackOf<std::uint8_t> pack;
#pragma unroll
  for (int i = 0; i < pack_of_moments; ++i)
    pack.values[i] = static_cast<std::uint8_t>(code_of(numbers, buckets, quotients[i]));
  store_pack<whole>(codes, pack);
}

__device__ inline float largest_of(const float (&values)[pack_of_moments]) {
  static_assert(pack_of_moments == 4);
  return fmaxf(fmaxf(fabsf(values[0]), fabsf(values[1])), fmaxf(fabsf(values[2]), fabsf(values[3])));
}

// Each value becomes the largest among the `group` lanes, a power of two, whose elements share a block.
template <int count>
__device__ inline void make_largest(float (&values)[count], int group) {
  for (int lane = 1; lane < group; lane *= 2) {
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = fmaxf(values[i], __shfl_xor_sync(0xFFFFFFFFU, values[i], lane));
  }
}

// Of the four elements at `at`: the update of the weights, and the moments behind it; zero where they are in no span.
// All lanes of a warp come here.
template <bool whole, class S>
__device__ inline void update_pack(const BlockAdamWBuffers<S>& of, const SharedMoments& shared, float gradient_scale,
                                   const SpanOfLane& span, bool is_in_span, int at, float (&m)[pack_of_moments],
                                   float (&v)[pack_of_moments]) {
  PackOf<float> p = {};
  PackOf<float> g = {};
  PackOf<std::uint8_t> first_codes = {};
  PackOf<std::uint8_t> second_codes = {};
  float first_scale = 0.0F;
  float second_scale = 0.0F;
  if (is_in_span) {
    p = load_pack<whole>(of.param + at);
    g = load_pack<whole>(of.gradient + at);
    first_codes = load_pack<whole>(of.first_codes + at);
    second_codes = load_pack<whole>(of.second_codes + at);
    first_scale = of.first_scales[at >> of.block_bits];
    second_scale = of.second_scales[at >> of.block_bits];
  }
  // Loads stay ahead of it, all on their way at once, where the compiler would wait for one after the other.
  __syncwarp();
#pragma unroll
  for (int e = 0; e < pack_of_moments; ++e) m[e] = v[e] = 0.0F;
  if (!is_in_span) return;
#pragma unroll
  for (int e = 0; e < pack_of_moments; ++e) {
    // What is fused is written out: of compilers' choices, which go by what they see together, no bit depends.
    const float scaled = g.values[e] * gradient_scale;
    const float first_moment = shared.tables.first.values[first_codes.values[e]] * first_scale;
    const float second_moment = shared.tables.second.values[second_codes.values[e]] * second_scale;
    m[e] = fmaf(of.one_minus_beta1, scaled, of.beta1 * first_moment);
    v[e] = fmaf(of.one_minus_beta2 * scaled, scaled, of.beta2 * second_moment);
    const float root = sqrtf(v[e] * shared.inverse_correction2) + of.epsilon;
    const float direction = m[e] * shared.inverse_correction1 / root;
    p.values[e] = fmaf(-span.learning_rate, fmaf(span.weight_decay, p.values[e], direction), p.values[e]);
  }
  store_pack<whole>(of.param + at, p);
  if (of.compute_weights == nullptr) return;
  PackOf<S> weights;
#pragma unroll
  for (int e = 0; e < pack_of_moments; ++e) weights.values[e] = from_float<S>(p.values[e]);
  store_pack<whole>(of.compute_weights + at, weights);
}

// What the blocks of this lane's packs are divided by.
__device__ inline void find_scales(const float (&m)[packs_of_thread][pack_of_moments],
                                   const float (&v)[packs_of_thread][pack_of_moments], int block_bits,
                                   BlockScale (&of_first)[packs_of_thread], BlockScale (&of_second)[packs_of_thread]) {
  static_assert(packs_of_thread == 2);
  const int lanes_of_block = (1 << block_bits) / pack_of_moments;
  if (lanes_of_block > lanes) {
    float largest[2] = {fmaxf(largest_of(m[0]), largest_of(m[1])), fmaxf(largest_of(v[0]), largest_of(v[1]))};
    make_largest(largest, lanes);
    of_first[0] = of_first[1] = scale_of(largest[0]);
    of_second[0] = of_second[1] = scale_of(largest[1]);
  } else {
    float largest[4] = {largest_of(m[0]), largest_of(m[1]), largest_of(v[0]), largest_of(v[1])};
    make_largest(largest, lanes_of_block);
#pragma unroll
    for (int i = 0; i < packs_of_thread; ++i) {
      of_first[i] = scale_of(largest[i]);
      of_second[i] = scale_of(largest[packs_of_thread + i]);
    }
  }
}

// whole: packs are read and written at once. `base` begins a block, and spans are of whole ones.
template <class S, bool whole>
__global__ void __launch_bounds__(threads_of_block, 4)
    update_block_adamw(const BlockAdamWBuffers<S> op, const __grid_constant__ Spans spans, std::int64_t base,
                       std::int64_t end) {
  if (op.step->skip != 0) return;
  const auto thread = static_cast<int>(threadIdx.x);
  SharedMoments& shared = *shared_memory<SharedMoments>();
  for (int at = thread * pack_bytes; at < static_cast<int>(sizeof(MomentTables)); at += threads_of_block * pack_bytes)
    copy_async(reinterpret_cast<char*>(&shared.tables) + at, reinterpret_cast<const char*>(&tables_of_module) + at);
  if (thread == 0) {
    shared.inverse_correction1 = static_cast<float>(1.0 / op.step->bias_correction1);
    shared.inverse_correction2 = static_cast<float>(1.0 / op.step->bias_correction2);
  }
  wait_for_copies();
  __syncthreads();
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  const int most = op.parts * elements_of_threads;
  const std::int64_t begin = base + static_cast<std::int64_t>(blockIdx.x) * most;
  const int count = end - begin < most ? static_cast<int>(end - begin) : most;
  const BlockAdamWBuffers<S> of = op.from(begin);
  SpanOfLane span;
  // The lanes of a warp go on, and end, together.
  for (int first = thread / lanes * elements_of_warp; first < count; first += elements_of_threads) {
    bool is_in_span[packs_of_thread];
    float m[packs_of_thread][pack_of_moments];
    float v[packs_of_thread][pack_of_moments];
#pragma unroll
    for (int i = 0; i < packs_of_thread; ++i) {
      const int at = first + i * elements_between_packs + thread % lanes * pack_of_moments;
      is_in_span[i] = span.moves_to(at, begin, count, spans, op.step);
      update_pack<whole>(of, shared, gradient_scale, span, is_in_span[i], at, m[i], v[i]);
    }
    BlockScale of_first[packs_of_thread];
    BlockScale of_second[packs_of_thread];
    find_scales(m, v, of.block_bits, of_first, of_second);
#pragma unroll
    for (int i = 0; i < packs_of_thread; ++i) {
      if (!is_in_span[i]) continue;
      const int at = first + i * elements_between_packs + thread % lanes * pack_of_moments;
      encode_pack<whole>(m[i], of_first[i], shared.tables.first, shared.tables.first_buckets, of.first_codes + at);
      encode_pack<whole>(v[i], of_second[i], shared.tables.second, shared.tables.second_buckets, of.second_codes + at);
      if ((at & ((1 << of.block_bits) - 1)) != 0) continue;
      of.first_scales[at >> of.block_bits] = of_first[i].size;
      of.second_scales[at >> of.block_bits] = of_second[i].size;
    }
  }
}

// Of so many elements a thread block goes through this many parts: few enough that a GPU's processors all have some,
// and up to 8, of which the tables' share is small.
int parts_of(std::int64_t elements) {
  constexpr std::int64_t enough_blocks = 1024;
  constexpr std::int64_t most = 8;
  return static_cast<int>(std::clamp<std::int64_t>(elements / (elements_of_threads * enough_blocks), 1, most));
}

}  // namespace

template <class S>
void compute(const Issue& issue, const BlockAdamWStep& op) {
  BlockAdamWBuffers<S> buffers = {.param = address<float>(op.param),
                                  .first_codes = address<std::uint8_t>(op.first_codes),
                                  .second_codes = address<std::uint8_t>(op.second_codes),
                                  .first_scales = address<float>(op.first_scales),
                                  .second_scales = address<float>(op.second_scales),
                                  .gradient = address<float>(op.gradient),
                                  .compute_weights = address<S>(op.compute_weights),
                                  .step = step_of(op.step),
                                  .beta1 = static_cast<float>(op.beta1),
                                  .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
                                  .beta2 = static_cast<float>(op.beta2),
                                  .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
                                  .epsilon = static_cast<float>(op.epsilon),
                                  .block_bits = std::countr_zero(static_cast<std::uint64_t>(op.block)),
                                  .parts = 1};
  const bool fits = fits_packs<float>(0, buffers.param, buffers.gradient, buffers.compute_weights, buffers.first_codes,
                                      buffers.second_codes);
  for_tables(op.spans, [&](const Spans& spans, std::int64_t base, std::int64_t last) {
    buffers.parts = parts_of(last - base);
    launch(issue.stream,
           {blocks_for(last - base, std::int64_t{elements_of_threads} * buffers.parts), threads_of_block,
            sizeof(SharedMoments)},
           fits ? update_block_adamw<S, true> : update_block_adamw<S, false>, buffers, spans, base, last);
  });
}

SCALETRAIN_FOR_COMPUTE_TYPES(BlockAdamWStep)

}  // namespace scaletrain::cuda
