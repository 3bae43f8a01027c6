// The update of AdamW whose moments are in 8 bits.
#include <algorithm>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/spans.h"
#include "backend/moment_codes.h"

namespace scaletrain::cuda {

namespace {

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
  int block;  // elements: at most the threads of a block of the launch
};

// What the codes stand for: travels with the launch.
struct CodeTables {
  float first[256], second[256];
  int smallest_second;
};

// As encode_moments (backend/moment_codes.h) finds it.
__device__ inline int code_of(const float* values, float x, int smallest) {
  int code = 0;
  for (int step = 128; step > 0; step /= 2)
    if (x >= 0.5F * (values[code + step - 1] + values[code + step])) code += step;
  return x != 0.0F && code < smallest ? smallest : code;
}

// The largest value among the threads whose elements share a block. values: one of each thread; it is spent.
__device__ inline float maximum_of_block(float* values, int block) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int place = thread % block;
  for (int width = block / 2; width > 0; width /= 2) {
    __syncthreads();
    if (place < width) values[thread] = fmaxf(values[thread], values[thread + width]);
  }
  __syncthreads();
  return values[thread - place];
}

// A thread has an element; `base` begins a block, and spans are of whole ones.
template <class S>
__global__ void update_block_adamw(const BlockAdamWBuffers<S> op, const __grid_constant__ CodeTables tables,
                                   const __grid_constant__ Spans spans, std::int64_t base, std::int64_t count) {
  if (op.step->skip != 0) return;
  const auto thread = static_cast<int>(threadIdx.x);
  float* const first_values = shared_memory<float>();  // [4, threads of the block]
  float* const second_values = first_values + threads_of_block;
  float* const firsts = second_values + threads_of_block;
  float* const seconds = firsts + threads_of_block;
  first_values[thread] = tables.first[thread];
  second_values[thread] = tables.second[thread];
  __syncthreads();
  const std::int64_t at = base + static_cast<std::int64_t>(blockIdx.x) * threads_of_block + thread;
  const Spans::Span* const span = at < count ? span_of(spans, at) : nullptr;
  const std::int64_t block = at / op.block;
  float m = 0.0F;
  float v = 0.0F;
  if (span != nullptr) {
    const float g = op.gradient[at] * static_cast<float>(op.step->gradient_scale);
    m = first_values[op.first_codes[at]] * op.first_scales[block];
    v = second_values[op.second_codes[at]] * op.second_scales[block];
    m = op.beta1 * m + op.one_minus_beta1 * g;
    v = op.beta2 * v + op.one_minus_beta2 * g * g;
    const float root = sqrtf(v * static_cast<float>(1.0 / op.step->bias_correction2)) + op.epsilon;
    const float direction = m * static_cast<float>(1.0 / op.step->bias_correction1) / root;
    const auto learning_rate = static_cast<float>(op.step->learning_rate * span->rate_factor);
    float p[1] = {op.param[at]};
    p[0] -= learning_rate * (direction + span->weight_decay * p[0]);
    op.param[at] = p[0];
    if (op.compute_weights != nullptr) store(op.compute_weights + at, 1, p);
  }
  firsts[thread] = fabsf(m);
  seconds[thread] = v;
  const float first_scale = maximum_of_block(firsts, op.block);
  const float second_scale = maximum_of_block(seconds, op.block);
  if (span == nullptr) return;
  op.first_codes[at] = static_cast<std::uint8_t>(code_of(first_values, first_scale > 0.0F ? m / first_scale : 0.0F, 0));
  op.second_codes[at] = static_cast<std::uint8_t>(
      code_of(second_values, second_scale > 0.0F ? v / second_scale : 0.0F, tables.smallest_second));
  if (thread % op.block != 0) return;
  op.first_scales[block] = first_scale;
  op.second_scales[block] = second_scale;
}

}  // namespace

template <class S>
void compute(const Issue& issue, const BlockAdamWStep& op) {
  static_assert(threads_of_block == most_in_moment_block);
  const BlockAdamWBuffers<S> buffers = {.param = address<float>(op.param),
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
                                        .block = narrow<int>(op.block)};
  CodeTables tables = {};
  std::copy_n(first_moment_codes().values.begin(), 256, tables.first);
  std::copy_n(second_moment_codes().values.begin(), 256, tables.second);
  tables.smallest_second = second_moment_codes().smallest;
  for_tables(op.spans, [&](const Spans& spans, std::int64_t base, std::int64_t last) {
    launch(issue.stream, {blocks_for(last - base), threads_of_block, 4 * threads_of_block * sizeof(float)},
           update_block_adamw<S>, buffers, tables, spans, base, last);
  });
}

SCALETRAIN_FOR_COMPUTE_TYPES(BlockAdamWStep)

}  // namespace scaletrain::cuda
