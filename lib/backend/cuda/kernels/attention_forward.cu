// Attention without scores in memory (Dao et al. 2022; Dao 2023): a block has a tile of queries, walks over the tiles
// of keys that they see and keeps the softmax of each row as it goes along, while the next tile of keys and values is
// copied. Most tiles are seen as a whole and ask for no masks.
//
// The softmax is relative to a base near the largest score: the base moves only when a score exceeds it by far, so that
// sums are hardly ever scaled down again. Results are quotients of such sums, which no base changes.
#include <algorithm>

#include "backend/cuda/fused_attention.h"
#include "backend/cuda/kernels/attention.h"

namespace scaletrain::cuda {

namespace {

// What fits the 255 registers that two blocks of a multiprocessor leave each thread, and the shared memory.
template <class S, int columns>
struct ForwardTiles {
  static constexpr bool is_half = sizeof(S) == 2;
  static constexpr int stack = is_half ? 2 : 1;
  static constexpr int rows = rows_of_tile<stack>;
  static constexpr int walk = is_half && columns == 64 ? 64 : 32;
  static constexpr int query_elements = tile_elements<S, rows, columns>;
  static constexpr int stage_elements = 2 * tile_elements<S, walk, columns>;  // a tile of keys, one of values
  // Queries that registers keep come by way of the second stage, which is empty until the walk has begun.
  static constexpr bool keeps_queries = is_half && columns == 64;
  static_assert(!keeps_queries || query_elements <= stage_elements);
  static constexpr int own_query_elements = keeps_queries ? 0 : query_elements;
  static constexpr std::size_t bytes =
      sizeof(S) * (2 * stage_elements + own_query_elements + attention_warps * scratch_elements<S, walk>);
  static_assert(bytes <= most_shared_bytes);
};

// Exponents of base 2, by which a score may exceed the base: in fp16 256 is far from the end, and what is far below the
// largest score loses nothing.
constexpr float most_above_base = 8.0F;
// Below every score.
constexpr float no_base = -1e30F;

// The softmax of the lane's rows, as far as it has been summed.
template <int stack>
struct Softmax {
  float base[stack][2];
  float total[stack][2];  // the lane's share of it
};

// Makes scores what they weigh, and scales what has been summed where the base moves.
template <class S, int stack, int walk, int columns>
__device__ inline void add_scores(Softmax<stack>& rows, WarpSums<stack, walk>& scores, float scale,
                                  WarpSums<stack, columns>& output) {
  float largest[stack][2];
  bool exceeds = false;
#pragma unroll
  for (int band = 0; band < stack; ++band) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float most = fmaxf(scores[band][0][2 * i], scores[band][0][2 * i + 1]);
#pragma unroll
      for (int j = 1; j < walk / 8; ++j) most = fmaxf(most, fmaxf(scores[band][j][2 * i], scores[band][j][2 * i + 1]));
      most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2)) * scale;
      exceeds = exceeds || most > rows.base[band][i] + most_above_base;
      largest[band][i] = most;
    }
  }
  if (__ballot_sync(all_lanes, exceeds) != 0) {
#pragma unroll
    for (int band = 0; band < stack; ++band) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float base = fmaxf(rows.base[band][i], largest[band][i]);
        const float shrink = exp2_of<S>(rows.base[band][i] - base);
        rows.base[band][i] = base;
        rows.total[band][i] *= shrink;
#pragma unroll
        for (int j = 0; j < columns / 8; ++j) {
          output[band][j][2 * i] *= shrink;
          output[band][j][2 * i + 1] *= shrink;
        }
      }
    }
  }
#pragma unroll
  for (int band = 0; band < stack; ++band) {
#pragma unroll
    for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& score = scores[band][j][e];
        score = exp2_of<S>(score * scale - rows.base[band][e / 2]);
        rows.total[band][e / 2] += score;
      }
    }
  }
}

