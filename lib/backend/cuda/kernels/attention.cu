// Attention without scores in memory (Dao et al. 2022; Dao 2023): a block has a tile of queries, walks over the tiles
// of keys that they see and keeps the softmax of each row as it goes along. The backward computes probabilities again
// from the logarithms of their sums, once by tiles of queries for d_query and once by tiles of keys for d_key and
// d_value: so every sum has one order, and none needs atomics.
//
// Heads longer than a tile's columns are cut: scores are summed over all parts, and each block makes one part of its
// results. The part that it makes comes last, and is then still in shared memory.
#include <algorithm>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/sums.h"
#include "backend/cuda/kernels/tiles.h"

namespace scaletrain::cuda {

namespace {

constexpr int attention_threads = 128;
constexpr int warps = attention_threads / warp_lanes;
// Of the tile whose rows are divided among warps: queries, or keys where those are what a block has.
constexpr int tile_rows = warps * rows_of_warp;

// Rows of the tiles that a block walks over. What fits shared memory and registers.
template <class S, int columns>
constexpr int forward_walk = sizeof(S) == 2 ? 64 : 32;
template <class S, int columns>
constexpr int backward_walk = sizeof(S) == 2 && columns == 64 ? 64 : 32;

// Blocks that a multiprocessor has room for, at least: 3 leave each thread 168 registers, 2 leave it 255.
template <int columns>
[[maybe_unused]] constexpr int blocks_by_queries = columns == 64 ? 3 : 2;
[[maybe_unused]] constexpr int blocks_by_keys = 2;

constexpr float log2_of_e = 1.4426950408889634F;
constexpr float ln_of_2 = 0.6931471805599453F;

template <class S>
struct Operand {
  S* values = nullptr;
  std::int64_t stride = 0;
};

// A key/value head of a batch is a unit, which has `group` heads of queries. A launch has a range of units.
template <class S>
struct Attention {
  std::int64_t num_queries, num_keys, kv_heads, group, head_size;
  std::int64_t offset;  // key rows up to t + offset are seen by query row t, as far as there are any
  std::int64_t first_key;
  float scale;
  std::int64_t first_unit, units;
  bool packs;  // all operands can be read and written by packs
  const std::int32_t* document_start;
  Operand<const S> query, key, value;
  // Forward.
  Operand<S> output;
  float* log_sum_exp;  // also read by the backward
  // Backward.
  Operand<const S> d_output;
  Operand<S> d_query, d_key, d_value;
  const float* deltas;  // [units · group, Tq] of the launch: d_output · output
};

// One head of queries.
struct Head {
  std::int64_t batch, head, kv_head;
};
template <class S>
__device__ inline Head head_of(const Attention<S>& op, std::int64_t of_launch) {
  const std::int64_t unit = op.first_unit + of_launch / op.group;
  const std::int64_t kv_head = unit % op.kv_heads;
  return {unit / op.kv_heads, kv_head * op.group + of_launch % op.group, kv_head};
}

// Where a stretch of rows and columns begins. `sequence` rows belong to each batch.
template <class S>
__device__ inline S* at(const Operand<S>& operand, std::int64_t sequence, std::int64_t batch, std::int64_t row,
                        std::int64_t column) {
  return operand.values + (batch * sequence + row) * operand.stride + column;
}

// The keys [first, end) that a query sees; none for a row that is not there.
struct Seen {
  int first, end;
};
template <class S>
__device__ inline Seen seen_by(const Attention<S>& op, std::int64_t batch, std::int64_t query) {
  if (query >= op.num_queries) return {static_cast<int>(op.num_keys), 0};
  const std::int64_t causal = query + op.offset + 1;
  Seen seen = {0, static_cast<int>(causal < op.num_keys ? causal : op.num_keys)};
  if (op.document_start != nullptr) {
    const std::int64_t start = op.document_start[batch * op.num_queries + query] - op.first_key;
    if (start > 0) seen.first = static_cast<int>(start);
  }
  return seen;
}

// The first key that any of the tile's queries sees. All lanes of a warp get it.
template <class S>
__device__ inline int first_seen(const Attention<S>& op, std::int64_t batch, std::int64_t first_query) {
  if (op.document_start == nullptr) return 0;
  int least = static_cast<int>(op.num_keys);
#pragma unroll
  for (int i = 0; i < tile_rows; i += warp_lanes) {
    const int first = seen_by(op, batch, first_query + i + threadIdx.x % warp_lanes).first;
    least = first < least ? first : least;
  }
#pragma unroll
  for (int lanes = warp_lanes / 2; lanes > 0; lanes /= 2) {
    const int other = __shfl_xor_sync(all_lanes, least, lanes);
    least = other < least ? other : least;
  }
  return least;
}

// The columns of part `part` of a head.
struct Part {
  std::int64_t first;
  int width;
};
template <int columns>
__device__ inline Part part_of(std::int64_t head_size, int part) {
  const std::int64_t first = static_cast<std::int64_t>(part) * columns;
  return {first, static_cast<int>(head_size - first < columns ? head_size - first : columns)};
}

// Of a block in the order that begins with what has most to do.
struct Place {
  std::int64_t tile, of_launch;
};
__device__ inline Place place_of_block(std::int64_t heads, bool last_first) {
  const std::int64_t tile = blockIdx.x / heads;
  const std::int64_t tiles = gridDim.x / heads;
  return {last_first ? tiles - 1 - tile : tile, blockIdx.x % heads};
}

// The queries of a block, and the stretch of keys that any of them sees, from where a tile of the walk begins.
struct QueryTile {
  Head head;
  std::int64_t of_launch, first_query;
  int begin, end;
};
template <class S>
__device__ inline QueryTile query_tile(const Attention<S>& op, int walk) {
  const Place place = place_of_block(op.units * op.group, true);
  QueryTile tile = {head_of(op, place.of_launch), place.of_launch, place.tile * tile_rows, 0, 0};
  const std::int64_t last = tile.first_query + tile_rows - 1;
  tile.begin = first_seen(op, tile.head.batch, tile.first_query) / walk * walk;
  tile.end = seen_by(op, tile.head.batch, last < op.num_queries ? last : op.num_queries - 1).end;
  return tile;
}

// --- forward ---

template <class S, int columns>
__global__ void __launch_bounds__(attention_threads, blocks_by_queries<columns>) attend(const Attention<S> op) {
  constexpr int walk = forward_walk<S, columns>;
  S* const query = shared_memory<S>();
  S* const key = query + tile_elements<S, tile_rows, columns>;
  S* const value = key + tile_elements<S, walk, columns>;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  S* const scratch = value + tile_elements<S, walk, columns> + warp * scratch_elements<S, walk>;

  const QueryTile tile = query_tile(op, walk);
  const Head& head = tile.head;
  const std::int64_t first_query = tile.first_query;
  const int parts = static_cast<int>(gridDim.y);
  const int own_part = static_cast<int>(blockIdx.y);

  const auto load_scores = [&](int first, int part, bool with_query) {
    const Part of = part_of<columns>(op.head_size, part);
    if (with_query)
      load_tile<S, tile_rows, columns>(
          query,
          {at(op.query, op.num_queries, head.batch, first_query, head.head * op.head_size + of.first), op.query.stride,
           op.num_queries - first_query, of.width},
          op.packs);
    load_tile<S, walk, columns>(key,
                                {at(op.key, op.num_keys, head.batch, first, head.kv_head * op.head_size + of.first),
                                 op.key.stride, op.num_keys - first, of.width},
                                op.packs);
  };
  const Part own = part_of<columns>(op.head_size, own_part);
  const auto load_values = [&](int first) {
    load_tile<S, walk, columns>(value,
                                {at(op.value, op.num_keys, head.batch, first, head.kv_head * op.head_size + own.first),
                                 op.value.stride, op.num_keys - first, own.width},
                                op.packs);
  };

  const std::int64_t row = first_query + warp * rows_of_warp + lane / 4;
  const Seen seen[2] = {seen_by(op, head.batch, row), seen_by(op, head.batch, row + 8)};
  const float scale = op.scale * log2_of_e;  // exponentials are of base 2
  float most[2] = {-INFINITY, -INFINITY};
  float total[2] = {0.0F, 0.0F};  // the lane's share of it
  WarpSums<columns> output = {};

  load_scores(tile.begin, 0, true);
  for (int first = tile.begin; first < tile.end; first += walk) {
    WarpSums<walk> scores = {};
    for (int part = 0; part < parts; ++part) {
      wait_for_copies();
      __syncthreads();  // and nobody reads the values of the tile before
      if (part == parts - 1) load_values(first);
      multiply_rows<S, walk, columns>(scores, query + warp * rows_of_warp * tile_stride<S, columns>, key,
                                      part_of<columns>(op.head_size, part).width);
      if (part == parts - 1) wait_for_copies();
      __syncthreads();
      if (part < parts - 1)
        load_scores(first, part + 1, true);
      else if (first + walk < tile.end)
        load_scores(first + walk, 0, parts > 1);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = most[i];
#pragma unroll
      for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int k = first + j * 8 + lane % 4 * 2 + e;
          float& score = scores[j][2 * i + e];
          score = k >= seen[i].first && k < seen[i].end ? score * scale : -INFINITY;
          largest = fmaxf(largest, score);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 2));
      const float base = largest == -INFINITY ? 0.0F : largest;  // nothing seen yet
      const float shrink = exp2f(most[i] - base);
      most[i] = largest;
      total[i] *= shrink;
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
        output[j][2 * i] *= shrink;
        output[j][2 * i + 1] *= shrink;
      }
#pragma unroll
      for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[j][2 * i + e];
          score = exp2f(score - base);
          total[i] += score;
        }
      }
    }
    multiply_values<S, walk, columns>(output, scores, value, own.width, scratch);
  }

  wait_for_copies();  // of a tile without keys

  float factors[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    total[i] += __shfl_xor_sync(all_lanes, total[i], 1);
    total[i] += __shfl_xor_sync(all_lanes, total[i], 2);
    factors[i] = 1.0F / total[i];
    const std::int64_t t = row + i * 8;
    if (op.log_sum_exp != nullptr && own_part == 0 && lane % 4 == 0 && t < op.num_queries) {
      const std::int64_t heads = op.kv_heads * op.group;
      op.log_sum_exp[(head.batch * heads + head.head) * op.num_queries + t] = (most[i] + log2f(total[i])) * ln_of_2;
    }
  }
  const std::int64_t first_row = first_query + warp * rows_of_warp;
  store_sums<S, columns>(at(op.output, op.num_queries, head.batch, first_row, head.head * op.head_size + own.first),
                         op.output.stride, op.num_queries - first_row, own.width, output, factors, op.packs);
}

