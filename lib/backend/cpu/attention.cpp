#include "backend/cpu/attention.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/attention_blocks.h"
#include "backend/cpu/dropout.h"
#include "backend/cpu/sgemm.h"
#include "tensor/buffer.h"

namespace scaletrain::cpu {

namespace {

// Blocks of scores stay in the second-level cache (128 KiB), and products of this size run at full speed. Smaller
// blocks of queries waste less above the diagonal of the causal mask.
constexpr std::int64_t query_block = 128;
constexpr std::int64_t forward_key_block = 256;
constexpr std::int64_t backward_key_block = 128;
constexpr std::int64_t score_elements = query_block * std::max(forward_key_block, 2 * backward_key_block);

// The scratch of one thread, by name.
struct Scratch {
  explicit Scratch(std::byte* memory)
      : scores(reinterpret_cast<float*>(memory)),
        maximum(scores + score_elements),
        sum(maximum + query_block),
        delta(sum + query_block),
        first(reinterpret_cast<std::int32_t*>(delta + query_block)),
        last(first + query_block) {}

  float* scores;   // one block of the forward, or two of the backward
  float* maximum;  // [query_block], and so the rest
  float* sum;
  float* delta;
  std::int32_t* first;
  std::int32_t* last;
};

// One item of the forward: a block of queries of one head. Every query starts with an empty softmax.
struct ForwardItem {
  std::int64_t batch, head, begin, end;
};

void reset(const Scratch& scratch, std::int64_t rows) {
  std::fill_n(scratch.maximum, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum, rows, 0.0F);
}

float* log_sum_exp_at(const AttentionForward& op, const ForwardItem& item) {
  if (!op.log_sum_exp) return nullptr;
  const AttentionShape& s = op.shape;
  return op.log_sum_exp.as<float>() + (item.batch * s.heads + item.head) * s.num_queries + item.begin;
}

void forward_block(const Kernels& kernels, const Scratch& scratch, const AttentionForward& op,
                   const Visibility& visible, const ForwardItem& item) {
  const AttentionShape& s = op.shape;
  const std::int64_t kv_head = item.head / (s.heads / s.kv_heads);
  const std::int64_t rows = item.end - item.begin;
  const float* query =
      head_data<float>(op.query, s.num_queries, item.batch, item.head, s.head_size) + item.begin * op.query.row_stride;
  const float* key = head_data<float>(op.key, s.num_keys, item.batch, kv_head, s.head_size);
  const float* value = head_data<float>(op.value, s.num_keys, item.batch, kv_head, s.head_size);
  float* output = head_data<float>(op.output, s.num_queries, item.batch, item.head, s.head_size) +
                  item.begin * op.output.row_stride;
  const OnlineSoftmax state{scratch.maximum, scratch.sum};
  const std::int64_t first_key = visible.first_of(item.batch, item.begin, item.end);
  const std::int64_t last_key = visible.last(item.end - 1);
  reset(scratch, rows);
  for (std::int64_t k = first_key; k < last_key; k += forward_key_block) {
    const std::int64_t keys = std::min(forward_key_block, last_key - k);
    sgemm({.m = rows,
           .n = keys,
           .k = s.head_size,
           .alpha = static_cast<float>(s.scale),
           .a = {query, op.query.row_stride},
           .b = {key + k * op.key.row_stride, op.key.row_stride, true},
           .c = scratch.scores,
           .c_stride = forward_key_block});
    visible.block(item.batch, item.begin, item.end, k, keys, scratch.first, scratch.last);
    const bool first_block = k == first_key;
    const ScoreBlock block{
        scratch.scores, forward_key_block, static_cast<std::size_t>(rows), static_cast<std::size_t>(keys),
        scratch.first,  scratch.last};
    if (s.softcap > 0) kernels.cap_scores(block, static_cast<float>(s.softcap));
    kernels.softmax_forward(block, state, rows_of(first_block ? nullptr : output, op.output.row_stride),
                            static_cast<std::size_t>(s.head_size));
    if (op.dropout.mask)
      drop_block(kernels.f32, {s, op.dropout, item.batch, item.head, item.begin, k, block},
                 static_cast<float>(op.dropout.mask.factor()), scratch.scores, forward_key_block);
    sgemm({.m = rows,
           .n = s.head_size,
           .k = keys,
           .a = {scratch.scores, forward_key_block},
           .b = {value + k * op.value.row_stride, op.value.row_stride},
           .beta = first_block ? 0.0F : 1.0F,
           .c = output,
           .c_stride = op.output.row_stride});
  }
  kernels.softmax_finish(state, static_cast<std::size_t>(rows), rows_of(output, op.output.row_stride),
                         static_cast<std::size_t>(s.head_size), log_sum_exp_at(op, item));
}

// The same for one query, without matrix products.
void forward_query(const Kernels& kernels, const Scratch& scratch, const AttentionForward& op,
                   const Visibility& visible, const ForwardItem& item) {
  const AttentionShape& s = op.shape;
  const std::int64_t kv_head = item.head / (s.heads / s.kv_heads);
  const auto head_size = static_cast<std::size_t>(s.head_size);
  const float* query =
      head_data<float>(op.query, s.num_queries, item.batch, item.head, s.head_size) + item.begin * op.query.row_stride;
  const float* key = head_data<float>(op.key, s.num_keys, item.batch, kv_head, s.head_size);
  const float* value = head_data<float>(op.value, s.num_keys, item.batch, kv_head, s.head_size);
  float* output = head_data<float>(op.output, s.num_queries, item.batch, item.head, s.head_size) +
                  item.begin * op.output.row_stride;
  const OnlineSoftmax state{scratch.maximum, scratch.sum};
  const std::int64_t first_key = visible.first(item.batch, item.begin);
  const std::int64_t last_key = visible.last(item.begin);
  reset(scratch, 1);
  for (std::int64_t k = first_key; k < last_key; k += forward_key_block) {
    const std::int64_t keys = std::min(forward_key_block, last_key - k);
    const auto count = static_cast<std::size_t>(keys);
    kernels.f32.dot_rows(query, rows_of(key + k * op.key.row_stride, op.key.row_stride), count, head_size,
                         static_cast<float>(s.scale), scratch.scores);
    visible.block(item.batch, item.begin, item.end, k, keys, scratch.first, scratch.last);
    const bool first_block = k == first_key;
    const ScoreBlock block{scratch.scores, forward_key_block, 1, count, scratch.first, scratch.last};
    if (s.softcap > 0) kernels.cap_scores(block, static_cast<float>(s.softcap));
    kernels.softmax_forward(block, state, rows_of(first_block ? nullptr : output, op.output.row_stride), head_size);
    if (op.dropout.mask)
      drop_block(kernels.f32, {s, op.dropout, item.batch, item.head, item.begin, k, block},
                 static_cast<float>(op.dropout.mask.factor()), scratch.scores, forward_key_block);
    kernels.weighted_row_sum(scratch.scores, rows_of(value + k * op.value.row_stride, op.value.row_stride), count,
                             head_size, first_block ? 1 : 0, output);
  }
  kernels.softmax_finish(state, 1, rows_of(output, op.output.row_stride), head_size, log_sum_exp_at(op, item));
}

// What a pass over the blocks of the backward computes. The products of scores are the same in all.
enum class Gradients { all, of_keys, of_queries };

// The backward of a key/value head of one batch, with all query heads that read it, as a whole or in parts that
// different threads may compute. Each gradient is summed in the same order either way.
class BackwardHead {
 public:
  BackwardHead(const Kernels& kernels, const Scratch& scratch, const AttentionBackward& op, std::int64_t batch,
               std::int64_t kv_head)
      : kernels_(kernels),
        scratch_(scratch),
        op_(op),
        shape_(op.shape),
        visible_(op.shape, op.document_start),
        batch_(batch),
        kv_head_(kv_head) {}

