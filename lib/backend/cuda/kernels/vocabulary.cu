// What has the vocabulary's size: embeddings, and the loss over logits.
#include <algorithm>
#include <cmath>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/sums.h"

namespace scaletrain::cuda {

namespace {

// --- embeddings ---

// A rank's part of a table: rows of ids [first, first + rows) of `all`.
struct TablePart {
  std::int64_t first, rows, all;
};
TablePart part_of(std::int64_t first_id, std::int64_t vocabulary, std::int64_t rows) {
  return {first_id, rows, vocabulary != 0 ? vocabulary : rows};
}

// The row of the part that an id stands for; -1 where another rank has it.
__device__ inline std::int64_t row_of(const TablePart& part, std::int32_t id) {
  if (id < 0 || id >= part.all) __trap();
  const std::int64_t row = id - part.first;
  return row >= 0 && row < part.rows ? row : -1;
}

template <class S, int width>
__global__ void embed(const S* table, const TablePart part, const S* position_table, std::int64_t num_positions,
                      const std::int32_t* ids, const std::int32_t* positions, S* output, std::int64_t columns,
                      std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  const std::int64_t n = first / columns;
  const std::int64_t column = first % columns;
  const std::int64_t row = row_of(part, ids[n]);
  float values[width] = {};
  if (row >= 0) load(table + row * columns + column, width, values);
  if (position_table != nullptr) {
    const std::int32_t position = positions[n];
    if (position < 0 || position >= num_positions) __trap();
    float added[width];
    load(position_table + position * columns + column, width, added);
#pragma unroll
    for (int i = 0; i < width; ++i) values[i] += added[i];
  }
  store(output + first, width, values);
}

// The gradient of a table: which tokens have a row is gathered first, then each row sums its tokens in order. Counting
// sort: the atomics count and hand out places, whose order does not matter, because each token then finds its own place
// among those of its row. In the workspace: starts[rows + 1], taken[rows], gathered[tokens], sorted[tokens].
struct TokensOfRows {
  int* starts;
  int* taken;
  int* gathered;
  int* sorted;
};

__global__ void clear(int* values, std::int64_t count) {
  const std::int64_t i = first_element<1>();
  if (i < count) values[i] = 0;
}

__global__ void count_tokens(const std::int32_t* ids, std::int64_t tokens, const TablePart part, int* counts) {
  const std::int64_t n = first_element<1>();
  if (n >= tokens) return;
  const std::int64_t row = row_of(part, ids[n]);
  if (row >= 0) atomicAdd(counts + row, 1);
}

// counts[rows] become starts[rows + 1], by one block: each thread has neighbouring rows.
constexpr unsigned scan_threads = 1024;
__global__ void scan_counts(int* counts, std::int64_t rows) {
  const std::int64_t rows_of_thread = (rows + scan_threads - 1) / scan_threads;
  const std::int64_t begin = threadIdx.x * rows_of_thread;
  const std::int64_t end = begin + rows_of_thread < rows ? begin + rows_of_thread : rows;
  int sum = 0;
  for (std::int64_t row = begin; row < end; ++row) sum += counts[row];
  auto* const sums = shared_memory<int>();  // [scan_threads]
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0)
    for (unsigned thread = 1; thread < scan_threads; ++thread) sums[thread] += sums[thread - 1];
  __syncthreads();
  int start = sums[threadIdx.x] - sum;
  for (std::int64_t row = begin; row < end; ++row) {
    const int count = counts[row];
    counts[row] = start;
    start += count;
  }
  if (threadIdx.x == scan_threads - 1) counts[rows] = start;
}

__global__ void gather_tokens(const std::int32_t* ids, std::int64_t tokens, const TablePart part,
                              const TokensOfRows of) {
  const std::int64_t n = first_element<1>();
  if (n >= tokens) return;
  const std::int64_t row = row_of(part, ids[n]);
  if (row >= 0) of.gathered[of.starts[row] + atomicAdd(of.taken + row, 1)] = static_cast<int>(n);
}

__global__ void sort_tokens(const std::int32_t* ids, std::int64_t tokens, const TablePart part, const TokensOfRows of) {
  const std::int64_t n = first_element<1>();
  if (n >= tokens) return;
  const std::int64_t row = row_of(part, ids[n]);
  if (row < 0) return;
  int before = 0;
  for (int i = of.starts[row]; i < of.starts[row + 1]; ++i) before += of.gathered[i] < n ? 1 : 0;
  of.sorted[of.starts[row] + before] = static_cast<int>(n);
}

template <class S, int width>
__global__ void add_tokens(const S* d_output, const TokensOfRows of, float* d_table, std::int64_t columns) {
  const std::int64_t row = blockIdx.x;
  const int begin = of.starts[row];
  const int end = of.starts[row + 1];
  if (begin == end) return;
  for (std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * width; first < columns;
       first += static_cast<std::int64_t>(blockDim.x) * width) {
    float sum[width];
    load(d_table + row * columns + first, width, sum);
    for (int i = begin; i < end; ++i) {
      float d[width];
      load(d_output + of.sorted[i] * columns + first, width, d);
#pragma unroll
      for (int j = 0; j < width; ++j) sum[j] += d[j];
    }
    store(d_table + row * columns + first, width, sum);
  }
}

template <class S>
void add_to_table(const Issue& issue, const ConstView& d_output, const ConstView& indices, const TablePart& part,
                  const View& d_table) {
  const std::int64_t tokens = indices.num_elements();
  const std::int64_t columns = d_output.shape()[1];
  if (tokens == 0) return;
  const auto* ids = address<std::int32_t>(indices);
  auto* const memory = reinterpret_cast<int*>(issue.workspace);
  const TokensOfRows of = {memory, memory + part.rows + 1, memory + 2 * part.rows + 1,
                           memory + 2 * part.rows + 1 + tokens};
  SCALETRAIN_CHECK_LE(static_cast<std::size_t>(2 * part.rows + 1 + 2 * tokens) * sizeof(int), workspace_bytes);
  const dim3 by_token = blocks_for(tokens);
  launch(issue.stream, {blocks_for(2 * part.rows + 1), threads_of_block}, clear, memory, 2 * part.rows + 1);
  launch(issue.stream, {by_token, threads_of_block}, count_tokens, ids, tokens, part, of.starts);
  if (part.rows == 0) return;  // the ids have been checked
  launch(issue.stream, {dim3(1), scan_threads, scan_threads * sizeof(int)}, scan_counts, of.starts, part.rows);
  launch(issue.stream, {by_token, threads_of_block}, gather_tokens, ids, tokens, part, of);
  launch(issue.stream, {by_token, threads_of_block}, sort_tokens, ids, tokens, part, of);
  const auto* d = address<S>(d_output);
  auto* sums = address<float>(d_table);
  constexpr int floats = pack_elements<float>;
  if (fits_packs<S>(columns, d, sums))
    launch(issue.stream, {blocks_for(part.rows, 1), threads_of_block}, add_tokens<S, floats>, d, of, sums, columns);
  else
    launch(issue.stream, {blocks_for(part.rows, 1), threads_of_block}, add_tokens<S, 1>, d, of, sums, columns);
}

// --- softmax over rows of logits ---

constexpr unsigned max_threads_of_row = 1024;

// Shared memory of a block that has a row: what its warps tell each other, then the row where it is kept.
constexpr std::size_t bytes_of_warps = max_threads_of_row / warp_lanes * sizeof(float);

// A block has a row; a warp at least a pack of it for each lane.
LaunchShape blocks_of_rows(std::int64_t rows, std::int64_t columns, int width) {
  const std::int64_t warps = (columns + warp_lanes * width - 1) / (warp_lanes * width);
  const auto threads =
      static_cast<unsigned>(std::clamp<std::int64_t>(warps * warp_lanes, warp_lanes, max_threads_of_row));
  return {blocks_for(rows, 1), threads, bytes_of_warps};
}

// Of a row in packs.
template <class S>
std::size_t bytes_of_row(std::int64_t columns) {
  return static_cast<std::size_t>(columns + pack_elements<S> - 1) / pack_elements<S> * pack_bytes;
}

struct RowStatistics {
  float maximum, sum;  // of exp(logit - maximum)
};

// Of a row, which the block reads once: a thread's own maximum grows as it goes. Every thread gets them. A row without
// columns has -infinity and 0.
template <class S, int width>
__device__ inline RowStatistics statistics_of_row(const S* logits, std::int64_t columns, float* shared) {
  float maximum = -INFINITY;
  float sum = 0.0F;
  for (std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * width; first < columns;
       first += static_cast<std::int64_t>(blockDim.x) * width) {
    float x[width];
    load(logits + first, columns - first, x, -INFINITY);
    float most = x[0];
#pragma unroll
    for (int i = 1; i < width; ++i) most = fmaxf(most, x[i]);
    if (most > maximum) {
      sum *= exp_of_difference<S>(maximum, most);
      maximum = most;
    }
#pragma unroll
    for (int i = 0; i < width; ++i) sum += exp_of_difference<S>(x[i], maximum);
  }
  const float of_row = block_maximum(maximum, shared);
  return {of_row, block_sum(maximum == of_row ? sum : sum * exp_of_difference<S>(maximum, of_row), shared)};
}

// What a row's softmax is multiplied with, and what its target's column and every other one are less then.
struct RowGradient {
  float scale, of_target, of_others;
};

// Without a shape it is d_scale / sum, d_scale and 0, to the bit.
__device__ inline RowGradient gradient_of_row(const LossShape& shape, std::int64_t classes, double d_scale,
                                              float maximum, double sum) {
  double scale = d_scale / sum;
  if (shape.z_loss != 0) scale *= 1.0 + 2.0 * shape.z_loss * (log(sum) + maximum);
  const double smoothed = d_scale * shape.label_smoothing / static_cast<double>(classes);
  return {static_cast<float>(scale), static_cast<float>(d_scale * (1.0 - shape.label_smoothing) + smoothed),
          static_cast<float>(smoothed)};
}

// The gradient of logits, which may lie where it is written; target -1 is none here.
template <class S, int width>
__device__ inline void write_gradient(S* gradient, const S* logits, std::int64_t columns, float maximum,
                                      std::int64_t target, const RowGradient& of) {
  for (std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * width; first < columns;
       first += static_cast<std::int64_t>(blockDim.x) * width) {
    float x[width];
    load(logits + first, columns - first, x);
#pragma unroll
    for (int i = 0; i < width; ++i)
      x[i] = of.scale * exp_of_difference<S>(x[i], maximum) - (first + i == target ? of.of_target : of.of_others);
    store(gradient + first, columns - first, x);
  }
}

template <class S>
__device__ inline void clear_row(S* logits, std::int64_t columns) {
  for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) logits[column] = from_float<S>(0.0F);
}