// --- backward ---

// deltas[head, t] = d_output · output, which is the sum over keys of probability times its gradient. A warp has a row.
template <class S>
__global__ void multiply_outputs(const Attention<S> op, const Operand<const S> output, float* deltas) {
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * (threads_of_block / warp_lanes) + threadIdx.x / warp_lanes;
  if (index >= op.units * op.group * op.num_queries) return;
  const Head head = head_of(op, index / op.num_queries);
  const std::int64_t t = index % op.num_queries;
  const S* const a = at(output, op.num_queries, head.batch, t, head.head * op.head_size);
  const S* const b = at(op.d_output, op.num_queries, head.batch, t, head.head * op.head_size);
  float sum = 0.0F;
  for (std::int64_t d = threadIdx.x % warp_lanes; d < op.head_size; d += warp_lanes)
    sum += to_float(a[d]) * to_float(b[d]);
  sum = warp_sum(sum);
  if (threadIdx.x % warp_lanes == 0) deltas[index] = sum;
}

// The parts of a head, the block's own last.
__device__ inline int part_in_turn(int turn, int own_part, int parts) {
  return (own_part + 1 + turn) % parts;
}

// Queries and d_output have tile_rows rows, keys and values those of the walk.
template <class S, int columns>
__global__ void __launch_bounds__(attention_threads, blocks_by_queries<columns>)
    differentiate_queries(const Attention<S> op) {
  constexpr int walk = backward_walk<S, columns>;
  S* const query = shared_memory<S>();
  S* const d_output = query + tile_elements<S, tile_rows, columns>;
  S* const key = d_output + tile_elements<S, tile_rows, columns>;
  S* const value = key + tile_elements<S, walk, columns>;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  S* const scratch = value + tile_elements<S, walk, columns> + warp * scratch_elements<S, walk>;

  const QueryTile tile = query_tile(op, walk);
  const Head& head = tile.head;
  const std::int64_t first_query = tile.first_query;
  const int parts = static_cast<int>(gridDim.y);
  const int own_part = static_cast<int>(blockIdx.y);

  const auto load_queries = [&](const Part& of) {
    const std::int64_t column = head.head * op.head_size + of.first;
    const std::int64_t count = op.num_queries - first_query;
    load_tile<S, tile_rows, columns>(
        query, {at(op.query, op.num_queries, head.batch, first_query, column), op.query.stride, count, of.width},
        op.packs);
    load_tile<S, tile_rows, columns>(
        d_output,
        {at(op.d_output, op.num_queries, head.batch, first_query, column), op.d_output.stride, count, of.width},
        op.packs);
  };
  const auto load_keys = [&](int first, const Part& of) {
    const std::int64_t column = head.kv_head * op.head_size + of.first;
    const std::int64_t count = op.num_keys - first;
    load_tile<S, walk, columns>(
        key, {at(op.key, op.num_keys, head.batch, first, column), op.key.stride, count, of.width}, op.packs);
    load_tile<S, walk, columns>(
        value, {at(op.value, op.num_keys, head.batch, first, column), op.value.stride, count, of.width}, op.packs);
  };

  const Part own = part_of<columns>(op.head_size, own_part);
  const std::int64_t row = first_query + warp * rows_of_warp + lane / 4;
  const Seen seen[2] = {seen_by(op, head.batch, row), seen_by(op, head.batch, row + 8)};
  const float scale = op.scale * log2_of_e;
  const std::int64_t heads = op.kv_heads * op.group;
  float log_sum[2] = {};  // of base 2
  float delta[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t t = row + i * 8;
    if (t >= op.num_queries) continue;
    log_sum[i] = op.log_sum_exp[(head.batch * heads + head.head) * op.num_queries + t] * log2_of_e;
    delta[i] = op.deltas[tile.of_launch * op.num_queries + t];
  }
  const int warp_start = warp * rows_of_warp * tile_stride<S, columns>;
  WarpSums<columns> d_query = {};
  if (parts == 1) load_queries(own);
  for (int first = tile.begin; first < tile.end; first += walk) {
    WarpSums<walk> scores = {};
    WarpSums<walk> d_scores = {};
    for (int turn = 0; turn < parts; ++turn) {
      const Part of = part_of<columns>(op.head_size, part_in_turn(turn, own_part, parts));
      __syncthreads();
      if (parts > 1) load_queries(of);
      load_keys(first, of);
      wait_for_copies();
      __syncthreads();
      multiply_rows<S, walk, columns>(scores, query + warp_start, key, of.width);
      multiply_rows<S, walk, columns>(d_scores, d_output + warp_start, value, of.width);
    }
#pragma unroll
    for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = first + j * 8 + lane % 4 * 2 + i % 2;
        const bool is_seen = k >= seen[i / 2].first && k < seen[i / 2].end;
        const float probability = is_seen ? exp2f(scores[j][i] * scale - log_sum[i / 2]) : 0.0F;
        d_scores[j][i] = probability * (d_scores[j][i] - delta[i / 2]);
      }
    }
    multiply_values<S, walk, columns>(d_query, d_scores, key, own.width, scratch);
  }
  wait_for_copies();  // of a tile without keys
  const std::int64_t first_row = first_query + warp * rows_of_warp;
  store_sums<S, columns>(at(op.d_query, op.num_queries, head.batch, first_row, head.head * op.head_size + own.first),
                         op.d_query.stride, op.num_queries - first_row, own.width, d_query, {op.scale, op.scale},
                         op.packs);
}

