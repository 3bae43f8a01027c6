// Spans of elements on their way to a kernel.
#pragma once

#include "cuda_language.h"

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

}  // namespace scaletrain::cuda
