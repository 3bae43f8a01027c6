#include "parity.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/numbers/checked.h"
#include "base/numbers/philox.h"
#include "emulated_tiles_backend.h"
#include "panels_backend.h"
#include "plain_reference.h"
#include "planted_error.h"
#include "support/philox_below.h"
#include "support/sanitized_by_day.h"

namespace scaletrain::parity {

namespace {

constexpr std::size_t guard_bytes = 64;
constexpr std::byte guard{0xA5};
constexpr std::uint64_t seed = 20240229;

struct UnderTest {
  std::string name;
  std::unique_ptr<Backend> backend;
};

std::vector<UnderTest> backends_under_test(DType compute) {
  std::vector<UnderTest> backends;
  backends.push_back({"reference", make_reference_backend(compute)});
  if (compute == DType::bf16) {
    backends.push_back(
        {"cpu, panels in plain loops", std::make_unique<PanelsBackend>(3, plain_bf16_panels(), std::size_t{1} << 18)});
    backends.push_back(
        {"cpu, tiles in plain loops", std::make_unique<PanelsBackend>(3, plain_bf16_tiles(), cpu::shared_pack_bytes)});
  }
  for (const char* instruction_set : {"portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"}) {
    const std::string_view set = instruction_set;
    if (compute != DType::bf16 && (set == "avx512_bf16" || set == "amx_bf16")) continue;  // as avx512
    CpuOptions options;
    options.threads = 3;
    options.instruction_set = instruction_set;
    options.compute = compute;
    const std::string name = std::string("cpu ") + instruction_set;
    try {
      backends.push_back({name, make_cpu_backend(options)});
    } catch (const UserError& error) {
#if defined(__x86_64__)
      // Thousands of instructions, microseconds each: by night; by day amx_test.cpp has some of the cases.
      if (set == "amx_bf16" && cpu::choose_bf16("auto") != nullptr && std::getenv("SCALETRAIN_PARITY_ALL") != nullptr) {
        backends.push_back({name + ", emulated", std::make_unique<EmulatedTilesBackend>(options.threads)});
        continue;
      }
#endif
      MESSAGE("skipped: " << name << ": " << std::string(error.what()));
    }
  }
  return backends;
}

std::vector<std::vector<Output>> expected_outputs(const std::vector<Case>& cases, DType compute) {
  const auto reference = make_plain_reference();
  std::vector<std::vector<Output>> expected;
  for (const Case& c : cases) {
    Device device(*reference, compute);
    expected.push_back(c.run(device));
  }
  return expected;
}

double root_mean_square(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return values.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(values.size()));
}

// In half of the cases of an operation the scales must be within 4 times the results: a wider one would hide errors.
void check_scales(const std::vector<Case>& cases, const std::vector<std::vector<Output>>& expected) {
  std::size_t compared = 0;
  std::size_t lax = 0;
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (std::size_t o = 0; o < cases[i].scales.size(); ++o) {
      Values scales;
      Values results;
      for (std::size_t e = 0; e < cases[i].scales[o].size(); ++e) {
        if (cases[i].scales[o][e] < 0) continue;
        scales.push_back(cases[i].scales[o][e]);
        results.push_back(expected[i][o].values[e]);
      }
      ++compared;
      lax += root_mean_square(scales) > 4.0 * root_mean_square(results) ? 1 : 0;
    }
  CHECK(2 * lax <= compared);
}

// Two units in the last place of a value in a type of 16 bits.
double two_steps(DType type, double value) {
  if (type == DType::bf16) return std::fabs(value) * 0x1p-6;
  if (type == DType::f16) return std::max(0x1p-23, std::fabs(value) * 0x1p-9);
  return 0.0;
}

bool same_bits(const std::vector<Output>& a, const std::vector<Output>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t o = 0; o < a.size(); ++o) {
    const Values& left = a[o].values;
    const Values& right = b[o].values;
    if (left.size() != right.size()) return false;
    if (!left.empty() && std::memcmp(left.data(), right.data(), left.size() * sizeof(double)) != 0) return false;
  }
  return true;
}

}  // namespace

