#include "backend/cpu/weight_gradient.h"

#include <algorithm>

#include "backend/cpu/matmul.h"
#include "backend/cpu/tile_grid.h"
#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain::cpu {

namespace {

// The rows of both operands are k, so both are packed, part by part of k. Of the operand with fewer features all
// threads pack the parts that fit into the memory they share; a tile of the gradient spans all of those features, and
// packs as many of the other operand's as its scratch holds. So most elements are packed once (again where there are
// more threads or features than that), where a tile that packed both would spend a tenth of its time on it.
//
// A part's panel of b stays in the first-level cache (AVX2's: 16 KiB) or comes from the second.
constexpr std::int64_t part_words = 256;
template <class S>
constexpr std::int64_t word_elements = 4 / sizeof(S);
template <class S>
constexpr std::int64_t part_rows = word_elements<S>* part_words;  // of both operands
static_assert(part_rows<Bf16> % 32 == 0);                         // where AMX may cut k

// The work is cut between features at multiples of this: whole panels and whole blocks.
constexpr std::int64_t feature_step = 192;
static_assert(feature_step % panel_columns == 0 && feature_step % panel_block_rows == 0);
constexpr std::int64_t fewest_rows = 96;  // of a tile, unless there are no more

struct GradientCut {
  // The most that a tile packs, as rows of the gradient or as its columns. No more rows are multiplied at a time.
  std::int64_t rows, columns;
  std::int64_t span;  // of a tile: the most features of the shared operand
  // Where sums wait apart from the gradient, until the last part of k that is shared: in groups of columns, with a
  // stride that spreads their rows over the sets of a cache. 0: they are made in the gradient itself.
  std::int64_t group_columns, sums_stride;
};
constexpr std::int64_t any_span = std::int64_t{1} << 40;
constexpr GradientCut cut_of_vectors{480, 512, any_span, 0, 0};
constexpr GradientCut cut_of_short_vectors{192, 512, any_span, 0, 0};  // AVX2: a second-level cache of half the size
constexpr GradientCut cut_of_tiles{288, 256, 768, 128, 144};

constexpr std::size_t packed_bytes = std::size_t{1} << 19;
constexpr bool fits(const GradientCut& cut) {
  const auto sums = [&](std::int64_t rows, std::int64_t columns) {
    return cut.group_columns == 0
               ? std::size_t{0}
               : static_cast<std::size_t>(ceil_div(columns, cut.group_columns) * rows * cut.sums_stride) *
                     sizeof(float);
  };
  return static_cast<std::size_t>(std::max(cut.rows, cut.columns) * part_words) * 4 <= packed_bytes &&
         packed_bytes + std::max(sums(cut.rows, cut.span), sums(cut.span, cut.columns)) <= half_scratch_bytes &&
         cut.rows % panel_block_rows == 0 && cut.rows % fewest_rows == 0 && cut.columns % panel_columns == 0 &&
         cut.group_columns % panel_columns == 0;
}
static_assert(fits(cut_of_vectors) && fits(cut_of_short_vectors) && fits(cut_of_tiles));
static_assert(packed_bytes <= tile_scratch_bytes<float>());

template <class S>
const GradientCut& gradient_cut(const PanelKernels<S>& kernels) {
  if (kernels.packs_tiles != 0) return cut_of_tiles;
  return kernels.packs_groups != 0 ? cut_of_short_vectors : cut_of_vectors;
}

// Features [first, first + count) of one operand in its rows [row, row + rows).
template <class S>
struct Piece {
  const S* matrix;
  std::int64_t stride;
  std::int64_t first, count;
  std::int64_t row, rows;

  const S* data() const { return matrix + row * stride + first; }
};

// The blocks (rows of the gradient) or panels (its columns) of packed features.
template <class S>
std::ptrdiff_t bytes_between(const PanelKernels<S>& kernels, bool as_rows, std::int64_t words) {
  return as_rows ? packed_block_bytes(kernels, words) : kernels.columns * words * 4;
}

template <class S>
S* packed_at(const PanelKernels<S>& kernels, bool as_rows, std::int64_t words, S* packed, std::int64_t feature) {
  const std::int64_t width = as_rows ? panel_block_rows : kernels.columns;
  SCALETRAIN_CHECK_EQ(feature % width, 0);
  return packed + feature / width * bytes_between(kernels, as_rows, words) / static_cast<std::int64_t>(sizeof(S));
}

template <class S>
void pack(const PanelKernels<S>& kernels, bool as_rows, const Piece<S>& piece, S* packed) {
  const std::ptrdiff_t bytes = bytes_between(kernels, as_rows, ceil_div(piece.rows, word_elements<S>));
  (as_rows ? kernels.pack_a : kernels.pack_rows)(piece.data(), piece.stride, static_cast<std::size_t>(piece.count),
                                                 static_cast<std::size_t>(piece.rows), packed, bytes);
}

// The sums of outputs over rows.
template <class S>
void add_bias(const TypedKernels<S>& kernels, const Piece<S>& outputs, float* d_bias) {
  kernels.add_column_sums({outputs.data(), outputs.stride}, static_cast<std::size_t>(outputs.rows), 0,
                          static_cast<std::size_t>(outputs.count), d_bias + outputs.first);
}

template <class S>
void share_bias(ThreadPool& pool, const TypedKernels<S>& kernels, const Piece<S>& outputs, float* d_bias) {
  const std::int64_t columns = column_share(outputs.count, pool.size());
  pool.for_each(ceil_div(outputs.count, columns), [&](std::int64_t item, int) {
    Piece<S> part = outputs;
    part.first += item * columns;
    part.count = std::min(columns, outputs.count - item * columns);
    add_bias(kernels, part, d_bias);
  });
}

template <class S>
class WeightGradient {
 public:
  WeightGradient(ThreadPool& pool, const Engine<S>& engine, const LinearBackwardWeight& op)
      : pool_(pool),
        engine_(engine),
        kernels_(*engine.panels),
        cut_(gradient_cut(kernels_)),
        num_rows_(op.input.shape()[0]),
        outputs_{op.d_output.as<S>(), op.d_output.shape()[1]},
        inputs_{op.input.as<S>(), op.input.shape()[1]},
        gradient_(op.d_weight.as<float>()),
        bias_gradient_(op.d_bias ? op.d_bias.as<float>() : nullptr),
        shares_rows_(outputs_.features < inputs_.features),
        shared_(reinterpret_cast<S*>(engine.shared)) {}

