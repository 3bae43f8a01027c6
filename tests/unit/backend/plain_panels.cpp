#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cpu/instruction_sets.h"
#include "panels_backend.h"
#include "tensor/dtype.h"

namespace scaletrain {

namespace {

using cpu::panel_block_rows;
using cpu::panel_columns;

float float_of(Bf16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);  // the upper half of an f32
}

Bf16 rounded(float value) {
  Bf16 result;
  convert_floats(DType::f32, &value, DType::bf16, &result, 1);
  return result;
}

// Element (k, column) of panels or blocks of `width`.
Bf16* packed_at(Bf16* packed, std::ptrdiff_t bytes, std::ptrdiff_t width, std::size_t k, std::size_t column) {
  const auto at = static_cast<std::ptrdiff_t>(column);
  return reinterpret_cast<Bf16*>(reinterpret_cast<char*>(packed) + at / width * bytes) +
         (static_cast<std::ptrdiff_t>(k / 2) * width + at % width) * 2 + static_cast<std::ptrdiff_t>(k % 2);
}

// value(k, column) for all places of whole words and whole panels; zeros behind the ends.
template <class Value>
void pack(std::size_t columns, std::size_t k, Bf16* packed, std::ptrdiff_t bytes, std::ptrdiff_t width,
          const Value& value) {
  const auto wide = static_cast<std::size_t>(width);
  for (std::size_t row = 0; row < (k + 1) / 2 * 2; ++row)
    for (std::size_t column = 0; column < (columns + wide - 1) / wide * wide; ++column)
      *packed_at(packed, bytes, width, row, column) = row < k && column < columns ? value(row, column) : Bf16{};
}

void pack_columns(const Bf16* matrix, std::ptrdiff_t stride, std::size_t columns, std::size_t k, Bf16* panels,
                  std::ptrdiff_t panel_bytes) {
  pack(columns, k, panels, panel_bytes, panel_columns, [&](std::size_t row, std::size_t column) {
    return matrix[static_cast<std::ptrdiff_t>(column) * stride + static_cast<std::ptrdiff_t>(row)];
  });
}

void pack_rows(const Bf16* matrix, std::ptrdiff_t stride, std::size_t columns, std::size_t k, Bf16* panels,
               std::ptrdiff_t panel_bytes) {
  pack(columns, k, panels, panel_bytes, panel_columns, [&](std::size_t row, std::size_t column) {
    return matrix[static_cast<std::ptrdiff_t>(row) * stride + static_cast<std::ptrdiff_t>(column)];
  });
}

void pack_a(const Bf16* matrix, std::ptrdiff_t stride, std::size_t rows, std::size_t k, Bf16* blocks,
            std::ptrdiff_t block_bytes) {
  pack(rows, k, blocks, block_bytes, panel_block_rows, [&](std::size_t row, std::size_t column) {
    return matrix[static_cast<std::ptrdiff_t>(row) * stride + static_cast<std::ptrdiff_t>(column)];
  });
}

void product(const cpu::PanelTile<Bf16>& tile) {
  for (std::size_t r = 0; r < tile.rows; ++r)
    for (std::size_t c = 0; c < tile.columns; ++c) {
      const auto row = static_cast<std::ptrdiff_t>(r);
      const auto column = static_cast<std::ptrdiff_t>(c);
      float* const kept = tile.sums != nullptr ? tile.sums + row * tile.sums_stride + column : nullptr;
      float sum = tile.begins != 0 ? 0.0F : *kept;
      const char* const a = static_cast<const char*>(tile.a) + row / panel_block_rows * tile.a_block_bytes +
                            row % panel_block_rows * tile.a_row_bytes;
      for (std::size_t word = 0; word < tile.words; ++word) {
        const auto* const left =
            reinterpret_cast<const Bf16*>(a + static_cast<std::ptrdiff_t>(word) * tile.a_word_bytes);
        const Bf16* const right = packed_at(const_cast<Bf16*>(tile.b), tile.b_panel_bytes, panel_columns, 2 * word, c);
        for (int i = 0; i < 2; ++i) sum += float_of(left[i]) * float_of(right[i]);
      }
      sum *= tile.alpha;
      if (kept != nullptr) *kept = sum;
      if (tile.output == nullptr) continue;
      if (tile.bias != nullptr) sum += float_of(tile.bias[c]);
      if (tile.addend != nullptr) sum += float_of(tile.addend[row * tile.addend_stride + column]);
      tile.output[row * tile.output_stride + column] = rounded(sum);
    }
}

// The block's numbers, so that what works in place leaves them.
std::vector<float> copy_of(const cpu::ScoreBlock& block, const float* values) {
  std::vector<float> copy(block.rows * static_cast<std::size_t>(block.stride));
  for (std::size_t row = 0; row < block.rows; ++row)
    std::memcpy(copy.data() + static_cast<std::ptrdiff_t>(row) * block.stride,
                values + static_cast<std::ptrdiff_t>(row) * block.stride, block.columns * sizeof(float));
  return copy;
}

// With zeros up to a whole word.
void round_block(const cpu::ScoreBlock& block, const std::vector<float>& values, cpu::RowsOf<Bf16> output) {
  for (std::size_t row = 0; row < block.rows; ++row)
    for (std::size_t column = 0; column < (block.columns + 1) / 2 * 2; ++column)
      output.data[static_cast<std::ptrdiff_t>(row) * output.stride + static_cast<std::ptrdiff_t>(column)] =
          column < block.columns ? rounded(values[row * static_cast<std::size_t>(block.stride) + column]) : Bf16{};
}

cpu::ScoreBlock with_scores(cpu::ScoreBlock block, std::vector<float>& scores) {
  block.scores = scores.data();
  return block;
}

void softmax_forward(const cpu::ScoreBlock& block, const cpu::OnlineSoftmax& state, cpu::Rows output,
                     std::size_t output_columns, cpu::RowsOf<Bf16> probabilities) {
  std::vector<float> scores = copy_of(block, block.scores);
  cpu::choose_kernels("portable").softmax_forward(with_scores(block, scores), state, output, output_columns);
  round_block(block, scores, probabilities);
}

void softmax_backward(const cpu::ScoreBlock& block, const float* log_sum_exp, const float* delta, float scale,
                      const float* d_probabilities, cpu::RowsOf<Bf16> probabilities, cpu::RowsOf<Bf16> d_scores) {
  std::vector<float> scores = copy_of(block, block.scores);
  std::vector<float> gradients = copy_of(block, d_probabilities);
  cpu::choose_kernels("portable")
      .softmax_backward(with_scores(block, scores), log_sum_exp, delta, scale, gradients.data());
  round_block(block, scores, probabilities);
  round_block(block, gradients, d_scores);
}

void row_dots(cpu::RowsOf<const Bf16> a, cpu::RowsOf<const Bf16> b, std::size_t rows, std::size_t length,
              float* output) {
  for (std::size_t row = 0; row < rows; ++row) {
    const auto at = static_cast<std::ptrdiff_t>(row);
    output[row] = 0;
    for (std::size_t i = 0; i < length; ++i)
      output[row] += float_of(a.data[at * a.stride + static_cast<std::ptrdiff_t>(i)]) *
                     float_of(b.data[at * b.stride + static_cast<std::ptrdiff_t>(i)]);
  }
}

}  // namespace

const cpu::PanelKernels<Bf16>& plain_bf16_panels() {
  static constexpr cpu::PanelKernels<Bf16> kernels{.name = "plain loops",
                                                   .title = "plain loops",
                                                   .columns = panel_columns,
                                                   .gradient_words = 0,
                                                   .product = product,
                                                   .pack_columns = pack_columns,
                                                   .pack_rows = pack_rows,
                                                   .packs_rows = 0,
                                                   .packs_groups = 0,
                                                   .pack_a = pack_a,
                                                   .softmax_forward = softmax_forward,
                                                   .softmax_backward = softmax_backward,
                                                   .row_dots = row_dots};
  return kernels;
}

}  // namespace scaletrain