// Copies a row of packs to shared memory, all of it at once; behind a barrier all threads find it there.
template <class S>
__device__ inline void keep_row(S* kept, const S* row, std::int64_t columns) {
  constexpr int width = pack_elements<S>;
  for (std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * width; first < columns;
       first += static_cast<std::int64_t>(blockDim.x) * width)
    copy_async(kept + first, row + first);
  wait_for_copies();
  __syncthreads();
}

// losses[N], which are then added up in order. Whether the block keeps its row in shared memory, so that the GPU's own
// is read once.
template <class S, int width, bool keeps_row>
__global__ void cross_entropy(S* all_logits, std::int64_t stride, const std::int32_t* targets, std::int64_t columns,
                              const LossShape shape, double d_scale, double* losses) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = targets[row];
  S* const logits = all_logits + row * stride;
  if (target < -1 || target >= columns) __trap();
  if (target < 0) {
    if (d_scale != 0) clear_row(logits, columns);
    if (threadIdx.x == 0) losses[row] = 0;
    return;
  }
  const S* values = logits;
  if constexpr (keeps_row) {
    S* const kept = reinterpret_cast<S*>(shared_memory<std::byte>() + bytes_of_warps);
    keep_row(kept, logits, columns);
    values = kept;
  }
  const double wanted = to_float(values[target]);  // before the barriers, behind which it is overwritten
  const RowStatistics of = statistics_of_row<S, width>(values, columns, shared_memory<float>());
  if (threadIdx.x == 0) losses[row] = log(static_cast<double>(of.sum)) + (of.maximum - wanted);
  if (d_scale != 0)
    write_gradient<S, width>(logits, values, columns, of.maximum, target,
                             gradient_of_row(shape, columns, d_scale, of.maximum, of.sum));
}