  void add() {
    const std::int64_t features = shared_operand().features;
    // Of what is shared as much as fits: if not all features, then as equal stripes of them as may be.
    const std::int64_t fitting = static_cast<std::int64_t>(engine_.shared_bytes) / (part_words * 4);
    const std::int64_t most = fitting / feature_step * feature_step;
    SCALETRAIN_CHECK_LT(0, most);
    const std::int64_t stripe = round_up(ceil_div(features, ceil_div(features, most)), feature_step);
    const std::int64_t parts = ceil_div(num_rows_, part_rows<S>);
    const std::int64_t parts_at_a_time = ceil_div(parts, ceil_div(parts, fitting / stripe));
    for (std::int64_t first = 0; first < features; first += stripe)
      for (std::int64_t part = 0; part < parts; part += parts_at_a_time)
        add_shared({.first = first,
                    .count = std::min(stripe, features - first),
                    .part = part,
                    .parts = std::min(parts_at_a_time, parts - part),
                    .part_elements = stripe * part_words * word_elements<S>});
  }

 private:
  struct Operand {
    const S* data;
    std::int64_t features;
  };
  // What is packed for all at a time: features and parts of k.
  struct Shared {
    std::int64_t first, count;
    std::int64_t part, parts;
    std::int64_t part_elements;  // of shared memory from one part to the next
  };

  const Operand& shared_operand() const { return shares_rows_ ? outputs_ : inputs_; }

  Piece<S> pieces(const Operand& operand, std::int64_t first, std::int64_t count, std::int64_t part,
                  std::int64_t parts) const {
    const std::int64_t row = part * part_rows<S>;
    return {operand.data, operand.features, first, count, row, std::min(parts * part_rows<S>, num_rows_ - row)};
  }
  Piece<S> piece(const Operand& operand, std::int64_t first, std::int64_t count, std::int64_t part) const {
    return pieces(operand, first, count, part, 1);
  }

  void add_shared(const Shared& shared) {
    pack_for_all(shared);
    if (shares_rows_ && bias_gradient_ != nullptr)
      share_bias(pool_, engine_.typed, pieces(outputs_, shared.first, shared.count, shared.part, shared.parts),
                 bias_gradient_);
    const TileGrid grid = cut(shared);
    pool_.for_each(grid.count(), [&](std::int64_t item, int worker) {
      Tile tile = grid.at(item);
      (shares_rows_ ? tile.row : tile.column) += shared.first;
      add_tile(shared, tile, engine_.scratch_of(worker));
    });
  }

  void pack_for_all(const Shared& shared) {
    const std::int64_t groups = ceil_div(shared.count, feature_step);
    pool_.for_each(groups * shared.parts, [&](std::int64_t item, int) {
      const std::int64_t feature = item % groups * feature_step;
      const std::int64_t part = item / groups;
      const Piece<S> from = piece(shared_operand(), shared.first + feature,
                                  std::min(feature_step, shared.count - feature), shared.part + part);
      pack(kernels_, shares_rows_, from,
           packed_at(kernels_, shares_rows_, ceil_div(from.rows, word_elements<S>),
                     shared_ + part * shared.part_elements, feature));
    });
  }

  // Tiles for every thread, by cutting the features that tiles pack before those that are there for all.
  TileGrid cut(const Shared& shared) const {
    const std::int64_t wanted = pool_.size() > 1 ? tiles_per_thread * pool_.size() : 1;
    const std::int64_t own = shares_rows_ ? inputs_.features : outputs_.features;
    const std::int64_t most = shares_rows_ ? cut_.columns : cut_.rows;
    const std::int64_t step = shares_rows_ ? panel_columns : fewest_rows;
    const std::int64_t own_parts = std::min(ceil_div(own, step), std::max(ceil_div(own, most), wanted));
    const std::int64_t span_parts = std::max(ceil_div(shared.count, cut_.span), ceil_div(wanted, own_parts));
    const std::int64_t extent = round_up(ceil_div(own, own_parts), step);
    const std::int64_t span = round_up(ceil_div(shared.count, span_parts), feature_step);
    if (shares_rows_) return {shared.count, own, span, extent};
    return {own, shared.count, extent, span};
  }

