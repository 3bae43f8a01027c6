// What attention's kernels and their launches share. attention_forward.cu tells how they work.
//
// Heads longer than a tile's columns are cut: scores are summed over all parts, and each block makes one part of its
// results. Read behind cuda_language.h.
#pragma once

#include "backend/cuda/kernels/dropout_tiles.h"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/sums.h"
#include "backend/cuda/kernels/tiles.h"

namespace scaletrain::cuda {

constexpr int attention_threads = 128;
constexpr int attention_warps = attention_threads / warp_lanes;

// A tile of the fixed operand, queries or keys, whose rows are divided among warps.
template <int stack>
constexpr int rows_of_tile = attention_warps* stack* rows_of_band;

// Halves of up to 64 columns are never cut, since longer heads have tiles of 128.
template <class S, int columns>
constexpr bool may_be_cut = sizeof(S) != 2 || columns == 128;

constexpr float ln_of_2 = 0.6931471805599453F;

template <class S>
struct Operand {
  S* values = nullptr;
  int stride = 0;
};

// A key/value head of a batch is a unit, which has `group` heads of queries. A launch has a range of units.
template <class S>
struct Attention {
  std::int64_t num_queries, num_keys, kv_heads, group, head_size;
  std::int64_t offset;  // key rows up to t + offset are seen by query row t, as far as there are any
  std::int64_t first_key;
  std::int64_t window;  // 0: none
  float scale;
  float softcap;  // of kernels that cap scores
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
  // Of kernels that drop probabilities.
  DroppedBy dropped;
  std::int64_t first_head;  // of the whole model's
};

// Read anew each time: registers are scarcer than instructions.
template <class S>
__device__ inline DropoutRows dropout_rows(const Attention<S>& op, std::int64_t batch, std::int64_t head) {
  auto batch_now = static_cast<unsigned>(batch);
  auto head_now = static_cast<unsigned>(head);
  forget_results_of(batch_now);
  forget_results_of(head_now);
  return {op.dropped.samples[batch_now], (op.first_head + head_now) * op.num_queries, (op.num_keys + 3) / 4};
}

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

// The rows of a head.
template <class S>
__device__ inline Rows<S> rows_of(const Operand<const S>& operand, std::int64_t sequence, std::int64_t batch,
                                  std::int64_t head, std::int64_t head_size) {
  return {at(operand, sequence, batch, 0, head * head_size), operand.stride, static_cast<int>(sequence),
          static_cast<int>(head_size)};
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
  if (op.window > 0 && causal - op.window > seen.first) seen.first = static_cast<int>(causal - op.window);
  return seen;
}

// The first key that any of the tile's queries sees. All lanes of a warp get it.
template <class S>
__device__ inline int first_seen(const Attention<S>& op, std::int64_t batch, std::int64_t first_query, int rows) {
  if (op.document_start == nullptr && op.window == 0) return 0;
  int least = static_cast<int>(op.num_keys);
  for (int i = 0; i < rows; i += warp_lanes) {
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
  int first, width;
};
template <int columns>
__device__ inline Part part_of(std::int64_t head_size, int part) {
  const int first = part * columns;
  return {first, min(static_cast<int>(head_size) - first, columns)};
}
template <class S>
__device__ inline Rows<S> part_of_rows(const Rows<S>& rows, const Part& part) {
  return {rows.first + part.first, rows.stride, rows.count, part.width};
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
__device__ inline QueryTile query_tile(const Attention<S>& op, int rows, int walk) {
  const Place place = place_of_block(op.units * op.group, true);
  QueryTile tile = {head_of(op, place.of_launch), place.of_launch, place.tile * rows, 0, 0};
  const std::int64_t last = tile.first_query + rows - 1;
  tile.begin = first_seen(op, tile.head.batch, tile.first_query, rows) / walk * walk;
  tile.end = seen_by(op, tile.head.batch, last < op.num_queries ? last : op.num_queries - 1).end;
  return tile;
}

// What the queries of a warp see: a lane has rows l / 4 and l / 4 + 8 of each band. Rows that are not there are counted
// as the last one, so that they ask for no masks; their results are not stored.
template <int stack>
struct SeenByWarp {
  int firsts[stack][2];
  int end;  // of the lane's first row, were there keys enough; every row sees a key more than the one before
  Seen by_all, by_any;
};
template <int stack, class S>
__device__ inline SeenByWarp<stack> seen_by_warp(const Attention<S>& op, std::int64_t batch, std::int64_t first_row) {
  SeenByWarp<stack> seen;
  const std::int64_t row = first_row + threadIdx.x % warp_lanes / 4;
  seen.end = static_cast<int>(row + op.offset + 1);
  seen.by_all = {0, static_cast<int>(op.num_keys)};
  seen.by_any = {static_cast<int>(op.num_keys), 0};
#pragma unroll
  for (int i = 0; i < 2 * stack; ++i) {
    const std::int64_t t = row + i * 8;
    const Seen by_row = seen_by(op, batch, t < op.num_queries ? t : op.num_queries - 1);
    seen.firsts[i / 2][i % 2] = by_row.first;
    seen.by_all = {max(seen.by_all.first, by_row.first), min(seen.by_all.end, by_row.end)};
    seen.by_any = {min(seen.by_any.first, by_row.first), max(seen.by_any.end, by_row.end)};
  }
#pragma unroll
  for (int lanes = 4; lanes < warp_lanes; lanes *= 2) {
    const auto other = [&](int value) { return __shfl_xor_sync(all_lanes, value, lanes); };
    seen.by_all = {max(seen.by_all.first, other(seen.by_all.first)), min(seen.by_all.end, other(seen.by_all.end))};
    seen.by_any = {min(seen.by_any.first, other(seen.by_any.first)), max(seen.by_any.end, other(seen.by_any.end))};
  }
  return seen;
}
__device__ inline bool sees_all(const Seen& seen, int first, int walk) {
  return seen.first <= first && seen.end >= first + walk;
}
__device__ inline bool sees_any(const Seen& seen, int first, int walk) {
  return seen.first < first + walk && seen.end > first;
}

// Scores become exponents of base 2 by `scale`, in the multiply-add that takes the base or the logarithm off. Masks are
// scores of -infinity, which only a positive scale leaves there: another one is applied with the masks (`factor`), to
// every tile.
struct ScoreScale {
  float scale, factor;
  bool is_late;
};
__device__ inline ScoreScale score_scale(float scale) {
  const bool is_late = scale > 0.0F;
  return {is_late ? scale * log2_of_e : 1.0F, is_late ? 1.0F : scale * log2_of_e, is_late};
}

// The same behind a cap, which has applied the scale.
template <bool is_capped>
__device__ inline ScoreScale score_scale_of(float scale) {
  return is_capped ? ScoreScale{1.0F, 1.0F, true} : score_scale(scale);
}

// The largest exponent of base 2 that a capped score becomes.
template <class S>
__device__ inline float largest_capped(const Attention<S>& op) {
  return op.softcap * log2_of_e;
}
// Products of queries and keys become exponents of base 2, capped.
template <class S, int stack, int walk>
__device__ inline void cap_scores(const Attention<S>& op, WarpSums<stack, walk>& scores) {
  const float inner = op.scale / op.softcap;
  const float largest = largest_capped(op);
#pragma unroll
  for (int band = 0; band < stack; ++band) {
#pragma unroll
    for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[band][j][e] = largest * tanhf(scores[band][j][e] * inner);
    }
  }
}
// By which a capped score changes with the score; 0 for one that is masked.
__device__ inline float slope_of_capped(float score, float largest) {
  const float t = fmaxf(score / largest, -1.0F);
  return 1.0F - t * t;
}

// Masks what a warp's queries do not see of the keys from `first` on.
template <int stack, int walk>
__device__ inline void hide_scores(WarpSums<stack, walk>& scores, const SeenByWarp<stack>& seen, std::int64_t num_keys,
                                   int first, float factor) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
#pragma unroll
  for (int i = 0; i < 2 * stack; ++i) {
    const int begin = seen.firsts[i / 2][i % 2] - first;
    const int end = min(seen.end + i * 8, static_cast<int>(num_keys)) - first;
#pragma unroll
    for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int k = j * 8 + lane % 4 * 2 + e;
        float& score = scores[i / 2][j][i % 2 * 2 + e];
        score = k >= begin && k < end ? score * factor : -INFINITY;
      }
    }
  }
}

