// Updates of an optimizer, in one pass over each buffer.
#include <algorithm>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/spans.h"

namespace scaletrain::cuda {

namespace {

// --- updates ---

// update(element, count as a constant, its span) for the elements of this thread, of which those in no span are left
// out.
template <bool whole, class Update>
__device__ inline void for_spans(const Spans& spans, std::int64_t base, std::int64_t count, Update&& update) {
  const std::int64_t first = base + first_element<updated_at_once>();
  if (whole && first + updated_at_once <= count) {
    const Spans::Span* const span = span_of(spans, first);
    if (span != nullptr && first + updated_at_once <= span->end) {
      update(first, std::integral_constant<int, updated_at_once>(), *span);
      return;
    }
  }
  for (std::int64_t element = first; element < first + updated_at_once && element < count; ++element) {
    const Spans::Span* const span = span_of(spans, element);
    if (span != nullptr) update(element, std::integral_constant<int, 1>(), *span);
  }
}

template <class S>
struct AdamWBuffers {
  float* param;
  float* first_moment;
  float* second_moment;
  const float* gradient;
  S* compute_weights;  // or null
  const StepScalars* step;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
};

template <class S, bool whole>
__global__ void update_adamw(const AdamWBuffers<S> op, const __grid_constant__ Spans spans, std::int64_t base,
                             std::int64_t count) {
  if (op.step->skip != 0) return;
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  const auto inverse_correction1 = static_cast<float>(1.0 / op.step->bias_correction1);
  const auto inverse_correction2 = static_cast<float>(1.0 / op.step->bias_correction2);
  const double rate = op.step->learning_rate;
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span& span) {
    constexpr int width = decltype(elements)::value;
    const auto learning_rate = static_cast<float>(rate * span.rate_factor);
    const float decay = span.weight_decay;
    float p[width];
    float m[width];
    float v[width];
    float g[width];
    load(op.param + at, width, p);
    load(op.first_moment + at, width, m);
    load(op.second_moment + at, width, v);
    load(op.gradient + at, width, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      g[i] *= gradient_scale;
      m[i] = op.beta1 * m[i] + op.one_minus_beta1 * g[i];
      v[i] = op.beta2 * v[i] + op.one_minus_beta2 * g[i] * g[i];
      const float direction = m[i] * inverse_correction1 / (sqrtf(v[i] * inverse_correction2) + op.epsilon);
      p[i] -= learning_rate * (direction + decay * p[i]);
    }
    store(op.param + at, width, p);
    store(op.first_moment + at, width, m);
    store(op.second_moment + at, width, v);
    if (op.compute_weights != nullptr) store(op.compute_weights + at, width, p);
  });
}

template <class S>
struct SgdBuffers {
  float* param;
  const float* gradient;
  S* compute_weights;  // or null
  const StepScalars* step;
};

template <class S, bool whole>
__global__ void update_sgd(const SgdBuffers<S> op, const __grid_constant__ Spans spans, std::int64_t base,
                           std::int64_t count) {
  if (op.step->skip != 0) return;
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  const double rate = op.step->learning_rate;
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span& span) {
    constexpr int width = decltype(elements)::value;
    const auto learning_rate = static_cast<float>(rate * span.rate_factor);
    const float decay = span.weight_decay;
    float p[width];
    float g[width];
    load(op.param + at, width, p);
    load(op.gradient + at, width, g);
#pragma unroll
    for (int i = 0; i < width; ++i) p[i] -= learning_rate * (g[i] * gradient_scale + decay * p[i]);
    store(op.param + at, width, p);
    if (op.compute_weights != nullptr) store(op.compute_weights + at, width, p);
  });
}

template <class S>
struct MomentumBuffers {
  float* param;
  float* buffer;
  const float* gradient;
  S* compute_weights;  // or null
  const StepScalars* step;
  MomentumForm form;
  float momentum;
};