  void add_tile(const Shared& shared, const Tile& tile, std::byte* scratch) const {
    auto* const own = reinterpret_cast<S*>(scratch);
    const bool apart = cut_.sums_stride != 0;
    float* const waiting = reinterpret_cast<float*>(scratch + packed_bytes);
    const std::int64_t group_columns = apart ? cut_.group_columns : tile.columns;
    float* const in_place = gradient_ + tile.row * inputs_.features + tile.column;
    // From one group of sums to the next.
    const std::int64_t group_elements = apart ? tile.rows * cut_.sums_stride : group_columns;
    for (std::int64_t i = 0; i < shared.parts; ++i) {
      const Piece<S> from = shares_rows_ ? piece(inputs_, tile.column, tile.columns, shared.part + i)
                                         : piece(outputs_, tile.row, tile.rows, shared.part + i);
      const std::int64_t words = ceil_div(from.rows, word_elements<S>);
      pack(kernels_, !shares_rows_, from, own);
      // Behind the packing, which fetches rows ahead and leaves them in the cache.
      if (!shares_rows_ && bias_gradient_ != nullptr && tile.column == 0) add_bias(engine_.typed, from, bias_gradient_);
      S* const of_all = packed_at(kernels_, shares_rows_, words, shared_ + i * shared.part_elements,
                                  (shares_rows_ ? tile.row : tile.column) - shared.first);
      S* const a = shares_rows_ ? of_all : own;
      S* const b = shares_rows_ ? own : of_all;
      PanelTile<S> part{.b_panel_bytes = kernels_.columns * words * 4,
                        .words = static_cast<std::size_t>(words),
                        .begins = apart && i == 0 ? 1 : 0,
                        .alpha = 1.0F,
                        .sums_stride = apart ? cut_.sums_stride : inputs_.features};
      for (std::int64_t row = 0; row < tile.rows; row += cut_.rows) {
        place_packed_a(part, kernels_, packed_at(kernels_, true, words, a, row), words);
        part.rows = static_cast<std::size_t>(std::min(cut_.rows, tile.rows - row));
        for (std::int64_t begin = 0; begin < tile.columns; begin += group_columns) {
          part.b = packed_at(kernels_, false, words, b, begin);
          part.columns = static_cast<std::size_t>(std::min(group_columns, tile.columns - begin));
          part.sums = (apart ? waiting : in_place) + begin / group_columns * group_elements + row * part.sums_stride;
          kernels_.product(part);
        }
      }
    }
    if (!apart) return;
    for (std::int64_t begin = 0; begin < tile.columns; begin += group_columns)
      engine_.all.add_to_rows({in_place + begin, inputs_.features}, nullptr,
                              {waiting + begin / group_columns * group_elements, cut_.sums_stride},
                              static_cast<std::size_t>(tile.rows),
                              static_cast<std::size_t>(std::min(group_columns, tile.columns - begin)));
  }

  ThreadPool& pool_;
  const Engine<S>& engine_;
  const PanelKernels<S>& kernels_;
  const GradientCut& cut_;
  std::int64_t num_rows_;
  Operand outputs_;
  Operand inputs_;
  float* gradient_;
  float* bias_gradient_;  // or null
  bool shares_rows_;      // of the gradient: the outputs
  S* shared_;
};

}  // namespace

template <class S>
void add_bias_gradient(ThreadPool& pool, const TypedKernels<S>& kernels, const LinearBackwardWeight& op) {
  if (!op.d_bias) return;
  const std::int64_t outputs = op.d_output.shape()[1];
  share_bias<S>(pool, kernels, {op.d_output.as<S>(), outputs, 0, outputs, 0, op.d_output.shape()[0]},
                op.d_bias.as<float>());
}

template <class S>
void add_weight_gradient(ThreadPool& pool, const Engine<S>& engine, const LinearBackwardWeight& op) {
  if (op.input.num_elements() == 0 || op.d_output.num_elements() == 0)  // a tensor rank may hold none of the features
    add_bias_gradient(pool, engine.typed, op);
  else
    WeightGradient<S>(pool, engine, op).add();
}

template void add_bias_gradient(ThreadPool&, const TypedKernels<float>&, const LinearBackwardWeight&);
template void add_bias_gradient(ThreadPool&, const TypedKernels<Bf16>&, const LinearBackwardWeight&);
template void add_bias_gradient(ThreadPool&, const TypedKernels<F16>&, const LinearBackwardWeight&);
template void add_weight_gradient(ThreadPool&, const Engine<float>&, const LinearBackwardWeight&);
template void add_weight_gradient(ThreadPool&, const Engine<Bf16>&, const LinearBackwardWeight&);

}  // namespace scaletrain::cpu
