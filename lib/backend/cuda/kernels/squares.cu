// Sums of squares: what norms are made of.
#include <algorithm>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/spans.h"
#include "backend/cuda/kernels/sums.h"

namespace scaletrain::cuda {

namespace {

// A block sums one part of a span in double; then a block adds up the parts of each span. How a span is cut follows
// from its own length.
constexpr std::int64_t smallest_part = 8192;
constexpr std::int64_t max_parts = 32768;
static_assert(max_spans * max_parts * sizeof(double) <= workspace_bytes);

struct SpansInParts {
  struct Span {
    std::int64_t first, end;
    int part;  // elements of each part but the last
    int first_block;
  };
  Span of[max_spans];
  int count, blocks;
};

// The sum of this thread's share of [begin, end).
template <int width, class S>
__device__ inline double sum_of_squares(const S* values, std::int64_t begin, std::int64_t end) {
  constexpr int loads_at_once = 4;
  constexpr std::int64_t stride = threads_of_block * width;
  double sum = 0;
  const auto add = [&](const float(&x)[width]) {
#pragma unroll
    for (int i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * x[i];
  };
  std::int64_t first = begin + static_cast<std::int64_t>(threadIdx.x) * width;
  for (; first + (loads_at_once - 1) * stride + width <= end; first += loads_at_once * stride) {
    float x[loads_at_once][width];
#pragma unroll
    for (int i = 0; i < loads_at_once; ++i) load(values + first + i * stride, width, x[i]);
#pragma unroll
    for (int i = 0; i < loads_at_once; ++i) add(x[i]);
  }
  for (; first < end; first += stride) {
    float x[width];
    load(values + first, end - first, x);
    add(x);
  }
  return sum;
}

template <class S>
__global__ void sum_parts_of_spans(const S* values, const __grid_constant__ SpansInParts spans, double* sums) {
  const auto block = static_cast<int>(blockIdx.x);
  const SpansInParts::Span& span = entry_at(spans.of, spans.count, &SpansInParts::Span::first_block, block);
  const std::int64_t begin = span.first + static_cast<std::int64_t>(block - span.first_block) * span.part;
  const std::int64_t end = begin + span.part < span.end ? begin + span.part : span.end;
  const bool fits = reinterpret_cast<std::uintptr_t>(values + begin) % pack_bytes == 0;
  double sum = fits ? sum_of_squares<pack_elements<S>>(values, begin, end) : sum_of_squares<1>(values, begin, end);
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) sums[block] = sum;
}

// A block has a span.
__global__ void add_parts_of_spans(const __grid_constant__ SpansInParts spans, const double* sums, double* results) {
  const auto index = static_cast<int>(blockIdx.x);
  const int begin = spans.of[index].first_block;
  const int end = index + 1 < spans.count ? spans.of[index + 1].first_block : spans.blocks;
  double sum = 0;
#pragma unroll 8
  for (int part = begin + static_cast<int>(threadIdx.x); part < end; part += threads_of_block) sum += sums[part];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) results[index] = sum;
}

template <class S>
void issue_sums(const Issue& issue, const SumsOfSquares& op) {
  auto* const sums = reinterpret_cast<double*>(issue.workspace);
  constexpr std::size_t shared_bytes = threads_of_block / warp_lanes * sizeof(double);
  for (std::size_t begin = 0; begin < op.spans.size(); begin += max_spans) {
    SpansInParts spans = {};
    for (const ElementSpan& span : op.spans.subspan(begin, std::min<std::size_t>(max_spans, op.spans.size() - begin))) {
      const auto part = smallest_part * std::max(std::int64_t{1}, ceil_div(span.count, smallest_part * max_parts));
      spans.of[spans.count++] = {span.first, span.first + span.count, narrow<int>(part), spans.blocks};
      spans.blocks += narrow<int>(ceil_div(span.count, part));
    }
    if (spans.blocks > 0)
      launch(issue.stream, {blocks_for(spans.blocks, 1), threads_of_block, shared_bytes}, sum_parts_of_spans<S>,
             address<S>(op.values), spans, sums);
    launch(issue.stream, {blocks_for(spans.count, 1), threads_of_block, shared_bytes}, add_parts_of_spans, spans, sums,
           address<double>(op.results) + begin);
  }
}

}  // namespace

template <class S>
void compute(const Issue& issue, const SumsOfSquares& op) {
  if (op.values.dtype() == dtype_of_element<S>())
    issue_sums<S>(issue, op);
  else
    issue_sums<float>(issue, op);
}

SCALETRAIN_FOR_COMPUTE_TYPES(SumsOfSquares)

}  // namespace scaletrain::cuda
