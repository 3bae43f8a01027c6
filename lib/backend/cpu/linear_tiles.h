// The forward of a linear map, cut into tiles that threads take: the product of a tile, and while the tile is in the
// cache its activation, for which gate and up of a gated one are computed one after the other.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/tile_grid.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// output = activation(input), row by row. With a gate each row of the input holds its gate and, up_columns later, its
// up. An element's bits do not depend on the rows and columns it is computed with.
template <class S>
void activate_rows(const TypedKernels<S>& kernels, ActivationType type, RowsOf<const S> input, std::int64_t up_columns,
                   RowsOf<S> output, std::int64_t rows, std::int64_t columns) {
  const auto count = static_cast<std::size_t>(columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    const S* const in = input.data + row * input.stride;
    S* const out = output.data + row * output.stride;
    switch (type) {
      case ActivationType::gelu:
        kernels.gelu_forward(in, out, count);
        break;
      case ActivationType::gelu_tanh:
        kernels.gelu_tanh_forward(in, out, count);
        break;
      case ActivationType::swiglu:
        kernels.swiglu_forward(in, in + up_columns, out, count);
        break;
      case ActivationType::geglu:
        kernels.geglu_forward(in, in + up_columns, out, count);
        break;
    }
  }
}

// The activation of a tile of op.activated.
template <class S>
void activate_tile(const TypedKernels<S>& kernels, const LinearForward& op, const Tile& tile) {
  const std::int64_t outputs = op.output.shape()[1];
  const std::int64_t features = op.activated.shape()[1];
  activate_rows<S>(kernels, op.activation, {op.output.as<S>() + tile.row * outputs + tile.column, outputs}, features,
                   {op.activated.as<S>() + tile.row * features + tile.column, features}, tile.rows, tile.columns);
}

// product(tile, worker) writes a tile of op.output, whose column is a multiple of column_multiple.
template <class S, class Product>
void for_forward_tiles(ThreadPool& pool, const TypedKernels<S>& kernels, const LinearForward& op,
                       const TileLimits& limits, std::int64_t column_multiple, Product&& product) {
  const std::int64_t rows = op.output.shape()[0];
  const std::int64_t outputs = op.output.shape()[1];
  const std::int64_t features = op.activated ? op.activated.shape()[1] : outputs;
  const bool has_pairs = op.activated && is_gated(op.activation);
  if (has_pairs && features % column_multiple != 0) {  // no tile of up can begin where up begins
    LinearForward plain = op;
    plain.activated = {};
    for_forward_tiles(pool, kernels, plain, limits, column_multiple, product);
    const TileGrid grid = make_grid(rows, features, pool.size(), limits);
    pool.for_each(grid.count(), [&](std::int64_t item, int) { activate_tile(kernels, op, grid.at(item)); });
    return;
  }
  const TileGrid grid = make_grid(rows, features, pool.size(), limits);
  pool.for_each(grid.count(), [&](std::int64_t item, int worker) {
    const Tile tile = grid.at(item);
    product(tile, worker);
    if (!op.activated) return;
    if (has_pairs) product(Tile{tile.row, features + tile.column, tile.rows, tile.columns}, worker);
    activate_tile(kernels, op, tile);
  });
}

}  // namespace scaletrain::cpu