template <class S, int width>
__global__ void softmax_statistics(const S* all_logits, std::int64_t stride, const std::int32_t* targets,
                                   const TablePart part, float* statistics) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = targets[row];
  const S* const logits = all_logits + row * stride;
  if (target < -1 || target >= part.all) __trap();
  const RowStatistics of = statistics_of_row<S, width>(logits, part.rows, shared_memory<float>());
  if (threadIdx.x != 0) return;
  const std::int64_t local = target < 0 ? -1 : row_of(part, target);
  statistics[row * 3 + 0] = of.maximum;
  statistics[row * 3 + 1] = of.sum;
  statistics[row * 3 + 2] = local >= 0 ? to_float(logits[local]) : 0.0F;
}

// The loss is computed from the statistics alone, in double and in the order of the ranks: all get the same bits.
template <class S, int width>
__global__ void cross_entropy_parts(S* all_logits, std::int64_t stride, const std::int32_t* targets,
                                    const TablePart part, const float* statistics, std::int64_t ranks,
                                    const LossShape shape, double d_scale, double* losses) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = targets[row];
  S* const logits = all_logits + row * stride;
  if (target < -1 || target >= part.all) __trap();
  if (target < 0) {
    if (d_scale != 0) clear_row(logits, part.rows);
    if (threadIdx.x == 0) losses[row] = 0;
    return;
  }
  const std::int64_t rows = gridDim.x;
  float maximum = -INFINITY;
  for (std::int64_t rank = 0; rank < ranks; ++rank) maximum = fmaxf(maximum, statistics[(rank * rows + row) * 3]);
  double sum = 0;
  double wanted = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const float* const of_rank = statistics + (rank * rows + row) * 3;
    sum += of_rank[1] * exp(static_cast<double>(of_rank[0]) - maximum);
    wanted += of_rank[2];
  }
  if (threadIdx.x == 0) losses[row] = log(sum) + (maximum - wanted);
  if (d_scale != 0)
    write_gradient<S, width>(logits, logits, part.rows, maximum, row_of(part, target),
                             gradient_of_row(shape, part.all, d_scale, maximum, sum));
}

