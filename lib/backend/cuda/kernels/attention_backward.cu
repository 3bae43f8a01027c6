// The backward of attention_forward.cu: computes probabilities again from the logarithms of their sums, once by tiles
// of queries for d_query and once by tiles of keys for d_key and d_value. So every sum has one order, and none needs
// atomics. Both kernels copy the next tile that they walk over while they compute with one.
//
// Where a head is cut, the part that a block makes comes last, and is then still in shared memory.
#include <algorithm>

#include "backend/cuda/fused_attention.h"
#include "backend/cuda/kernels/attention.h"

namespace scaletrain::cuda {

namespace {

// deltas[head, t] = d_output · output, which is the sum over keys of probability times its gradient. A few lanes have a
// row, and a block as many rows as follow each other in a head.
constexpr int lanes_of_delta = 8;
constexpr int deltas_at_once = static_cast<int>(threads_of_block) / lanes_of_delta;
constexpr int deltas_of_block = 4 * deltas_at_once;

template <class S, int width>
__global__ void multiply_outputs(const Attention<S> op, const Operand<const S> output, float* deltas) {
  const Place place = place_of_block(op.units * op.group, false);
  const Head head = head_of(op, place.of_launch);
  const int lane = static_cast<int>(threadIdx.x) % lanes_of_delta;
  const std::int64_t first = place.tile * deltas_of_block + threadIdx.x / lanes_of_delta;
  float sums[deltas_of_block / deltas_at_once] = {};
#pragma unroll
  for (int i = 0; i < deltas_of_block / deltas_at_once; ++i) {
    const std::int64_t t = first + i * deltas_at_once;
    if (t >= op.num_queries) continue;
    const S* const a = at(output, op.num_queries, head.batch, t, head.head * op.head_size);
    const S* const b = at(op.d_output, op.num_queries, head.batch, t, head.head * op.head_size);
    for (int d = lane * width; d < op.head_size; d += lanes_of_delta * width) {
      float of_a[width];
      float of_b[width];
      load(a + d, width, of_a);
      load(b + d, width, of_b);
#pragma unroll
      for (int e = 0; e < width; ++e) sums[i] += of_a[e] * of_b[e];
    }
  }
#pragma unroll
  for (int i = 0; i < deltas_of_block / deltas_at_once; ++i) {
#pragma unroll
    for (int lanes = lanes_of_delta / 2; lanes > 0; lanes /= 2) sums[i] += __shfl_xor_sync(all_lanes, sums[i], lanes);
    const std::int64_t t = first + i * deltas_at_once;
    if (lane == 0 && t < op.num_queries) deltas[place.of_launch * op.num_queries + t] = sums[i];
  }
}

// The parts of a head, the block's own last.
__device__ inline int part_in_turn(int turn, int own_part, int parts) {
  return (own_part + 1 + turn) % parts;
}

// --- by queries ---

// What fits the 255 registers that two blocks of a multiprocessor leave each thread.
template <class S, int columns>
struct TilesByQueries {
  static constexpr bool is_half = sizeof(S) == 2;
  static constexpr int stack = is_half && columns == 64 ? 2 : 1;
  static constexpr int rows = rows_of_tile<stack>;
  static constexpr int walk = 32;
  static constexpr int fixed_elements = tile_elements<S, rows, columns>;  // of queries, and of d_output
  static constexpr int stage_elements = 2 * tile_elements<S, walk, columns>;
  // Registers keep queries, and d_output where they suffice; the second stage then lies where the queries came by.
  static constexpr bool keeps_queries = is_half;
  static constexpr bool keeps_d_output = is_half && columns == 128;
  static_assert(!keeps_queries || stage_elements <= fixed_elements);
  static constexpr int second_stage = stage_elements + (keeps_queries ? 0 : 2 * fixed_elements);
  static constexpr std::size_t bytes = sizeof(S) * ((keeps_queries ? 1 : 2) * stage_elements + 2 * fixed_elements +
                                                    attention_warps * scratch_elements<S, walk>);
  static_assert(bytes <= most_shared_bytes);
};

// Shared memory: a stage, queries, d_output, the other stage unless it lies among them, scratch.
template <class S, int columns, bool is_capped, bool is_dropped>
__global__ void __launch_bounds__(attention_threads, 2) differentiate_queries(const Attention<S> op) {
  using Tiles = TilesByQueries<S, columns>;
  constexpr int stack = Tiles::stack;
  constexpr int walk = Tiles::walk;
  S* const stages = shared_memory<S>();
  S* const query = stages + Tiles::stage_elements;
  S* const d_output = query + Tiles::fixed_elements;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  S* const scratch = d_output + Tiles::fixed_elements + (Tiles::keeps_queries ? 0 : Tiles::stage_elements) +
                     warp * scratch_elements<S, walk>;

  const QueryTile tile = query_tile(op, Tiles::rows, walk);
  const Head& head = tile.head;
  const int parts = may_be_cut<S, columns> ? static_cast<int>(gridDim.y) : 1;
  const int own_part = may_be_cut<S, columns> ? static_cast<int>(blockIdx.y) : 0;
  const Part own = part_of<columns>(op.head_size, own_part);

  const Rows<S> queries = rows_of(op.query, op.num_queries, head.batch, head.head, op.head_size);
  const Rows<S> d_outputs = rows_of(op.d_output, op.num_queries, head.batch, head.head, op.head_size);
  const Rows<S> keys = rows_of(op.key, op.num_keys, head.batch, head.kv_head, op.head_size);
  const Rows<S> values = rows_of(op.value, op.num_keys, head.batch, head.kv_head, op.head_size);
  const auto load_fixed = [&](S* to, const Rows<S>& from, const Part& of) {
    load_tile<S, Tiles::rows, columns, attention_threads>(to, part_of_rows(from, of),
                                                          static_cast<int>(tile.first_query), op.packs);
  };
  const auto load_walk = [&](S* to, const Rows<S>& from, int first, const Part& of) {
    load_tile<S, walk, columns, attention_threads>(to, part_of_rows(from, of), first, op.packs);
  };
  const auto load_stage = [&](S* stage, int first, const Part& of) {
    load_walk(stage, keys, first, of);
    load_walk(stage + Tiles::stage_elements / 2, values, first, of);
  };

  const std::int64_t first_row = tile.first_query + warp * stack * rows_of_band;
  const SeenByWarp<stack> seen = seen_by_warp<stack>(op, head.batch, first_row);
  const ScoreScale scale = score_scale_of<is_capped>(op.scale);
  const std::int64_t heads = op.kv_heads * op.group;
  float log_sum[stack][2] = {};  // of base 2
  float delta[stack][2] = {};
#pragma unroll
  for (int i = 0; i < 2 * stack; ++i) {
    const std::int64_t t = first_row + lane / 4 + i * 8;
    if (t >= op.num_queries) continue;
    log_sum[i / 2][i % 2] = op.log_sum_exp[(head.batch * heads + head.head) * op.num_queries + t] * log2_of_e;
    delta[i / 2][i % 2] = op.deltas[tile.of_launch * op.num_queries + t];
  }
  const int warp_start = warp * stack * rows_of_band * tile_stride<S, columns>;
  FirstFactor<Tiles::keeps_queries, S, stack, columns> query_rows;
  FirstFactor<Tiles::keeps_d_output && !is_dropped, S, stack, columns> d_output_rows;
  if (parts == 1) {
    load_fixed(query, queries, own);
    load_fixed(d_output, d_outputs, own);
    load_stage(stages, tile.begin, own);
    wait_for_copies();
    __syncthreads();
    query_rows.read(query + warp_start);
    d_output_rows.read(d_output + warp_start);
  }
  WarpSums<stack, columns> d_query = {};
  int stage = 0;  // where what is computed with begins
  for (int first = tile.begin; first < tile.end; first += walk) {
    S* const key = stages + stage;
    S* const value = key + Tiles::stage_elements / 2;
    const bool is_needed = sees_any(seen.by_any, first, walk);
    [[maybe_unused]] unsigned kept[kept_words<stack, walk>] = {};
    if constexpr (is_dropped)
      if (is_needed)
        kept_in_rows<stack, walk>(op.dropped, dropout_rows(op, head.batch, head.head), first_row, first, kept);
    WarpSums<stack, walk> scores = {};
    WarpSums<stack, walk> d_scores = {};
    for (int turn = 0; turn < parts; ++turn) {
      const Part of = part_of<columns>(op.head_size, part_in_turn(turn, own_part, parts));
      if (parts > 1) {
        __syncthreads();
        load_fixed(query, queries, of);
        load_fixed(d_output, d_outputs, of);
        load_stage(stages, first, of);
      }
      wait_for_copies();
      __syncthreads();  // and nobody reads the other stage any more
      if (parts > 1) {
        query_rows.read(query + warp_start);
        d_output_rows.read(d_output + warp_start);
      } else if (first + walk < tile.end) {
        load_stage(stages + Tiles::second_stage - stage, first + walk, own);
      }
      if (!is_needed) continue;
      multiply_rows<S, stack, walk, columns>(scores, query_rows, key, of.width);
      multiply_rows<S, stack, walk, columns>(d_scores, d_output_rows, value, of.width);
    }
    if (parts == 1) stage = Tiles::second_stage - stage;
    if (!is_needed) continue;
    if constexpr (is_capped) cap_scores<S, stack, walk>(op, scores);
    if (!scale.is_late || !sees_all(seen.by_all, first, walk))
      hide_scores<stack, walk>(scores, seen, op.num_keys, first, scale.factor);
    if constexpr (is_dropped) {
#pragma unroll
      for (int band = 0; band < stack; ++band) {
#pragma unroll
        for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            d_scores[band][j][e] = is_kept<walk>(kept, band, j, e) ? d_scores[band][j][e] * op.dropped.factor : 0.0F;
        }
      }
    }
#pragma unroll
    for (int band = 0; band < stack; ++band) {
#pragma unroll
      for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float probability = exp2_of<S>(scores[band][j][e] * scale.scale - log_sum[band][e / 2]);
          d_scores[band][j][e] = probability * (d_scores[band][j][e] - delta[band][e / 2]);
          if constexpr (is_capped) d_scores[band][j][e] *= slope_of_capped(scores[band][j][e], largest_capped(op));
        }
      }
    }
    multiply_values<S, stack, walk, columns>(d_query, d_scores, key, own.width, scratch);
  }
  wait_for_copies();  // of a tile without keys
  float factors[stack][2];
