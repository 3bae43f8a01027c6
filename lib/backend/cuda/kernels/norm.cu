// Layer norm and RMS norm. One warp has a row, or several where it is long: so many that all of it is in their
// registers at once, and is read once. Longer rows, and those that do not lie in packs, are read again from the caches.
#include <algorithm>
#include <cstring>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/row_parts.h"
#include "backend/cuda/kernels/sums.h"

namespace scaletrain::cuda {

namespace {

// Blocks are small, since what their rows hold fills a multiprocessor's registers with few of them.
constexpr unsigned least_warps_of_block = 4;
constexpr unsigned most_warps_of_row = 8;
// Packs of each operand that a lane holds: more would leave too few warps beside each other.
constexpr int most_held = 4;

// Which part of which row this thread has, of those that `warps` warps of a block share.
struct Place {
  unsigned warps;
  std::int64_t row;
  int lane, lanes;

  __device__ explicit Place(unsigned warps_of_row)
      : warps(warps_of_row),
        row(static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / warp_lanes / warps) +
            threadIdx.x / warp_lanes / warps),
        lane(static_cast<int>(threadIdx.x % (warp_lanes * warps))),
        lanes(static_cast<int>(warp_lanes * warps)) {}
};

// Where rows start.
struct Starts {
  std::int64_t heads, stride;
  explicit Starts(const RowLayout& layout) : heads(layout.heads), stride(layout.stride) {}
  __device__ std::int64_t of(std::int64_t row, std::int64_t columns) const {
    return heads == 0 ? row * columns : row / heads * stride + row % heads * columns;
  }
};

// Whether packs can be read of such rows.
template <class S>
bool fits_rows(const RowLayout& layout) {
  return layout.heads == 0 || fits_packs<S>(layout.stride);
}

// body(number, first, left) for the lane's packs of a row, in order. held: the most that there are, whole ones, or 0
// for any.
template <int width, int held, class Body>
__device__ inline void for_packs(const Place& place, std::int64_t columns, Body&& body) {
  if constexpr (held == 0) {
    for (std::int64_t first = static_cast<std::int64_t>(place.lane) * width; first < columns;
         first += place.lanes * width)
      body(0, first, columns - first);
  } else {
#pragma unroll
    for (int number = 0; number < held; ++number) {
      const std::int64_t first = static_cast<std::int64_t>(place.lane + number * place.lanes) * width;
      if (first < columns) body(number, first, std::int64_t{width});
    }
  }
}

// The lane's packs of an operand's row: held from the start, or read each time they are asked for (held = 0).
template <class S, int width, int held>
class RowPacks {
 public:
  __device__ RowPacks(const S* row, const Place& place, std::int64_t columns) : row_(row) {
    if constexpr (held > 0)
      for_packs<width, held>(place, columns, [&](int number, std::int64_t first, std::int64_t) {
        words_[number] = *reinterpret_cast<const Words*>(row + first);
      });
    keep_packed();
  }
  // Keeps the packs alone, and no values that were or will be got of them: those take twice the registers.
  __device__ void keep_packed() {
#pragma unroll
    for (Words& words : words_)
#pragma unroll
      for (unsigned& word : words.values) forget_results_of(word);
  }
  __device__ void get(int number, std::int64_t first, std::int64_t left, float (&values)[width]) const {
    if constexpr (held > 0) {
      Pack<S, width> pack;
      memcpy(&pack, &words_[number], sizeof pack);
#pragma unroll
      for (int i = 0; i < width; ++i) values[i] = to_float(pack.values[i]);
    } else {
      load(row_ + first, left, values);
    }
  }

 private:
  using Words = Pack<unsigned, pack_bytes / sizeof(unsigned)>;

  const S* row_;
  Words words_[held > 0 ? held : 1] = {};
};

// Every thread of a row gets the sums over all of them, added in the order of the warps. shared: a number of each sum
// for each warp of the block, which nothing else has used. All threads of the block call it.
template <int count>
__device__ inline void sum_row(float (&sums)[count], const Place& place, float* shared) {
#pragma unroll
  for (float& sum : sums) sum = warp_sum(sum);
  if (place.warps == 1) return;
  const unsigned warp = threadIdx.x / warp_lanes;
  if (threadIdx.x % warp_lanes == 0) {
#pragma unroll
    for (int i = 0; i < count; ++i) shared[warp * count + i] = sums[i];
  }
  __syncthreads();
  const float* const of_row = shared + warp / place.warps * place.warps * count;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    sums[i] = 0.0F;
    for (unsigned other = 0; other < place.warps; ++other) sums[i] += of_row[other * count + i];
  }
}