// Adds to the loss, by one block: a thread's rows lie as far apart as there are threads.
constexpr unsigned loss_threads = 1024;
__global__ void add_losses(const double* losses, std::int64_t rows, double* loss_sum) {
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += loss_threads) sum += losses[row];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) *loss_sum += sum;
}

// losses[rows] in the workspace.
double* losses_of(const Issue& issue, std::int64_t rows) {
  SCALETRAIN_CHECK_LE(static_cast<std::size_t>(rows) * sizeof(double), workspace_bytes);
  return reinterpret_cast<double*>(issue.workspace);
}

void issue_add_losses(const Issue& issue, const double* losses, std::int64_t rows, const View& loss_sum) {
  launch(issue.stream, {dim3(1), loss_threads, loss_threads / warp_lanes * sizeof(double)}, add_losses, losses, rows,
         address<double>(loss_sum));
}

}  // namespace

template <class S>
void compute(const Issue& issue, const EmbeddingForward& op) {
  const std::int64_t columns = op.output.shape()[1];
  const std::int64_t count = op.output.num_elements();
  if (count == 0) return;
  const auto* table = address<S>(op.table);
  const auto* position_table = address<S>(op.position_table);
  auto* output = address<S>(op.output);
  const std::int64_t num_positions = op.position_table ? op.position_table.shape()[0] : 0;
  const auto* positions = op.position_table ? address<std::int32_t>(op.positions) : nullptr;
  with_width<S>(fits_packs<S>(columns, table, position_table, output), [&](auto width) {
    launch(issue.stream, {blocks_for(count / width), threads_of_block}, embed<S, width>, table,
           part_of(op.first_id, op.vocabulary, op.table.shape()[0]), position_table, num_positions,
           address<std::int32_t>(op.ids), positions, output, columns, count);
  });
}

