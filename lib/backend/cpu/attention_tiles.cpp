// Attention with the products of attention_products.h: of halves, and of floats where the processor has panels of them.
// Scores, the softmax and all sums are f32 in a thread's scratch.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_products.h"
#include "base/error.h"

namespace scaletrain::cpu {

namespace {

// Queries [begin, end) of one head.
struct QueryItem {
  std::int64_t batch, head, begin, end;

  std::int64_t rows() const { return end - begin; }
};

template <class S>
void begin_softmax(const TileScratch<S>& scratch, std::int64_t rows) {
  std::fill_n(scratch.maximum, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum, rows, 0.0F);
}

// Of what dropout keeps, for sums of it.
template <class S>
void scale_kept(const Engine<S>& engine, const AttentionDropout& dropout, float* sums, std::int64_t count) {
  if (!dropout.mask) return;
  engine.all.f32.scale(sums, sums, static_cast<std::size_t>(count), static_cast<float>(dropout.mask.factor()));
}

template <class S>
void finish_tile(const Engine<S>& engine, const TileScratch<S>& scratch, const AttentionForward& op,
                 const QueryItem& item) {
  const AttentionShape& s = op.shape;
  const auto rows = static_cast<std::size_t>(item.rows());
  const auto size = static_cast<std::size_t>(s.head_size);
  float* const log_sum_exp =
      op.log_sum_exp ? op.log_sum_exp.as<float>() + (item.batch * s.heads + item.head) * s.num_queries + item.begin
                     : nullptr;
  engine.all.softmax_finish({scratch.maximum, scratch.sum}, rows, {scratch.query_sums, s.head_size}, size, log_sum_exp);
  scale_kept(engine, op.dropout, scratch.query_sums, item.rows() * s.head_size);
  S* output =
      head_data<S>(op.output, s.num_queries, item.batch, item.head, s.head_size) + item.begin * op.output.row_stride;
  engine.typed.finish_rows({scratch.query_sums, s.head_size}, nullptr, {nullptr, 0}, 1.0F,
                           {output, op.output.row_stride}, rows, size);
}

template <class S, class Products>
void forward_tiles(const Engine<S>& engine, const TileScratch<S>& scratch, const AttentionForward& op,
                   const QueryItem& item) {
  const AttentionShape& s = op.shape;
  const Visibility visible(s, op.document_start);
  const Products products(engine, scratch, s.head_size);
  const std::int64_t block_keys = Blocks<S>(s.head_size).keys;
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
    const ScoreBlock block{
        scratch.scores, max_keys,    static_cast<std::size_t>(item.rows()), static_cast<std::size_t>(keys),
        scratch.first,  scratch.last};
    if (s.softcap > 0) engine.all.cap_scores(block, static_cast<float>(s.softcap));
    products.softmax_forward(block, begins);
    if (op.dropout.mask) products.drop({s, op.dropout, item.batch, item.head, item.begin, k, block});
    products.add_keys(
        Weights::probabilities, item.rows(),
        products.for_sums(head_rows<S>(op.value, s.num_keys, item.batch, kv_head, s.head_size, k, keys), 1),
        scratch.last, begins, scratch.query_sums, s.head_size);
  }
  finish_tile(engine, scratch, op, item);
}

// The same for one query, without matrix products.
template <class S>
void forward_one_query(const Engine<S>& engine, const TileScratch<S>& scratch, const AttentionForward& op,
                       const QueryItem& item) {
  const AttentionShape& s = op.shape;
  const Visibility visible(s, op.document_start);
  const std::int64_t block_keys = Blocks<S>(s.head_size).keys;
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
    const ScoreBlock block{scratch.scores, max_keys, 1, count, scratch.first, scratch.last};
    if (s.softcap > 0) engine.all.cap_scores(block, static_cast<float>(s.softcap));
    engine.all.softmax_forward(block, {scratch.maximum, scratch.sum},
                               {begins ? nullptr : scratch.query_sums, s.head_size}, size);
    if (op.dropout.mask)
      drop_block(engine.all.f32, {s, op.dropout, item.batch, item.head, item.begin, k, block}, 1.0F, scratch.scores,
                 max_keys);
    for (std::int64_t row = 0; row < keys; ++row)
      engine.typed.to_floats(value.data + row * value.stride, scratch.value_sums + row * s.head_size, size);
    engine.all.weighted_row_sum(scratch.scores, {scratch.value_sums, s.head_size}, count, size, begins ? 1 : 0,
                                scratch.query_sums);
  }
  finish_tile(engine, scratch, op, item);
}

