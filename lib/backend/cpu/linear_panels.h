// Products of the linear map in f32 by panels, where those are faster than oneDNN's.
//
// The weight is packed once for all threads, as much of it as the memory that they share holds: a stripe of the
// output's columns with all of k, or with rounds of it where that would leave few columns. A tile of rows passes over
// what is packed part by part of k, with its own rows of that part packed too or as they lie, and is summed where the
// output lies.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/half_products.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/tile_grid.h"
#include "base/numbers/checked.h"

namespace scaletrain::cpu {

// output[N,columns] = (adds ? output : 0) + rows[N,k] · weight, which lies as [columns][k] (the forward's) or
// [k][columns] (that of the gradient of the input). All are dense.
struct PanelProduct {
  const float* rows = nullptr;
  std::int64_t num_rows = 0, k = 0, columns = 0;
  const float* weight = nullptr;
  bool weight_has_rows_of_k = false;
  bool adds = false;
  float* output = nullptr;
};

class LinearPanels {
 public:
  // Whether a product of this shape is faster this way, as measured on a Zen 3 and a Zen 4. With little of anything
  // packing does not pay, nor that of a weight with many more outputs than there are rows, as the head's. With AVX2,
  // where rows of a weight that lies as [k][columns] are whole pages, oneDNN is half as fast as elsewhere. With AVX-512
  // 256 rows were too few and 4096 enough: where it begins to pay in between is an estimate.
  static bool pays(const Engine<float>& engine, const PanelProduct& p) {
    if (engine.panels == nullptr) return false;
    if (p.weight_has_rows_of_k && p.columns >= 16 * p.num_rows) return false;
    const std::int64_t least = std::min(p.k, p.columns);
    if (!packs_rows(*engine.panels)) return p.num_rows >= 512 && least >= 256;
    if (std::min(p.num_rows, least) >= 256) return true;
    return !p.weight_has_rows_of_k && p.columns % 1024 == 0 && std::min(p.num_rows, p.k) >= 64;
  }

  LinearPanels(ThreadPool& pool, const Engine<float>& engine, const PanelProduct& product)
      : pool_(pool),
        engine_(engine),
        kernels_(*engine.panels),
        cut_(cut_of(kernels_)),
        p_(product),
        parts_(std::max<std::int64_t>(1, ceil_div(product.k, cut_.part_k))),
        part_k_(round_up(ceil_div(product.k, parts_), panel_tile_words)),
        shared_(reinterpret_cast<float*>(engine.shared)) {}

  // finish(tile) is called once for each tile of the output, when it is complete, by the thread that has computed it.
  // What an element becomes depends on its row, its column and k alone.
  template <class Finish>
  void run(const Finish& finish) const {
    const std::int64_t fitting = static_cast<std::int64_t>(engine_.shared_bytes / sizeof(float)) / part_k_;
    const std::int64_t enough = std::min(p_.columns, fewest_columns);
    std::int64_t most = fitting / parts_ / panel_columns * panel_columns;
    if (most < enough) most = cut_.most_columns;
    const std::int64_t stripe = round_up(ceil_div(p_.columns, ceil_div(p_.columns, most)), panel_columns);
    const std::int64_t at_a_time = ceil_div(parts_, ceil_div(parts_, fitting / stripe));
    for (std::int64_t column = 0; column < p_.columns; column += stripe)
      for (std::int64_t part = 0; part < parts_; part += at_a_time) {
        const Shared shared{.column = column,
                            .columns = std::min(stripe, p_.columns - column),
                            .part = part,
                            .parts = std::min(at_a_time, parts_ - part)};
        pack(shared);
        const TileGrid grid = cut(shared.columns);
        pool_.for_each(grid.count(), [&](std::int64_t item, int worker) {
          const Tile tile = grid.at(item);
          add(shared, tile, reinterpret_cast<float*>(engine_.scratch_of(worker)));
          if (part + at_a_time >= parts_) finish(Tile{tile.row, column + tile.column, tile.rows, tile.columns});
        });
      }
  }

