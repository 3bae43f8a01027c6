#include "backend/cpu/matmul.h"

#include <algorithm>

#include "backend/cpu/linear_tiles.h"
#include "backend/cpu/sgemm.h"
#include "backend/cpu/tile_grid.h"
#include "base/error.h"

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

// Tiles smaller than this run slower; some for each thread, so that a delayed one leaves little undone.
constexpr std::int64_t min_tile = 64;
constexpr std::int64_t tiles_per_thread = 4;

// The extent of each of `parts` pieces of about the same size.
std::int64_t piece(std::int64_t extent, std::int64_t parts, std::int64_t step) {
  return (extent + parts * step - 1) / (parts * step) * step;
}

void add_weight_gradient(ThreadPool& pool, const LinearBackwardWeight& op) {
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

// Both operands are packed: oneDNN's AVX2 reads one of them as it lies, at half the speed where its rows are a multiple
// of a page apart. Of each part of k a tile's columns are packed once, and rows in groups that stay in the second-level
// cache. Sums over k are made in order, in the gradient itself.
constexpr TileLimits float_gradient_tiles{1024, 1024, 6, 16};
constexpr std::int64_t packed_rows = 96;
static_assert(packed_rows % panel_block_rows == 0);

void add_weight_gradient_by_panels(ThreadPool& pool, const Engine<float>& engine, const LinearBackwardWeight& op) {
  const PanelKernels<float>& kernels = *engine.panels;
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t outputs = op.d_output.shape()[1];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t packed_columns = float_gradient_tiles.columns * kernels.gradient_words;
  SCALETRAIN_CHECK_EQ(float_gradient_tiles.columns % kernels.columns, 0);
  SCALETRAIN_CHECK_LE(static_cast<std::size_t>(packed_columns + packed_rows * kernels.gradient_words) * sizeof(float),
                      tile_scratch_bytes<float>());
  const TileGrid grid = make_grid(outputs, inputs, pool.size(), float_gradient_tiles);
  pool.for_each(grid.count(), [&](std::int64_t item, int worker) {
    const Tile tile = grid.at(item);
    auto* const b =
        reinterpret_cast<float*>(engine.scratch + static_cast<std::size_t>(worker) * tile_scratch_bytes<float>());
    float* const a = b + packed_columns;
    for (std::int64_t k = 0; k < rows; k += kernels.gradient_words) {
      const std::int64_t words = std::min<std::int64_t>(kernels.gradient_words, rows - k);
      PanelTile<float> part{.b = b,
                            .b_panel_bytes = kernels.columns * words * static_cast<std::int64_t>(sizeof(float)),
                            .columns = static_cast<std::size_t>(tile.columns),
                            .words = static_cast<std::size_t>(words),
                            .begins = 0,
                            .alpha = 1.0F,
                            .sums_stride = inputs};
      place_packed_a(part, kernels, a, words);
      kernels.pack_rows(op.input.as<float>() + k * inputs + tile.column, inputs, part.columns, part.words, b,
                        part.b_panel_bytes);
      for (std::int64_t row = 0; row < tile.rows; row += packed_rows) {
        part.rows = static_cast<std::size_t>(std::min(packed_rows, tile.rows - row));
        part.sums = op.d_weight.as<float>() + (tile.row + row) * inputs + tile.column;
        kernels.pack_a(op.d_output.as<float>() + k * outputs + tile.row + row, outputs, part.rows, part.words, a,
                       part.a_block_bytes);
        kernels.product(part);
      }
    }
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
  const bool in_place = op.addend && op.addend.data() == op.output.data();
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
    const float* addend = op.addend && !in_place ? op.addend.as<float>() + offset : nullptr;
    const float* bias = op.bias ? op.bias.as<float>() + tile.column : nullptr;
    if (bias || addend)
      engine.all.add_to_rows({output, outputs}, bias, {addend, outputs}, static_cast<std::size_t>(tile.rows),
                             static_cast<std::size_t>(tile.columns));
  });
}

void linear_backward_input(ThreadPool& pool, const Engine<float>&, const LinearBackwardInput& op) {
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t outputs = op.d_output.shape()[1];
  const std::int64_t inputs = op.d_input.shape()[1];
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
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t outputs = op.d_output.shape()[1];
  if (rows == 0) return;
  // With fewer rows the packing is not repaid.
  if (engine.panels != nullptr && engine.panels->gradient_words > 0 && rows >= engine.panels->gradient_words)
    add_weight_gradient_by_panels(pool, engine, op);
  else
    add_weight_gradient(pool, op);
  if (!op.d_bias) return;
  const std::int64_t columns = column_share(outputs, pool.size());
  pool.for_each((outputs + columns - 1) / columns, [&](std::int64_t item, int) {
    const std::int64_t first = item * columns;
    engine.typed.add_column_sums({op.d_output.as<float>(), outputs}, static_cast<std::size_t>(rows),
                                 static_cast<std::size_t>(first),
                                 static_cast<std::size_t>(std::min(first + columns, outputs)), op.d_bias.as<float>());
  });
}

}  // namespace scaletrain::cpu