Values normal(const std::string& name, std::int64_t count, double mean, double deviation) {
  std::vector<float> floats(static_cast<std::size_t>(count));
  fill_normal(philox_key(seed, name), 0, static_cast<float>(mean), static_cast<float>(deviation), floats);
  return {floats.begin(), floats.end()};
}

Ids random_ids(const std::string& name, std::int64_t count, std::int64_t bound) {
  Ids ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(philox_below(philox_key(seed, name), i, static_cast<std::uint64_t>(bound)));
  return ids;
}

Values rounded_to_float(Values values) {
  for (double& value : values) value = static_cast<double>(static_cast<float>(value));
  return values;
}

Values map(const Values& values, double (*function)(double)) {
  Values result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), function);
  return result;
}

double square(double value) {
  return value * value;
}

View Device::allocate(DType dtype, Shape shape) {
  const std::size_t bytes = static_cast<std::size_t>(shape.num_elements()) * size_of(dtype);
  const std::size_t before = guard_bytes + (is_unaligned_ ? size_of(dtype) : 0);
  buffers_.push_back(backend_.allocate(before + bytes + guard_bytes));
  extents_.push_back({before, bytes});
  std::byte* memory = buffers_.back().data();
  std::fill(memory, memory + before, guard);
  std::fill(memory + before + bytes, memory + before + bytes + guard_bytes, guard);
  return {memory + before, dtype, shape};
}

View Device::put(const Values& values, Shape shape) {
  return put_as(backend_.compute_type(), rounded(values), shape);
}

View Device::put_padded(const Values& values, std::int64_t rows, std::int64_t columns) {
  const std::int64_t width = round_up(columns, backend_.row_alignment());
  Values padded(static_cast<std::size_t>(rows * width), std::numeric_limits<double>::quiet_NaN());
  for (std::int64_t row = 0; row < rows; ++row)
    std::copy_n(values.begin() + row * columns, columns, padded.begin() + row * width);
  return put(padded, {rows, width});
}

Values Device::get(const ConstView& matrix, std::int64_t columns) {
  return Strided{.whole = View(const_cast<void*>(matrix.data()), matrix.dtype(), matrix.shape()), .width = columns}
      .get();
}

Values Device::rounded(Values values) const {
  if (rounding_ == DType::f32 || rounding_ == DType::f64) return values;
  std::vector<std::uint16_t> bits(values.size());
  convert_floats(DType::f64, values.data(), rounding_, bits.data(), values.size());
  convert_floats(rounding_, bits.data(), DType::f64, values.data(), values.size());
  return values;
}

View Device::put_master(const Values& values, Shape shape) {
  return put_as(backend_.compute_type() == DType::f64 ? DType::f64 : DType::f32, values, shape);
}

View Device::put_as(DType dtype, const Values& values, Shape shape) {
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(values.size()), shape.num_elements());
  const View view = allocate(dtype, shape);
  convert_floats(DType::f64, values.data(), dtype, view.data(), values.size());
  return view;
}

View Device::put_ids(const Ids& ids, Shape shape) {
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(ids.size()), shape.num_elements());
  const View view = allocate(DType::i32, shape);
  std::copy(ids.begin(), ids.end(), view.as<std::int32_t>());
  return view;
}

View Device::put_bytes(const Ids& bytes, Shape shape) {
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(bytes.size()), shape.num_elements());
  const View view = allocate(DType::u8, shape);
  std::transform(bytes.begin(), bytes.end(), view.as<std::uint8_t>(),
                 [](std::int32_t byte) { return static_cast<std::uint8_t>(byte); });
  return view;
}

View Device::put_numbers(const std::vector<std::int64_t>& numbers, Shape shape) {
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(numbers.size()), shape.num_elements());
  const View view = allocate(DType::i64, shape);
  std::copy(numbers.begin(), numbers.end(), view.as<std::int64_t>());
  return view;
}

Weight Device::put_weight(const Values& values, Shape shape, bool packed) {
  Weight weight;
  weight.values = put(values, shape);
  if (packed) {
    const std::size_t bytes = backend_.packed_bytes(shape);
    const View memory = allocate(DType::u8, {static_cast<std::int64_t>(bytes)});
    packed_.push_back(backend_.pack(*stream_, weight.values, {static_cast<std::byte*>(memory.data()), bytes}));
    weight.packed = packed_.back().get();
  }
  return weight;
}