template <class S, bool whole>
__global__ void update_momentum(const MomentumBuffers<S> op, const __grid_constant__ Spans spans, std::int64_t base,
                                std::int64_t count) {
  if (op.step->skip != 0) return;
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  const double rate = op.step->learning_rate;
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span& span) {
    constexpr int width = decltype(elements)::value;
    const auto learning_rate = static_cast<float>(rate * span.rate_factor);
    const float decay = span.weight_decay;
    float p[width];
    float b[width];
    float g[width];
    load(op.param + at, width, p);
    load(op.buffer + at, width, b);
    load(op.gradient + at, width, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float d = g[i] * gradient_scale + decay * p[i];
      b[i] = op.momentum * b[i] + (op.form == MomentumForm::scaled ? learning_rate * d : d);
      if (op.form == MomentumForm::classical)
        p[i] -= learning_rate * b[i];
      else if (op.form == MomentumForm::nesterov)
        p[i] -= learning_rate * (d + op.momentum * b[i]);
      else
        p[i] -= b[i];
    }
    store(op.param + at, width, p);
    store(op.buffer + at, width, b);
    if (op.compute_weights != nullptr) store(op.compute_weights + at, width, p);
  });
}

template <class S>
struct LionBuffers {
  float* param;
  float* momentum;
  const float* gradient;
  S* compute_weights;  // or null
  const StepScalars* step;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
};

template <class S, bool whole>
__global__ void update_lion(const LionBuffers<S> op, const __grid_constant__ Spans spans, std::int64_t base,
                            std::int64_t count) {
  if (op.step->skip != 0) return;
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  const double rate = op.step->learning_rate;
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span& span) {
    constexpr int width = decltype(elements)::value;
    const auto learning_rate = static_cast<float>(rate * span.rate_factor);
    const float decay = span.weight_decay;
    float p[width];
    float m[width];
    float g[width];
    load(op.param + at, width, p);
    load(op.momentum + at, width, m);
    load(op.gradient + at, width, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      g[i] *= gradient_scale;
      const float c = op.beta1 * m[i] + op.one_minus_beta1 * g[i];
      const float sign = c > 0.0F ? 1.0F : (c < 0.0F ? -1.0F : 0.0F);
      p[i] -= learning_rate * (sign + decay * p[i]);
      m[i] = op.beta2 * m[i] + op.one_minus_beta2 * g[i];
    }
    store(op.param + at, width, p);
    store(op.momentum + at, width, m);
    if (op.compute_weights != nullptr) store(op.compute_weights + at, width, p);
  });
}

template <class S>
struct AdemamixBuffers {
  AdamWBuffers<S> adamw;
  float* slow_moment;
};

template <class S, bool whole>
__global__ void update_ademamix(const AdemamixBuffers<S> all, const __grid_constant__ Spans spans, std::int64_t base,
                                std::int64_t count) {
  const AdamWBuffers<S>& op = all.adamw;
  if (op.step->skip != 0) return;
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  const auto inverse_correction1 = static_cast<float>(1.0 / op.step->bias_correction1);
  const auto inverse_correction2 = static_cast<float>(1.0 / op.step->bias_correction2);
  const auto slow_beta = static_cast<float>(op.step->slow_beta);
  const auto one_minus_slow_beta = static_cast<float>(1.0 - op.step->slow_beta);
  const auto slow_weight = static_cast<float>(op.step->slow_weight);
  const double rate = op.step->learning_rate;
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span& span) {
    constexpr int width = decltype(elements)::value;
    const auto learning_rate = static_cast<float>(rate * span.rate_factor);
    const float decay = span.weight_decay;
    float p[width];
    float m[width];
    float slow[width];
    float v[width];
    float g[width];
    load(op.param + at, width, p);
    load(op.first_moment + at, width, m);
    load(all.slow_moment + at, width, slow);
    load(op.second_moment + at, width, v);
    load(op.gradient + at, width, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      g[i] *= gradient_scale;
      m[i] = op.beta1 * m[i] + op.one_minus_beta1 * g[i];
      slow[i] = slow_beta * slow[i] + one_minus_slow_beta * g[i];
      v[i] = op.beta2 * v[i] + op.one_minus_beta2 * g[i] * g[i];
      const float mean = m[i] * inverse_correction1 + slow_weight * slow[i];
      p[i] -= learning_rate * (mean / (sqrtf(v[i] * inverse_correction2) + op.epsilon) + decay * p[i]);
    }
    store(op.param + at, width, p);
    store(op.first_moment + at, width, m);
    store(all.slow_moment + at, width, slow);
    store(op.second_moment + at, width, v);
    if (op.compute_weights != nullptr) store(op.compute_weights + at, width, p);
  });
}