// What a pass over the blocks of the backward computes. The products of scores are the same in all.
enum class TileGradients { all, of_keys, of_queries };

// The backward of a key/value head of one batch, as in attention.cpp. TileGradients of keys are summed in scratch,
// those of queries in the descriptor's memory, or in scratch where a block of queries is computed at a time.
template <class S, class Products>
class TiledBackwardHead {
 public:
  TiledBackwardHead(const Engine<S>& engine, const TileScratch<S>& scratch, const AttentionBackward& op,
                    std::int64_t batch, std::int64_t kv_head)
      : engine_(engine),
        scratch_(scratch),
        op_(op),
        shape_(op.shape),
        products_(engine, scratch, op.shape.head_size),
        visible_(op.shape, op.document_start),
        blocks_(op.shape.head_size),
        batch_(batch),
        kv_head_(kv_head) {}

  void run() {
    keep_deltas();
    for (std::int64_t key = 0; key < shape_.num_keys; key += blocks_.keys) run_keys(key, TileGradients::all);
    for (std::int64_t head = first_head(); head < end_head(); ++head)
      if (!std::is_same_v<S, float>)
        store(op_.d_query, shape_.num_queries, head, 0, shape_.num_queries, query_sums_of(head), query_sums_stride());
  }

  // One block of keys with all queries.
  void run_keys(std::int64_t key, TileGradients wanted) const {
    const KeyBlock block = key_block(key);
    bool begun = false;
    for (std::int64_t head = first_head(); head < end_head(); ++head)
      for (std::int64_t begin = 0; begin < shape_.num_queries; begin += blocks_.queries)
        begun = add_block(head, begin, block, !begun, wanted,
                          wanted == TileGradients::all ? query_sums_of(head) + begin * query_sums_stride() : nullptr,
                          query_sums_stride()) ||
                begun;
    if (!begun) {  // keys that no query sees
      std::fill_n(scratch_.key_sums, block.count * shape_.head_size, 0.0F);
      std::fill_n(scratch_.value_sums, block.count * shape_.head_size, 0.0F);
    }
    store(op_.d_key, shape_.num_keys, kv_head_, key, block.count, scratch_.key_sums, shape_.head_size);
    scale_kept(engine_, op_.dropout, scratch_.value_sums, block.count * shape_.head_size);
    store(op_.d_value, shape_.num_keys, kv_head_, key, block.count, scratch_.value_sums, shape_.head_size);
  }

