#include "backend/operations.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/numbers/checked.h"

namespace scaletrain {

bool AttentionWorkspace::is_of(const AttentionShape& shape) const {
  if (keeps_scores && (shape.window > 0 || shape.softcap > 0)) return false;
  return shape.num_queries >= least_queries && shape.head_size >= least_head_size &&
         shape.head_size <= most_head_size && shape.head_size % head_size_multiple == 0;
}

std::optional<std::int64_t> AttentionWorkspace::wanted(const AttentionShape& shape) const {
  constexpr std::int64_t padded_to = 128;
  constexpr std::int64_t halves = 2;  // in a number
  const std::int64_t heads = checked_mul(shape.batch, shape.heads);
  const auto times = [](std::optional<std::int64_t> a, std::int64_t b) { return a ? try_mul(*a, b) : a; };
  const auto plus = [](std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
    return a && b ? try_add(*a, *b) : std::nullopt;
  };
  const auto rows = try_mul(heads, shape.num_queries);
  if (!keeps_scores) return times(rows, shape.head_size);
  const std::int64_t padded_queries = round_up(shape.num_queries, padded_to);
  const auto scores = times(try_mul(heads, padded_queries), round_up(shape.num_keys, padded_to) / halves);
  // And a number for each row, the product of its output and its output's gradient; the gradients of keys and values
  // that heads share, of each head by itself in halves; and what aligning all that takes.
  const auto shared = shape.heads > shape.kv_heads ? times(try_mul(heads, shape.num_keys), shape.head_size)
                                                   : std::optional<std::int64_t>(0);
  constexpr std::int64_t alignment = 128;
  return plus(plus(plus(scores, rows), shared), alignment);
}

std::optional<AttentionPart> AttentionWorkspace::largest_part(const AttentionShape& shape,
                                                              std::int64_t elements) const {
  if (!is_of(shape) || shape.batch == 0 || shape.kv_heads == 0) return std::nullopt;
  const auto fits = [&](const AttentionPart& part) {
    const auto of_part = wanted(part_of(shape, part));
    return of_part && *of_part <= elements;
  };
  AttentionPart part{shape.batch, shape.kv_heads};
  if (fits(part)) return part;
  for (std::int64_t parts = 2; parts <= shape.batch && !fits(part); ++parts) part.batch = ceil_div(shape.batch, parts);
  for (std::int64_t parts = 2; parts <= shape.kv_heads && !fits(part); ++parts)
    part.kv_heads = ceil_div(shape.kv_heads, parts);
  if (!fits(part)) return std::nullopt;
  const AttentionShape made = part_of(shape, part);
  if (made.batch * made.heads * made.num_queries < least_rows) return std::nullopt;
  return part;
}

std::int64_t AttentionWorkspace::lent(const AttentionShape& shape) const {
  const auto part = largest_part(shape, most);
  return part ? *wanted(part_of(shape, *part)) : 0;
}

double scaled_frequency(const RopeScaling& scaling, double frequency) {
  if (scaling.factor == 1.0) return frequency;
  double kept = 0.0;
  if (scaling.original_context > 0.0) {
    const double turns = frequency * scaling.original_context / (2.0 * std::numbers::pi);
    kept = std::clamp(
        (turns - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor), 0.0,
        1.0);
  }
  return frequency * (kept + (1.0 - kept) / scaling.factor);
}

std::uint32_t DropoutMask::threshold() const {
  return static_cast<std::uint32_t>(std::min(std::floor(probability * 0x1p32 + 0.5), 0x1p32 - 1.0));
}

AttentionShape part_of(AttentionShape shape, const AttentionPart& part) {
  shape.heads = shape.heads / shape.kv_heads * part.kv_heads;
  shape.kv_heads = part.kv_heads;
  shape.batch = part.batch;
  return shape;
}

}  // namespace scaletrain
