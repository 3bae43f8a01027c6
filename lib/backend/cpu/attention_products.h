// The products of attention's blocks, in two ways, and the scratch of a thread that computes them. Internal to
// attention_tiles.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cpu/attention_blocks.h"
#include "backend/cpu/dropout.h"
#include "backend/cpu/half_products.h"
#include "tensor/buffer.h"

namespace scaletrain::cpu {

// Blocks of so many queries and keys, fewer where heads are large: what a block's operands and sums hold has a bound.
inline constexpr std::int64_t max_queries = 192;
inline constexpr std::int64_t max_keys = 256;
inline constexpr std::int64_t block_scores = max_queries * max_keys;
// Where all queries that read a head of keys have no more deltas than this, the blocks of keys share them.
inline constexpr std::int64_t max_kept_deltas = 32768;

// For heads of at most max_head_size elements.
template <class S>
struct Blocks {
  static constexpr std::int64_t max_head_size = 2048 / sizeof(S);
  static constexpr std::int64_t query_elements = max_queries * (512 / sizeof(S));
  static constexpr std::int64_t key_elements = max_keys * (512 / sizeof(S));
  // Blocks with their rows or columns filled up to what packed operands are made of: at most 384 / 321 of them.
  static constexpr std::int64_t packed_elements = key_elements + key_elements / 4;

  explicit Blocks(std::int64_t head_size)
      : queries(std::min(max_queries, query_elements / head_size)),
        keys(std::min(max_keys, key_elements / head_size / panel_columns * panel_columns)) {}

  std::int64_t queries, keys;
};

constexpr std::int64_t up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
// Elements of k that fill words of 4 bytes.
template <class S>
constexpr std::int64_t up_to_words(std::int64_t value) {
  return up_to(value, 4 / sizeof(S));
}

// Hands out the scratch of one thread.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(std::int64_t elements) {
    std::byte* const at = memory_ + used_;
    used_ += align_up(static_cast<std::size_t>(elements) * sizeof(T));
    return reinterpret_cast<T*>(at);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

// The scratch of one thread, by name.
template <class S>
struct TileScratch {
  explicit TileScratch(Carver carver)
      : scores(carver.take<float>(block_scores)),
        d_scores(carver.take<float>(block_scores)),
        query_sums(carver.take<float>(Blocks<S>::query_elements)),
        key_sums(carver.take<float>(Blocks<S>::key_elements)),
        value_sums(carver.take<float>(Blocks<S>::key_elements)),
        maximum(carver.take<float>(max_queries)),
        sum(carver.take<float>(max_queries)),
        delta(carver.take<float>(max_queries)),
        kept_deltas(carver.take<float>(max_kept_deltas)),
        first(carver.take<std::int32_t>(max_queries)),
        last(carver.take<std::int32_t>(max_queries)) {
    // What follows is used by one way of multiplying or the other.
    Carver rest = carver;
    if constexpr (!std::is_same_v<S, float>)
      products = rest.take<std::byte>(static_cast<std::int64_t>(wide_scratch_bytes));
    a = carver.take<S>(Blocks<S>::packed_elements);
    for (S*& packed : b) packed = carver.take<S>(Blocks<S>::packed_elements);
    if constexpr (std::is_same_v<S, float>) {
      probabilities = scores;
      score_gradients = d_scores;
    } else {
      probabilities = carver.take<S>(block_scores);
      score_gradients = carver.take<S>(block_scores);
    }
    bytes = std::max(rest.used(), carver.used());
  }