// --- the host's side ---

template <class S, class View>
auto operand(const View& heads) {
  return Operand<std::remove_pointer_t<decltype(address<S>(heads.values))>>{address<S>(heads.values),
                                                                            narrow<int>(heads.row_stride)};
}

template <class S>
bool operands_fit_packs(const AttentionShape& shape, std::initializer_list<ConstHeadsView> operands) {
  bool fits = shape.head_size % pack_elements<S> == 0;
  for (const ConstHeadsView& heads : operands) fits = fits && fits_packs<S>(heads.row_stride, address<S>(heads.values));
  return fits;
}

template <class S>
Attention<S> attention(const AttentionShape& shape, const ConstView& document_start, const AttentionDropout& dropout) {
  Attention<S> op = {};
  op.num_queries = shape.num_queries;
  op.num_keys = shape.num_keys;
  op.kv_heads = shape.kv_heads;
  op.group = shape.heads / shape.kv_heads;
  op.head_size = shape.head_size;
  op.offset = shape.first_query - shape.first_key;
  op.first_key = shape.first_key;
  op.window = shape.window;
  op.scale = static_cast<float>(shape.scale);
  op.softcap = static_cast<float>(shape.softcap);
  op.units = shape.batch * shape.kv_heads;
  op.document_start = address<std::int32_t>(document_start);
  op.dropped = dropped_by(dropout.mask);
  op.first_head = dropout.first_head;
  // Kernels count in int from here on.
  narrow<int>(shape.num_keys);
  narrow<int>(op.offset + shape.num_queries);
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

// body(whether scores are capped, and whether probabilities are dropped, as constants): kernels that do neither stay as
// small as they are.
template <class Body>
void with_variant(const AttentionShape& shape, const AttentionDropout& dropout, Body&& body) {
  const auto with_dropout = [&](auto is_capped) {
    if (dropout.mask)
      body(is_capped, std::true_type());
    else
      body(is_capped, std::false_type());
  };
  if (shape.softcap > 0)
    with_dropout(std::true_type());
  else
    with_dropout(std::false_type());
}

// Tiles of `tile_rows` rows for each of the heads or units, and the parts.
inline dim3 attention_blocks(std::int64_t rows, int tile_rows, std::int64_t heads, unsigned parts) {
  return dim3(static_cast<unsigned>(narrow<int>((rows + tile_rows - 1) / tile_rows * heads)), parts);
}

}  // namespace scaletrain::cuda
