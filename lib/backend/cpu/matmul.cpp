#include "backend/cpu/matmul.h"

#include <algorithm>

#include "backend/cpu/linear_panels.h"
#include "backend/cpu/linear_tiles.h"
#include "backend/cpu/sgemm.h"
#include "backend/cpu/tile_grid.h"
#include "backend/cpu/weight_gradient.h"
#include "base/numbers/checked.h"
#include "tensor/buffer.h"

namespace scaletrain::cpu {

namespace {

// Tiles are large enough for a product to run at full speed, and small enough that the bias finds the tile in the cache
// and that a delayed thread leaves little undone. Sums over k are never split: a tile's bits depend on its shape alone.
constexpr std::int64_t max_tile_rows = 512;
constexpr std::int64_t max_tile_columns = 768;
// What oneDNN computes at a time with AVX-512.
constexpr std::int64_t row_step = 8;
constexpr std::int64_t column_step = 48;

constexpr TileLimits float_tiles{max_tile_rows, max_tile_columns, row_step, column_step};

// With so few rows the time is that of reading the weight once: dot products do it without repacking.
constexpr std::int64_t max_dot_rows = 4;
constexpr std::int64_t dot_columns = 64;

void forward_by_dots(ThreadPool& pool, const TypedKernels<float>& kernels, const LinearForward& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t outputs = op.weight.values.shape()[0];
  pool.for_each((outputs + dot_columns - 1) / dot_columns, [&](std::int64_t item, int) {
    const std::int64_t first = item * dot_columns;
    const auto count = static_cast<std::size_t>(std::min(dot_columns, outputs - first));
    float products[dot_columns];
    for (std::int64_t row = 0; row < rows; ++row) {
      kernels.dot_rows(op.input.as<float>() + row * inputs, {op.weight.values.as<float>() + first * inputs, inputs},
                       count, static_cast<std::size_t>(inputs), 1.0F, products);
      float* output = op.output.as<float>() + row * outputs + first;
      if (op.bias) kernels.add(products, op.bias.as<float>() + first, products, count);
      if (op.addend) kernels.add(products, op.addend.as<float>() + row * outputs + first, products, count);
      std::copy_n(products, count, output);
    }
  });
  if (op.activated) activate_tile(kernels, op, {0, 0, rows, op.activated.shape()[1]});
}

// Where there are many more outputs than rows, as in the head, oneDNN is slower (with AVX-512 73 % of what registers
// reach for 160 rows, 87 for thousands): it packs a weight that few rows are multiplied with. Then the rows are packed
// instead, once for all, as panels; the weight is read as it lies, and a tile's outputs, which come with a row for each
// output, are turned.
constexpr std::int64_t fewest_turned_rows = 32;  // with fewer, too few sums at a time hide the latency of a product
constexpr std::int64_t most_turned_rows = 512;
constexpr std::int64_t turned_outputs = 384;  // of a tile
static_assert(turned_outputs % panel_columns == 0);
static_assert(static_cast<std::size_t>((turned_outputs + panel_columns) * most_turned_rows) * sizeof(float) <=
              tile_scratch_bytes<float>());

bool pays_turned(const Engine<float>& engine, const LinearForward& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::size_t packed = align_up(static_cast<std::size_t>(rows), panel_columns) * static_cast<std::size_t>(inputs);
  return engine.panels != nullptr && engine.panels->columns == panel_columns && rows >= fewest_turned_rows &&
         rows <= most_turned_rows && op.output.shape()[1] >= 16 * rows && !op.bias && !op.addend && !op.activated &&
         packed * sizeof(float) <= engine.shared_bytes;
}

void forward_turned(ThreadPool& pool, const Engine<float>& engine, const LinearForward& op) {
  const PanelKernels<float>& kernels = *engine.panels;
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t outputs = op.weight.values.shape()[0];
  const std::int64_t panel_bytes = panel_columns * inputs * static_cast<std::int64_t>(sizeof(float));
  const auto num_rows = static_cast<std::size_t>(rows);
  auto* const panels = reinterpret_cast<float*>(engine.shared);
  pool.for_each(ceil_div(rows, panel_columns), [&](std::int64_t item, int) {
    const std::int64_t first = item * panel_columns;
    kernels.pack_columns(op.input.as<float>() + first * inputs, inputs,
                         static_cast<std::size_t>(std::min<std::int64_t>(panel_columns, rows - first)),
                         static_cast<std::size_t>(inputs), panels + first * inputs, panel_bytes);
  });
  pool.for_each(ceil_div(outputs, turned_outputs), [&](std::int64_t item, int worker) {
    const std::int64_t first = item * turned_outputs;
    const std::int64_t count = std::min(turned_outputs, outputs - first);
    auto* const sums = reinterpret_cast<float*>(engine.scratch_of(worker));
    float* const turned = sums + turned_outputs * rows;  // [rows][64]
    const std::int64_t row_bytes = inputs * static_cast<std::int64_t>(sizeof(float));
    kernels.product({.a = op.weight.values.as<float>() + first * inputs,
                     .a_block_bytes = panel_block_rows * row_bytes,
                     .a_row_bytes = row_bytes,
                     .a_word_bytes = sizeof(float),
                     .b = panels,
                     .b_panel_bytes = panel_bytes,
                     .rows = static_cast<std::size_t>(count),
                     .columns = num_rows,
                     .words = static_cast<std::size_t>(inputs),
                     .begins = 1,
                     .sums = sums,
                     .sums_stride = rows});
    for (std::int64_t column = 0; column < count; column += panel_columns) {
      const auto columns = static_cast<std::size_t>(std::min<std::int64_t>(panel_columns, count - column));
      kernels.pack_columns(sums + column * rows, rows, columns, num_rows, turned, 0);
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(turned + row * panel_columns, columns, op.output.as<float>() + row * outputs + first + column);
    }
  });
}

PanelProduct product_of(const LinearForward& op, bool adds) {
  return {.rows = op.input.as<float>(),
          .num_rows = op.input.shape()[0],
          .k = op.input.shape()[1],
          .columns = op.output.shape()[1],
          .weight = op.weight.values.as<float>(),
          .weight_has_rows_of_k = true,
          .adds = adds,
          .output = op.output.as<float>()};
}

PanelProduct product_of(const LinearBackwardInput& op) {
  return {.rows = op.d_output.as<float>(),
          .num_rows = op.d_output.shape()[0],
          .k = op.d_output.shape()[1],
          .columns = op.d_input.shape()[1],
          .weight = op.weight.values.as<float>(),
          .weight_has_rows_of_k = false,
          .adds = false,
          .output = op.d_input.as<float>()};
}

// finish(tile): what comes behind the product. A gated activation, whose gate and up are far from each other, is made
// of all tiles at the end.
template <class Finish>
void forward_by_panels(ThreadPool& pool, const Engine<float>& engine, const LinearForward& op,
                       const PanelProduct& product, const Finish& finish) {
  const bool has_pairs = op.activated && is_gated(op.activation);
  LinearPanels(pool, engine, product).run([&](const Tile& tile) {
    finish(tile);
    if (op.activated && !has_pairs) activate_tile(engine.typed, op, tile);
  });
  if (!has_pairs) return;
  const TileGrid grid = make_grid(product.num_rows, op.activated.shape()[1], pool.size(), float_tiles);
  pool.for_each(grid.count(), [&](std::int64_t item, int) { activate_tile(engine.typed, op, grid.at(item)); });
}

constexpr std::int64_t min_tile = 64;  // smaller ones run slower

// The extent of each of `parts` pieces of about the same size.
std::int64_t piece(std::int64_t extent, std::int64_t parts, std::int64_t step) {
  return (extent + parts * step - 1) / (parts * step) * step;
}

void add_weight_gradient_by_sgemm(ThreadPool& pool, const LinearBackwardWeight& op) {
  const std::int64_t outputs = op.d_output.shape()[1];
  const std::int64_t inputs = op.input.shape()[1];
  const TileGrid grid = make_grid(outputs, inputs, pool.size(), float_tiles);
  pool.for_each(grid.count(), [&](std::int64_t item, int) {
    const Tile tile = grid.at(item);
    sgemm({.m = tile.rows,
           .n = tile.columns,
           .k = op.d_output.shape()[0],
           .a = {op.d_output.as<float>() + tile.row, outputs, true},
           .b = {op.input.as<float>() + tile.column, inputs},
           .beta = 1.0F,
           .c = op.d_weight.as<float>() + tile.row * inputs + tile.column,
           .c_stride = inputs});
  });
}

}  // namespace

TileGrid make_grid(std::int64_t rows, std::int64_t columns, int threads, const TileLimits& limits) {
  if (rows == 0 || columns == 0) return {0, 0, 1, 1};
  std::int64_t row_parts = (rows + limits.rows - 1) / limits.rows;
  std::int64_t column_parts = (columns + limits.columns - 1) / limits.columns;
  while (threads > 1 && row_parts * column_parts < tiles_per_thread * threads) {
    const bool rows_longer = rows * column_parts >= columns * row_parts;
    if ((rows_longer ? rows / row_parts : columns / column_parts) < 2 * min_tile) break;
    (rows_longer ? row_parts : column_parts) *= 2;
  }
  return {rows, columns, piece(rows, row_parts, limits.row_step), piece(columns, column_parts, limits.column_step)};
}

std::int64_t column_share(std::int64_t columns, int threads) {
  constexpr std::int64_t smallest = 64;
  const std::int64_t share = (columns / threads + smallest - 1) / smallest * smallest;
  return std::clamp<std::int64_t>(share, smallest, 1024);
}

void linear_forward(ThreadPool& pool, const Engine<float>& engine, const LinearForward& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t outputs = op.weight.values.shape()[0];
  if (rows <= max_dot_rows) {
    forward_by_dots(pool, engine.typed, op);
    return;
  }
  if (pays_turned(engine, op)) {
    forward_turned(pool, engine, op);
    return;
  }
  const bool in_place = op.addend && op.addend.data() == op.output.data();
  const auto finish = [&](const Tile& tile) {
    const std::int64_t offset = tile.row * outputs + tile.column;
    const float* addend = op.addend && !in_place ? op.addend.as<float>() + offset : nullptr;
    const float* bias = op.bias ? op.bias.as<float>() + tile.column : nullptr;
    if (bias || addend)
      engine.all.add_to_rows({op.output.as<float>() + offset, outputs}, bias, {addend, outputs},
                             static_cast<std::size_t>(tile.rows), static_cast<std::size_t>(tile.columns));
  };
  if (const PanelProduct product = product_of(op, in_place); LinearPanels::pays(engine, product)) {
    forward_by_panels(pool, engine, op, product, finish);
    return;
  }
  for_forward_tiles(pool, engine.typed, op, float_tiles, 1, [&](const Tile& tile, int) {
    const std::int64_t offset = tile.row * outputs + tile.column;
    float* output = op.output.as<float>() + offset;
    sgemm({.m = tile.rows,
           .n = tile.columns,
           .k = inputs,
           .a = {op.input.as<float>() + tile.row * inputs, inputs},
           .b = {op.weight.values.as<float>() + tile.column * inputs, inputs, true},
           .beta = in_place ? 1.0F : 0.0F,
           .c = output,
           .c_stride = outputs});
    finish(tile);
  });
}

void linear_backward_input(ThreadPool& pool, const Engine<float>& engine, const LinearBackwardInput& op) {
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t outputs = op.d_output.shape()[1];
  const std::int64_t inputs = op.d_input.shape()[1];
  if (const PanelProduct product = product_of(op); LinearPanels::pays(engine, product)) {
    LinearPanels(pool, engine, product).run([](const Tile&) {});
    return;
  }
  const TileGrid grid = make_grid(rows, inputs, pool.size(), float_tiles);
  pool.for_each(grid.count(), [&](std::int64_t item, int) {
    const Tile tile = grid.at(item);
    sgemm({.m = tile.rows,
           .n = tile.columns,
           .k = outputs,
           .a = {op.d_output.as<float>() + tile.row * outputs, outputs},
           .b = {op.weight.values.as<float>() + tile.column, inputs},
           .c = op.d_input.as<float>() + tile.row * inputs + tile.column,
           .c_stride = inputs});
  });
}

void linear_backward_weight(ThreadPool& pool, const Engine<float>& engine, const LinearBackwardWeight& op) {
  if (engine.panels != nullptr) {
    add_weight_gradient(pool, engine, op);
    return;
  }
  if (op.d_output.shape()[0] == 0) return;
  add_weight_gradient_by_sgemm(pool, op);
  add_bias_gradient(pool, engine.typed, op);
}

void matrix_product(ThreadPool& pool, const Engine<float>&, const MatrixProduct& op) {
  const std::int64_t rows = op.output.shape()[0];
  const std::int64_t columns = op.output.shape()[1];
  const std::int64_t a_stride = op.a.shape()[1];
  const std::int64_t b_stride = op.b.shape()[1];
  const TileGrid grid = make_grid(rows, columns, pool.size(), float_tiles);
  pool.for_each(grid.count(), [&](std::int64_t item, int) {
    const Tile tile = grid.at(item);
    const std::int64_t offset = tile.row * columns + tile.column;
    float* const output = op.output.as<float>() + offset;
    if (op.addend && op.addend.data() != op.output.data())
      for (std::int64_t row = 0; row < tile.rows; ++row)
        std::copy_n(op.addend.as<float>() + offset + row * columns, tile.columns, output + row * columns);
    sgemm({.m = tile.rows,
           .n = tile.columns,
           .k = op.depth(),
           .alpha = static_cast<float>(op.factor),
           .a = {op.a.as<float>() + tile.row * (op.a_is_transposed ? 1 : a_stride), a_stride, op.a_is_transposed},
           .b = {op.b.as<float>() + tile.column * (op.b_is_transposed ? b_stride : 1), b_stride, op.b_is_transposed},
           .beta = op.addend ? static_cast<float>(op.addend_factor) : 0.0F,
           .c = output,
           .c_stride = columns});
  });
}

}  // namespace scaletrain::cpu