// What a tile of queries that a block walks over brings with it.
template <int walk>
struct Columns {
  float log_sum[walk];  // of base 2
  float delta[walk];
  Seen seen[walk];
};

// The other way round: keys and values have tile_rows rows, queries and d_output those of the walk, and scores are
// [keys, queries].
template <class S, int columns>
__global__ void __launch_bounds__(attention_threads, blocks_by_keys) differentiate_keys(const Attention<S> op) {
  constexpr int walk = backward_walk<S, columns>;
  S* const key = shared_memory<S>();
  S* const value = key + tile_elements<S, tile_rows, columns>;
  S* const query = value + tile_elements<S, tile_rows, columns>;
  S* const d_output = query + tile_elements<S, walk, columns>;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  S* const all_scratch = d_output + tile_elements<S, walk, columns>;
  S* const scratch = all_scratch + warp * scratch_elements<S, walk>;
  auto& of_columns = *reinterpret_cast<Columns<walk>*>(all_scratch + warps * scratch_elements<S, walk>);

  const Place place = place_of_block(op.units, false);
  const std::int64_t unit = op.first_unit + place.of_launch;
  const std::int64_t batch = unit / op.kv_heads;
  const std::int64_t kv_head = unit % op.kv_heads;
  const std::int64_t first_key = place.tile * tile_rows;
  const int parts = static_cast<int>(gridDim.y);
  const int own_part = static_cast<int>(blockIdx.y);
  // The first query that sees any of the keys.
  const std::int64_t earliest = first_key - op.offset > 0 ? first_key - op.offset : 0;
  const std::int64_t begin = earliest / walk * walk;

  const auto load_keys = [&](const Part& of) {
    const std::int64_t column = kv_head * op.head_size + of.first;
    const std::int64_t count = op.num_keys - first_key;
    load_tile<S, tile_rows, columns>(
        key, {at(op.key, op.num_keys, batch, first_key, column), op.key.stride, count, of.width}, op.packs);
    load_tile<S, tile_rows, columns>(
        value, {at(op.value, op.num_keys, batch, first_key, column), op.value.stride, count, of.width}, op.packs);
  };
  const auto load_queries = [&](std::int64_t first, std::int64_t head, const Part& of) {
    const std::int64_t column = head * op.head_size + of.first;
    const std::int64_t count = op.num_queries - first;
    load_tile<S, walk, columns>(
        query, {at(op.query, op.num_queries, batch, first, column), op.query.stride, count, of.width}, op.packs);
    load_tile<S, walk, columns>(
        d_output, {at(op.d_output, op.num_queries, batch, first, column), op.d_output.stride, count, of.width},
        op.packs);
  };

  const Part own = part_of<columns>(op.head_size, own_part);
  const float scale = op.scale * log2_of_e;
  const std::int64_t row = first_key + warp * rows_of_warp + lane / 4;
  const int warp_start = warp * rows_of_warp * tile_stride<S, columns>;
  WarpSums<columns> d_key = {};
  WarpSums<columns> d_value = {};
  if (parts == 1) load_keys(own);
  for (std::int64_t in_group = 0; in_group < op.group; ++in_group) {
    const std::int64_t head = kv_head * op.group + in_group;
    for (std::int64_t first = begin; first < op.num_queries; first += walk) {
      // Whether any of the queries sees any of the keys; all warps find the same.
      bool any = op.document_start == nullptr;
      if (!any) {
        bool mine = false;
#pragma unroll
        for (int i = 0; i < walk; i += warp_lanes) {
          const Seen seen = seen_by(op, batch, first + i + lane);
          mine = mine || (seen.first < first_key + tile_rows && seen.end > first_key);
        }
        any = __ballot_sync(all_lanes, mine) != 0;
      }
      if (!any) continue;
      WarpSums<walk> scores = {};
      WarpSums<walk> d_scores = {};
      for (int turn = 0; turn < parts; ++turn) {
        const Part of = part_of<columns>(op.head_size, part_in_turn(turn, own_part, parts));
        __syncthreads();
        if (parts > 1) load_keys(of);
        load_queries(first, head, of);
        if (turn == 0 && threadIdx.x < walk) {
          const std::int64_t t = first + threadIdx.x;
          of_columns.seen[threadIdx.x] = seen_by(op, batch, t);
          const bool is_there = t < op.num_queries;
          const std::int64_t heads = op.kv_heads * op.group;
          of_columns.log_sum[threadIdx.x] =
              is_there ? op.log_sum_exp[(batch * heads + head) * op.num_queries + t] * log2_of_e : 0.0F;
          of_columns.delta[threadIdx.x] =
              is_there ? op.deltas[(place.of_launch * op.group + in_group) * op.num_queries + t] : 0.0F;
        }
        wait_for_copies();
        __syncthreads();
        multiply_rows<S, walk, columns>(scores, key + warp_start, query, of.width);
        multiply_rows<S, walk, columns>(d_scores, value + warp_start, d_output, of.width);
      }
#pragma unroll
      for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = j * 8 + lane % 4 * 2 + i % 2;
          const std::int64_t k = row + i / 2 * 8;
          const Seen seen = of_columns.seen[column];
          const float probability =
              k >= seen.first && k < seen.end ? exp2f(scores[j][i] * scale - of_columns.log_sum[column]) : 0.0F;
          scores[j][i] = probability;
          d_scores[j][i] = probability * (d_scores[j][i] - of_columns.delta[column]);
        }
      }
      multiply_values<S, walk, columns>(d_value, scores, d_output, own.width, scratch);
      multiply_values<S, walk, columns>(d_key, d_scores, query, own.width, scratch);
    }
  }
  wait_for_copies();  // of keys that nobody sees
  const std::int64_t first_row = first_key + warp * rows_of_warp;
  const std::int64_t column = kv_head * op.head_size + own.first;
  store_sums<S, columns>(at(op.d_key, op.num_keys, batch, first_row, column), op.d_key.stride, op.num_keys - first_row,
                         own.width, d_key, {op.scale, op.scale}, op.packs);
  store_sums<S, columns>(at(op.d_value, op.num_keys, batch, first_row, column), op.d_value.stride,
                         op.num_keys - first_row, own.width, d_value, {1.0F, 1.0F}, op.packs);
}