Values Device::get(const ConstView& view) {
  Values values(static_cast<std::size_t>(view.num_elements()));
  convert_floats(view.dtype(), view.data(), DType::f64, values.data(), values.size());
  return values;
}

bool Device::guards_intact() const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const std::byte* before = buffers_[i].data();
    const std::byte* first = before + extents_[i].before;
    const std::byte* after = first + extents_[i].bytes;
    const auto touched = [](std::byte value) { return value != guard; };
    if (std::any_of(before, first, touched) || std::any_of(after, after + guard_bytes, touched)) return false;
  }
  return true;
}

View Strided::view() const {
  auto* first = static_cast<std::byte*>(whole.data()) + static_cast<std::size_t>(offset) * size_of(whole.dtype());
  return {first, whole.dtype(), Shape{whole.shape()[0], width}};
}

void Strided::set(const Values& values) const {
  Values all = Device::get(whole);
  for (std::int64_t row = 0; row < whole.shape()[0]; ++row)
    std::copy_n(values.begin() + row * width, width, all.begin() + row * stride() + offset);
  convert_floats(DType::f64, all.data(), whole.dtype(), whole.data(), all.size());
}

Values Strided::get() const {
  const Values all = Device::get(whole);
  Values values(static_cast<std::size_t>(whole.shape()[0] * width));
  for (std::int64_t row = 0; row < whole.shape()[0]; ++row)
    std::copy_n(all.begin() + row * stride() + offset, width, values.begin() + row * width);
  return values;
}

double rounded_to(DType type, double value) {
  if (type == DType::f32 || type == DType::f64) return value;
  std::uint16_t bits = 0;
  double rounded = 0;
  convert_floats(DType::f64, &value, type, &bits, 1);
  convert_floats(type, &bits, DType::f64, &rounded, 1);
  return rounded;
}

double tolerance(const Case& c, DType compute, double expected, double scale) {
  if (scale < 0) return 0.0;
  const double smallest_normal = std::numeric_limits<float>::min();  // below it kernels may flush to zero
  double allowed = c.unit * std::sqrt(c.reduction_length) * std::max(std::fabs(expected), scale);
  if (compute == DType::bf16) allowed += c.rounded_factors * 4.0 * 0x1p-8 * scale;
  if (compute == DType::f16) allowed += c.rounded_factors * 4.0 * 0x1p-11 * scale;
  if (c.in_tf32) allowed += 0x1p-10 * (std::fabs(expected) + (4.0 + std::sqrt(2.0)) * scale);
  return std::max(smallest_normal, allowed);
}

std::optional<std::string> find_mismatch(const Case& c, DType compute, const std::vector<Output>& expected,
                                         const std::vector<Output>& found, Epilogue epilogue) {
  const bool rounds = epilogue == Epilogue::rounded_between && !c.epilogue.empty() && size_of(compute) == 2;
  const double half_step = compute == DType::bf16 ? 0x1p-8 : 0x1p-11;  // relative, at most
  if (expected.size() != found.size()) return c.name + ": another number of outputs";
  for (std::size_t o = 0; o < expected.size(); ++o) {
    const Values& values = expected[o].values;
    const bool exact = expected[o].kind == Kind::around;
    const DType stored = expected[o].kind == Kind::master ? DType::f64 : compute;
    if (values.size() != found[o].values.size() || (!exact && c.scales.at(o).size() != values.size()))
      return c.name + " " + expected[o].name + ": another number of elements";
    for (std::size_t e = 0; e < values.size(); ++e) {
      double allowed = exact ? 0.0 : tolerance(c, compute, values[e], c.scales[o][e]);
      if (rounds && o == 0) allowed += 2 * half_step * (std::fabs(values[e]) + c.epilogue[e]);
      const double value = found[o].values[e];
      if (value >= rounded_to(stored, values[e] - allowed) && value <= rounded_to(stored, values[e] + allowed))
        continue;  // neither holds for NaN
      return c.name + " " + expected[o].name + "[" + std::to_string(e) + "]: found " + std::to_string(value) +
             ", expected " + std::to_string(values[e]) + ", off by " +
             std::to_string(std::fabs(value - values[e]) / allowed) + " tolerances";
    }
  }
  return std::nullopt;
}