template <class S>
void compute(const Issue& issue, const EmbeddingBackward& op) {
  add_to_table<S>(issue, op.d_output, op.ids, part_of(op.first_id, op.vocabulary, op.d_table.shape()[0]), op.d_table);
  if (op.d_position_table)
    add_to_table<S>(issue, op.d_output, op.positions, part_of(0, 0, op.d_position_table.shape()[0]),
                    op.d_position_table);
}

template <class S>
void compute(const Issue& issue, const CrossEntropy& op) {
  const std::int64_t rows = op.logits.shape()[0];
  const std::int64_t stride = op.logits.shape()[1];
  const std::int64_t columns = op.num_classes > 0 ? op.num_classes : stride;
  if (rows == 0) return;
  auto* logits = address<S>(op.logits);
  double* const losses = losses_of(issue, rows);
  with_width<S>(fits_packs<S>(stride, logits), [&](auto width) {
    LaunchShape shape = blocks_of_rows(rows, columns, width);
    const auto launch_kernel = [&](auto keeps_row) {
      launch(issue.stream, shape, cross_entropy<S, width, keeps_row>, logits, stride, address<std::int32_t>(op.targets),
             columns, op.shape, op.d_scale, losses);
    };
    const std::size_t bytes = shape.shared_bytes + bytes_of_row<S>(columns);
    if constexpr (width > 1)
      if (op.d_scale != 0 && bytes <= most_shared_bytes) {
        shape.shared_bytes = bytes;
        return launch_kernel(std::true_type());
      }
    launch_kernel(std::false_type());
  });
  issue_add_losses(issue, losses, rows, op.loss_sum);
}

template <class S>
void compute(const Issue& issue, const SoftmaxStatistics& op) {
  const std::int64_t rows = op.logits.shape()[0];
  const std::int64_t stride = op.logits.shape()[1];
  const TablePart part = {op.first_class, op.num_classes > 0 ? op.num_classes : stride, op.vocabulary};
  if (rows == 0) return;
  const auto* logits = address<S>(op.logits);
  with_width<S>(fits_packs<S>(stride, logits), [&](auto width) {
    launch(issue.stream, blocks_of_rows(rows, part.rows, width), softmax_statistics<S, width>, logits, stride,
           address<std::int32_t>(op.targets), part, address<float>(op.statistics));
  });
}

template <class S>
void compute(const Issue& issue, const CrossEntropyParts& op) {
  const std::int64_t rows = op.logits.shape()[0];
  const std::int64_t stride = op.logits.shape()[1];
  const TablePart part = {op.first_class, op.num_classes > 0 ? op.num_classes : stride, op.vocabulary};
  if (rows == 0) return;
  auto* logits = address<S>(op.logits);
  double* const losses = losses_of(issue, rows);
  with_width<S>(fits_packs<S>(stride, logits), [&](auto width) {
    launch(issue.stream, blocks_of_rows(rows, part.rows, width), cross_entropy_parts<S, width>, logits, stride,
           address<std::int32_t>(op.targets), part, address<float>(op.statistics), op.statistics.shape()[0], op.shape,
           op.d_scale, losses);
  });
  issue_add_losses(issue, losses, rows, op.loss_sum);
}

SCALETRAIN_FOR_COMPUTE_TYPES(EmbeddingForward)
SCALETRAIN_FOR_COMPUTE_TYPES(EmbeddingBackward)
SCALETRAIN_FOR_COMPUTE_TYPES(CrossEntropy)
SCALETRAIN_FOR_COMPUTE_TYPES(SoftmaxStatistics)
SCALETRAIN_FOR_COMPUTE_TYPES(CrossEntropyParts)

}  // namespace scaletrain::cuda