// --- the host's side ---

template <class S, class View>
auto operand(const View& heads) {
  return Operand<std::remove_pointer_t<decltype(address<S>(heads.values))>>{address<S>(heads.values), heads.row_stride};
}

template <class S>
bool operands_fit_packs(const AttentionShape& shape, std::initializer_list<ConstHeadsView> operands) {
  bool fits = shape.head_size % pack_elements<S> == 0;
  for (const ConstHeadsView& heads : operands) fits = fits && fits_packs<S>(heads.row_stride, address<S>(heads.values));
  return fits;
}

template <class S>
Attention<S> attention(const AttentionShape& shape, const ConstView& document_start) {
  Attention<S> op = {};
  op.num_queries = shape.num_queries;
  op.num_keys = shape.num_keys;
  op.kv_heads = shape.kv_heads;
  op.group = shape.heads / shape.kv_heads;
  op.head_size = shape.head_size;
  op.offset = shape.first_query - shape.first_key;
  op.first_key = shape.first_key;
  op.scale = static_cast<float>(shape.scale);
  op.units = shape.batch * shape.kv_heads;
  op.document_start = address<std::int32_t>(document_start);
  narrow<int>(shape.num_keys);
  return op;
}

// body(the columns of a tile, as a constant, and the parts that a head is cut into).
template <class S, class Body>
void with_columns(std::int64_t head_size, Body&& body) {
  const auto parts = [&](int columns) { return narrow<unsigned>((head_size + columns - 1) / columns); };
  if constexpr (sizeof(S) == 2) {
    if (head_size > 64) return body(std::integral_constant<int, 128>(), parts(128));
  }
  body(std::integral_constant<int, 64>(), parts(64));
}