template <class S, int columns, bool is_capped, bool is_dropped>
__global__ void __launch_bounds__(attention_threads, 2) attend(const Attention<S> op) {
  using Tiles = ForwardTiles<S, columns>;
  constexpr int stack = Tiles::stack;
  constexpr int walk = Tiles::walk;
  S* const stages = shared_memory<S>();
  S* const query = stages + (Tiles::keeps_queries ? 1 : 2) * Tiles::stage_elements;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  S* const scratch = stages + 2 * Tiles::stage_elements + Tiles::own_query_elements + warp * scratch_elements<S, walk>;

  const QueryTile tile = query_tile(op, Tiles::rows, walk);
  const Head& head = tile.head;
  const int parts = may_be_cut<S, columns> ? static_cast<int>(gridDim.y) : 1;
  const int own_part = may_be_cut<S, columns> ? static_cast<int>(blockIdx.y) : 0;
  const Part own = part_of<columns>(op.head_size, own_part);

  const Rows<S> keys = rows_of(op.key, op.num_keys, head.batch, head.kv_head, op.head_size);
  const Rows<S> values = rows_of(op.value, op.num_keys, head.batch, head.kv_head, op.head_size);
  const auto load_query = [&](const Part& of) {
    const Rows<S> rows = rows_of(op.query, op.num_queries, head.batch, head.head, op.head_size);
    load_tile<S, Tiles::rows, columns, attention_threads>(query, part_of_rows(rows, of),
                                                          static_cast<int>(tile.first_query), op.packs);
  };
  const auto load_walk = [&](S* to, const Rows<S>& from, int first, const Part& of) {
    load_tile<S, walk, columns, attention_threads>(to, part_of_rows(from, of), first, op.packs);
  };
  const auto load_stage = [&](S* stage, int first) {
    load_walk(stage, keys, first, own);
    load_walk(stage + Tiles::stage_elements / 2, values, first, own);
  };

  const std::int64_t first_row = tile.first_query + warp * stack * rows_of_band;
  const SeenByWarp<stack> seen = seen_by_warp<stack>(op, head.batch, first_row);
  const ScoreScale scale = score_scale_of<is_capped>(op.scale);
  Softmax<stack> rows;
#pragma unroll
  for (int i = 0; i < 2 * stack; ++i) {
    rows.base[i / 2][i % 2] = no_base;
    rows.total[i / 2][i % 2] = 0.0F;
  }
  WarpSums<stack, columns> output = {};

  const S* const own_rows = query + warp * stack * rows_of_band * tile_stride<S, columns>;
  FirstFactor<Tiles::keeps_queries, S, stack, columns> query_rows;
  if (parts == 1) {
    load_query(own);
    load_stage(stages, tile.begin);
    if constexpr (Tiles::keeps_queries) {
      wait_for_copies();
      __syncthreads();
    }
  }
  query_rows.read(own_rows);
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
    for (int part = 0; part < parts; ++part) {
      const Part of = part_of<columns>(op.head_size, part);
      if (parts > 1) {
        __syncthreads();
        load_query(of);
        load_walk(key, keys, first, of);
        if (part == 0) load_walk(value, values, first, own);
      }
      wait_for_copies();
      __syncthreads();  // and nobody reads the other stage any more
      if (parts == 1 && first + walk < tile.end) load_stage(stages + Tiles::stage_elements - stage, first + walk);
      if (is_needed) multiply_rows<S, stack, walk, columns>(scores, query_rows, key, of.width);
    }
    if (parts == 1) stage = Tiles::stage_elements - stage;
    if (!is_needed) continue;
    if constexpr (is_capped) cap_scores<S, stack, walk>(op, scores);
    if (!scale.is_late || !sees_all(seen.by_all, first, walk))
      hide_scores<stack, walk>(scores, seen, op.num_keys, first, scale.factor);
    add_scores<S, stack, walk, columns>(rows, scores, scale.scale, output);
    if constexpr (is_dropped) {
#pragma unroll
      for (int band = 0; band < stack; ++band) {
#pragma unroll
        for (int j = 0; j < walk / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[band][j][e] = is_kept<walk>(kept, band, j, e) ? scores[band][j][e] : 0.0F;
        }
      }
    }
    multiply_values<S, stack, walk, columns>(output, scores, value, own.width, scratch);
  }
  wait_for_copies();  // of a tile without keys

  float factors[stack][2];
#pragma unroll
  for (int i = 0; i < 2 * stack; ++i) {
    float total = rows.total[i / 2][i % 2];
    total += __shfl_xor_sync(all_lanes, total, 1);
    total += __shfl_xor_sync(all_lanes, total, 2);
    factors[i / 2][i % 2] = (is_dropped ? op.dropped.factor : 1.0F) / total;
    const std::int64_t t = first_row + lane / 4 + i * 8;
    if (op.log_sum_exp != nullptr && own_part == 0 && lane % 4 == 0 && t < op.num_queries) {
      const std::int64_t heads = op.kv_heads * op.group;
      op.log_sum_exp[(head.batch * heads + head.head) * op.num_queries + t] =
          (rows.base[i / 2][i % 2] + log2f(total)) * ln_of_2;
    }
  }
  store_sums<S, stack, columns>(
      at(op.output, op.num_queries, head.batch, first_row, head.head * op.head_size + own.first), op.output.stride,
      op.num_queries - first_row, own.width, output, factors, op.packs);
}

}  // namespace

template <class S>
void compute(const Issue& issue, const AttentionForward& op) {
  if (sizeof(S) == 2 && issue.attention != nullptr && issue.attention->issue(issue.stream, issue.workspace, op)) return;
  Attention<S> attention = cuda::attention<S>(op.shape, op.document_start, op.dropout);
  if (attention.units == 0 || op.shape.num_queries == 0) return;
  attention.query = operand<S>(op.query);
  attention.key = operand<S>(op.key);
  attention.value = operand<S>(op.value);
  attention.output = operand<S>(op.output);
  attention.log_sum_exp = address<float>(op.log_sum_exp);
  attention.packs =
      operands_fit_packs<S>(op.shape, {op.query, op.key, op.value, {op.output.values, op.output.row_stride}});
  with_columns<S>(op.shape.head_size, [&](auto columns, unsigned parts) {
    using Tiles = ForwardTiles<S, columns>;
    with_variant(op.shape, op.dropout, [&](auto is_capped, auto is_dropped) {
      launch(issue.stream,
             {attention_blocks(op.shape.num_queries, Tiles::rows, attention.units * attention.group, parts),
              attention_threads, Tiles::bytes},
             attend<S, columns, decltype(is_capped)::value, decltype(is_dropped)::value>, attention);
    });
  });
}

SCALETRAIN_FOR_COMPUTE_TYPES(AttentionForward)

}  // namespace scaletrain::cuda