  float* scores;
  float* d_scores;
  float* query_sums;
  float* key_sums;
  float* value_sums;
  float* maximum;  // [max_queries], and so the rest
  float* sum;
  float* delta;
  float* kept_deltas;  // [max_kept_deltas]
  std::int32_t* first;
  std::int32_t* last;
  std::byte* products = nullptr;  // of wide_product
  S* a = nullptr;                 // or one packed operand of rows,
  S* b[4] = {};                   // those of columns,
  S* probabilities = nullptr;     // and blocks of scores, rounded; of floats in the place of the scores
  S* score_gradients = nullptr;
  std::size_t bytes = 0;
};

// Rows of one head of S in a block: [rows, D].
template <class S>
struct HeadRows {
  const S* data;
  std::int64_t stride;
  std::int64_t rows;
};

template <class S>
HeadRows<S> head_rows(const ConstHeadsView& heads, std::int64_t tokens, std::int64_t batch, std::int64_t head,
                      std::int64_t head_size, std::int64_t first, std::int64_t rows) {
  return {head_data<S>(heads, tokens, batch, head, head_size) + first * heads.row_stride, heads.row_stride, rows};
}

// What rows of keys or of queries are summed with.
enum class Weights { probabilities, score_gradients };

// The products of blocks as floats.
template <class S>
class FloatProducts {
 public:
  FloatProducts(const Engine<S>& engine, const TileScratch<S>& scratch, std::int64_t head_size)
      : engine_(engine), scratch_(scratch), size_(head_size) {}

  // A block of keys (or values) that several products read. `place`: 0 to 2.
  struct Keys {
    HeadRows<S> rows;
  };
  Keys for_scores(const HeadRows<S>& keys, int) const { return {keys}; }
  Keys for_sums(const HeadRows<S>& keys, int) const { return {keys}; }

  // scores[queries, keys] = alpha · queries · keysᵀ.
  void scores(const HeadRows<S>& queries, const Keys& keys, const std::int32_t*, float alpha, float* output) const {
    wide_product<S, S>(engine_.typed, scratch_.products,
                       {.m = queries.rows,
                        .n = keys.rows.rows,
                        .k = size_,
                        .alpha = alpha,
                        .a = {queries.data, queries.stride},
                        .b = {keys.rows.data, keys.rows.stride, true},
                        .c = output,
                        .c_stride = max_keys});
  }

  // As in Kernels: what is multiplied next are the scores' own places.
  void softmax_forward(const ScoreBlock& block, bool begins) const {
    engine_.all.softmax_forward(block, {scratch_.maximum, scratch_.sum},
                                {begins ? nullptr : scratch_.query_sums, size_}, static_cast<std::size_t>(size_));
  }
  void softmax_backward(const ScoreBlock& block, const float* log_sum_exp, const float* delta, float scale) const {
    engine_.all.softmax_backward(block, log_sum_exp, delta, scale, scratch_.d_scores);
  }
  // Zeros for the probabilities that dropout drops. The factor of the others is for what is summed by them.
  void drop(const DroppedBlock& block) const { drop_block(engine_.all.f32, block, 1.0F, scratch_.scores, max_keys); }
  // Row dots of the output and its gradient, as floats in the place of what is computed later.
  void compute_delta(const HeadRows<S>& output, const HeadRows<S>& d_output, float* delta) const {
    const auto size = static_cast<std::size_t>(size_);
    float* const left = scratch_.d_scores;
    float* const right = left + size_;
    for (std::int64_t row = 0; row < output.rows; ++row) {
      engine_.typed.to_floats(output.data + row * output.stride, left, size);
      engine_.typed.to_floats(d_output.data + row * d_output.stride, right, size);
      engine_.all.row_dots({left, 0}, {right, 0}, 1, size, delta + row);
    }
  }

  // sums[queries, D] = (begins ? 0 : sums) + weights[queries, keys] · keys.
  void add_keys(Weights weights, std::int64_t queries, const Keys& keys, const std::int32_t*, bool begins, float* sums,
                std::int64_t stride) const {
    add({floats_of(weights), max_keys, false}, queries, keys.rows, begins, sums, stride);
  }

  // sums[keys, D] = (begins ? 0 : sums) + weights[queries, keys]ᵀ · queries.
  void add_queries(Weights weights, std::int64_t keys, const HeadRows<S>& queries, const std::int32_t*, bool begins,
                   float* sums) const {
    add({floats_of(weights), max_keys, true}, keys, queries, begins, sums, size_);
  }