#pragma unroll
  for (int i = 0; i < 2 * stack; ++i) factors[i / 2][i % 2] = op.scale;
  store_sums<S, stack, columns>(
      at(op.d_query, op.num_queries, head.batch, first_row, head.head * op.head_size + own.first), op.d_query.stride,
      op.num_queries - first_row, own.width, d_query, factors, op.packs);
}

// --- by keys ---

// What a tile of queries that a block walks over brings with it.
template <int walk>
struct Columns {
  float log_sum[walk];  // of base e
  float delta[walk];
  std::int32_t document_start[walk];
};

// is_crowded: registers hold more than sums and the products of tiles.
template <class S, int columns, bool is_crowded>
struct TilesByKeys {
  static constexpr bool is_half = sizeof(S) == 2;
  static constexpr int stack = is_half && columns == 64 && !is_crowded ? 2 : 1;
  static constexpr int rows = rows_of_tile<stack>;
  static constexpr int walk = 32;
  static_assert(walk == warp_lanes);                                      // a lane finds out what a query sees
  static constexpr int fixed_elements = tile_elements<S, rows, columns>;  // of keys, and of values
  static constexpr int stage_elements = 2 * tile_elements<S, walk, columns>;
  static constexpr std::size_t bytes_of_elements =
      sizeof(S) * (2 * fixed_elements + 2 * stage_elements + attention_warps * scratch_elements<S, walk>);
  static constexpr std::size_t bytes = bytes_of_elements + 2 * sizeof(Columns<walk>);
  static_assert(bytes <= most_shared_bytes);
};

