// Spans of a flat buffer as the kernels of updates get them: tables that travel with the launch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"

namespace scaletrain::cuda {

// Spans travel with the launch, so many at a time.
constexpr int max_spans = 128;

// Of `count` entries, in ascending order of where they begin: the last one that does not begin behind `place`, or the
// first.
template <class Entry, class T>
__device__ inline const Entry& entry_at(const Entry* entries, int count, T Entry::*begin, T place) {
  int low = 0;
  int high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (entries[middle].*begin <= place)
      low = middle;
    else
      high = middle;
  }
  return entries[low];
}

struct Spans {
  struct Span {
    std::int64_t first, end;
    float rate_factor, weight_decay;
  };
  Span of[max_spans];
  int count;
};

// The span that holds an element, or null.
__device__ inline const Spans::Span* span_of(const Spans& spans, std::int64_t element) {
  const Spans::Span& span = entry_at(spans.of, spans.count, &Spans::Span::first, element);
  return span.first <= element && element < span.end ? &span : nullptr;
}

constexpr int updated_at_once = 4;

// kernel(a table of spans, the first element, the end) for all spans.
template <class Body>
void for_tables(std::span<const UpdateSpan> all, Body&& body) {
  for (std::size_t begin = 0; begin < all.size(); begin += max_spans) {
    const std::size_t end = std::min(begin + max_spans, all.size());
    Spans spans = {};
    for (std::size_t i = begin; i < end; ++i)
      spans.of[spans.count++] = {all[i].first, all[i].first + all[i].count, static_cast<float>(all[i].rate_factor),
                                 static_cast<float>(all[i].weight_decay)};
    const std::int64_t base = spans.of[0].first / updated_at_once * updated_at_once;
    const std::int64_t last = spans.of[spans.count - 1].end;
    if (last > base) body(spans, base, last);
  }
}

inline const StepScalars* step_of(const ConstView& step) {
  return reinterpret_cast<const StepScalars*>(address<double>(step));
}

}  // namespace scaletrain::cuda
