// Layer norm and RMS norm. One warp has a row, or a part of a warp where the row is short, or several warps where it is
// long: so many lanes that all of it is in their registers at once, and is read once. Longer rows, and those that do
// not lie in packs, are read again from the caches.
#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/row_parts.h"
#include "backend/cuda/kernels/sums.h"

namespace scaletrain::cuda {

namespace {

// Blocks are small, since what their rows hold fills a multiprocessor's registers with few of them.
constexpr unsigned least_threads_of_block = 4 * warp_lanes;
constexpr unsigned most_warps_of_row = 8;
// Packs of each operand that a lane holds: more would leave too few warps beside each other.
constexpr int most_held = 4;

// Which part of which row this thread has, of those that neighbouring threads of a block share: a power of two of them,
// whole warps or a part of one.
struct Place {
  std::int64_t row;
  int lane, lanes;

  __device__ explicit Place(unsigned bits_of_lanes)
      : row((static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) >> bits_of_lanes),
        lane(static_cast<int>(threadIdx.x & ((1U << bits_of_lanes) - 1))),
        lanes(static_cast<int>(1U << bits_of_lanes)) {}
};

// Division by a number that the launch knows, of numbers below 2^31: a product and a shift, where the instruction set's
// own division takes some hundred instructions (Granlund and Montgomery 1994).
class Divisor {
 public:
  explicit Divisor(std::int64_t number)
      : shift_(31 + static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(number) - 1))),
        factor_(((std::uint64_t{1} << shift_) + static_cast<std::uint64_t>(number) - 1) /
                static_cast<std::uint64_t>(number)) {}
  __device__ std::uint32_t quotient(std::uint32_t value) const {
    return static_cast<std::uint32_t>(value * factor_ >> shift_);
  }

 private:
  unsigned shift_;
  std::uint64_t factor_;  // at most 2^32
};

// Where rows start: one after another, or `heads` at a time, `stride` apart.
class Starts {
 public:
  Starts(const RowLayout& layout, std::int64_t rows)
      : heads_(layout.heads == 0 ? 0 : narrow<std::uint32_t>(layout.heads)),
        stride_(layout.stride),
        by_heads_(std::max<std::int64_t>(1, layout.heads)) {
    if (layout.heads != 0) SCALETRAIN_CHECK_LT(rows, std::int64_t{1} << 31);
  }
  __device__ std::int64_t of(std::int64_t row, std::int64_t columns) const {
    if (heads_ == 0) return row * columns;
    const auto number = static_cast<std::uint32_t>(row);
    const std::uint32_t token = by_heads_.quotient(number);
    return token * stride_ + (number - token * heads_) * columns;
  }

 private:
  std::uint32_t heads_;
  std::int64_t stride_;
  Divisor by_heads_;
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
  for (int apart = warp_lanes / 2; apart > 0; apart /= 2) {
    if (apart >= place.lanes) continue;
#pragma unroll
    for (float& sum : sums) sum += __shfl_xor_sync(all_lanes, sum, apart);
  }
  if (place.lanes <= static_cast<int>(warp_lanes)) return;
  const unsigned warp = threadIdx.x / warp_lanes;
  if (threadIdx.x % warp_lanes == 0) {
#pragma unroll
    for (int i = 0; i < count; ++i) shared[warp * count + i] = sums[i];
  }
  __syncthreads();
  const unsigned warps = static_cast<unsigned>(place.lanes) / warp_lanes;
  const float* const of_row = shared + warp / warps * warps * count;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    sums[i] = 0.0F;
    for (unsigned other = 0; other < warps; ++other) sums[i] += of_row[other * count + i];
  }
}