 private:
  static constexpr std::int64_t fewest_rows = panel_block_rows;
  // With fewer columns at a time it is cheaper to pass over the output again than to pack the rows again.
  static constexpr std::int64_t fewest_columns = 512;
  // A tile's part of a stays in the second-level cache. A panel's part of b stays in AVX2's first-level cache; with
  // AVX-512, whose panels are wider, it comes from the second. AVX2 packs the rows of a tile; AVX-512 reads
  // them as they lie, which is no slower where rows are whole pages apart.
  struct Cut {
    std::int64_t part_k;     // the most
    std::int64_t most_rows;  // of a tile
    std::int64_t most_columns;
  };
  template <Cut cut>
  static constexpr Cut checked() {
    static_assert(static_cast<std::size_t>(cut.most_rows * cut.part_k) * sizeof(float) <= tile_scratch_bytes<float>());
    static_assert(static_cast<std::size_t>(cut.most_columns * cut.part_k) * sizeof(float) <= shared_pack_bytes);
    static_assert(cut.part_k % panel_tile_words == 0);
    return cut;
  }
  static bool packs_rows(const PanelKernels<float>& kernels) { return kernels.pack_a_rows != nullptr; }
  static Cut cut_of(const PanelKernels<float>& kernels) {
    return packs_rows(kernels) ? checked<Cut{256, 192, 1024}>() : checked<Cut{384, 240, 2048}>();
  }

  // What is packed for all at a time: columns of the output and parts of k.
  struct Shared {
    std::int64_t column, columns;
    std::int64_t part, parts;
  };

  std::int64_t words_of(std::int64_t part) const { return std::min(part_k_, p_.k - part * part_k_); }
  float* packed_at(const Shared& shared, std::int64_t i, std::int64_t column) const {
    return shared_ + i * round_up(shared.columns, panel_columns) * part_k_ + column * words_of(shared.part + i);
  }

  void pack(const Shared& shared) const {
    const std::int64_t groups = ceil_div(shared.columns, panel_columns);
    pool_.for_each(groups * shared.parts, [&](std::int64_t item, int) {
      const std::int64_t i = item / groups;
      const std::int64_t first = item % groups * panel_columns;
      const std::int64_t column = shared.column + first;
      const std::int64_t k = (shared.part + i) * part_k_;
      const std::int64_t words = words_of(shared.part + i);
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(panel_columns, shared.columns - first));
      float* const to = packed_at(shared, i, first);
      const std::ptrdiff_t bytes = kernels_.columns * words * 4;
      if (p_.weight_has_rows_of_k)
        kernels_.pack_columns(p_.weight + column * p_.k + k, p_.k, count, static_cast<std::size_t>(words), to, bytes);
      else
        kernels_.pack_rows(p_.weight + k * p_.columns + column, p_.columns, count, static_cast<std::size_t>(words), to,
                           bytes);
    });
  }

  // Tiles for every thread, by cutting rows before columns, for which rows are packed again.
  TileGrid cut(std::int64_t columns) const {
    const std::int64_t wanted = pool_.size() > 1 ? tiles_per_thread * pool_.size() : 1;
    const std::int64_t row_parts =
        std::min(ceil_div(p_.num_rows, fewest_rows), std::max(ceil_div(p_.num_rows, cut_.most_rows), wanted));
    const std::int64_t column_parts = std::min(ceil_div(columns, panel_columns), ceil_div(wanted, row_parts));
    return {p_.num_rows, columns, round_up(ceil_div(p_.num_rows, row_parts), panel_group_rows),
            round_up(ceil_div(columns, column_parts), panel_columns)};
  }

  void add(const Shared& shared, const Tile& tile, float* rows) const {
    for (std::int64_t i = 0; i < shared.parts; ++i) {
      const std::int64_t part = shared.part + i;
      const std::int64_t words = words_of(part);
      PanelTile<float> product{.b = packed_at(shared, i, tile.column),
                               .b_panel_bytes = kernels_.columns * words * 4,
                               .rows = static_cast<std::size_t>(tile.rows),
                               .columns = static_cast<std::size_t>(tile.columns),
                               .words = static_cast<std::size_t>(words),
                               .begins = part == 0 && !p_.adds ? 1 : 0,
                               .sums = p_.output + tile.row * p_.columns + shared.column + tile.column,
                               .sums_stride = p_.columns};
      place_rows(product, p_.rows + tile.row * p_.k + part * part_k_, rows);
      kernels_.product(product);
    }
  }

  void place_rows(PanelTile<float>& product, const float* from, float* packed) const {
    if (packs_rows(kernels_)) {
      place_packed_a(product, kernels_, packed, static_cast<std::int64_t>(product.words));
      kernels_.pack_a_rows(from, p_.k, product.rows, product.words, packed, product.a_block_bytes);
      return;
    }
    product.a = from;
    product.a_row_bytes = p_.k * static_cast<std::int64_t>(sizeof(float));
    product.a_block_bytes = panel_block_rows * product.a_row_bytes;
    product.a_word_bytes = sizeof(float);
  }

  ThreadPool& pool_;
  const Engine<float>& engine_;
  const PanelKernels<float>& kernels_;
  Cut cut_;
  const PanelProduct& p_;
  std::int64_t parts_;   // of k, all alike but the last
  std::int64_t part_k_;  // their length
  float* shared_;
};

}  // namespace scaletrain::cpu