// The queries that a block walks over: those of one head of its group after the other, from the first that sees any of
// its keys, without the tiles that see none of them.
template <class S, int rows, int rows_of_warp, int walk>
class QueryWalk {
 public:
  __device__ QueryWalk(const Attention<S>& op, std::int64_t batch, int first_key, int warp_key)
      : op_(op),
        starts_(op.document_start == nullptr ? nullptr : op.document_start + batch * op.num_queries),
        first_key_(first_key),
        warp_key_(warp_key) {
    const int earliest = first_key - static_cast<int>(op.offset);
    begin_ = (earliest > 0 ? earliest : 0) / walk * walk;
    first_ = begin_;
    head_ = begin_ < op.num_queries ? 0 : static_cast<int>(op.group);
    has_starts_ = starts_ != nullptr || op.window > 0;
    ahead_ = start_of_lane(first_);
    settle();
  }
  __device__ bool is_over() const { return head_ >= op_.group; }
  __device__ int head() const { return head_; }  // of the group
  __device__ int first() const { return first_; }
  // Whether the warp's keys are seen by some of the tile's queries; by all of them.
  __device__ bool is_needed() const { return is_needed_; }
  __device__ bool is_whole() const { return is_whole_; }
  __device__ void go_on() {
    step();
    settle();
  }