// mean is null for an RMS norm. `scale` may be the weight alone.
template <class S, int width, int held>
__global__ void normalise(const S* input, const S* weight, const S* bias, S* output, float* mean, float* rstd,
                          std::int64_t rows, std::int64_t all_columns, Starts input_rows, Starts output_rows,
                          float epsilon, float weight_offset, unsigned warps_of_row) {
  const Place place(warps_of_row);
  const std::int64_t columns = place.row < rows ? all_columns : 0;
  const RowPacks<S, width, held> x(input + input_rows.of(place.row, all_columns), place, columns);
  const float inverse_columns = 1.0F / static_cast<float>(all_columns);
  auto* const shared = shared_memory<float>();
  float centre = 0.0F;
  if (mean != nullptr) {
    float sum[1] = {};
    for_packs<width, held>(place, columns, [&](int number, std::int64_t first, std::int64_t left) {
      float values[width];
      x.get(number, first, left, values);
#pragma unroll
      for (int i = 0; i < width; ++i) sum[0] += values[i];
    });
    sum_row(sum, place, shared);
    centre = sum[0] * inverse_columns;
  }
  float squares[1] = {};
  for_packs<width, held>(place, columns, [&](int number, std::int64_t first, std::int64_t left) {
    float values[width];
    x.get(number, first, left, values);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float apart = i < left ? values[i] - centre : 0.0F;
      squares[0] += apart * apart;
    }
  });
  sum_row(squares, place, shared + blockDim.x / warp_lanes);
  const float inverse = 1.0F / sqrtf(squares[0] * inverse_columns + epsilon);
  for_packs<width, held>(place, columns, [&](int number, std::int64_t first, std::int64_t left) {
    float values[width];
    float scale[width];
    float offset[width] = {};
    x.get(number, first, left, values);
    load(weight + first, left, scale);
    if (bias != nullptr) load(bias + first, left, offset);
#pragma unroll
    for (int i = 0; i < width; ++i) values[i] = (values[i] - centre) * inverse * (scale[i] + weight_offset) + offset[i];
    store(output + output_rows.of(place.row, all_columns) + first, left, values);
  });
  if (place.lane != 0 || place.row >= rows) return;
  if (mean != nullptr) mean[place.row] = centre;
  rstd[place.row] = inverse;
}

template <class S>
struct BackwardRows {
  const S* d_output;
  const S* input;
  const S* weight;
  const float* mean;  // null for an RMS norm
  const float* rstd;
  const S* addend;  // or null
  S* d_input;
  std::int64_t rows, columns;
  float weight_offset;
  Starts d_output_rows, input_rows, d_input_rows;
};

// With x̂ = (x - mean) · rstd and g = d_output · weight: d_input = rstd · (g - mean(g) - x̂ · mean(g · x̂)), without
// mean(g) for an RMS norm.
template <class S, int width, int held>
__global__ void normalise_backward(const BackwardRows<S> op, unsigned warps_of_row) {
  const Place place(warps_of_row);
  const bool is_row = place.row < op.rows;
  const std::int64_t columns = is_row ? op.columns : 0;
  RowPacks<S, width, held> input(op.input + op.input_rows.of(place.row, op.columns), place, columns);
  RowPacks<S, width, held> d_output(op.d_output + op.d_output_rows.of(place.row, op.columns), place, columns);
  const RowPacks<S, width, held> addend(op.addend != nullptr ? op.addend + place.row * op.columns : nullptr, place,
                                        op.addend != nullptr ? columns : 0);
  const float centre = is_row && op.mean != nullptr ? op.mean[place.row] : 0.0F;
  const float inverse = is_row ? op.rstd[place.row] : 0.0F;
  const auto get_pack = [&](int number, std::int64_t first, std::int64_t left, float(&x)[width], float(&g)[width]) {
    float scale[width];
    input.get(number, first, left, x);
    d_output.get(number, first, left, g);
    load(op.weight + first, left, scale);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      x[i] = (x[i] - centre) * inverse;
      g[i] *= scale[i] + op.weight_offset;  // zero beyond the row
    }
  };
  float sums[2] = {};  // of g, and of g · x̂
  for_packs<width, held>(place, columns, [&](int number, std::int64_t first, std::int64_t left) {
    float x[width];
    float g[width];
    get_pack(number, first, left, x, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      sums[0] += g[i];
      sums[1] += g[i] * x[i];
    }
  });
  sum_row(sums, place, shared_memory<float>());
  input.keep_packed();
  d_output.keep_packed();
  const float inverse_columns = 1.0F / static_cast<float>(op.columns);
  const float mean_of_g = op.mean != nullptr ? sums[0] * inverse_columns : 0.0F;
  const float mean_of_products = sums[1] * inverse_columns;
  for_packs<width, held>(place, columns, [&](int number, std::int64_t first, std::int64_t left) {
    float x[width];
    float g[width];
    float added[width] = {};
    get_pack(number, first, left, x, g);
    if (op.addend != nullptr) addend.get(number, first, left, added);
#pragma unroll
    for (int i = 0; i < width; ++i) g[i] = inverse * (g[i] - mean_of_g - x[i] * mean_of_products) + added[i];
    store(op.d_input + op.d_input_rows.of(place.row, op.columns) + first, left, g);
  });
}

