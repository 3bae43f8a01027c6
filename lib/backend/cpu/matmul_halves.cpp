// The linear map of halves: activations and weights of 16 bits, sums and gradients of weights in f32.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backend/cpu/linear_tiles.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/tile_grid.h"
#include "backend/cpu/weight_gradient.h"
#include "base/error.h"
#include "tensor/buffer.h"

namespace scaletrain::cpu {

namespace {

// --- tiles multiplied as floats ---

constexpr TileLimits wide_tiles{max_wide_rows, max_wide_columns, 8, 48};
constexpr std::size_t wide_sums_bytes = static_cast<std::size_t>(max_wide_rows * max_wide_columns) * sizeof(float);
static_assert(wide_scratch_bytes + wide_sums_bytes <= half_scratch_bytes);

// --- tiles of bf16 ---

// How a map is cut. A tile's part of a (512 KiB at most) and what a panel of b is multiplied into stay in the
// second-level cache. Where rows of a are packed, a tile has many columns, so that it pays; their sums wait in groups
// for the next part of k.
struct MapCut {
  TileLimits limits;
  std::int64_t group_columns;  // multiplied at a time
  std::int64_t sums_stride;    // of a group: more than its columns where rows of sums would share sets of a cache
};
constexpr MapCut cut_as_it_lies{{240, 256, 6, panel_columns}, 256, 256};
constexpr MapCut cut_packed{{256, 1024, 32, panel_columns}, 128, 144};
constexpr std::int64_t longest_k = 1024;
constexpr std::int64_t k_step = 32;  // AMX: what is summed at a time

constexpr std::size_t packed_a_bytes = std::size_t{1} << 19;
constexpr std::size_t packed_b_bytes = std::size_t{1} << 19;
constexpr bool fits(const MapCut& cut) {
  const std::int64_t groups = (cut.limits.columns + cut.group_columns - 1) / cut.group_columns;
  return static_cast<std::size_t>(cut.limits.rows * longest_k) * sizeof(Bf16) <= packed_a_bytes &&
         static_cast<std::size_t>(cut.group_columns * longest_k) * sizeof(Bf16) <= packed_b_bytes &&
         packed_a_bytes + packed_b_bytes +
                 static_cast<std::size_t>(groups * cut.limits.rows * cut.sums_stride) * sizeof(float) <=
             half_scratch_bytes &&
         cut.limits.columns % panel_columns == 0 && cut.group_columns % panel_columns == 0;
}
static_assert(fits(cut_as_it_lies) && fits(cut_packed) && longest_k % k_step == 0);
static_assert(cut_as_it_lies.limits.rows % panel_block_rows == 0);

const MapCut& cut_of(const PanelKernels<Bf16>& kernels) {
  return kernels.pack_a_rows != nullptr ? cut_packed : cut_as_it_lies;
}

// Sums of whole k do not wait: a tile has as many columns as there are then, unless they are read again while they are
// in the cache.
constexpr std::int64_t widest_tile = 4096;
TileLimits tiles_of(const PanelKernels<Bf16>& kernels, std::int64_t k, bool is_read_again) {
  TileLimits limits = cut_of(kernels).limits;
  if (kernels.pack_a_rows != nullptr && k <= longest_k && !is_read_again) limits.columns = widest_tile;
  return limits;
}

constexpr std::int64_t even(std::int64_t k) {
  return (k + 1) / 2 * 2;
}
constexpr std::int64_t panel_bytes(std::int64_t k) {
  return panel_columns * even(k) * static_cast<std::int64_t>(sizeof(Bf16));
}

// The scratch of one thread, by name.
struct Bf16Scratch {
  explicit Bf16Scratch(std::byte* memory)
      : a(reinterpret_cast<Bf16*>(memory)),
        b(reinterpret_cast<Bf16*>(memory + packed_a_bytes)),
        sums(reinterpret_cast<float*>(memory + packed_a_bytes + packed_b_bytes)) {}