 private:
  // Where what the lane's query sees starts, by its document, which is read a tile ahead, and its window.
  __device__ int start_of_lane(int first) const {
    const int t = first + static_cast<int>(threadIdx.x) % warp_lanes;
    int start = starts_ != nullptr && t < op_.num_queries ? starts_[t] : 0;
    if (op_.window > 0) start = max(start, t + static_cast<int>(op_.first_key + op_.offset + 1 - op_.window));
    return start;
  }
  __device__ void step() {
    first_ += walk;
    if (first_ < op_.num_queries) return;
    first_ = begin_;
    ++head_;
  }
  // From where it is to a tile that is needed.
  __device__ void settle() {
    for (; !is_over(); step()) {
      const int end = first_ + static_cast<int>(op_.offset) + 1;  // of the keys that the first query sees
      is_needed_ = end + walk - 1 > warp_key_;
      is_whole_ = end >= warp_key_ + rows_of_warp;
      if (!has_starts_) return;
      const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
      const int start = ahead_ - static_cast<int>(op_.first_key);
      const int next = first_ + walk;
      ahead_ = start_of_lane(next < op_.num_queries ? next : begin_);
      const bool is_there = first_ + lane < op_.num_queries;
      const bool by_block = is_there && start < first_key_ + rows && end + lane > first_key_;
      const bool by_warp = is_there && start < warp_key_ + rows_of_warp && end + lane > warp_key_;
      is_needed_ = __ballot_sync(all_lanes, by_warp) != 0;
      is_whole_ = is_whole_ && __ballot_sync(all_lanes, is_there && start > warp_key_) == 0;
      if (__ballot_sync(all_lanes, by_block) != 0) return;
    }
  }

  const Attention<S>& op_;
  const std::int32_t* starts_;
  int first_key_, warp_key_, begin_, first_, head_, ahead_;
  bool has_starts_ = false;
  bool is_needed_ = false;
  bool is_whole_ = false;
};