  void run() const {
    for (std::int64_t key = 0; key < shape_.num_keys; key += backward_key_block) run_keys(key, Gradients::all);
  }

  // One block of keys with all queries.
  void run_keys(std::int64_t key, Gradients wanted) const {
    const std::int64_t group = shape_.heads / shape_.kv_heads;
    const std::int64_t keys = std::min(backward_key_block, shape_.num_keys - key);
    bool begun = false;
    for (std::int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head)
      for (std::int64_t begin = 0; begin < shape_.num_queries; begin += query_block)
        begun = add_block(head, begin, key, keys, begun, wanted) || begun;
    if (!begun) clear_keys(key, keys);
  }

  // The gradient of one block of queries.
  void run_queries(std::int64_t head, std::int64_t begin) const {
    for (std::int64_t key = 0; key < shape_.num_keys; key += backward_key_block)
      add_block(head, begin, key, std::min(backward_key_block, shape_.num_keys - key), false, Gradients::of_queries);
  }

 private:
  // The products of one block of queries with one block of keys; false if none of the queries sees any of the keys.
  // begun: an earlier block has written the gradients of these keys.
  bool add_block(std::int64_t head, std::int64_t begin, std::int64_t block_key, std::int64_t block_keys, bool begun,
                 Gradients wanted) const {
    const AttentionShape& s = shape_;
    const std::int64_t end = std::min(begin + query_block, s.num_queries);
    const std::int64_t first_key = visible_.first_of(batch_, begin, end);
    const std::int64_t last_key = visible_.last(end - 1);
    if (last_key <= block_key || first_key >= block_key + block_keys) return false;
    const std::int64_t rows = end - begin;
    const float* query =
        head_data<float>(op_.query, s.num_queries, batch_, head, s.head_size) + begin * op_.query.row_stride;
    const float* output =
        head_data<float>(op_.output, s.num_queries, batch_, head, s.head_size) + begin * op_.output.row_stride;
    const float* d_output =
        head_data<float>(op_.d_output, s.num_queries, batch_, head, s.head_size) + begin * op_.d_output.row_stride;
    float* d_query =
        head_data<float>(op_.d_query, s.num_queries, batch_, head, s.head_size) + begin * op_.d_query.row_stride;
    const float* key =
        head_data<float>(op_.key, s.num_keys, batch_, kv_head_, s.head_size) + block_key * op_.key.row_stride;
    const float* value =
        head_data<float>(op_.value, s.num_keys, batch_, kv_head_, s.head_size) + block_key * op_.value.row_stride;
    float* d_key =
        head_data<float>(op_.d_key, s.num_keys, batch_, kv_head_, s.head_size) + block_key * op_.d_key.row_stride;
    float* d_value =
        head_data<float>(op_.d_value, s.num_keys, batch_, kv_head_, s.head_size) + block_key * op_.d_value.row_stride;
    float* scores = scratch_.scores;
    float* d_scores = scores + query_block * backward_key_block;
    const std::int64_t seen = std::min(block_keys, last_key - block_key);

    sgemm({.m = rows,
           .n = seen,
           .k = s.head_size,
           .alpha = static_cast<float>(s.scale),
           .a = {query, op_.query.row_stride},
           .b = {key, op_.key.row_stride, true},
           .c = scores,
           .c_stride = backward_key_block});
    sgemm({.m = rows,
           .n = seen,
           .k = s.head_size,
           .a = {d_output, op_.d_output.row_stride},
           .b = {value, op_.value.row_stride, true},
           .c = d_scores,
           .c_stride = backward_key_block});
    kernels_.row_dots(rows_of(output, op_.output.row_stride), rows_of(d_output, op_.d_output.row_stride),
                      static_cast<std::size_t>(rows), static_cast<std::size_t>(s.head_size), scratch_.delta);
    // The first queries to reach keys write zeros for those that they do not see.
    const std::int64_t keys = begun ? seen : block_keys;
    visible_.block(batch_, begin, end, block_key, keys, scratch_.first, scratch_.last);
    const float* log_sum_exp = op_.log_sum_exp.as<float>() + (batch_ * s.heads + head) * s.num_queries + begin;
    const ScoreBlock block{
        scores,         backward_key_block, static_cast<std::size_t>(rows), static_cast<std::size_t>(keys),
        scratch_.first, scratch_.last};
    const auto drop = [&](float* values) {
      if (op_.dropout.mask)
        drop_block(kernels_.f32, {s, op_.dropout, batch_, head, begin, block_key, block},
                   static_cast<float>(op_.dropout.mask.factor()), values, backward_key_block);
    };
    drop(d_scores);
    if (s.softcap > 0) kernels_.cap_scores_backward(block, scratch_.delta, static_cast<float>(s.softcap), d_scores);
    kernels_.softmax_backward(block, log_sum_exp, scratch_.delta, static_cast<float>(s.scale), d_scores);
    if (wanted != Gradients::of_queries) drop(scores);
    if (wanted != Gradients::of_queries) {
      const float beta = begun ? 1.0F : 0.0F;
      sgemm({.m = keys,
             .n = s.head_size,
             .k = rows,
             .a = {scores, backward_key_block, true},
             .b = {d_output, op_.d_output.row_stride},
             .beta = beta,
             .c = d_value,
             .c_stride = op_.d_value.row_stride});
      sgemm({.m = keys,
             .n = s.head_size,
             .k = rows,
             .a = {d_scores, backward_key_block, true},
             .b = {query, op_.query.row_stride},
             .beta = beta,
             .c = d_key,
             .c_stride = op_.d_key.row_stride});
    }
    if (wanted == Gradients::of_keys) return true;
    // Blocks of keys come in ascending order: the one that holds the first key that the queries see is their first.
    sgemm({.m = rows,
           .n = s.head_size,
           .k = seen,
           .a = {d_scores, backward_key_block},
           .b = {key, op_.key.row_stride},
           .beta = first_key >= block_key ? 0.0F : 1.0F,
           .c = d_query,
           .c_stride = op_.d_query.row_stride});
    return true;
  }