constexpr int rows_of_block = threads_of_block / warp_lanes;
// Of a lane, where rows lie in packs: enough for a warp to read whole cache lines of halves, few enough that the blocks
// of rows of usual widths fill a GPU.
constexpr int columns_at_once = 2;

// A warp's lanes have neighbouring columns, `width` each, a block's warps every eighth row of its part of the rows.
// partial: [parts, 2, columns].
template <class S, int width>
__global__ void sum_rows(const S* d_output, const S* input, const float* mean, const float* rstd, std::int64_t rows,
                         std::int64_t columns, Starts d_output_rows, Starts input_rows, std::int64_t rows_of_part,
                         float* partial) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * warp_lanes + threadIdx.x % warp_lanes) * width;
  const std::int64_t begin = blockIdx.y * rows_of_part;
  const std::int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  float of_weight[width] = {};
  float of_bias[width] = {};
  if (column < columns) {
    // So many rows, all of which are read before any is added.
    const auto add_rows = [&](std::int64_t row, auto rows_at_once) {
      constexpr int count = decltype(rows_at_once)::value;
      Pack<S, width> d[count];
      Pack<S, width> x[count];
      float centre[count];
      float inverse[count];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const std::int64_t at = row + i * rows_of_block;
        d[i] = *reinterpret_cast<const Pack<S, width>*>(d_output + d_output_rows.of(at, columns) + column);
        x[i] = *reinterpret_cast<const Pack<S, width>*>(input + input_rows.of(at, columns) + column);
        centre[i] = mean != nullptr ? mean[at] : 0.0F;
        inverse[i] = rstd[at];
      }
#pragma unroll
      for (int i = 0; i < count; ++i)
#pragma unroll
        for (int j = 0; j < width; ++j) {
          const float of_output = to_float(d[i].values[j]);
          of_weight[j] += of_output * ((to_float(x[i].values[j]) - centre[i]) * inverse[i]);
          of_bias[j] += of_output;
        }
    };
    constexpr int at_once = 4;
    std::int64_t row = begin + threadIdx.x / warp_lanes;
    for (; row + (at_once - 1) * rows_of_block < end; row += at_once * rows_of_block)
      add_rows(row, std::integral_constant<int, at_once>());
    for (; row < end; row += rows_of_block) add_rows(row, std::integral_constant<int, 1>());
  }
  auto* const shared = shared_memory<float>();  // [width, 2, threads]
#pragma unroll
  for (int i = 0; i < width; ++i) {
    shared[(i * 2 + 0) * threads_of_block + threadIdx.x] = of_weight[i];
    shared[(i * 2 + 1) * threads_of_block + threadIdx.x] = of_bias[i];
  }
  __syncthreads();
  if (threadIdx.x >= warp_lanes || column >= columns) return;
#pragma unroll
  for (int i = 0; i < width; ++i) {
    for (unsigned warp = 1; warp < rows_of_block; ++warp) {
      of_weight[i] += shared[(i * 2 + 0) * threads_of_block + warp * warp_lanes + threadIdx.x];
      of_bias[i] += shared[(i * 2 + 1) * threads_of_block + warp * warp_lanes + threadIdx.x];
    }
  }
  store(partial + (blockIdx.y * 2 + 0) * columns + column, width, of_weight);
  store(partial + (blockIdx.y * 2 + 1) * columns + column, width, of_bias);
}

// body(elements of a pack, packs that a lane holds, both as constants; warps of a row).
template <class S, class Body>
void with_row_shape(bool fits, std::int64_t columns, Body&& body) {
  with_width<S>(fits, [&](auto width) {
    const auto of_lane = [&](unsigned warps) { return ceil_div(columns, std::int64_t{width} * warp_lanes * warps); };
    unsigned warps = 1;
    while (warps < most_warps_of_row && of_lane(warps) > most_held) warps *= 2;
    if constexpr (width == pack_elements<S>) {
      if (of_lane(warps) < most_held) return body(width, std::integral_constant<int, most_held - 1>(), warps);
      if (of_lane(warps) == most_held) return body(width, std::integral_constant<int, most_held>(), warps);
    }
    body(width, std::integral_constant<int, 0>(), warps);
  });
}