// mean is null for an RMS norm. `scale` may be the weight alone.
template <class S, int width, int held>
__global__ void normalise(const S* input, const S* weight, const S* bias, S* output, float* mean, float* rstd,
                          std::int64_t rows, std::int64_t all_columns, Starts input_rows, Starts output_rows,
                          float epsilon, float weight_offset, unsigned bits_of_lanes) {
  const Place place(bits_of_lanes);
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
__global__ void normalise_backward(const BackwardRows<S> op, unsigned bits_of_lanes) {
  const Place place(bits_of_lanes);
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

// Neighbouring threads have neighbouring packs of a row, as many as a warp has or as the row, a power of two; the
// others of the block have them of other rows of its part. partial: [parts, sums, columns], a bias's sums last, if any.
template <class S, int width, bool has_bias>
__global__ void sum_rows(const S* d_output, const S* input, const float* mean, const float* rstd, std::int64_t rows,
                         std::int64_t columns, Starts d_output_rows, Starts input_rows, std::int64_t rows_of_part,
                         unsigned bits_of_lanes, float* partial) {
  const unsigned lanes = 1U << bits_of_lanes;
  const unsigned row_of_thread = threadIdx.x >> bits_of_lanes;
  const unsigned rows_at_once = blockDim.x >> bits_of_lanes;
  const std::int64_t first_column = (static_cast<std::int64_t>(blockIdx.x) << bits_of_lanes) * width;
  const std::int64_t column = first_column + (threadIdx.x & (lanes - 1)) * width;
  const std::int64_t begin = blockIdx.y * rows_of_part;
  const std::int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  float of_weight[width] = {};
  float of_bias[width] = {};
  if (column < columns) {
    // So many rows, all of which are read before any is added.
    const auto add_rows = [&](std::int64_t row, auto rows_of_thread) {
      constexpr int count = decltype(rows_of_thread)::value;
      Pack<S, width> d[count];
      Pack<S, width> x[count];
      float centre[count];
      float inverse[count];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const std::int64_t at = row + i * rows_at_once;
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
          if constexpr (has_bias) of_bias[j] += of_output;
        }
    };
    constexpr int of_thread = 4;
    std::int64_t row = begin + row_of_thread;
    for (; row + (of_thread - 1) * rows_at_once < end; row += of_thread * rows_at_once)
      add_rows(row, std::integral_constant<int, of_thread>());
    for (; row < end; row += rows_at_once) add_rows(row, std::integral_constant<int, 1>());
  }
  constexpr unsigned sums = has_bias ? 2 : 1;
  const unsigned columns_of_block = lanes * width;
  auto* const shared = shared_memory<float>();  // [rows at once, sums, columns of the block]
  float* const own = shared + row_of_thread * sums * columns_of_block + (threadIdx.x & (lanes - 1)) * width;
  store(own, width, of_weight);
  if constexpr (has_bias) store(own + columns_of_block, width, of_bias);
  __syncthreads();
  for (unsigned place = threadIdx.x; place < sums * columns_of_block; place += blockDim.x) {
    const unsigned sum = place / columns_of_block;
    const std::int64_t to = first_column + (place - sum * columns_of_block);
    if (to >= columns) continue;
    float total = 0.0F;
    for (unsigned other = 0; other < rows_at_once; ++other) total += shared[other * sums * columns_of_block + place];
    partial[(blockIdx.y * sums + sum) * columns + to] = total;
  }
}

unsigned bits_of(std::int64_t lanes) {
  return static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(lanes) - 1));
}

// body(elements of a pack, packs that a lane holds, both as constants; lanes of a row, as the power of two).
template <class S, class Body>
void with_row_shape(bool fits, std::int64_t columns, Body&& body) {
  with_width<S>(fits, [&](auto width) {
    constexpr unsigned bits_of_warp = 5;
    const std::int64_t packs = ceil_div(columns, std::int64_t{width});
    const auto of_lane = [&](unsigned warps) { return ceil_div(packs, std::int64_t{warp_lanes} * warps); };
    unsigned warps = 1;
    while (warps < most_warps_of_row && of_lane(warps) > most_held) warps *= 2;
    const unsigned bits = bits_of_warp + bits_of(warps);
    if constexpr (width == pack_elements<S>) {
      if (packs <= std::int64_t{warp_lanes}) return body(width, std::integral_constant<int, 1>(), bits_of(packs));
      if (of_lane(warps) < most_held) return body(width, std::integral_constant<int, most_held - 1>(), bits);
      if (of_lane(warps) == most_held) return body(width, std::integral_constant<int, most_held>(), bits);
    }
    body(width, std::integral_constant<int, 0>(), bits);
  });
}

// A number for each warp of up to two sums.
LaunchShape row_blocks(std::int64_t rows, unsigned bits_of_lanes) {
  const unsigned threads = std::max(least_threads_of_block, 1U << bits_of_lanes);
  return {blocks_for(rows, threads >> bits_of_lanes), threads, 2 * (threads / warp_lanes) * sizeof(float)};
}