  Bf16* a;
  Bf16* b;
  float* sums;
};

// What products and addends are multiplied by.
struct ProductFactors {
  float product = 1.0F;
  float addend = 1.0F;
};

// A tile of a · b + bias + addend, multiplied as floats; the operands are those of its rows and columns.
template <class S>
void multiply_wide_tile(const Engine<S>& engine, int worker, const Tile& tile, std::int64_t k, const MatrixOf<S>& a,
                        const MatrixOf<S>& b, const S* bias, RowsOf<const S> addend, RowsOf<S> output,
                        ProductFactors factors = {}) {
  std::byte* const scratch = engine.scratch_of(worker);
  auto* const sums = reinterpret_cast<float*>(scratch + wide_scratch_bytes);
  wide_product<S, S>(engine.typed, scratch,
                     {.m = tile.rows,
                      .n = tile.columns,
                      .k = k,
                      .alpha = factors.product,
                      .a = a,
                      .b = b,
                      .c = sums,
                      .c_stride = tile.columns});
  engine.typed.finish_rows({sums, tile.columns}, bias, addend, factors.addend, output,
                           static_cast<std::size_t>(tile.rows), static_cast<std::size_t>(tile.columns));
}

// output[N,columns] = rows[N,k] · weight: what the forward, the gradient of the input and products of any matrices have
// in common. The weight is panels of its columns, or lies as [columns][k] (the forward's) or [k][columns].
struct Bf16Linear {
  const Bf16* rows;
  std::int64_t num_rows, k, columns;
  const Bf16* panels;  // or null
  const Bf16* weight;
  bool weight_has_rows_of_k;
  const Bf16* bias;
  const Bf16* addend;
  Bf16* output;
  bool rows_lie_by_k = false;  // as [k][N]
  ProductFactors factors{};
};

// Elements [k, k + count) of the tile's rows of a: packed, as they lie or, of an odd length, with a zero after the
// last.
void place_a(PanelTile<Bf16>& part, const PanelKernels<Bf16>& kernels, const Bf16Linear& p, const Tile& tile,
             std::int64_t k, std::int64_t count, Bf16* copy) {
  if (p.rows_lie_by_k) {
    place_packed_a(part, kernels, copy, even(count) / 2);
    kernels.pack_a(p.rows + k * p.num_rows + tile.row, p.num_rows, part.rows, static_cast<std::size_t>(count), copy,
                   part.a_block_bytes);
    return;
  }
  const Bf16* data = p.rows + tile.row * p.k + k;
  std::int64_t stride = p.k;
  if (kernels.pack_a_rows != nullptr) {
    place_packed_a(part, kernels, copy, even(count) / 2);
    kernels.pack_a_rows(data, stride, part.rows, static_cast<std::size_t>(count), copy, part.a_block_bytes);
    return;
  }
  if (count % 2 != 0) {
    stride = even(count);
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      std::memcpy(copy + row * stride, data + row * p.k, static_cast<std::size_t>(count) * sizeof(Bf16));
      copy[row * stride + count].bits = 0;
    }
    data = copy;
  }
  part.a = data;
  part.a_row_bytes = stride * static_cast<std::int64_t>(sizeof(Bf16));
  part.a_block_bytes = panel_block_rows * part.a_row_bytes;
  part.a_word_bytes = 2 * sizeof(Bf16);
}

// Of part.columns from `column` on.
void place_b(PanelTile<Bf16>& part, const PanelKernels<Bf16>& kernels, const Bf16Linear& p, std::int64_t column,
             std::int64_t k, std::int64_t count, Bf16* copy) {
  if (p.panels != nullptr) {
    part.b_panel_bytes = panel_bytes(p.k);
    part.b = p.panels + column * even(p.k) + k * panel_columns;
    return;
  }
  part.b = copy;
  part.b_panel_bytes = panel_bytes(count);
  if (p.weight_has_rows_of_k)
    kernels.pack_columns(p.weight + column * p.k + k, p.k, part.columns, static_cast<std::size_t>(count), copy,
                         part.b_panel_bytes);
  else
    kernels.pack_rows(p.weight + k * p.columns + column, p.columns, part.columns, static_cast<std::size_t>(count), copy,
                      part.b_panel_bytes);
}

// Parts of k are alike, so that none is too short to pay. An addend with a factor is added to sums that the last part
// leaves.
void multiply_tile(const Engine<Bf16>& engine, const Bf16Linear& p, const Tile& tile, const Bf16Scratch& scratch) {
  const PanelKernels<Bf16>& kernels = *engine.panels;
  const bool is_finished_apart = p.addend != nullptr && p.factors.addend != 1.0F;
  const MapCut& cut = cut_of(kernels);
  const std::int64_t parts = std::max<std::int64_t>(1, (p.k + longest_k - 1) / longest_k);
  const std::int64_t part_k = ((p.k + parts - 1) / parts + k_step - 1) / k_step * k_step;
  std::int64_t k = 0;
  do {  // once at least: an empty sum is zero
    const std::int64_t count = std::min(part_k, p.k - k);
    const bool last = k + count == p.k;
    PanelTile<Bf16> part{.rows = static_cast<std::size_t>(tile.rows),
                         .words = static_cast<std::size_t>(even(count) / 2),
                         .begins = k == 0 ? 1 : 0,
                         .alpha = last ? p.factors.product : 1.0F,
                         .sums_stride = cut.sums_stride,
                         .output_stride = p.columns,
                         .addend_stride = p.columns};
    place_a(part, kernels, p, tile, k, count, scratch.a);
    float* sums = scratch.sums;
    for (std::int64_t begin = 0; begin < tile.columns; begin += cut.group_columns) {
      const std::int64_t column = tile.column + begin;
      const std::int64_t at = tile.row * p.columns + column;
      part.columns = static_cast<std::size_t>(std::min(cut.group_columns, tile.columns - begin));
      part.sums = sums;
      part.output = last && !is_finished_apart ? p.output + at : nullptr;
      part.bias = p.bias != nullptr ? p.bias + column : nullptr;
      part.addend = p.addend != nullptr ? p.addend + at : nullptr;
      place_b(part, kernels, p, column, k, count, scratch.b);
      kernels.product(part);
      if (last && is_finished_apart)
        engine.typed.finish_rows({sums, cut.sums_stride}, nullptr, {p.addend + at, p.columns}, p.factors.addend,
                                 {p.output + at, p.columns}, part.rows, part.columns);
      if (parts > 1) sums += tile.rows * cut.sums_stride;
    }
    k += part_k;
  } while (k < p.k);
}

const PackedBf16* packed_of(const Weight& weight) {
  if (weight.packed == nullptr) return nullptr;
  const auto* packed = dynamic_cast<const PackedBf16*>(weight.packed);
  SCALETRAIN_CHECK(packed != nullptr);
  return packed;
}

// With so few rows the time is that of reading the weight once.
constexpr std::int64_t few_rows = 4;
constexpr std::int64_t outputs_at_a_time = 64;

template <class S>
void few_rows_forward(ThreadPool& pool, const TypedKernels<S>& kernels, const LinearForward& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t outputs = op.weight.values.shape()[0];
  pool.for_each((outputs + outputs_at_a_time - 1) / outputs_at_a_time, [&](std::int64_t item, int) {
    const std::int64_t first = item * outputs_at_a_time;
    const auto count = static_cast<std::size_t>(std::min(outputs_at_a_time, outputs - first));
    float products[outputs_at_a_time];
    for (std::int64_t row = 0; row < rows; ++row) {
      kernels.dot_rows(op.input.as<S>() + row * inputs, {op.weight.values.as<S>() + first * inputs, inputs}, count,
                       static_cast<std::size_t>(inputs), 1.0F, products);
      const std::int64_t at = row * outputs + first;
      kernels.finish_rows({products, outputs_at_a_time}, op.bias ? op.bias.as<S>() + first : nullptr,
                          {op.addend ? op.addend.as<S>() + at : nullptr, outputs}, 1.0F,
                          {op.output.as<S>() + at, outputs}, 1, count);
    }
  });
  if (op.activated) activate_tile(kernels, op, {0, 0, rows, op.activated.shape()[1]});
}

template <class S>
constexpr bool is_bf16 = std::is_same_v<S, Bf16>;

}  // namespace