// A number for each warp of up to two sums.
LaunchShape row_blocks(std::int64_t rows, unsigned warps_of_row) {
  const unsigned warps = std::max(least_warps_of_block, warps_of_row);
  return {blocks_for(rows, warps / warps_of_row), warps * warp_lanes, 2 * warps * sizeof(float)};
}

}  // namespace

template <class S>
void compute(const Issue& issue, const NormForward& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  if (rows == 0) return;
  const auto* input = address<S>(op.input);
  const auto* weight = address<S>(op.weight);
  const auto* bias = address<S>(op.bias);
  auto* output = address<S>(op.output);
  auto* mean = op.type == NormType::layernorm ? address<float>(op.mean) : nullptr;
  const bool fits = fits_packs<S>(columns, input, weight, bias, output) && fits_rows<S>(op.input_rows) &&
                    fits_rows<S>(op.output_rows);
  with_row_shape<S>(fits, columns, [&](auto width, auto held, unsigned warps) {
    launch(issue.stream, row_blocks(rows, warps), normalise<S, width, held>, input, weight, bias, output, mean,
           address<float>(op.rstd), rows, columns, Starts(op.input_rows), Starts(op.output_rows),
           static_cast<float>(op.epsilon), static_cast<float>(op.weight_offset), warps);
  });
}

template <class S>
void compute(const Issue& issue, const NormBackwardInput& op) {
  const BackwardRows<S> rows = {.d_output = address<S>(op.d_output),
                                .input = address<S>(op.input),
                                .weight = address<S>(op.weight),
                                .mean = op.type == NormType::layernorm ? address<float>(op.mean) : nullptr,
                                .rstd = address<float>(op.rstd),
                                .addend = address<S>(op.addend),
                                .d_input = address<S>(op.d_input),
                                .rows = op.input.shape()[0],
                                .columns = op.input.shape()[1],
                                .weight_offset = static_cast<float>(op.weight_offset),
                                .d_output_rows = Starts(op.d_output_rows),
                                .input_rows = Starts(op.input_rows),
                                .d_input_rows = Starts(op.d_input_rows)};
  if (rows.rows == 0) return;
  const bool fits = fits_packs<S>(rows.columns, rows.d_output, rows.input, rows.weight, rows.addend, rows.d_input) &&
                    fits_rows<S>(op.d_output_rows) && fits_rows<S>(op.input_rows) && fits_rows<S>(op.d_input_rows);
  with_row_shape<S>(fits, rows.columns, [&](auto width, auto held, unsigned warps) {
    launch(issue.stream, row_blocks(rows.rows, warps), normalise_backward<S, width, held>, rows, warps);
  });
}

template <class S>
void compute(const Issue& issue, const NormBackwardWeight& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  if (rows == 0) return;
  auto* partial = reinterpret_cast<float*>(issue.workspace);
  const RowParts parts = row_parts(rows, columns, 2);
  const auto* d_output = address<S>(op.d_output);
  const auto* input = address<S>(op.input);
  const auto* mean = op.type == NormType::layernorm ? address<float>(op.mean) : nullptr;
  const auto issue_sums = [&](auto width) {
    const dim3 blocks(blocks_for(columns, width * warp_lanes).x, narrow<unsigned>(parts.count));
    launch(issue.stream, {blocks, threads_of_block, 2 * width * threads_of_block * sizeof(float)}, sum_rows<S, width>,
           d_output, input, mean, address<float>(op.rstd), rows, columns, Starts(op.d_output_rows),
           Starts(op.input_rows), parts.rows, partial);
  };
  if (fits_packs<S>(columns, d_output, input) && fits_rows<S>(op.d_output_rows) && fits_rows<S>(op.input_rows))
    issue_sums(std::integral_constant<int, columns_at_once>());
  else
    issue_sums(std::integral_constant<int, 1>());
  issue_add_parts(issue, partial, parts, 2, columns, address<float>(op.d_weight), address<float>(op.d_bias));
}

SCALETRAIN_FOR_COMPUTE_TYPES(NormForward)
SCALETRAIN_FOR_COMPUTE_TYPES(NormBackwardInput)
SCALETRAIN_FOR_COMPUTE_TYPES(NormBackwardWeight)

}  // namespace scaletrain::cuda