// The other way round: keys and values are what a block has, and scores are [keys, queries]. Shared memory: keys,
// values, two stages of queries and d_output, scratch, what belongs to the stages' queries.
template <class S, int columns, bool is_capped, bool is_dropped>
__global__ void __launch_bounds__(attention_threads, 2) differentiate_keys(const Attention<S> op) {
  using Tiles = TilesByKeys<S, columns, is_capped && is_dropped>;
  constexpr int stack = Tiles::stack;
  constexpr int walk = Tiles::walk;
  S* const key = shared_memory<S>();
  S* const value = key + Tiles::fixed_elements;
  S* const stages = value + Tiles::fixed_elements;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  S* const scratch = stages + 2 * Tiles::stage_elements + warp * scratch_elements<S, walk>;
  auto* const stage_columns =
      reinterpret_cast<Columns<walk>*>(shared_memory<unsigned char>() + Tiles::bytes_of_elements);

  const Place place = place_of_block(op.units, false);
  const std::int64_t unit = op.first_unit + place.of_launch;
  const std::int64_t batch = unit / op.kv_heads;
  const std::int64_t kv_head = unit % op.kv_heads;
  const int first_key = static_cast<int>(place.tile) * Tiles::rows;
  const int parts = may_be_cut<S, columns> ? static_cast<int>(gridDim.y) : 1;
  const int own_part = may_be_cut<S, columns> ? static_cast<int>(blockIdx.y) : 0;
  const Part own = part_of<columns>(op.head_size, own_part);

  // Of the group's first head.
  const Rows<S> queries = rows_of(op.query, op.num_queries, batch, kv_head * op.group, op.head_size);
  const Rows<S> d_outputs = rows_of(op.d_output, op.num_queries, batch, kv_head * op.group, op.head_size);
  const auto load_fixed = [&](S* to, const Operand<const S>& operand, const Part& of) {
    const Rows<S> rows = rows_of(operand, op.num_keys, batch, kv_head, op.head_size);
    load_tile<S, Tiles::rows, columns, attention_threads>(to, part_of_rows(rows, of), first_key, op.packs);
  };
  const auto load_stage = [&](int stage, int in_group, int first, const Part& of) {
    const std::int64_t head = kv_head * op.group + in_group;
    S* const tiles = stages + stage * Tiles::stage_elements;
    const Part of_group = {in_group * static_cast<int>(op.head_size) + of.first, of.width};
    load_tile<S, walk, columns, attention_threads>(tiles, part_of_rows(queries, of_group), first, op.packs);
    load_tile<S, walk, columns, attention_threads>(tiles + Tiles::stage_elements / 2, part_of_rows(d_outputs, of_group),
                                                   first, op.packs);
    if (threadIdx.x >= walk) return;
    Columns<walk>& of_columns = stage_columns[stage];
    const int t = first + static_cast<int>(threadIdx.x);
    if (t < op.num_queries) {
      const std::int64_t heads = op.kv_heads * op.group;
      copy_word_async(&of_columns.log_sum[threadIdx.x], op.log_sum_exp + (batch * heads + head) * op.num_queries + t);
      copy_word_async(&of_columns.delta[threadIdx.x],
                      op.deltas + (place.of_launch * op.group + in_group) * op.num_queries + t);
      if (op.document_start != nullptr)
        copy_word_async(&of_columns.document_start[threadIdx.x], op.document_start + batch * op.num_queries + t);
    } else {  // queries and d_output of zeros, which add nothing
      of_columns.log_sum[threadIdx.x] = 0.0F;
      of_columns.delta[threadIdx.x] = 0.0F;
    }
  };

  const int first_row = first_key + warp * stack * rows_of_band;
  const ScoreScale scale = score_scale_of<is_capped>(op.scale);
  const int warp_start = warp * stack * rows_of_band * tile_stride<S, columns>;
  FirstFactor<false, S, stack, columns> key_rows;
  FirstFactor<false, S, stack, columns> value_rows;
  QueryWalk<S, Tiles::rows, stack * rows_of_band, walk> next(op, batch, first_key, first_row);
  if (parts == 1) {
    load_fixed(key, op.key, own);
    load_fixed(value, op.value, own);
    if (!next.is_over()) load_stage(0, next.head(), next.first(), own);
  }
  key_rows.read(key + warp_start);
  value_rows.read(value + warp_start);
  WarpSums<stack, columns> d_key = {};
  WarpSums<stack, columns> d_value = {};
  int stage = 0;
  while (!next.is_over()) {
    const int in_group = next.head();
    const int first = next.first();
    const bool is_needed = next.is_needed();
    const bool is_whole = next.is_whole();
    next.go_on();
    const S* const query = stages + stage * Tiles::stage_elements;
    const S* const d_output = query + Tiles::stage_elements / 2;
    const Columns<walk>& of_columns = stage_columns[stage];
    [[maybe_unused]] unsigned kept[kept_words<stack, walk>] = {};
    if constexpr (is_dropped)
      if (is_needed)
        kept_in_columns<stack, walk>(op.dropped, dropout_rows(op, batch, kv_head * op.group + in_group), first,
                                     first_row, kept);
    WarpSums<stack, walk> scores = {};
    WarpSums<stack, walk> d_scores = {};
    for (int turn = 0; turn < parts; ++turn) {
      const Part of = part_of<columns>(op.head_size, part_in_turn(turn, own_part, parts));
      if (parts > 1) {
        __syncthreads();
        load_fixed(key, op.key, of);
        load_fixed(value, op.value, of);
        load_stage(stage, in_group, first, of);
      }
      wait_for_copies();
      __syncthreads();  // and nobody reads the other stage any more
      if (parts == 1 && !next.is_over()) load_stage(1 - stage, next.head(), next.first(), own);
      if (!is_needed) continue;
      multiply_rows<S, stack, walk, columns>(scores, key_rows, query, of.width);
      multiply_rows<S, stack, walk, columns>(d_scores, value_rows, d_output, of.width);
    }
    if (parts == 1) stage = 1 - stage;
    if (!is_needed) continue;
    if constexpr (is_capped) cap_scores<S, stack, walk>(op, scores);
    if (!scale.is_late || !is_whole) {
      // Of key row k and query t, by their distances from the warp's first key and the tile's first query.
      const int ends = first + static_cast<int>(op.offset) + 1 - first_row;
      const int starts = static_cast<int>(op.first_key) + first_row;
#pragma unroll
      for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = j * 8 + lane % 4 * 2 + e;
          const bool is_there = first + column < op.num_queries;
          const int end = is_there ? ends + column : 0;
          int start = is_there && op.document_start != nullptr ? of_columns.document_start[column] - starts : 0;
          if (op.window > 0) start = max(start, ends + column - static_cast<int>(op.window));
#pragma unroll
          for (int i = 0; i < 2 * stack; ++i) {
            const int k = lane / 4 + i * 8;
            float& score = scores[i / 2][j][i % 2 * 2 + e];
            score = k >= start && k < end ? score * scale.factor : -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = j * 8 + lane % 4 * 2 + e;
        const float log_sum = of_columns.log_sum[column] * log2_of_e;
        const float delta = of_columns.delta[column];
#pragma unroll
        for (int i = 0; i < 2 * stack; ++i) {
          float& score = scores[i / 2][j][i % 2 * 2 + e];
          float& d_score = d_scores[i / 2][j][i % 2 * 2 + e];
          float slope = 1.0F;
          if constexpr (is_capped) slope = slope_of_capped(score, largest_capped(op));
          score = exp2_of<S>(score * scale.scale - log_sum);
          if constexpr (is_dropped) {
            const bool stays = is_kept<walk>(kept, i / 2, j, i % 2 * 2 + e);
            d_score = score * ((stays ? d_score * op.dropped.factor : 0.0F) - delta);
            score = stays ? score : 0.0F;
          } else {
            d_score = score * (d_score - delta);
          }
          if constexpr (is_capped) d_score *= slope;
        }
      }
    }
    multiply_values<S, stack, walk, columns>(d_value, scores, d_output, own.width, scratch);
    multiply_values<S, stack, walk, columns>(d_key, d_scores, query, own.width, scratch);
  }
  wait_for_copies();  // of keys that nobody sees
  const std::int64_t column = kv_head * op.head_size + own.first;
  float factors[stack][2];
#pragma unroll
  for (int i = 0; i < 2 * stack; ++i) factors[i / 2][i % 2] = op.scale;
  store_sums<S, stack, columns>(at(op.d_key, op.num_keys, batch, first_row, column), op.d_key.stride,
                                op.num_keys - first_row, own.width, d_key, factors, op.packs);
#pragma unroll
  for (int i = 0; i < 2 * stack; ++i) factors[i / 2][i % 2] = is_dropped ? op.dropped.factor : 1.0F;
  store_sums<S, stack, columns>(at(op.d_value, op.num_keys, batch, first_row, column), op.d_value.stride,
                                op.num_keys - first_row, own.width, d_value, factors, op.packs);
}

}  // namespace

