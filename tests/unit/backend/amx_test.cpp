// The products of tiles, on the processor's own or under the emulator: whatever the shape, the result is that of the
// formula, and its bits do not depend on the tile that an element is in.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "amx_emulator.h"
#include "backend/cpu/half_products.h"
#include "backend/cpu/instruction_sets.h"
#include "base/numbers/philox.h"
#include "cases.h"
#include "emulated_tiles_backend.h"
#include "tensor/halves.h"

#if defined(__x86_64__)

namespace scaletrain {
namespace {

using Bf16Kernels = cpu::PanelKernels<Bf16>;
using Bf16Tile = cpu::PanelTile<Bf16>;

// Packing and rounding are AVX-512's.
bool can_run() {
  return cpu::choose_bf16("auto") != nullptr;
}

std::vector<Bf16> random_values(std::size_t count, const std::string& name) {
  std::vector<float> floats(count);
  fill_normal(philox_key(11, name), 0, 0.0F, 1.0F, floats);
  std::vector<Bf16> values(count);
  convert_floats(DType::f32, floats.data(), DType::bf16, values.data(), count);
  return values;
}

std::vector<double> doubles_of(const std::vector<Bf16>& values) {
  std::vector<double> out(values.size());
  convert_floats(DType::bf16, values.data(), DType::f64, out.data(), values.size());
  return out;
}

std::size_t rounded_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

// How a comes to the product.
enum class Packing { none, turned, rows };

// a [rows,k] · b [k,columns], which lie as rows of k and of columns.
struct Product {
  std::size_t rows, columns, k;
  std::vector<Bf16> a = random_values(rows * k, "a");
  std::vector<Bf16> b = random_values(k * columns, "b");

  std::vector<double> exact(std::vector<double>& sizes) const {
    const std::vector<double> left = doubles_of(a);
    const std::vector<double> right = doubles_of(b);
    std::vector<double> sums(rows * columns, 0.0);
    sizes.assign(rows * columns, 0.0);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t i = 0; i < k; ++i)
        for (std::size_t c = 0; c < columns; ++c) {
          const double term = left[r * k + i] * right[i * columns + c];
          sums[r * columns + c] += term;
          sizes[r * columns + c] += std::fabs(term);
        }
    return sums;
  }