// Tiles for each of the heads or units, and the parts.
dim3 attention_blocks(std::int64_t rows, std::int64_t heads, unsigned parts) {
  return dim3(static_cast<unsigned>(narrow<int>((rows + tile_rows - 1) / tile_rows * heads)), parts);
}

template <class S, int columns, int fixed_tiles, int walk, int walking_tiles>
constexpr std::size_t attention_bytes() {
  return sizeof(S) * (fixed_tiles * tile_elements<S, tile_rows, columns> +
                      walking_tiles * tile_elements<S, walk, columns> + warps * scratch_elements<S, walk>);
}

}  // namespace

template <class S>
void compute(const Issue& issue, const AttentionForward& op) {
  Attention<S> attention = cuda::attention<S>(op.shape, op.document_start);
  if (attention.units == 0 || op.shape.num_queries == 0) return;
  attention.query = operand<S>(op.query);
  attention.key = operand<S>(op.key);
  attention.value = operand<S>(op.value);
  attention.output = operand<S>(op.output);
  attention.log_sum_exp = address<float>(op.log_sum_exp);
  attention.packs =
      operands_fit_packs<S>(op.shape, {op.query, op.key, op.value, {op.output.values, op.output.row_stride}});
  with_columns<S>(op.shape.head_size, [&](auto columns, unsigned parts) {
    constexpr std::size_t bytes = attention_bytes<S, columns, 1, forward_walk<S, columns>, 2>();
    static_assert(bytes <= most_shared_bytes);
    launch(issue.stream,
           {attention_blocks(op.shape.num_queries, attention.units * attention.group, parts), attention_threads, bytes},
           attend<S, columns>, attention);
  });
}