namespace {

void compare(Backend& backend, const std::string& name, const std::string& operation, const std::vector<Case>& cases,
             const std::vector<std::vector<Output>>& expected, Epilogue epilogue = Epilogue::exact,
             Addresses addresses = Addresses::aligned) {
  const DType compute = backend.compute_type();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    INFO(operation << " on " << name << " " << to_text(compute) << ", case " << cases[i].name);
    // Its loops are plain, and slow under sanitizers.
    if (is_sanitized_by_day() && name == "reference" && i % 3 != 0) continue;
    const bool is_unaligned = addresses == Addresses::unaligned_by_turns && i % 2 == 1;
    const auto make_device = [&] { return is_unaligned ? Device::of_unaligned(backend) : Device(backend); };
    Device device = make_device();
    const auto found = cases[i].run(device);
    const auto mismatch = find_mismatch(cases[i], compute, expected[i], found, epilogue);
    CHECK_MESSAGE(!mismatch.has_value(), mismatch.value_or(""));
    CHECK(device.guards_intact());
    if (name == "reference") continue;    // one thread, no choice
    if (is_sanitized_by_day()) continue;  // its bits are compared optimised
    Device again = make_device();
    CHECK(same_bits(found, cases[i].run(again)));
  }
}

}  // namespace

void check_parity(const std::string& operation, const std::vector<Case>& cases, DType compute) {
  CHECK(cases.size() >= 15);
  const auto expected = expected_outputs(cases, compute);
  check_scales(cases, expected);
  for (const UnderTest& under_test : backends_under_test(compute))
    compare(*under_test.backend, under_test.name, operation, cases, expected);
}

void check_parity_of(Backend& backend, const std::string& operation, const std::vector<Case>& cases,
                     Addresses addresses) {
  compare(backend, backend.description(), operation, cases, expected_outputs(cases, backend.compute_type()),
          Epilogue::rounded_between, addresses);
}

void check_parity_in_tf32(Backend& backend, const std::string& operation, std::vector<Case> cases) {
  const auto expected = expected_outputs(cases, DType::f32);
  bool is_in_f32 = true;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Device device(backend);
    is_in_f32 = is_in_f32 && !find_mismatch(cases[i], DType::f32, expected[i], cases[i].run(device));
    cases[i].in_tf32 = true;
  }
  CHECK_MESSAGE(!is_in_f32, operation);
  compare(backend, backend.description(), operation, cases, expected);
}

namespace {

// An error in the last element of each output of each case; how many there were.
int plant_errors(const std::string& operation, const std::vector<Case>& cases, DType compute) {
  const auto expected = expected_outputs(cases, compute);
  const auto inner = make_reference_backend(compute);
  PlantedError planted(*inner);
  int plants = 0;
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (std::size_t o = 0; o < expected[i].size(); ++o) {
      if (expected[i][o].kind == Kind::around || expected[i][o].values.empty()) continue;
      INFO(operation << " " << to_text(compute) << ", case " << cases[i].name << ", output " << expected[i][o].name);
      const double value = expected[i][o].values.back();
      double delta = 3.0 * tolerance(cases[i], compute, value, cases[i].scales[o].back());
      if (expected[i][o].kind == Kind::compute) delta += two_steps(compute, value);
      planted.plant(static_cast<int>(o), delta);
      Device device(planted);
      const auto mismatch = find_mismatch(cases[i], compute, expected[i], cases[i].run(device));
      CHECK(mismatch.value_or("nothing found").find(" " + expected[i][o].name + "[") != std::string::npos);
      ++plants;
    }
  return plants;
}

}  // namespace

void check_that_planted_errors_are_found(const std::string& operation, const std::vector<Case>& all) {
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  int plants = 0;
  for (std::size_t type = 0; type < 3; ++type) {
    std::vector<Case> cases;
    for (std::size_t i = type; i < all.size(); i += is_sanitized ? 9 : 3) cases.push_back(all[i]);
    plants += plant_errors(operation, cases, types[type]);
  }
  CHECK(plants >= (is_sanitized ? 10 : 30));
}

}  // namespace scaletrain::parity