  // The gradient of one block of queries.
  void run_queries(std::int64_t head, std::int64_t begin) const {
    for (std::int64_t key = 0; key < shape_.num_keys; key += blocks_.keys)
      if (sees(begin, key))
        add_block(head, begin, key_block(key), false, TileGradients::of_queries, scratch_.query_sums, shape_.head_size);
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

  // The query heads that read this head of keys.
  std::int64_t first_head() const { return kv_head_ * (shape_.heads / shape_.kv_heads); }
  std::int64_t end_head() const { return first_head() + shape_.heads / shape_.kv_heads; }

  HeadRows<S> query_rows(const ConstHeadsView& heads, std::int64_t head, std::int64_t begin, std::int64_t rows) const {
    return head_rows<S>(heads, shape_.num_queries, batch_, head, shape_.head_size, begin, rows);
  }

  // The deltas of a block of queries: kept for all blocks of keys, or computed for this one.
  const float* deltas_of(std::int64_t head, std::int64_t begin, std::int64_t rows) const {
    if (keeps_deltas_) return scratch_.kept_deltas + (head - first_head()) * shape_.num_queries + begin;
    products_.compute_delta(query_rows(op_.output, head, begin, rows), query_rows(op_.d_output, head, begin, rows),
                            scratch_.delta);
    return scratch_.delta;
  }
  void keep_deltas() {
    if ((end_head() - first_head()) * shape_.num_queries > max_kept_deltas) return;
    keeps_deltas_ = true;
    for (std::int64_t head = first_head(); head < end_head(); ++head)
      products_.compute_delta(query_rows(op_.output, head, 0, shape_.num_queries),
                              query_rows(op_.d_output, head, 0, shape_.num_queries),
                              scratch_.kept_deltas + (head - first_head()) * shape_.num_queries);
  }

  KeyBlock key_block(std::int64_t key) const {
    const std::int64_t count = std::min(blocks_.keys, shape_.num_keys - key);
    const HeadRows<S> keys = head_rows<S>(op_.key, shape_.num_keys, batch_, kv_head_, shape_.head_size, key, count);
    const HeadRows<S> values = head_rows<S>(op_.value, shape_.num_keys, batch_, kv_head_, shape_.head_size, key, count);
    return {key, count, products_.for_scores(keys, 0), products_.for_scores(values, 1), products_.for_sums(keys, 2)};
  }

  // Floats are summed where their gradient lies.
  float* query_sums_of(std::int64_t head) const {
    if constexpr (std::is_same_v<S, float>)
      return head_data<float>(op_.d_query, shape_.num_queries, batch_, head, shape_.head_size);
    else
      return op_.workspace.as<float>() + (batch_ * shape_.num_queries * shape_.heads + head) * shape_.head_size;
  }
  std::int64_t query_sums_stride() const {
    return std::is_same_v<S, float> ? op_.d_query.row_stride : shape_.heads * shape_.head_size;
  }

  bool sees(std::int64_t begin, std::int64_t key) const {
    const std::int64_t end = std::min(begin + blocks_.queries, shape_.num_queries);
    return visible_.last(end - 1) > key && visible_.first_of(batch_, begin, end) < key + blocks_.keys;
  }

  // The products of one block of queries with one block of keys; false if none of the queries sees any of the keys.
  bool add_block(std::int64_t head, std::int64_t begin, const KeyBlock& block, bool begins_keys, TileGradients wanted,
                 float* query_sums, std::int64_t query_sums_stride) const {
    if (!sees(begin, block.key)) return false;
    const AttentionShape& s = shape_;
    const std::int64_t rows = std::min(blocks_.queries, s.num_queries - begin);
    const HeadRows<S> queries = query_rows(op_.query, head, begin, rows);
    const HeadRows<S> d_output = query_rows(op_.d_output, head, begin, rows);
    const float* const delta = deltas_of(head, begin, rows);
    visible_.block(batch_, begin, begin + rows, block.key, block.count, scratch_.first, scratch_.last);
    const auto scale = static_cast<float>(s.scale);
    products_.scores(queries, block.keys, scratch_.last, scale, scratch_.scores);
    products_.scores(d_output, block.values, scratch_.last, 1.0F, scratch_.d_scores);
    const ScoreBlock scores{
        scratch_.scores, max_keys,     static_cast<std::size_t>(rows), static_cast<std::size_t>(block.count),
        scratch_.first,  scratch_.last};
    const DroppedBlock dropped{s, op_.dropout, batch_, head, begin, block.key, scores};
    if (op_.dropout.mask)
      drop_block(engine_.all.f32, dropped, static_cast<float>(op_.dropout.mask.factor()), scratch_.d_scores, max_keys);
    if (s.softcap > 0) engine_.all.cap_scores_backward(scores, delta, static_cast<float>(s.softcap), scratch_.d_scores);
    products_.softmax_backward(scores, op_.log_sum_exp.as<float>() + (batch_ * s.heads + head) * s.num_queries + begin,
                               delta, scale);
    if (wanted != TileGradients::of_queries) {
      if (op_.dropout.mask) products_.drop(dropped);
      products_.add_queries(Weights::probabilities, block.count, d_output, scratch_.last, begins_keys,
                            scratch_.value_sums);
      products_.add_queries(Weights::score_gradients, block.count, queries, scratch_.last, begins_keys,
                            scratch_.key_sums);
    }
    if (wanted == TileGradients::of_keys) return true;
    // Blocks of keys come in ascending order: the one that holds the first key that the queries see is their first.
    const bool begins_queries = visible_.first_of(batch_, begin, begin + rows) >= block.key;
    products_.add_keys(Weights::score_gradients, rows, block.summed, scratch_.last, begins_queries, query_sums,
                       query_sums_stride);
    return true;
  }

  void store(const HeadsView& heads, std::int64_t tokens, std::int64_t head, std::int64_t first, std::int64_t rows,
             const float* sums, std::int64_t stride) const {
    engine_.typed.finish_rows(
        {sums, stride}, nullptr, {nullptr, 0}, 1.0F,
        {head_data<S>(heads, tokens, batch_, head, shape_.head_size) + first * heads.row_stride, heads.row_stride},
        static_cast<std::size_t>(rows), static_cast<std::size_t>(shape_.head_size));
  }

  const Engine<S>& engine_;
  const TileScratch<S>& scratch_;
  const AttentionBackward& op_;
  const AttentionShape& shape_;
  Products products_;
  Visibility visible_;
  Blocks<S> blocks_;
  std::int64_t batch_;
  std::int64_t kv_head_;
  bool keeps_deltas_ = false;
};

template <class S>
TileScratch<S> tile_scratch_of(const Engine<S>& engine, int worker) {
  const TileScratch<S> scratch(Carver(engine.scratch_of(worker)));
  SCALETRAIN_CHECK_LE(scratch.bytes, tile_scratch_bytes<S>());
  return scratch;
}

template <class S, class Products>
void run_backward(ThreadPool& pool, const Engine<S>& engine, const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  using Head = TiledBackwardHead<S, Products>;
  const std::int64_t heads = s.batch * s.kv_heads;
  const bool has_sums = op.workspace && op.workspace.num_elements() >= AttentionWorkspace{}.lent(s);
  if ((std::is_same_v<S, float> || has_sums) && backward_by_heads(s, pool.size())) {
    pool.for_each(heads, [&](std::int64_t item, int worker) {
      const TileScratch<S> own = tile_scratch_of(engine, worker);
      Head(engine, own, op, item / s.kv_heads, item % s.kv_heads).run();
    });
    return;
  }
  const Blocks<S> blocks(s.head_size);
  const std::int64_t key_blocks = (s.num_keys + blocks.keys - 1) / blocks.keys;
  pool.for_each(heads * key_blocks, [&](std::int64_t item, int worker) {
    const TileScratch<S> own = tile_scratch_of(engine, worker);
    const std::int64_t head = item / key_blocks;
    Head(engine, own, op, head / s.kv_heads, head % s.kv_heads)
        .run_keys(item % key_blocks * blocks.keys, TileGradients::of_keys);
  });
  const std::int64_t query_blocks = (s.num_queries + blocks.queries - 1) / blocks.queries;
  pool.for_each(s.batch * s.heads * query_blocks, [&](std::int64_t item, int worker) {
    const TileScratch<S> own = tile_scratch_of(engine, worker);
    const std::int64_t head = item / query_blocks % s.heads;
    Head(engine, own, op, item / query_blocks / s.heads, head / (s.heads / s.kv_heads))
        .run_queries(head, (query_blocks - 1 - item % query_blocks) * blocks.queries);
  });
}

}  // namespace

