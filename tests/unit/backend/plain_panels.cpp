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
using cpu::panel_tile_rows;
using cpu::panel_tile_words;

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

// The same as tiles of 16 rows of 16 words. Words of the last tile that are behind k are not to be read: they are NaN.
template <class Value>
void pack_tiles(std::size_t rows, std::size_t k, Bf16* blocks, std::ptrdiff_t block_bytes, const Value& value) {
  constexpr auto tile_rows = static_cast<std::size_t>(panel_tile_rows);
  constexpr auto tile_elements = static_cast<std::size_t>(panel_tile_words) * 2;
  constexpr auto block_rows = static_cast<std::size_t>(panel_block_rows);
  const std::size_t padded = (k + tile_elements - 1) / tile_elements * tile_elements;
  Bf16 poison;
  poison.bits = 0x7fc0;
  for (std::size_t row = 0; row < (rows + tile_rows - 1) / tile_rows * tile_rows; ++row) {
    auto* const block = reinterpret_cast<Bf16*>(reinterpret_cast<char*>(blocks) +
                                                static_cast<std::ptrdiff_t>(row / block_rows) * block_bytes);
    for (std::size_t i = 0; i < padded; ++i) {
      Bf16& place =
          block[row % block_rows / tile_rows * tile_rows * padded + i / tile_elements * tile_rows * tile_elements +
                row % tile_rows * tile_elements + i % tile_elements];
      place = i < k && row < rows ? value(i, row) : i < (k + 1) / 2 * 2 ? Bf16{} : poison;
    }
  }
}

void pack_a_as_tiles(const Bf16* matrix, std::ptrdiff_t stride, std::size_t rows, std::size_t k, Bf16* blocks,
                     std::ptrdiff_t block_bytes) {
  pack_tiles(rows, k, blocks, block_bytes, [&](std::size_t i, std::size_t row) {
    return matrix[static_cast<std::ptrdiff_t>(i) * stride + static_cast<std::ptrdiff_t>(row)];
  });
}

void pack_a_rows_as_tiles(const Bf16* matrix, std::ptrdiff_t stride, std::size_t rows, std::size_t k, Bf16* blocks,
                          std::ptrdiff_t block_bytes) {
  pack_tiles(rows, k, blocks, block_bytes, [&](std::size_t i, std::size_t row) {
    return matrix[static_cast<std::ptrdiff_t>(row) * stride + static_cast<std::ptrdiff_t>(i)];
  });
}

// Word `word` of a row of a.
const Bf16* word_of(const cpu::PanelTile<Bf16>& tile, std::ptrdiff_t row, std::ptrdiff_t word) {
  const char* at = static_cast<const char*>(tile.a) + row / panel_block_rows * tile.a_block_bytes;
  const std::ptrdiff_t in_block = row % panel_block_rows;
  if (tile.a_group_bytes == 0) {
    at += in_block * tile.a_row_bytes;
  } else {
    at += in_block / panel_tile_rows * tile.a_group_bytes + in_block % panel_tile_rows * tile.a_row_bytes;
  }
  if (tile.a_tile_bytes == 0) {
    at += word * tile.a_word_bytes;
  } else {
    at += word / panel_tile_words * tile.a_tile_bytes + word % panel_tile_words * tile.a_word_bytes;
  }
  return reinterpret_cast<const Bf16*>(at);
}

void product(const cpu::PanelTile<Bf16>& tile) {
  for (std::size_t r = 0; r < tile.rows; ++r)
    for (std::size_t c = 0; c < tile.columns; ++c) {
      const auto row = static_cast<std::ptrdiff_t>(r);
      const auto column = static_cast<std::ptrdiff_t>(c);
      float* const kept = tile.sums != nullptr ? tile.sums + row * tile.sums_stride + column : nullptr;
      float sum = tile.begins != 0 ? 0.0F : *kept;
      for (std::size_t word = 0; word < tile.words; ++word) {
        const Bf16* const left = word_of(tile, row, static_cast<std::ptrdiff_t>(word));
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
                                                   .product = product,
                                                   .pack_columns = pack_columns,
                                                   .pack_rows = pack_rows,
                                                   .packs_groups = 0,
                                                   .packs_tiles = 0,
                                                   .pack_a = pack_a,
                                                   .pack_a_rows = nullptr,
                                                   .softmax_forward = softmax_forward,
                                                   .softmax_backward = softmax_backward,
                                                   .row_dots = row_dots};
  return kernels;
}

const cpu::PanelKernels<Bf16>& plain_bf16_tiles() {
  static const cpu::PanelKernels<Bf16> tiles = [] {
    cpu::PanelKernels<Bf16> kernels = plain_bf16_panels();
    kernels.packs_tiles = 1;
    kernels.pack_a = pack_a_as_tiles;
    kernels.pack_a_rows = pack_a_rows_as_tiles;
    return kernels;
  }();
  return tiles;
}

}  // namespace scaletrain