struct DirectionBuffers {
  const float* param;
  float* gradient;
  float* first_moment;
  float* second_moment;
  const StepScalars* step;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
};

template <bool whole>
__global__ void make_direction(const DirectionBuffers op, const __grid_constant__ Spans spans, std::int64_t base,
                               std::int64_t count) {
  if (op.step->skip != 0) return;
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  const auto inverse_correction1 = static_cast<float>(1.0 / op.step->bias_correction1);
  const auto inverse_correction2 = static_cast<float>(1.0 / op.step->bias_correction2);
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span& span) {
    constexpr int width = decltype(elements)::value;
    const float decay = span.weight_decay;
    float p[width];
    float m[width];
    float v[width];
    float g[width];
    load(op.param + at, width, p);
    load(op.first_moment + at, width, m);
    load(op.second_moment + at, width, v);
    load(op.gradient + at, width, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      g[i] *= gradient_scale;
      m[i] = op.beta1 * m[i] + op.one_minus_beta1 * g[i];
      v[i] = op.beta2 * v[i] + op.one_minus_beta2 * g[i] * g[i];
      g[i] = m[i] * inverse_correction1 / (sqrtf(v[i] * inverse_correction2) + op.epsilon) + decay * p[i];
    }
    store(op.gradient + at, width, g);
    store(op.first_moment + at, width, m);
    store(op.second_moment + at, width, v);
  });
}

struct MomentumDirectionBuffers {
  float* gradient;
  float* momentum;
  const StepScalars* step;
  float beta, one_minus_beta;
  bool nesterov;
};

template <bool whole>
__global__ void make_momentum_direction(const MomentumDirectionBuffers op, const __grid_constant__ Spans spans,
                                        std::int64_t base, std::int64_t count) {
  if (op.step->skip != 0) return;
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span&) {
    constexpr int width = decltype(elements)::value;
    float m[width];
    float g[width];
    load(op.momentum + at, width, m);
    load(op.gradient + at, width, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      g[i] *= gradient_scale;
      m[i] = op.beta * m[i] + op.one_minus_beta * g[i];
      g[i] = op.nesterov ? op.beta * m[i] + op.one_minus_beta * g[i] : m[i];
    }
    store(op.gradient + at, width, g);
    store(op.momentum + at, width, m);
  });
}

struct RmsDirectionBuffers {
  float* gradient;
  float* second_moment;
  const StepScalars* step;
  float weight, kept, smallest;
};

template <bool whole>
__global__ void make_rms_direction(const RmsDirectionBuffers op, const __grid_constant__ Spans spans, std::int64_t base,
                                   std::int64_t count) {
  if (op.step->skip != 0) return;
  const auto gradient_scale = static_cast<float>(op.step->gradient_scale);
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span&) {
    constexpr int width = decltype(elements)::value;
    float v[width];
    float g[width];
    load(op.second_moment + at, width, v);
    load(op.gradient + at, width, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      g[i] *= gradient_scale;
      v[i] = op.kept * v[i] + op.weight * (g[i] * g[i]);
      g[i] /= fmaxf(sqrtf(v[i]), op.smallest);
    }
    store(op.gradient + at, width, g);
    store(op.second_moment + at, width, v);
  });
}

template <bool whole>
__global__ void scale_spans(float* values, const __grid_constant__ Spans spans, std::int64_t base, std::int64_t count) {
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, const Spans::Span& span) {
    constexpr int width = decltype(elements)::value;
    float v[width];
    load(values + at, width, v);
#pragma unroll
    for (int i = 0; i < width; ++i) v[i] *= span.rate_factor;
    store(values + at, width, v);
  });
}

template <int width>
__global__ void update_average(float* average, const float* param, float weight, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  float a[width];
  float p[width];
  load(average + first, count - first, a);
  load(param + first, count - first, p);
#pragma unroll
  for (int i = 0; i < width; ++i) a[i] += weight * (p[i] - a[i]);
  store(average + first, count - first, a);
}