PackedBf16::PackedBf16(const Shape& shape, std::byte* memory)
    : bytes_(bytes(shape)),
      outputs_(reinterpret_cast<Bf16*>(memory)),
      inputs_(outputs_ + static_cast<std::int64_t>(align_up(static_cast<std::size_t>(shape[0]), panel_columns)) *
                             even(shape[1])) {}

std::size_t PackedBf16::bytes(const Shape& shape) {
  SCALETRAIN_CHECK_EQ(shape.num_dims(), 2);
  const auto panels = [](std::int64_t columns, std::int64_t k) {
    return align_up(static_cast<std::size_t>(columns), panel_columns) * static_cast<std::size_t>(even(k)) *
           sizeof(Bf16);
  };
  return panels(shape[0], shape[1]) + panels(shape[1], shape[0]);
}

void pack_weight(ThreadPool& pool, const PanelKernels<Bf16>& kernels, const ConstView& values,
                 const PackedBf16& packed) {
  const std::int64_t outputs = values.shape()[0];
  const std::int64_t inputs = values.shape()[1];
  const auto* weight = values.as<Bf16>();
  const auto panels_of = [](std::int64_t columns) { return (columns + panel_columns - 1) / panel_columns; };
  pool.for_each(panels_of(outputs) + panels_of(inputs), [&](std::int64_t item, int) {
    const bool of_outputs = item < panels_of(outputs);
    const std::int64_t first = (of_outputs ? item : item - panels_of(outputs)) * panel_columns;
    const std::int64_t columns = of_outputs ? outputs : inputs;
    const std::int64_t k = of_outputs ? inputs : outputs;
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(panel_columns, columns - first));
    if (of_outputs)
      kernels.pack_columns(weight + first * inputs, inputs, count, static_cast<std::size_t>(k),
                           packed.outputs() + first * even(k), 0);
    else
      kernels.pack_rows(weight + first, inputs, count, static_cast<std::size_t>(k), packed.inputs() + first * even(k),
                        0);
  });
}