bool has_tiles(const Engine<float>& engine, const AttentionShape& shape) {
  return engine.panels != nullptr && engine.panels->softmax_forward != nullptr &&
         shape.head_size <= Blocks<float>::max_head_size && shape.num_queries > max_decode_queries;
}

template <class S>
void attention_forward(ThreadPool& pool, const Engine<S>& engine, const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  SCALETRAIN_CHECK_LE(s.head_size, Blocks<S>::max_head_size);
  const bool decode = s.num_queries <= max_decode_queries;
  const std::int64_t block = decode ? 1 : Blocks<S>(s.head_size).queries;
  const std::int64_t blocks = (s.num_queries + block - 1) / block;
  pool.for_each(s.batch * s.heads * blocks, [&](std::int64_t item, int worker) {
    const TileScratch<S> scratch = tile_scratch_of(engine, worker);
    // Later queries see more keys: the long items of a head go first, so that threads end together.
    const std::int64_t begin = (blocks - 1 - item % blocks) * block;
    const QueryItem work{item / blocks / s.heads, item / blocks % s.heads, begin,
                         std::min(begin + block, s.num_queries)};
    if (decode) {
      forward_one_query(engine, scratch, op, work);
      return;
    }
    if (engine.panels != nullptr) {
      forward_tiles<S, PanelProducts<S>>(engine, scratch, op, work);
      return;
    }
    if constexpr (!std::is_same_v<S, float>) forward_tiles<S, FloatProducts<S>>(engine, scratch, op, work);
  });
}

template <class S>
void attention_backward(ThreadPool& pool, const Engine<S>& engine, const AttentionBackward& op) {
  SCALETRAIN_CHECK_LE(op.shape.head_size, Blocks<S>::max_head_size);
  if (engine.panels != nullptr) {
    run_backward<S, PanelProducts<S>>(pool, engine, op);
    return;
  }
  if constexpr (!std::is_same_v<S, float>) run_backward<S, FloatProducts<S>>(pool, engine, op);
}

template void attention_forward<float>(ThreadPool&, const Engine<float>&, const AttentionForward&);
template void attention_forward<Bf16>(ThreadPool&, const Engine<Bf16>&, const AttentionForward&);
template void attention_forward<F16>(ThreadPool&, const Engine<F16>&, const AttentionForward&);
template void attention_backward<float>(ThreadPool&, const Engine<float>&, const AttentionBackward&);
template void attention_backward<Bf16>(ThreadPool&, const Engine<Bf16>&, const AttentionBackward&);
template void attention_backward<F16>(ThreadPool&, const Engine<F16>&, const AttentionBackward&);

}  // namespace scaletrain::cpu