template <class S>
void compute(const Issue& issue, const AttentionBackward& op) {
  if (sizeof(S) == 2 && issue.attention != nullptr && issue.attention->issue(issue.stream, op)) return;
  Attention<S> attention = cuda::attention<S>(op.shape, op.document_start, op.dropout);
  const std::int64_t units = attention.units;
  attention.query = operand<S>(op.query);
  attention.key = operand<S>(op.key);
  attention.value = operand<S>(op.value);
  attention.log_sum_exp = const_cast<float*>(address<float>(op.log_sum_exp));
  attention.d_output = operand<S>(op.d_output);
  attention.d_query = operand<S>(op.d_query);
  attention.d_key = operand<S>(op.d_key);
  attention.d_value = operand<S>(op.d_value);
  attention.packs = operands_fit_packs<S>(op.shape, {op.query,
                                                     op.key,
                                                     op.value,
                                                     op.d_output,
                                                     {op.d_query.values, op.d_query.row_stride},
                                                     {op.d_key.values, op.d_key.row_stride},
                                                     {op.d_value.values, op.d_value.row_stride}});
  const bool output_fits = operands_fit_packs<S>(op.shape, {op.output, op.d_output});
  // As many units at a time as the workspace holds the row products of.
  auto* const deltas = reinterpret_cast<float*>(issue.workspace);
  attention.deltas = deltas;
  const std::int64_t rows_of_unit = attention.group * op.shape.num_queries;
  const auto capacity = static_cast<std::int64_t>(workspace_bytes / sizeof(float));
  SCALETRAIN_CHECK_LE(rows_of_unit, capacity);
  const std::int64_t at_once = rows_of_unit == 0 ? units : capacity / rows_of_unit;
  for (std::int64_t first = 0; first < units; first += at_once) {
    attention.first_unit = first;
    attention.units = std::min(at_once, units - first);
    const std::int64_t heads = attention.units * attention.group;
    if (op.shape.num_queries > 0)
      with_width<S>(output_fits, [&](auto width) {
        launch(issue.stream, {attention_blocks(op.shape.num_queries, deltas_of_block, heads, 1), threads_of_block},
               multiply_outputs<S, width>, attention, operand<S>(op.output), deltas);
      });
    with_columns<S>(op.shape.head_size, [&](auto columns, unsigned parts) {
      using ByQueries = TilesByQueries<S, columns>;
      with_variant(op.shape, op.dropout, [&](auto is_capped, auto is_dropped) {
        using ByKeys = TilesByKeys<S, columns, decltype(is_capped)::value&& decltype(is_dropped)::value>;
        if (op.shape.num_queries > 0)
          launch(issue.stream,
                 {attention_blocks(op.shape.num_queries, ByQueries::rows, heads, parts), attention_threads,
                  ByQueries::bytes},
                 differentiate_queries<S, columns, decltype(is_capped)::value, decltype(is_dropped)::value>, attention);
        if (op.shape.num_keys > 0)
          launch(issue.stream,
                 {attention_blocks(op.shape.num_keys, ByKeys::rows, attention.units, parts), attention_threads,
                  ByKeys::bytes},
                 differentiate_keys<S, columns, decltype(is_capped)::value, decltype(is_dropped)::value>, attention);
      });
    });
  }
}

SCALETRAIN_FOR_COMPUTE_TYPES(AttentionBackward)

}  // namespace scaletrain::cuda