 private:
  const float* floats_of(Weights weights) const {
    return weights == Weights::probabilities ? scratch_.scores : scratch_.d_scores;
  }
  void add(const MatrixOf<float>& weights, std::int64_t rows, const HeadRows<S>& summed, bool begins, float* sums,
           std::int64_t stride) const {
    for (std::int64_t column = 0; column < size_; column += max_wide_columns)
      wide_product<float, S>(engine_.typed, scratch_.products,
                             {.m = rows,
                              .n = std::min(max_wide_columns, size_ - column),
                              .k = summed.rows,
                              .a = weights,
                              .b = {summed.data + column, summed.stride},
                              .beta = begins ? 0.0F : 1.0F,
                              .c = sums + column,
                              .c_stride = stride});
  }

  const Engine<S>& engine_;
  const TileScratch<S>& scratch_;
  std::int64_t size_;
};

// The same as panels of S. Rows are multiplied some at a time, with no more of the other operand than the causal mask
// leaves them: `last` is the end of what each query sees, and does not fall.
template <class S>
class PanelProducts {
 public:
  PanelProducts(const Engine<S>& engine, const TileScratch<S>& scratch, std::int64_t head_size)
      : kernels_(*engine.panels),
        typed_(engine.typed),
        scratch_(scratch),
        size_(head_size),
        rows_at_a_time_(rows_at_a_time(kernels_)) {}

  struct Keys {
    const S* panels;
    std::ptrdiff_t panel_bytes;
    std::int64_t rows;
  };
  Keys for_scores(const HeadRows<S>& keys, int place) const {
    const std::ptrdiff_t bytes = panel_bytes(size_);
    kernels_.pack_columns(keys.data, keys.stride, static_cast<std::size_t>(keys.rows), static_cast<std::size_t>(size_),
                          scratch_.b[place], bytes);
    return {scratch_.b[place], bytes, keys.rows};
  }
  Keys for_sums(const HeadRows<S>& keys, int place) const {
    const std::ptrdiff_t bytes = panel_bytes(keys.rows);
    kernels_.pack_rows(keys.data, keys.stride, static_cast<std::size_t>(size_), static_cast<std::size_t>(keys.rows),
                       scratch_.b[place], bytes);
    return {scratch_.b[place], bytes, keys.rows};
  }

  void scores(const HeadRows<S>& queries, const Keys& keys, const std::int32_t* last, float alpha,
              float* output) const {
    const S* rows = queries.data;
    std::int64_t stride = queries.stride;
    if (up_to_words<S>(size_) != size_) {  // a zero after the last element
      stride = up_to_words<S>(size_);
      for (std::int64_t row = 0; row < queries.rows; ++row) {
        std::memset(scratch_.a + row * stride + size_, 0, sizeof(S));
        std::memcpy(scratch_.a + row * stride, rows + row * queries.stride,
                    static_cast<std::size_t>(size_) * sizeof(S));
      }
      rows = scratch_.a;
    }
    for (std::int64_t row = 0; row < queries.rows; row += rows_at_a_time_) {
      const std::int64_t count = std::min(rows_at_a_time_, queries.rows - row);
      const std::int64_t seen = std::min<std::int64_t>(keys.rows, last[row + count - 1]);
      if (seen <= 0) continue;
      PanelTile<S> tile = tile_of(rows + row * stride, stride, count, seen, up_to_words<S>(size_), keys);
      tile.begins = 1;
      tile.alpha = alpha;
      tile.sums = output + row * max_keys;
      tile.sums_stride = max_keys;
      kernels_.product(tile);
    }
  }

  void softmax_forward(const ScoreBlock& block, bool begins) const {
    kernels_.softmax_forward(block, {scratch_.maximum, scratch_.sum}, {begins ? nullptr : scratch_.query_sums, size_},
                             static_cast<std::size_t>(size_), {scratch_.probabilities, max_keys});
  }
  void softmax_backward(const ScoreBlock& block, const float* log_sum_exp, const float* delta, float scale) const {
    kernels_.softmax_backward(block, log_sum_exp, delta, scale, scratch_.d_scores, {scratch_.probabilities, max_keys},
                              {scratch_.score_gradients, max_keys});
  }
  void drop(const DroppedBlock& block) const { drop_block(typed_, block, 1.0F, scratch_.probabilities, max_keys); }
  void compute_delta(const HeadRows<S>& output, const HeadRows<S>& d_output, float* delta) const {
    kernels_.row_dots({output.data, output.stride}, {d_output.data, d_output.stride},
                      static_cast<std::size_t>(output.rows), static_cast<std::size_t>(size_), delta);
  }