template <int width>
__global__ void swap_elements(float* a, float* b, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  float x[width];
  float y[width];
  load(a + first, count - first, x);
  load(b + first, count - first, y);
  store(a + first, count - first, y);
  store(b + first, count - first, x);
}

template <class Whole, class Single, class Buffers>
void issue_update(const Issue& issue, std::span<const UpdateSpan> all, bool fits, Whole whole, Single single,
                  const Buffers& buffers) {
  for_tables(all, [&](const Spans& spans, std::int64_t base, std::int64_t last) {
    const dim3 blocks = blocks_for((last - base + updated_at_once - 1) / updated_at_once);
    launch(issue.stream, {blocks, threads_of_block}, fits ? whole : single, buffers, spans, base, last);
  });
}

// Of AdamW and its kin.
template <class S, class Step>
AdamWBuffers<S> adamw_buffers(const Step& op) {
  return {.param = address<float>(op.param),
          .first_moment = address<float>(op.first_moment),
          .second_moment = address<float>(op.second_moment),
          .gradient = address<float>(op.gradient),
          .compute_weights = address<S>(op.compute_weights),
          .step = step_of(op.step),
          .beta1 = static_cast<float>(op.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
          .beta2 = static_cast<float>(op.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
          .epsilon = static_cast<float>(op.epsilon)};
}

}  // namespace

template <class S>
void compute(const Issue& issue, const AdamWStep& op) {
  const AdamWBuffers<S> buffers = adamw_buffers<S>(op);
  const bool fits = fits_packs<float>(0, buffers.param, buffers.first_moment, buffers.second_moment, buffers.gradient,
                                      buffers.compute_weights);
  issue_update(issue, op.spans, fits, update_adamw<S, true>, update_adamw<S, false>, buffers);
}

template <class S>
void compute(const Issue& issue, const SgdStep& op) {
  if (op.form != MomentumForm::none) {
    const MomentumBuffers<S> buffers = {.param = address<float>(op.param),
                                        .buffer = address<float>(op.momentum_buffer),
                                        .gradient = address<float>(op.gradient),
                                        .compute_weights = address<S>(op.compute_weights),
                                        .step = step_of(op.step),
                                        .form = op.form,
                                        .momentum = static_cast<float>(op.momentum)};
    const bool fits = fits_packs<float>(0, buffers.param, buffers.buffer, buffers.gradient, buffers.compute_weights);
    return issue_update(issue, op.spans, fits, update_momentum<S, true>, update_momentum<S, false>, buffers);
  }
  const SgdBuffers<S> buffers = {.param = address<float>(op.param),
                                 .gradient = address<float>(op.gradient),
                                 .compute_weights = address<S>(op.compute_weights),
                                 .step = step_of(op.step)};
  const bool fits = fits_packs<float>(0, buffers.param, buffers.gradient, buffers.compute_weights);
  issue_update(issue, op.spans, fits, update_sgd<S, true>, update_sgd<S, false>, buffers);
}

template <class S>
void compute(const Issue& issue, const LionStep& op) {
  const LionBuffers<S> buffers = {.param = address<float>(op.param),
                                  .momentum = address<float>(op.momentum),
                                  .gradient = address<float>(op.gradient),
                                  .compute_weights = address<S>(op.compute_weights),
                                  .step = step_of(op.step),
                                  .beta1 = static_cast<float>(op.beta1),
                                  .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
                                  .beta2 = static_cast<float>(op.beta2),
                                  .one_minus_beta2 = static_cast<float>(1.0 - op.beta2)};
  const bool fits = fits_packs<float>(0, buffers.param, buffers.momentum, buffers.gradient, buffers.compute_weights);
  issue_update(issue, op.spans, fits, update_lion<S, true>, update_lion<S, false>, buffers);
}

template <class S>
void compute(const Issue& issue, const AdemamixStep& op) {
  const AdemamixBuffers<S> buffers = {adamw_buffers<S>(op), address<float>(op.slow_moment)};
  const bool fits =
      fits_packs<float>(0, buffers.adamw.param, buffers.adamw.first_moment, buffers.slow_moment,
                        buffers.adamw.second_moment, buffers.adamw.gradient, buffers.adamw.compute_weights);
  issue_update(issue, op.spans, fits, update_ademamix<S, true>, update_ademamix<S, false>, buffers);
}

template <class S>
void compute(const Issue& issue, const AdamDirection& op) {
  const DirectionBuffers buffers = {.param = address<float>(op.param),
                                    .gradient = address<float>(op.gradient),
                                    .first_moment = address<float>(op.first_moment),
                                    .second_moment = address<float>(op.second_moment),
                                    .step = step_of(op.step),
                                    .beta1 = static_cast<float>(op.beta1),
                                    .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
                                    .beta2 = static_cast<float>(op.beta2),
                                    .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
                                    .epsilon = static_cast<float>(op.epsilon)};
  const bool fits = fits_packs<float>(0, buffers.param, buffers.gradient, buffers.first_moment, buffers.second_moment);
  issue_update(issue, op.spans, fits, make_direction<true>, make_direction<false>, buffers);
}

template <class S>
void compute(const Issue& issue, const MomentumDirection& op) {
  const MomentumDirectionBuffers buffers = {.gradient = address<float>(op.gradient),
                                            .momentum = address<float>(op.momentum),
                                            .step = step_of(op.step),
                                            .beta = static_cast<float>(op.beta),
                                            .one_minus_beta = static_cast<float>(1.0 - op.beta),
                                            .nesterov = op.nesterov};
  const bool fits = fits_packs<float>(0, buffers.gradient, buffers.momentum);
  issue_update(issue, op.spans, fits, make_momentum_direction<true>, make_momentum_direction<false>, buffers);
}

template <class S>
void compute(const Issue& issue, const RmsDirection& op) {
  const RmsDirectionBuffers buffers = {.gradient = address<float>(op.gradient),
                                       .second_moment = address<float>(op.second_moment),
                                       .step = step_of(op.step),
                                       .weight = static_cast<float>(op.weight),
                                       .kept = static_cast<float>(1.0 - op.weight),
                                       .smallest = static_cast<float>(op.smallest)};
  const bool fits = fits_packs<float>(0, buffers.gradient, buffers.second_moment);
  issue_update(issue, op.spans, fits, make_rms_direction<true>, make_rms_direction<false>, buffers);
}

template <class S>
void compute(const Issue& issue, const ScaleSpans& op) {
  auto* const values = address<float>(op.values);
  issue_update(issue, op.spans, fits_packs<float>(0, values), scale_spans<true>, scale_spans<false>, values);
}

template <class S>
void compute(const Issue& issue, const AverageStep& op) {
  const std::int64_t count = op.average.num_elements();
  if (count == 0) return;
  auto* average = address<float>(op.average);
  const auto* param = address<float>(op.param);
  with_width<float>(fits_packs<float>(0, average, param), [&](auto width) {
    launch(issue.stream, {blocks_for((count + width - 1) / width), threads_of_block}, update_average<width>, average,
           param, static_cast<float>(1.0 - op.decay), count);
  });
}

template <class S>
void compute(const Issue& issue, const Swap& op) {
  const std::int64_t count = op.a.num_elements();
  if (count == 0) return;
  auto* a = address<float>(op.a);
  auto* b = address<float>(op.b);
  with_width<float>(fits_packs<float>(0, a, b), [&](auto width) {
    launch(issue.stream, {blocks_for((count + width - 1) / width), threads_of_block}, swap_elements<width>, a, b,
           count);
  });
}

SCALETRAIN_FOR_COMPUTE_TYPES(AdamWStep)
SCALETRAIN_FOR_COMPUTE_TYPES(SgdStep)
SCALETRAIN_FOR_COMPUTE_TYPES(LionStep)
SCALETRAIN_FOR_COMPUTE_TYPES(AdemamixStep)
SCALETRAIN_FOR_COMPUTE_TYPES(AdamDirection)
SCALETRAIN_FOR_COMPUTE_TYPES(MomentumDirection)
SCALETRAIN_FOR_COMPUTE_TYPES(RmsDirection)
SCALETRAIN_FOR_COMPUTE_TYPES(ScaleSpans)
SCALETRAIN_FOR_COMPUTE_TYPES(AverageStep)
SCALETRAIN_FOR_COMPUTE_TYPES(Swap)

}  // namespace scaletrain::cuda