template <class S>
void linear_forward(ThreadPool& pool, const Engine<S>& engine, const LinearForward& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t outputs = op.weight.values.shape()[0];
  if (rows <= few_rows) {
    few_rows_forward(pool, engine.typed, op);
    return;
  }
  const S* bias = op.bias ? op.bias.as<S>() : nullptr;
  const S* addend = op.addend ? op.addend.as<S>() : nullptr;
  if constexpr (is_bf16<S>) {
    if (engine.panels != nullptr) {
      const PackedBf16* packed = packed_of(op.weight);
      const Bf16Linear map{.rows = op.input.as<S>(),
                           .num_rows = rows,
                           .k = inputs,
                           .columns = outputs,
                           .panels = packed != nullptr ? packed->outputs() : nullptr,
                           .weight = op.weight.values.as<S>(),
                           .weight_has_rows_of_k = true,
                           .bias = bias,
                           .addend = addend,
                           .output = op.output.as<S>()};
      for_forward_tiles(pool, engine.typed, op, tiles_of(*engine.panels, inputs, bool(op.activated)), panel_columns,
                        [&](const Tile& tile, int worker) {
                          multiply_tile(engine, map, tile, Bf16Scratch(engine.scratch_of(worker)));
                        });
      return;
    }
  }
  for_forward_tiles(pool, engine.typed, op, wide_tiles, 1, [&](const Tile& tile, int worker) {
    const std::int64_t at = tile.row * outputs + tile.column;
    multiply_wide_tile<S>(engine, worker, tile, inputs, {op.input.as<S>() + tile.row * inputs, inputs},
                          {op.weight.values.as<S>() + tile.column * inputs, inputs, true},
                          bias != nullptr ? bias + tile.column : nullptr,
                          {addend != nullptr ? addend + at : nullptr, outputs}, {op.output.as<S>() + at, outputs});
  });
}

template <class S>
void linear_backward_input(ThreadPool& pool, const Engine<S>& engine, const LinearBackwardInput& op) {
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t outputs = op.d_output.shape()[1];
  const std::int64_t inputs = op.d_input.shape()[1];
  if constexpr (is_bf16<S>) {
    if (engine.panels != nullptr) {
      const PackedBf16* packed = packed_of(op.weight);
      const Bf16Linear map{.rows = op.d_output.as<S>(),
                           .num_rows = rows,
                           .k = outputs,
                           .columns = inputs,
                           .panels = packed != nullptr ? packed->inputs() : nullptr,
                           .weight = op.weight.values.as<S>(),
                           .weight_has_rows_of_k = false,
                           .bias = nullptr,
                           .addend = nullptr,
                           .output = op.d_input.as<S>()};
      const TileGrid grid = make_grid(rows, inputs, pool.size(), tiles_of(*engine.panels, outputs, false));
      pool.for_each(grid.count(), [&](std::int64_t item, int worker) {
        multiply_tile(engine, map, grid.at(item), Bf16Scratch(engine.scratch_of(worker)));
      });
      return;
    }
  }
  const TileGrid grid = make_grid(rows, inputs, pool.size(), wide_tiles);
  pool.for_each(grid.count(), [&](std::int64_t item, int worker) {
    const Tile tile = grid.at(item);
    multiply_wide_tile<S>(engine, worker, tile, outputs, {op.d_output.as<S>() + tile.row * outputs, outputs},
                          {op.weight.values.as<S>() + tile.column, inputs}, nullptr, {nullptr, 0},
                          {op.d_input.as<S>() + tile.row * inputs + tile.column, inputs});
  });
}