  void add_keys(Weights weights, std::int64_t queries, const Keys& keys, const std::int32_t* last, bool begins,
                float* sums, std::int64_t stride) const {
    for (std::int64_t row = 0; row < queries; row += rows_at_a_time_) {
      const std::int64_t count = std::min(rows_at_a_time_, queries - row);
      const std::int64_t seen = std::clamp<std::int64_t>(last[row + count - 1], 0, keys.rows);
      if (seen == 0 && !begins) continue;
      PanelTile<S> tile =
          tile_of(rounded(weights) + row * max_keys, max_keys, count, size_, up_to_words<S>(seen), keys);
      tile.begins = begins ? 1 : 0;
      tile.sums = sums + row * stride;
      tile.sums_stride = stride;
      kernels_.product(tile);
    }
  }

  void add_queries(Weights weights, std::int64_t keys, const HeadRows<S>& queries, const std::int32_t* last,
                   bool begins, float* sums) const {
    const Keys packed = for_sums(queries, 3);
    for (std::int64_t key = 0; key < keys; key += rows_at_a_time_) {
      // The first queries do not see the last keys: words of them have weights of zero.
      std::int64_t first = 0;
      while (first < queries.rows && last[first] <= key) ++first;
      first = first / word_elements * word_elements;
      if (first >= queries.rows && !begins) continue;
      const std::int64_t count = std::min(rows_at_a_time_, keys - key);
      const std::int64_t summed = queries.rows - first;
      const std::int64_t words = up_to_words<S>(summed) / word_elements;
      kernels_.pack_a(rounded(weights) + first * max_keys + key, max_keys, static_cast<std::size_t>(count),
                      static_cast<std::size_t>(summed), scratch_.a, packed_block_bytes(kernels_, words));
      PanelTile<S> tile = tile_of(scratch_.a, word_elements, count, size_, up_to_words<S>(summed), packed);
      place_packed_a(tile, kernels_, scratch_.a, words);
      tile.b += first * kernels_.columns;
      tile.begins = begins ? 1 : 0;
      tile.sums = sums + key * size_;
      tile.sums_stride = size_;
      kernels_.product(tile);
    }
  }

 private:
  static constexpr std::int64_t word_elements = 4 / sizeof(S);

  // Whole pairs of tiles; else no more than pay: of fewer rows the causal mask leaves less to multiply, and narrow
  // panels pay soon.
  static std::int64_t rows_at_a_time(const PanelKernels<S>& kernels) {
    if (kernels.packs_tiles != 0) return 4 * panel_tile_rows;
    return kernels.packs_groups != 0 ? panel_block_rows / 2 : panel_block_rows;
  }

  const S* rounded(Weights weights) const {
    return weights == Weights::probabilities ? scratch_.probabilities : scratch_.score_gradients;
  }
  std::ptrdiff_t panel_bytes(std::int64_t k) const {
    return kernels_.columns * up_to_words<S>(k) * static_cast<std::ptrdiff_t>(sizeof(S));
  }
  static PanelTile<S> tile_of(const S* a, std::int64_t a_stride, std::int64_t rows, std::int64_t columns,
                              std::int64_t k, const Keys& b) {
    const std::ptrdiff_t row_bytes = a_stride * static_cast<std::ptrdiff_t>(sizeof(S));
    return {.a = a,
            .a_block_bytes = panel_block_rows * row_bytes,
            .a_row_bytes = row_bytes,
            .a_word_bytes = 4,
            .b = b.panels,
            .b_panel_bytes = b.panel_bytes,
            .rows = static_cast<std::size_t>(rows),
            .columns = static_cast<std::size_t>(columns),
            .words = static_cast<std::size_t>(k / word_elements),
            .alpha = 1.0F};
  }

  const PanelKernels<S>& kernels_;
  const TypedKernels<S>& typed_;
  const TileScratch<S>& scratch_;
  std::int64_t size_;
  std::int64_t rows_at_a_time_;
};

}  // namespace scaletrain::cpu
