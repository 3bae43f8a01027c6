// How the result of a matrix product is cut into tiles that threads take.
#pragma once

#include <algorithm>
#include <cstdint>

namespace scaletrain::cpu {

struct Tile {
  std::int64_t row, column, rows, columns;
};

struct TileGrid {
  std::int64_t rows, columns, tile_rows, tile_columns;

  std::int64_t across() const { return (columns + tile_columns - 1) / tile_columns; }
  std::int64_t count() const { return (rows + tile_rows - 1) / tile_rows * across(); }
  Tile at(std::int64_t item) const {
    const std::int64_t row = item / across() * tile_rows;
    const std::int64_t column = item % across() * tile_columns;
    return {row, column, std::min(tile_rows, rows - row), std::min(tile_columns, columns - column)};
  }
};

// The largest tiles there may be, and the multiples that their sides should be.
struct TileLimits {
  std::int64_t rows, columns, row_step, column_step;
};

// Some for each thread, so that a delayed one leaves little undone.
inline constexpr std::int64_t tiles_per_thread = 4;

// Cuts the longer side of the tiles until every thread has some.
TileGrid make_grid(std::int64_t rows, std::int64_t columns, int threads, const TileLimits& limits);

}  // namespace scaletrain::cpu
