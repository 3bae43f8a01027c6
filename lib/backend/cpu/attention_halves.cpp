// Attention of halves. Scores, the softmax and all sums are f32 in a thread's scratch; blocks of operands are
// multiplied as bf16 where the processor does that, or as floats.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_blocks.h"
#include "base/error.h"
#include "tensor/buffer.h"

namespace scaletrain::cpu {

namespace {

constexpr std::int64_t max_head_size = 1024;
// Blocks of so many queries and keys, fewer where heads are large: what a block's operands and sums hold has a bound.
constexpr std::int64_t max_queries = 192;
constexpr std::int64_t max_keys = 256;
constexpr std::int64_t query_elements = 192 * 256;
constexpr std::int64_t key_elements = 256 * 256;
constexpr std::int64_t block_scores = max_queries * max_keys;
// Blocks with their rows or columns filled up to what packed operands are made of: at most 384 / 321 of them.
constexpr std::int64_t packed_elements = key_elements + key_elements / 4;

struct Blocks {
  explicit Blocks(std::int64_t head_size)
      : queries(std::min(max_queries, query_elements / head_size)),
        keys(std::min(max_keys, key_elements / head_size / bf16_panel_columns * bf16_panel_columns)) {}

  std::int64_t queries, keys;
};

constexpr std::int64_t up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::int64_t up_to_even(std::int64_t value) {
  return up_to(value, 2);
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
struct HalfScratch {
  explicit HalfScratch(Carver carver)
      : scores(carver.take<float>(block_scores)),
        d_scores(carver.take<float>(block_scores)),
        query_sums(carver.take<float>(query_elements)),
        key_sums(carver.take<float>(key_elements)),
        value_sums(carver.take<float>(key_elements)),
        maximum(carver.take<float>(max_queries)),
        sum(carver.take<float>(max_queries)),
        delta(carver.take<float>(max_queries)),
        first(carver.take<std::int32_t>(max_queries)),
        last(carver.take<std::int32_t>(max_queries)),
        products(nullptr) {
    // What follows is used by one way of multiplying or the other.
    Carver rest = carver;
    products = rest.take<std::byte>(static_cast<std::int64_t>(wide_scratch_bytes));
    a = carver.take<Bf16>(packed_elements);
    probabilities = carver.take<Bf16>(block_scores);
    score_gradients = carver.take<Bf16>(block_scores);
    for (Bf16*& packed : b) packed = carver.take<Bf16>(packed_elements);
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
  std::int32_t* first;
  std::int32_t* last;
  std::byte* products;            // of wide_product
  Bf16* a = nullptr;              // or one packed operand of rows,
  Bf16* b[4] = {};                // those of columns,
  Bf16* probabilities = nullptr;  // and rounded blocks of scores
  Bf16* score_gradients = nullptr;
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
  FloatProducts(const Engine<S>& engine, const HalfScratch& scratch, std::int64_t head_size)
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
  void softmax_backward(const ScoreBlock& block, const float* log_sum_exp, float scale) const {
    engine_.all.softmax_backward(block, log_sum_exp, scratch_.delta, scale, scratch_.d_scores);
  }
  // Row dots of the output and its gradient, as floats in the place of what is computed later.
  void compute_delta(const HeadRows<S>& output, const HeadRows<S>& d_output) const {
    const auto size = static_cast<std::size_t>(size_);
    float* const left = scratch_.d_scores;
    float* const right = left + size_;
    for (std::int64_t row = 0; row < output.rows; ++row) {
      engine_.typed.to_floats(output.data + row * output.stride, left, size);
      engine_.typed.to_floats(d_output.data + row * d_output.stride, right, size);
      engine_.all.row_dots({left, 0}, {right, 0}, 1, size, scratch_.delta + row);
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
  const HalfScratch& scratch_;
  std::int64_t size_;
};

// The same as bf16. Rows are multiplied some at a time, with no more of the other operand than the causal mask leaves
// them: `last` is the end of what each query sees, and does not fall.
class Bf16Products {
 public:
  Bf16Products(const Engine<Bf16>& engine, const HalfScratch& scratch, std::int64_t head_size)
      : kernels_(*engine.bf16), scratch_(scratch), size_(head_size) {}

  struct Keys {
    const Bf16* panels;
    std::ptrdiff_t panel_bytes;
    std::int64_t rows;
  };
  Keys for_scores(const HeadRows<Bf16>& keys, int place) const {
    const std::ptrdiff_t bytes = panel_bytes(size_);
    kernels_.pack_columns(keys.data, keys.stride, static_cast<std::size_t>(keys.rows), static_cast<std::size_t>(size_),
                          scratch_.b[place], bytes);
    return {scratch_.b[place], bytes, keys.rows};
  }
  Keys for_sums(const HeadRows<Bf16>& keys, int place) const {
    const std::ptrdiff_t bytes = panel_bytes(keys.rows);
    kernels_.pack_rows(keys.data, keys.stride, static_cast<std::size_t>(size_), static_cast<std::size_t>(keys.rows),
                       scratch_.b[place], bytes);
    return {scratch_.b[place], bytes, keys.rows};
  }

  void scores(const HeadRows<Bf16>& queries, const Keys& keys, const std::int32_t* last, float alpha,
              float* output) const {
    const Bf16* rows = queries.data;
    std::int64_t stride = queries.stride;
    if (size_ % 2 != 0) {
      stride = up_to_even(size_);
      for (std::int64_t row = 0; row < queries.rows; ++row) {
        std::memcpy(scratch_.a + row * stride, rows + row * queries.stride,
                    static_cast<std::size_t>(size_) * sizeof(Bf16));
        scratch_.a[row * stride + size_].bits = 0;
      }
      rows = scratch_.a;
    }
    for (std::int64_t row = 0; row < queries.rows; row += rows_at_a_time) {
      const std::int64_t count = std::min(rows_at_a_time, queries.rows - row);
      const std::int64_t seen = std::min<std::int64_t>(keys.rows, last[row + count - 1]);
      if (seen <= 0) continue;
      Bf16Tile tile = tile_of(rows + row * stride, stride, count, seen, up_to_even(size_), keys);
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
  void softmax_backward(const ScoreBlock& block, const float* log_sum_exp, float scale) const {
    kernels_.softmax_backward(block, log_sum_exp, scratch_.delta, scale, scratch_.d_scores,
                              {scratch_.probabilities, max_keys}, {scratch_.score_gradients, max_keys});
  }
  void compute_delta(const HeadRows<Bf16>& output, const HeadRows<Bf16>& d_output) const {
    kernels_.row_dots({output.data, output.stride}, {d_output.data, d_output.stride},
                      static_cast<std::size_t>(output.rows), static_cast<std::size_t>(size_), scratch_.delta);
  }

  void add_keys(Weights weights, std::int64_t queries, const Keys& keys, const std::int32_t* last, bool begins,
                float* sums, std::int64_t stride) const {
    for (std::int64_t row = 0; row < queries; row += rows_at_a_time) {
      const std::int64_t count = std::min(rows_at_a_time, queries - row);
      const std::int64_t seen = std::clamp<std::int64_t>(last[row + count - 1], 0, keys.rows);
      if (seen == 0 && !begins) continue;
      Bf16Tile tile = tile_of(rounded(weights) + row * max_keys, max_keys, count, size_, up_to_even(seen), keys);
      tile.begins = begins ? 1 : 0;
      tile.sums = sums + row * stride;
      tile.sums_stride = stride;
      kernels_.product(tile);
    }
  }

  void add_queries(Weights weights, std::int64_t keys, const HeadRows<Bf16>& queries, const std::int32_t* last,
                   bool begins, float* sums) const {
    const Keys packed = for_sums(queries, 3);
    for (std::int64_t key = 0; key < keys; key += rows_at_a_time) {
      // The first queries do not see the last keys: pairs of them have weights of zero.
      std::int64_t first = 0;
      while (first < queries.rows && last[first] <= key) ++first;
      first = first / 2 * 2;
      if (first >= queries.rows && !begins) continue;
      const std::int64_t count = std::min(rows_at_a_time, keys - key);
      const std::int64_t summed = queries.rows - first;
      kernels_.pack_a(rounded(weights) + first * max_keys + key, max_keys, static_cast<std::size_t>(count),
                      static_cast<std::size_t>(summed), scratch_.a, 0);
      Bf16Tile tile = tile_of(scratch_.a, 2, count, size_, up_to_even(summed), packed);
      place_packed_a(tile, kernels_, scratch_.a, summed);
      tile.b += first * bf16_panel_columns;
      tile.begins = begins ? 1 : 0;
      tile.sums = sums + key * size_;
      tile.sums_stride = size_;
      kernels_.product(tile);
    }
  }

 private:
  static constexpr std::int64_t rows_at_a_time = bf16_block_rows;

  const Bf16* rounded(Weights weights) const {
    return weights == Weights::probabilities ? scratch_.probabilities : scratch_.score_gradients;
  }
  static std::ptrdiff_t panel_bytes(std::int64_t k) {
    return bf16_panel_columns * up_to_even(k) * static_cast<std::ptrdiff_t>(sizeof(Bf16));
  }
  static Bf16Tile tile_of(const Bf16* a, std::int64_t a_stride, std::int64_t rows, std::int64_t columns, std::int64_t k,
                          const Keys& b) {
    const std::ptrdiff_t row_bytes = a_stride * static_cast<std::ptrdiff_t>(sizeof(Bf16));
    return {.a = a,
            .a_block_bytes = bf16_block_rows * row_bytes,
            .a_row_bytes = row_bytes,
            .a_pair_bytes = 2 * sizeof(Bf16),
            .b = b.panels,
            .b_panel_bytes = b.panel_bytes,
            .rows = static_cast<std::size_t>(rows),
            .columns = static_cast<std::size_t>(columns),
            .pairs = static_cast<std::size_t>(k / 2),
            .alpha = 1.0F};
  }

  const Bf16Kernels& kernels_;
  const HalfScratch& scratch_;
  std::int64_t size_;
};

// Queries [begin, end) of one head.
struct QueryItem {
  std::int64_t batch, head, begin, end;

  std::int64_t rows() const { return end - begin; }
};

void begin_softmax(const HalfScratch& scratch, std::int64_t rows) {
  std::fill_n(scratch.maximum, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum, rows, 0.0F);
}

template <class S>
void half_finish_forward(const Engine<S>& engine, const HalfScratch& scratch, const AttentionForward& op,
                         const QueryItem& item) {
  const AttentionShape& s = op.shape;
  const auto rows = static_cast<std::size_t>(item.rows());
  const auto size = static_cast<std::size_t>(s.head_size);
  float* const log_sum_exp =
      op.log_sum_exp ? op.log_sum_exp.as<float>() + (item.batch * s.heads + item.head) * s.num_queries + item.begin
                     : nullptr;
  engine.all.softmax_finish({scratch.maximum, scratch.sum}, rows, {scratch.query_sums, s.head_size}, size, log_sum_exp);
  S* output =
      head_data<S>(op.output, s.num_queries, item.batch, item.head, s.head_size) + item.begin * op.output.row_stride;
  engine.typed.finish_rows({scratch.query_sums, s.head_size}, nullptr, {nullptr, 0}, {output, op.output.row_stride},
                           rows, size);
}

template <class S, class Products>
void half_forward_block(const Engine<S>& engine, const HalfScratch& scratch, const AttentionForward& op,
                        const QueryItem& item) {
  const AttentionShape& s = op.shape;
  const Visibility visible(s, op.document_start);
  const Products products(engine, scratch, s.head_size);
  const std::int64_t block_keys = Blocks(s.head_size).keys;
  const std::int64_t kv_head = item.head / (s.heads / s.kv_heads);
  const HeadRows<S> queries =
      head_rows<S>(op.query, s.num_queries, item.batch, item.head, s.head_size, item.begin, item.rows());
  const std::int64_t first_key = visible.first_of(item.batch, item.begin, item.end);
  const std::int64_t last_key = visible.last(item.end - 1);
  begin_softmax(scratch, item.rows());
  for (std::int64_t k = first_key; k < last_key; k += block_keys) {
    const std::int64_t keys = std::min(block_keys, last_key - k);
    const bool begins = k == first_key;
    visible.block(item.batch, item.begin, item.end, k, keys, scratch.first, scratch.last);
    products.scores(queries,
                    products.for_scores(head_rows<S>(op.key, s.num_keys, item.batch, kv_head, s.head_size, k, keys), 0),
                    scratch.last, static_cast<float>(s.scale), scratch.scores);
    products.softmax_forward({scratch.scores, max_keys, static_cast<std::size_t>(item.rows()),
                              static_cast<std::size_t>(keys), scratch.first, scratch.last},
                             begins);
    products.add_keys(
        Weights::probabilities, item.rows(),
        products.for_sums(head_rows<S>(op.value, s.num_keys, item.batch, kv_head, s.head_size, k, keys), 1),
        scratch.last, begins, scratch.query_sums, s.head_size);
  }
  half_finish_forward(engine, scratch, op, item);
}

// The same for one query, without matrix products.
template <class S>
void half_forward_query(const Engine<S>& engine, const HalfScratch& scratch, const AttentionForward& op,
                        const QueryItem& item) {
  const AttentionShape& s = op.shape;
  const Visibility visible(s, op.document_start);
  const std::int64_t block_keys = Blocks(s.head_size).keys;
  const auto size = static_cast<std::size_t>(s.head_size);
  const std::int64_t kv_head = item.head / (s.heads / s.kv_heads);
  const HeadRows<S> query = head_rows<S>(op.query, s.num_queries, item.batch, item.head, s.head_size, item.begin, 1);
  const std::int64_t first_key = visible.first(item.batch, item.begin);
  const std::int64_t last_key = visible.last(item.begin);
  begin_softmax(scratch, 1);
  for (std::int64_t k = first_key; k < last_key; k += block_keys) {
    const std::int64_t keys = std::min(block_keys, last_key - k);
    const auto count = static_cast<std::size_t>(keys);
    const bool begins = k == first_key;
    const HeadRows<S> key = head_rows<S>(op.key, s.num_keys, item.batch, kv_head, s.head_size, k, keys);
    const HeadRows<S> value = head_rows<S>(op.value, s.num_keys, item.batch, kv_head, s.head_size, k, keys);
    engine.typed.dot_rows(query.data, rows_of(key.data, key.stride), count, size, static_cast<float>(s.scale),
                          scratch.scores);
    visible.block(item.batch, item.begin, item.end, k, keys, scratch.first, scratch.last);
    engine.all.softmax_forward({scratch.scores, max_keys, 1, count, scratch.first, scratch.last},
                               {scratch.maximum, scratch.sum}, {begins ? nullptr : scratch.query_sums, s.head_size},
                               size);
    for (std::int64_t row = 0; row < keys; ++row)
      engine.typed.to_floats(value.data + row * value.stride, scratch.value_sums + row * s.head_size, size);
    engine.all.weighted_row_sum(scratch.scores, {scratch.value_sums, s.head_size}, count, size, begins ? 1 : 0,
                                scratch.query_sums);
  }
  half_finish_forward(engine, scratch, op, item);
}

// What a pass over the blocks of the backward computes. The products of scores are the same in all.
enum class HalfGradients { all, of_keys, of_queries };

// The backward of a key/value head of one batch, as in attention.cpp. HalfGradients of keys are summed in scratch,
// those of queries in the descriptor's memory, or in scratch where a block of queries is computed at a time.
template <class S, class Products>
class HalfBackwardHead {
 public:
  HalfBackwardHead(const Engine<S>& engine, const HalfScratch& scratch, const AttentionBackward& op, std::int64_t batch,
                   std::int64_t kv_head)
      : engine_(engine),
        scratch_(scratch),
        op_(op),
        shape_(op.shape),
        products_(engine, scratch, op.shape.head_size),
        visible_(op.shape, op.document_start),
        blocks_(op.shape.head_size),
        batch_(batch),
        kv_head_(kv_head) {}

  void run() const {
    for (std::int64_t key = 0; key < shape_.num_keys; key += blocks_.keys) run_keys(key, HalfGradients::all);
    const std::int64_t group = shape_.heads / shape_.kv_heads;
    for (std::int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head)
      store(op_.d_query, shape_.num_queries, head, 0, shape_.num_queries, query_sums_of(head),
            shape_.heads * shape_.head_size);
  }

  // One block of keys with all queries.
  void run_keys(std::int64_t key, HalfGradients wanted) const {
    const std::int64_t group = shape_.heads / shape_.kv_heads;
    const KeyBlock block = key_block(key);
    bool begun = false;
    for (std::int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head)
      for (std::int64_t begin = 0; begin < shape_.num_queries; begin += blocks_.queries)
        begun = add_block(head, begin, block, !begun, wanted,
                          op_.d_query_sums ? query_sums_of(head) + begin * shape_.heads * shape_.head_size : nullptr,
                          shape_.heads * shape_.head_size) ||
                begun;
    if (!begun) {  // keys that no query sees
      std::fill_n(scratch_.key_sums, block.count * shape_.head_size, 0.0F);
      std::fill_n(scratch_.value_sums, block.count * shape_.head_size, 0.0F);
    }
    store(op_.d_key, shape_.num_keys, kv_head_, key, block.count, scratch_.key_sums, shape_.head_size);
    store(op_.d_value, shape_.num_keys, kv_head_, key, block.count, scratch_.value_sums, shape_.head_size);
  }

  // The gradient of one block of queries.
  void run_queries(std::int64_t head, std::int64_t begin) const {
    for (std::int64_t key = 0; key < shape_.num_keys; key += blocks_.keys)
      if (sees(begin, key))
        add_block(head, begin, key_block(key), false, HalfGradients::of_queries, scratch_.query_sums, shape_.head_size);
    store(op_.d_query, shape_.num_queries, head, begin, std::min(blocks_.queries, shape_.num_queries - begin),
          scratch_.query_sums, shape_.head_size);
  }

 private:
  using Keys = typename Products::Keys;
  struct KeyBlock {
    std::int64_t key, count;
    Keys keys, values;  // for scores
    Keys summed;        // keys, for the gradient of queries
  };

  KeyBlock key_block(std::int64_t key) const {
    const std::int64_t count = std::min(blocks_.keys, shape_.num_keys - key);
    const HeadRows<S> keys = head_rows<S>(op_.key, shape_.num_keys, batch_, kv_head_, shape_.head_size, key, count);
    const HeadRows<S> values = head_rows<S>(op_.value, shape_.num_keys, batch_, kv_head_, shape_.head_size, key, count);
    return {key, count, products_.for_scores(keys, 0), products_.for_scores(values, 1), products_.for_sums(keys, 2)};
  }

  float* query_sums_of(std::int64_t head) const {
    return op_.d_query_sums.as<float>() + (batch_ * shape_.num_queries * shape_.heads + head) * shape_.head_size;
  }

  bool sees(std::int64_t begin, std::int64_t key) const {
    const std::int64_t end = std::min(begin + blocks_.queries, shape_.num_queries);
    return visible_.last(end - 1) > key && visible_.first_of(batch_, begin, end) < key + blocks_.keys;
  }

  // The products of one block of queries with one block of keys; false if none of the queries sees any of the keys.
  bool add_block(std::int64_t head, std::int64_t begin, const KeyBlock& block, bool begins_keys, HalfGradients wanted,
                 float* query_sums, std::int64_t query_sums_stride) const {
    if (!sees(begin, block.key)) return false;
    const AttentionShape& s = shape_;
    const std::int64_t rows = std::min(blocks_.queries, s.num_queries - begin);
    const auto rows_at = [&](const ConstHeadsView& heads) {
      return head_rows<S>(heads, s.num_queries, batch_, head, s.head_size, begin, rows);
    };
    const HeadRows<S> queries = rows_at(op_.query);
    const HeadRows<S> d_output = rows_at(op_.d_output);
    products_.compute_delta(rows_at(op_.output), d_output);
    visible_.block(batch_, begin, begin + rows, block.key, block.count, scratch_.first, scratch_.last);
    const auto scale = static_cast<float>(s.scale);
    products_.scores(queries, block.keys, scratch_.last, scale, scratch_.scores);
    products_.scores(d_output, block.values, scratch_.last, 1.0F, scratch_.d_scores);
    products_.softmax_backward({scratch_.scores, max_keys, static_cast<std::size_t>(rows),
                                static_cast<std::size_t>(block.count), scratch_.first, scratch_.last},
                               op_.log_sum_exp.as<float>() + (batch_ * s.heads + head) * s.num_queries + begin, scale);
    if (wanted != HalfGradients::of_queries) {
      products_.add_queries(Weights::probabilities, block.count, d_output, scratch_.last, begins_keys,
                            scratch_.value_sums);
      products_.add_queries(Weights::score_gradients, block.count, queries, scratch_.last, begins_keys,
                            scratch_.key_sums);
    }
    if (wanted == HalfGradients::of_keys) return true;
    // Blocks of keys come in ascending order: the one that holds the first key that the queries see is their first.
    const bool begins_queries = visible_.first_of(batch_, begin, begin + rows) >= block.key;
    products_.add_keys(Weights::score_gradients, rows, block.summed, scratch_.last, begins_queries, query_sums,
                       query_sums_stride);
    return true;
  }

  void store(const HeadsView& heads, std::int64_t tokens, std::int64_t head, std::int64_t first, std::int64_t rows,
             const float* sums, std::int64_t stride) const {
    engine_.typed.finish_rows(
        {sums, stride}, nullptr, {nullptr, 0},
        {head_data<S>(heads, tokens, batch_, head, shape_.head_size) + first * heads.row_stride, heads.row_stride},
        static_cast<std::size_t>(rows), static_cast<std::size_t>(shape_.head_size));
  }

  const Engine<S>& engine_;
  const HalfScratch& scratch_;
  const AttentionBackward& op_;
  const AttentionShape& shape_;
  Products products_;
  Visibility visible_;
  Blocks blocks_;
  std::int64_t batch_;
  std::int64_t kv_head_;
};

template <class S>
HalfScratch half_scratch_of(const Engine<S>& engine, int worker) {
  const HalfScratch scratch(Carver(engine.scratch + static_cast<std::size_t>(worker) * half_scratch_bytes));
  SCALETRAIN_CHECK_LE(scratch.bytes, half_scratch_bytes);
  return scratch;
}

template <class S, class Products>
void run_backward(ThreadPool& pool, const Engine<S>& engine, const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  using Head = HalfBackwardHead<S, Products>;
  const std::int64_t heads = s.batch * s.kv_heads;
  if (op.d_query_sums && backward_by_heads(s, pool.size())) {
    pool.for_each(heads, [&](std::int64_t item, int worker) {
      const HalfScratch own = half_scratch_of(engine, worker);
      Head(engine, own, op, item / s.kv_heads, item % s.kv_heads).run();
    });
    return;
  }
  const Blocks blocks(s.head_size);
  const std::int64_t key_blocks = (s.num_keys + blocks.keys - 1) / blocks.keys;
  pool.for_each(heads * key_blocks, [&](std::int64_t item, int worker) {
    const HalfScratch own = half_scratch_of(engine, worker);
    const std::int64_t head = item / key_blocks;
    Head(engine, own, op, head / s.kv_heads, head % s.kv_heads)
        .run_keys(item % key_blocks * blocks.keys, HalfGradients::of_keys);
  });
  const std::int64_t query_blocks = (s.num_queries + blocks.queries - 1) / blocks.queries;
  pool.for_each(s.batch * s.heads * query_blocks, [&](std::int64_t item, int worker) {
    const HalfScratch own = half_scratch_of(engine, worker);
    const std::int64_t head = item / query_blocks % s.heads;
    Head(engine, own, op, item / query_blocks / s.heads, head / (s.heads / s.kv_heads))
        .run_queries(head, (query_blocks - 1 - item % query_blocks) * blocks.queries);
  });
}

}  // namespace

template <class S>
void attention_forward(ThreadPool& pool, const Engine<S>& engine, const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  SCALETRAIN_CHECK_LE(s.head_size, max_head_size);
  const bool decode = s.num_queries <= max_decode_queries;
  const std::int64_t block = decode ? 1 : Blocks(s.head_size).queries;
  const std::int64_t blocks = (s.num_queries + block - 1) / block;
  pool.for_each(s.batch * s.heads * blocks, [&](std::int64_t item, int worker) {
    const HalfScratch scratch = half_scratch_of(engine, worker);
    // Later queries see more keys: the long items of a head go first, so that threads end together.
    const std::int64_t begin = (blocks - 1 - item % blocks) * block;
    const QueryItem work{item / blocks / s.heads, item / blocks % s.heads, begin,
                         std::min(begin + block, s.num_queries)};
    if (decode) {
      half_forward_query(engine, scratch, op, work);
      return;
    }
    if constexpr (std::is_same_v<S, Bf16>) {
      if (engine.bf16 != nullptr) {
        half_forward_block<S, Bf16Products>(engine, scratch, op, work);
        return;
      }
    }
    half_forward_block<S, FloatProducts<S>>(engine, scratch, op, work);
  });
}

template <class S>
void attention_backward(ThreadPool& pool, const Engine<S>& engine, const AttentionBackward& op) {
  SCALETRAIN_CHECK_LE(op.shape.head_size, max_head_size);
  if constexpr (std::is_same_v<S, Bf16>) {
    if (engine.bf16 != nullptr) {
      run_backward<S, Bf16Products>(pool, engine, op);
      return;
    }
  }
  run_backward<S, FloatProducts<S>>(pool, engine, op);
}

template void attention_forward(ThreadPool&, const Engine<Bf16>&, const AttentionForward&);
template void attention_forward(ThreadPool&, const Engine<F16>&, const AttentionForward&);
template void attention_backward(ThreadPool&, const Engine<Bf16>&, const AttentionBackward&);
template void attention_backward(ThreadPool&, const Engine<F16>&, const AttentionBackward&);

}  // namespace scaletrain::cpu