  // Keys that no query sees have no gradient.
  void clear_keys(std::int64_t key, std::int64_t keys) const {
    for (std::int64_t k = key; k < key + keys; ++k) {
      for (const HeadsView* heads : {&op_.d_key, &op_.d_value}) {
        std::fill_n(
            head_data<float>(*heads, shape_.num_keys, batch_, kv_head_, shape_.head_size) + k * heads->row_stride,
            shape_.head_size, 0.0F);
      }
    }
  }

  const Kernels& kernels_;
  const Scratch& scratch_;
  const AttentionBackward& op_;
  const AttentionShape& shape_;
  Visibility visible_;
  std::int64_t batch_;
  std::int64_t kv_head_;
};

static_assert(static_cast<std::size_t>(score_elements + 5 * query_block) * sizeof(float) <=
              tile_scratch_bytes<float>());

}  // namespace

void attention_forward(ThreadPool& pool, const Engine<float>& engine, const AttentionForward& op) {
  if (has_tiles(engine, op.shape)) {
    attention_forward<float>(pool, engine, op);
    return;
  }
  const Kernels& kernels = engine.all;
  const AttentionShape& s = op.shape;
  const Visibility visible(s, op.document_start);
  const bool decode = s.num_queries <= max_decode_queries;
  const std::int64_t block = decode ? 1 : query_block;
  const std::int64_t blocks = (s.num_queries + block - 1) / block;
  pool.for_each(s.batch * s.heads * blocks, [&](std::int64_t item, int worker) {
    // Later queries see more keys: the long items of a head go first, so that threads end together.
    const std::int64_t begin = (blocks - 1 - item % blocks) * block;
    const ForwardItem work{item / blocks / s.heads, item / blocks % s.heads, begin,
                           std::min(begin + block, s.num_queries)};
    (decode ? forward_query : forward_block)(kernels, Scratch(engine.scratch_of(worker)), op, visible, work);
  });
}

void attention_backward(ThreadPool& pool, const Engine<float>& engine, const AttentionBackward& op) {
  if (has_tiles(engine, op.shape)) {
    attention_backward<float>(pool, engine, op);
    return;
  }
  const Kernels& kernels = engine.all;
  const AttentionShape& s = op.shape;
  const std::int64_t heads = s.batch * s.kv_heads;
  if (backward_by_heads(s, pool.size())) {
    pool.for_each(heads, [&](std::int64_t item, int worker) {
      const Scratch own(engine.scratch_of(worker));
      BackwardHead(kernels, own, op, item / s.kv_heads, item % s.kv_heads).run();
    });
    return;
  }
  const std::int64_t key_blocks = (s.num_keys + backward_key_block - 1) / backward_key_block;
  pool.for_each(heads * key_blocks, [&](std::int64_t item, int worker) {
    const Scratch own(engine.scratch_of(worker));
    const std::int64_t head = item / key_blocks;
    BackwardHead(kernels, own, op, head / s.kv_heads, head % s.kv_heads)
        .run_keys(item % key_blocks * backward_key_block, Gradients::of_keys);
  });
  const std::int64_t query_blocks = (s.num_queries + query_block - 1) / query_block;
  pool.for_each(s.batch * s.heads * query_blocks, [&](std::int64_t item, int worker) {
    const Scratch own(engine.scratch_of(worker));
    const std::int64_t head = item / query_blocks % s.heads;
    BackwardHead(kernels, own, op, item / query_blocks / s.heads, head / (s.heads / s.kv_heads))
        .run_queries(head, (query_blocks - 1 - item % query_blocks) * query_block);
  });
}

}  // namespace scaletrain::cpu
