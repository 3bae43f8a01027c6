// What the operations of a compute type share: kernels, memory that lies ready for them, and the pool, with the loops
// over pieces that threads take. Pieces do not depend on the number of threads, and so bits do not either.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/half_products.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/thread_pool.h"
#include "tensor/buffer.h"

namespace scaletrain::cpu {

// Elements that a thread takes at a time from a long array: 128 KiB, so that handing out costs nothing and the piece is
// a multiple of every vector.
inline constexpr std::int64_t piece_elements = 32768;

// Partial sums that are kept at a time before they are added up in order.
inline constexpr std::int64_t partial_sums = 4096;
inline constexpr std::size_t partial_bytes = partial_sums * sizeof(double);

template <class T>
T* offset_or_null(T* data, std::int64_t offset) {
  return data ? data + offset : nullptr;
}

template <class S>
struct Device {
  const Kernels& all;
  const TypedKernels<S>& kernels;  // those of the compute type
  Buffer workspace;                // partial sums, what threads share, then each thread's scratch
  Engine<S> products;
  ThreadPool pool;

  // body(first, count, worker) for pieces of [0, total) of a size that does not depend on the number of threads.
  template <class Body>
  void for_pieces_by_worker(std::int64_t total, std::int64_t piece, Body&& body) {
    pool.for_each((total + piece - 1) / piece, [&](std::int64_t item, int worker) {
      const std::int64_t first = item * piece;
      body(first, std::min(piece, total - first), worker);
    });
  }
  // body(first, count).
  template <class Body>
  void for_pieces(std::int64_t total, std::int64_t piece, Body&& body) {
    for_pieces_by_worker(total, piece, [&](std::int64_t first, std::int64_t count, int) { body(first, count); });
  }

  // The same for rows of `columns` elements, in pieces of about as many elements.
  template <class Body>
  void for_rows(std::int64_t rows, std::int64_t columns, Body&& body) {
    for_pieces(rows, std::clamp<std::int64_t>(piece_elements / std::max<std::int64_t>(columns, 1), 1, 1024), body);
  }

  // The sum in order of value(i, worker) for i in [0, count), which threads compute some at a time: the same bits for
  // any number of threads.
  template <class Value>
  double ordered_sum(std::int64_t count, std::int64_t at_a_time, Value&& value) {
    auto* partial = reinterpret_cast<double*>(workspace.data());
    double sum = 0;
    for (std::int64_t begin = 0; begin < count; begin += partial_sums) {
      const std::int64_t part = std::min(partial_sums, count - begin);
      for_pieces_by_worker(part, at_a_time, [&](std::int64_t first, std::int64_t values, int worker) {
        for (std::int64_t i = first; i < first + values; ++i) partial[i] = value(begin + i, worker);
      });
      for (std::int64_t i = 0; i < part; ++i) sum += partial[i];
    }
    return sum;
  }

  // A worker's scratch for so many floats, or null where it has less.
  float* scratch_row(int worker, std::int64_t count) const {
    if (static_cast<std::size_t>(count) > tile_scratch_bytes<S>() / sizeof(float)) return nullptr;
    return reinterpret_cast<float*>(products.scratch_of(worker));
  }
};

}  // namespace scaletrain::cpu
