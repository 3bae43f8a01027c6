// The linear map's three products, and those of any matrices, cut into tiles of the result that threads share. f32 is
// multiplied by oneDNN but for gradients of weights and, with AVX-512, of few rows many outputs, with AVX2 most of a
// model's maps; those and bf16 by kernels of our own where the processor has the instructions. The rest is stored as
// halves and multiplied as floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/half_products.h"
#include "backend/cpu/thread_pool.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// How many columns a thread takes at a time when columns are summed over rows: whole cache lines, and some items a
// thread. Each column is summed in row order, so the choice changes no bits.
std::int64_t column_share(std::int64_t columns, int threads);

// A bf16 weight [O,I] as panels of panel_kernels.h, twice: with its outputs as columns, for the forward, and with its
// inputs as columns, for the gradient of the input.
class PackedBf16 final : public PackedWeight {
 public:
  PackedBf16(const Shape& shape, std::byte* memory);
  static std::size_t bytes(const Shape& shape);

  std::size_t num_bytes() const override { return bytes_; }
  Bf16* outputs() const { return outputs_; }
  Bf16* inputs() const { return inputs_; }

 private:
  std::size_t bytes_;
  Bf16* outputs_;
  Bf16* inputs_;
};

void pack_weight(ThreadPool& pool, const PanelKernels<Bf16>& kernels, const ConstView& values,
                 const PackedBf16& packed);

void linear_forward(ThreadPool& pool, const Engine<float>& engine, const LinearForward& op);
void linear_backward_input(ThreadPool& pool, const Engine<float>& engine, const LinearBackwardInput& op);
void linear_backward_weight(ThreadPool& pool, const Engine<float>& engine, const LinearBackwardWeight& op);
void matrix_product(ThreadPool& pool, const Engine<float>& engine, const MatrixProduct& op);

// Halves: Bf16 or F16.
template <class S>
void linear_forward(ThreadPool& pool, const Engine<S>& engine, const LinearForward& op);
template <class S>
void linear_backward_input(ThreadPool& pool, const Engine<S>& engine, const LinearBackwardInput& op);
template <class S>
void linear_backward_weight(ThreadPool& pool, const Engine<S>& engine, const LinearBackwardWeight& op);
template <class S>
void matrix_product(ThreadPool& pool, const Engine<S>& engine, const MatrixProduct& op);

}  // namespace scaletrain::cpu