// Where rows are so short that few blocks have all columns, more parts fill the GPU.
RowParts parts_of_sums(std::int64_t rows, std::int64_t columns, std::int64_t sums, std::int64_t blocks_of_row) {
  constexpr std::int64_t least_blocks_of_row = 4;
  return row_parts(rows, columns, sums, max_row_parts * std::max<std::int64_t>(1, least_blocks_of_row / blocks_of_row));
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
  with_row_shape<S>(fits, columns, [&](auto width, auto held, unsigned bits_of_lanes) {
    launch(issue.stream, row_blocks(rows, bits_of_lanes), normalise<S, width, held>, input, weight, bias, output, mean,
           address<float>(op.rstd), rows, columns, Starts(op.input_rows, rows), Starts(op.output_rows, rows),
           static_cast<float>(op.epsilon), static_cast<float>(op.weight_offset), bits_of_lanes);
  });
}

template <class S>
void compute(const Issue& issue, const NormBackwardInput& op) {
  const std::int64_t num_rows = op.input.shape()[0];
  const BackwardRows<S> rows = {.d_output = address<S>(op.d_output),
                                .input = address<S>(op.input),
                                .weight = address<S>(op.weight),
                                .mean = op.type == NormType::layernorm ? address<float>(op.mean) : nullptr,
                                .rstd = address<float>(op.rstd),
                                .addend = address<S>(op.addend),
                                .d_input = address<S>(op.d_input),
                                .rows = num_rows,
                                .columns = op.input.shape()[1],
                                .weight_offset = static_cast<float>(op.weight_offset),
                                .d_output_rows = Starts(op.d_output_rows, num_rows),
                                .input_rows = Starts(op.input_rows, num_rows),
                                .d_input_rows = Starts(op.d_input_rows, num_rows)};
  if (num_rows == 0) return;
  const bool fits = fits_packs<S>(rows.columns, rows.d_output, rows.input, rows.weight, rows.addend, rows.d_input) &&
                    fits_rows<S>(op.d_output_rows) && fits_rows<S>(op.input_rows) && fits_rows<S>(op.d_input_rows);
  with_row_shape<S>(fits, rows.columns, [&](auto width, auto held, unsigned bits_of_lanes) {
    launch(issue.stream, row_blocks(num_rows, bits_of_lanes), normalise_backward<S, width, held>, rows, bits_of_lanes);
  });
}

template <class S>
void compute(const Issue& issue, const NormBackwardWeight& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  if (rows == 0) return;
  auto* partial = reinterpret_cast<float*>(issue.workspace);
  const auto* d_output = address<S>(op.d_output);
  const auto* input = address<S>(op.input);
  const auto* mean = op.type == NormType::layernorm ? address<float>(op.mean) : nullptr;
  auto* d_bias = address<float>(op.d_bias);
  const bool fits =
      fits_packs<S>(columns, d_output, input) && fits_rows<S>(op.d_output_rows) && fits_rows<S>(op.input_rows);
  with_width<S>(fits, [&](auto width) {
    const std::int64_t packs = ceil_div(columns, std::int64_t{width});
    const unsigned bits_of_lanes = bits_of(std::min(packs, std::int64_t{warp_lanes}));
    const dim3 of_row = blocks_for(packs, std::int64_t{1} << bits_of_lanes);
    const auto issue_sums = [&](auto has_bias) {
      constexpr int sums = has_bias ? 2 : 1;
      const RowParts parts = parts_of_sums(rows, columns, sums, of_row.x);
      const std::size_t floats = sums * width * threads_of_block;
      launch(issue.stream, {dim3(of_row.x, narrow<unsigned>(parts.count)), threads_of_block, floats * sizeof(float)},
             sum_rows<S, width, has_bias>, d_output, input, mean, address<float>(op.rstd), rows, columns,
             Starts(op.d_output_rows, rows), Starts(op.input_rows, rows), parts.rows, bits_of_lanes, partial);
      issue_add_parts(issue, partial, parts, sums, columns, address<float>(op.d_weight), d_bias);
    };
    if (d_bias != nullptr)
      issue_sums(std::true_type());
    else
      issue_sums(std::false_type());
  });
}

SCALETRAIN_FOR_COMPUTE_TYPES(NormForward)
SCALETRAIN_FOR_COMPUTE_TYPES(NormBackwardInput)
SCALETRAIN_FOR_COMPUTE_TYPES(NormBackwardWeight)

}  // namespace scaletrain::cuda