  // Sums of rows [first, first + count), times alpha, on top of `begin` where that is not NaN.
  std::vector<float> run(const Bf16Kernels& kernels, std::size_t first, std::size_t count, Packing packing, float begin,
                         float alpha) const {
    const std::size_t pairs = (k + 1) / 2;
    const auto panel_bytes = static_cast<std::ptrdiff_t>(cpu::panel_columns * pairs * 4);
    std::vector<Bf16> panels(rounded_up(columns, cpu::panel_columns) * pairs * 2);
    kernels.pack_rows(b.data(), static_cast<std::ptrdiff_t>(columns), columns, k, panels.data(), panel_bytes);
    std::vector<float> sums(count * columns, begin);
    Bf16Tile tile;
    std::vector<Bf16> blocks;
    if (packing != Packing::none) {
      const auto words = static_cast<std::int64_t>(pairs);
      const std::ptrdiff_t block_bytes = cpu::packed_block_bytes(kernels, words);
      blocks.resize(rounded_up(count, cpu::panel_block_rows) / cpu::panel_block_rows *
                    static_cast<std::size_t>(block_bytes) / sizeof(Bf16));
      if (packing == Packing::rows) {
        kernels.pack_a_rows(a.data() + first * k, static_cast<std::ptrdiff_t>(k), count, k, blocks.data(), block_bytes);
      } else {
        std::vector<Bf16> turned(k * count);
        for (std::size_t r = 0; r < count; ++r)
          for (std::size_t i = 0; i < k; ++i) turned[i * count + r] = a[(first + r) * k + i];
        kernels.pack_a(turned.data(), static_cast<std::ptrdiff_t>(count), count, k, blocks.data(), block_bytes);
      }
      cpu::place_packed_a<Bf16>(tile, kernels, blocks.data(), words);
    } else {
      // An odd row has no zero behind it: one is put there, and the rows behind the last one are not to be read.
      blocks.resize(count * pairs * 2);
      for (std::size_t r = 0; r < count; ++r)
        for (std::size_t i = 0; i < k; ++i) blocks[r * pairs * 2 + i] = a[(first + r) * k + i];
      tile.a = blocks.data();
      tile.a_row_bytes = static_cast<std::ptrdiff_t>(pairs * 4);
      tile.a_block_bytes = cpu::panel_block_rows * tile.a_row_bytes;
      tile.a_word_bytes = 4;
    }
    tile.b = panels.data();
    tile.b_panel_bytes = panel_bytes;
    tile.rows = count;
    tile.columns = columns;
    tile.words = pairs;
    tile.begins = std::isnan(begin) ? 1 : 0;
    tile.alpha = alpha;
    tile.sums = sums.data();
    tile.sums_stride = static_cast<std::ptrdiff_t>(columns);
    kernels.product(tile);
    return sums;
  }
};

constexpr float none = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("products_of_tiles_are_those_of_the_formula_for_any_shape") {
  if (!can_run()) {
    MESSAGE("skipped: this processor has no AVX-512 bf16");
    return;
  }
  const AmxEmulator emulator;
  const Bf16Kernels& kernels = cpu::bf16_panels_amx();
  for (const auto& extent : {std::array<std::size_t, 3>{1, 1, 1},
                             {16, 16, 32},
                             {32, 32, 64},
                             {33, 65, 31},
                             {15, 17, 33},
                             {47, 64, 2},
                             {49, 31, 70},
                             {80, 130, 96},
                             {5, 7, 1100},
                             {100, 48, 513},
                             {150, 140, 260}})
    for (const Packing packing : {Packing::none, Packing::turned, Packing::rows})
      for (const float begin : {none, 0.75F}) {
        const std::size_t rows = extent[0];
        const std::size_t columns = extent[1];
        const std::size_t k = extent[2];
        CAPTURE(rows);
        CAPTURE(columns);
        CAPTURE(k);
        CAPTURE(static_cast<int>(packing));
        const Product product{rows, columns, k};
        std::vector<double> sizes;
        const std::vector<double> exact = product.exact(sizes);
        const std::vector<float> found = product.run(kernels, 0, rows, packing, begin, 0.5F);
        const double first = std::isnan(begin) ? 0.0 : static_cast<double>(begin);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < exact.size(); ++i) {
          const double bound = 0x1p-23 * std::sqrt(static_cast<double>(k) + 4) * (sizes[i] + first);
          wrong += std::fabs(static_cast<double>(found[i]) - 0.5 * (first + exact[i])) <= bound ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
}

TEST_CASE("the_bits_of_a_product_of_tiles_do_not_depend_on_the_tile_or_on_how_a_lies") {
  if (!can_run()) {
    MESSAGE("skipped: this processor has no AVX-512 bf16");
    return;
  }
  const AmxEmulator emulator;
  const Bf16Kernels& kernels = cpu::bf16_panels_amx();
  const Product product{77, 50, 600};
  const std::vector<float> whole = product.run(kernels, 0, 77, Packing::none, none, 1.0F);
  CHECK(product.run(kernels, 0, 77, Packing::turned, none, 1.0F) == whole);
  CHECK(product.run(kernels, 0, 77, Packing::rows, none, 1.0F) == whole);
  for (const std::size_t first : {1U, 20U, 76U}) {
    const std::vector<float> part = product.run(kernels, first, 77 - first, Packing::none, none, 1.0F);
    CHECK(part == std::vector<float>(whole.begin() + static_cast<std::ptrdiff_t>(first * 50), whole.end()));
  }
}

TEST_CASE("what_a_product_of_tiles_writes_is_rounded_once_with_bias_and_addend") {
  if (!can_run()) {
    MESSAGE("skipped: this processor has no AVX-512 bf16");
    return;
  }
  const AmxEmulator emulator;
  const Bf16Kernels& kernels = cpu::bf16_panels_amx();
  const Product product{35, 45, 40};
  const std::vector<float> sums = product.run(kernels, 0, 35, Packing::none, none, 1.0F);
  const std::vector<Bf16> bias = random_values(45, "bias");
  const std::vector<Bf16> addend = random_values(35 * 45, "addend");
  std::vector<Bf16> panels(64 * 40);
  kernels.pack_rows(product.b.data(), 45, 45, 40, panels.data(), 0);
  std::vector<Bf16> output(35 * 45);
  Bf16Tile tile;
  tile.a = product.a.data();
  tile.a_row_bytes = 80;
  tile.a_block_bytes = 48 * 80;
  tile.a_word_bytes = 4;
  tile.b = panels.data();
  tile.rows = 35;
  tile.columns = 45;
  tile.words = 20;
  tile.begins = 1;
  tile.output = output.data();
  tile.output_stride = 45;
  tile.bias = bias.data();
  tile.addend = addend.data();
  tile.addend_stride = 45;
  kernels.product(tile);
  const std::vector<double> b = doubles_of(bias);
  const std::vector<double> added = doubles_of(addend);
  std::vector<float> expected(sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i)
    expected[i] = (sums[i] + static_cast<float>(b[i % 45])) + static_cast<float>(added[i]);
  std::vector<Bf16> rounded(expected.size());
  convert_floats(DType::f32, expected.data(), DType::bf16, rounded.data(), expected.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < rounded.size(); ++i) wrong += rounded[i].bits == output[i].bits ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("operations_made_of_products_of_tiles_agree_with_the_reference") {
  if (!can_run()) {
    MESSAGE("skipped: this processor has no AVX-512 bf16");
    return;
  }
  EmulatedTilesBackend tiles(2);
  const auto reference = make_reference_backend(DType::f64);
  for (const auto& cases : {parity::linear_backward_weight_cases(), parity::attention_backward_cases()})
    for (std::size_t i = 0; i < cases.size(); i += 9) {
      CAPTURE(cases[i].name);
      parity::Device exact(*reference, DType::bf16);
      parity::Device device(tiles);
      const auto mismatch = find_mismatch(cases[i], DType::bf16, cases[i].run(exact), cases[i].run(device));
      CHECK_MESSAGE(!mismatch.has_value(), mismatch.value_or(""));
      CHECK(device.guards_intact());
    }
}

}  // namespace scaletrain

#endif
