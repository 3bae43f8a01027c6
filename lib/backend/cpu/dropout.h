// Dropout on the processor: the words of rows, which the kernels compare.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/attention_blocks.h"
#include "backend/cpu/device.h"
#include "backend/cpu/kernels.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// Elements whose words are made at a time, on the stack.
inline constexpr std::int64_t dropout_piece = 1024;

// Of one row of a sample's matrix: use(words, first, count) for pieces of columns [first, last).
template <class Use>
void for_dropout_words(const DropoutMask& mask, std::int64_t sample, std::int64_t row, std::int64_t columns,
                       std::int64_t first, std::int64_t last, Use&& use) {
  std::uint32_t words[dropout_piece + 4];
  const auto number = static_cast<std::uint64_t>(mask.samples.as<std::int64_t>()[sample]);
  for (std::int64_t column = first; column < last;) {
    const std::int64_t skip = column % 4;
    const std::int64_t count = std::min(dropout_piece - skip, last - column);
    const auto block = static_cast<std::uint64_t>(DropoutMask::first_block(row, columns) + column / 4);
    fill_words(mask.key, block, number, {words, static_cast<std::size_t>(skip + count)});
    use(words + skip, column, count);
    column += count;
  }
}

template <class S>
void dropout(Device<S>& device, const Dropout& op) {
  const std::int64_t columns = op.input.shape()[1];
  const auto factor = static_cast<float>(op.mask.factor());
  const S* const input = op.input.as<S>();
  const S* const addend = op.addend ? op.addend.as<S>() : nullptr;
  S* const output = op.output.as<S>();
  const std::uint32_t threshold = op.mask.threshold();
  device.for_rows(op.input.shape()[0], columns, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t n = first; n < first + count; ++n) {
      const std::int64_t row = op.first_row + n;
      const auto drop = [&](const std::uint32_t* words, std::int64_t column, std::int64_t some) {
        const std::int64_t at = n * columns + column - op.first_column;
        device.kernels.drop(words, threshold, factor, input + at, addend == nullptr ? nullptr : addend + at,
                            output + at, static_cast<std::size_t>(some));
      };
      for_dropout_words(op.mask, row / op.sample_rows, row % op.sample_rows, op.columns, op.first_column,
                        op.first_column + columns, drop);
    }
  });
}

// Drops elements of a block of attention, [queries, keys] with `stride` elements between queries: of query
// `first_query` of a head of a batch on, and of key `first_key` on, what each of them sees. What is kept is multiplied
// by the factor.
struct DroppedBlock {
  const AttentionShape& shape;
  const AttentionDropout& dropout;
  std::int64_t batch, head, first_query, first_key;
  const ScoreBlock& block;
};
template <class S>
void drop_block(const TypedKernels<S>& kernels, const DroppedBlock& of, float factor, S* values, std::int64_t stride) {
  const DropoutMask& mask = of.dropout.mask;
  const std::uint32_t threshold = mask.threshold();
  for (std::int64_t query = 0; query < static_cast<std::int64_t>(of.block.rows); ++query) {
    const std::int64_t first = of.block.first[query];
    const std::int64_t last = of.block.last[query];
    if (first >= last) continue;
    const std::int64_t row = (of.dropout.first_head + of.head) * of.shape.num_queries + of.first_query + query;
    S* const own = values + query * stride - of.first_key;
    for_dropout_words(mask, of.batch, row, of.shape.num_keys, of.first_key + first, of.first_key + last,
                      [&](const std::uint32_t* words, std::int64_t key, std::int64_t count) {
                        kernels.drop(words, threshold, factor, own + key, nullptr, own + key,
                                     static_cast<std::size_t>(count));
                      });
  }
}

}  // namespace scaletrain::cpu
