// What an optimizer's step is made of: the sum of squares of gradients, and updates in one pass over each buffer.
#include <algorithm>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/sums.h"

namespace scaletrain::cuda {

namespace {

// --- sum of squares ---

// A block sums one piece in double; then one block adds the pieces up. The pieces follow from the number of values.
constexpr std::int64_t smallest_piece = 4096;
constexpr std::int64_t max_pieces = 65536;
static_assert(max_pieces * sizeof(double) <= workspace_bytes);
constexpr unsigned threads_of_last_block = 1024;

template <class S, int width>
__global__ void sum_squares(const S* values, std::int64_t count, std::int64_t piece, double* sums) {
  const std::int64_t begin = blockIdx.x * piece;
  const std::int64_t end = begin + piece < count ? begin + piece : count;
  double sum = 0;
  for (std::int64_t first = begin + static_cast<std::int64_t>(threadIdx.x) * width; first < end;
       first += threads_of_block * width) {
    float x[width];
    load(values + first, end - first, x);
#pragma unroll
    for (int i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * x[i];
  }
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void add_piece_sums(const double* sums, std::int64_t count, double* result) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads_of_last_block) sum += sums[i];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) *result = sum;
}

template <class S>
void issue_sum(const Issue& issue, const SumOfSquares& op) {
  const auto* values = address<S>(op.values);
  const std::int64_t count = op.values.num_elements();
  auto* const result = address<double>(op.result);
  const std::int64_t piece =
      smallest_piece * ((count + smallest_piece * max_pieces - 1) / (smallest_piece * max_pieces));
  const std::int64_t pieces = count == 0 ? 0 : (count + piece - 1) / piece;
  // Most of a model's parameters are one piece: its sum is the result.
  auto* const sums = pieces == 1 ? result : reinterpret_cast<double*>(issue.workspace);
  if (pieces > 0)
    with_width<S>(fits_packs<S>(0, values), [&](auto width) {
      launch(issue.stream, {blocks_for(pieces, 1), threads_of_block, threads_of_block / warp_lanes * sizeof(double)},
             sum_squares<S, width>, values, count, piece, sums);
    });
  if (pieces == 1) return;
  launch(issue.stream, {dim3(1), threads_of_last_block, threads_of_last_block / warp_lanes * sizeof(double)},
         add_piece_sums, sums, pieces, result);
}

// --- updates ---

// Spans travel with the launch, so many at a time.
constexpr int max_spans = 128;
struct Spans {
  struct Span {
    std::int64_t first, end;
    float weight_decay;
  };
  Span of[max_spans];
  int count;
};

// The span that holds an element, or null: the last one that does not begin behind it.
__device__ inline const Spans::Span* span_of(const Spans& spans, std::int64_t element) {
  int low = 0;
  int high = spans.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (spans.of[middle].first <= element)
      low = middle;
    else
      high = middle;
  }
  const Spans::Span& span = spans.of[low];
  return span.first <= element && element < span.end ? &span : nullptr;
}

constexpr int updated_at_once = 4;

// update(element, count as a constant, decay) for the elements of this thread, of which those in no span are left out.
template <bool whole, class Update>
__device__ inline void for_spans(const Spans& spans, std::int64_t base, std::int64_t count, Update&& update) {
  const std::int64_t first = base + first_element<updated_at_once>();
  if (whole && first + updated_at_once <= count) {
    const Spans::Span* const span = span_of(spans, first);
    if (span != nullptr && first + updated_at_once <= span->end) {
      update(first, std::integral_constant<int, updated_at_once>(), span->weight_decay);
      return;
    }
  }
  for (std::int64_t element = first; element < first + updated_at_once && element < count; ++element) {
    const Spans::Span* const span = span_of(spans, element);
    if (span != nullptr) update(element, std::integral_constant<int, 1>(), span->weight_decay);
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
  const auto learning_rate = static_cast<float>(op.step->learning_rate);
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, float decay) {
    constexpr int width = decltype(elements)::value;
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
  const auto learning_rate = static_cast<float>(op.step->learning_rate);
  for_spans<whole>(spans, base, count, [&](std::int64_t at, auto elements, float decay) {
    constexpr int width = decltype(elements)::value;
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

// kernel(a table of spans, the first element, the end) for all spans.
template <class Body>
void for_tables(std::span<const DecaySpan> all, Body&& body) {
  for (std::size_t begin = 0; begin < all.size(); begin += max_spans) {
    const std::size_t end = std::min(begin + max_spans, all.size());
    Spans spans = {};
    for (std::size_t i = begin; i < end; ++i)
      spans.of[spans.count++] = {all[i].first, all[i].first + all[i].count, static_cast<float>(all[i].weight_decay)};
    const std::int64_t base = spans.of[0].first / updated_at_once * updated_at_once;
    const std::int64_t last = spans.of[spans.count - 1].end;
    if (last > base) body(spans, base, last);
  }
}

const StepScalars* step_of(const ConstView& step) {
  return reinterpret_cast<const StepScalars*>(address<double>(step));
}

template <class Whole, class Single, class Buffers>
void issue_update(const Issue& issue, std::span<const DecaySpan> all, bool fits, Whole whole, Single single,
                  const Buffers& buffers) {
  for_tables(all, [&](const Spans& spans, std::int64_t base, std::int64_t last) {
    const dim3 blocks = blocks_for((last - base + updated_at_once - 1) / updated_at_once);
    launch(issue.stream, {blocks, threads_of_block}, fits ? whole : single, buffers, spans, base, last);
  });
}

}  // namespace

template <class S>
void compute(const Issue& issue, const SumOfSquares& op) {
  if (op.values.dtype() == dtype_of_element<S>())
    issue_sum<S>(issue, op);
  else
    issue_sum<float>(issue, op);
}

template <class S>
void compute(const Issue& issue, const AdamWStep& op) {
  const AdamWBuffers<S> buffers = {.param = address<float>(op.param),
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
  const bool fits = fits_packs<float>(0, buffers.param, buffers.first_moment, buffers.second_moment, buffers.gradient,
                                      buffers.compute_weights);
  issue_update(issue, op.spans, fits, update_adamw<S, true>, update_adamw<S, false>, buffers);
}

template <class S>
void compute(const Issue& issue, const SgdStep& op) {
  const SgdBuffers<S> buffers = {.param = address<float>(op.param),
                                 .gradient = address<float>(op.gradient),
                                 .compute_weights = address<S>(op.compute_weights),
                                 .step = step_of(op.step)};
  const bool fits = fits_packs<float>(0, buffers.param, buffers.gradient, buffers.compute_weights);
  issue_update(issue, op.spans, fits, update_sgd<S, true>, update_sgd<S, false>, buffers);
}

SCALETRAIN_FOR_COMPUTE_TYPES(SumOfSquares)
SCALETRAIN_FOR_COMPUTE_TYPES(AdamWStep)
SCALETRAIN_FOR_COMPUTE_TYPES(SgdStep)

}  // namespace scaletrain::cuda