template <class S>
void linear_backward_weight(ThreadPool& pool, const Engine<S>& engine, const LinearBackwardWeight& op) {
  if constexpr (is_bf16<S>) {
    if (engine.panels != nullptr) {
      add_weight_gradient(pool, engine, op);
      return;
    }
  }
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t outputs = op.d_output.shape()[1];
  const std::int64_t inputs = op.input.shape()[1];
  if (rows == 0) return;
  const TileGrid grid = make_grid(outputs, inputs, pool.size(), wide_tiles);
  pool.for_each(grid.count(), [&](std::int64_t item, int worker) {
    const Tile tile = grid.at(item);
    wide_product<S, S>(engine.typed, engine.scratch_of(worker),
                       {.m = tile.rows,
                        .n = tile.columns,
                        .k = rows,
                        .a = {op.d_output.as<S>() + tile.row, outputs, true},
                        .b = {op.input.as<S>() + tile.column, inputs},
                        .beta = 1.0F,
                        .c = op.d_weight.as<float>() + tile.row * inputs + tile.column,
                        .c_stride = inputs});
  });
  add_bias_gradient(pool, engine.typed, op);
}

template <class S>
void matrix_product(ThreadPool& pool, const Engine<S>& engine, const MatrixProduct& op) {
  const std::int64_t rows = op.output.shape()[0];
  const std::int64_t columns = op.output.shape()[1];
  const S* addend = op.addend ? op.addend.as<S>() : nullptr;
  const ProductFactors factors{.product = static_cast<float>(op.factor),
                               .addend = static_cast<float>(op.addend_factor)};
  if constexpr (is_bf16<S>) {
    if (engine.panels != nullptr) {
      const Bf16Linear map{.rows = op.a.as<S>(),
                           .num_rows = rows,
                           .k = op.depth(),
                           .columns = columns,
                           .panels = nullptr,
                           .weight = op.b.as<S>(),
                           .weight_has_rows_of_k = op.b_is_transposed,
                           .bias = nullptr,
                           .addend = addend,
                           .output = op.output.as<S>(),
                           .rows_lie_by_k = op.a_is_transposed,
                           .factors = factors};
      const TileGrid grid = make_grid(rows, columns, pool.size(), tiles_of(*engine.panels, op.depth(), false));
      pool.for_each(grid.count(), [&](std::int64_t item, int worker) {
        multiply_tile(engine, map, grid.at(item), Bf16Scratch(engine.scratch_of(worker)));
      });
      return;
    }
  }
  const std::int64_t a_stride = op.a.shape()[1];
  const std::int64_t b_stride = op.b.shape()[1];
  const TileGrid grid = make_grid(rows, columns, pool.size(), wide_tiles);
  pool.for_each(grid.count(), [&](std::int64_t item, int worker) {
    const Tile tile = grid.at(item);
    const std::int64_t at = tile.row * columns + tile.column;
    multiply_wide_tile<S>(
        engine, worker, tile, op.depth(),
        {op.a.as<S>() + tile.row * (op.a_is_transposed ? 1 : a_stride), a_stride, op.a_is_transposed},
        {op.b.as<S>() + tile.column * (op.b_is_transposed ? b_stride : 1), b_stride, op.b_is_transposed}, nullptr,
        {addend != nullptr ? addend + at : nullptr, columns}, {op.output.as<S>() + at, columns}, factors);
  });
}

template void linear_forward(ThreadPool&, const Engine<Bf16>&, const LinearForward&);
template void linear_forward(ThreadPool&, const Engine<F16>&, const LinearForward&);
template void linear_backward_input(ThreadPool&, const Engine<Bf16>&, const LinearBackwardInput&);
template void linear_backward_input(ThreadPool&, const Engine<F16>&, const LinearBackwardInput&);
template void linear_backward_weight(ThreadPool&, const Engine<Bf16>&, const LinearBackwardWeight&);
template void linear_backward_weight(ThreadPool&, const Engine<F16>&, const LinearBackwardWeight&);
template void matrix_product(ThreadPool&, const Engine<Bf16>&, const MatrixProduct&);
template void matrix_product(ThreadPool&, const Engine<F16>&, const MatrixProduct&);

}  // namespace scaletrain::cpu