template <class S>
void compute(const Issue& issue, const AttentionBackward& op) {
  Attention<S> attention = cuda::attention<S>(op.shape, op.document_start);
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
      launch(issue.stream, {blocks_for(heads * op.shape.num_queries, threads_of_block / warp_lanes), threads_of_block},
             multiply_outputs<S>, attention, operand<S>(op.output), deltas);
    with_columns<S>(op.shape.head_size, [&](auto columns, unsigned parts) {
      constexpr int walk = backward_walk<S, columns>;
      constexpr std::size_t bytes = attention_bytes<S, columns, 2, walk, 2>();
      static_assert(bytes + sizeof(Columns<walk>) <= most_shared_bytes);
      if (op.shape.num_queries > 0)
        launch(issue.stream, {attention_blocks(op.shape.num_queries, heads, parts), attention_threads, bytes},
               differentiate_queries<S, columns>, attention);
      if (op.shape.num_keys > 0)
        launch(issue.stream,
               {attention_blocks(op.shape.num_keys, attention.units, parts), attention_threads,
                bytes + sizeof(Columns<walk>)},
               differentiate_keys<S, columns>, attention);
    });
  }
}

SCALETRAIN_FOR_COMPUTE_TYPES(AttentionForward)
SCALETRAIN_FOR_COMPUTE_TYPES(AttentionBackward)

}  // namespace scaletrain::cuda
