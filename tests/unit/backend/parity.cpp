#include "parity.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/numbers/philox.h"
#include "planted_error.h"
#include "support/philox_below.h"

namespace scaletrain::parity {

namespace {

constexpr std::size_t guard_bytes = 64;
constexpr std::byte guard{0xA5};
constexpr std::uint64_t seed = 20240229;

struct UnderTest {
  std::string name;
  std::unique_ptr<Backend> backend;
};

std::vector<UnderTest> backends_under_test() {
  std::vector<UnderTest> backends;
  backends.push_back({"reference f32", make_reference_backend(DType::f32)});
  for (const char* instruction_set : {"portable", "avx2", "avx512"}) {
    CpuOptions options;
    options.threads = 3;
    options.instruction_set = instruction_set;
    const std::string name = std::string("cpu ") + instruction_set;
    try {
      backends.push_back({name, make_cpu_backend(options)});
    } catch (const UserError& error) {
      MESSAGE("skipped: " << name << ": " << error.what());
    }
  }
  return backends;
}

std::vector<std::vector<Output>> expected_outputs(const std::vector<Case>& cases) {
  const auto reference = make_reference_backend(DType::f64);
  std::vector<std::vector<Output>> expected;
  for (const Case& c : cases) {
    Device device(*reference);
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
  buffers_.push_back(backend_.allocate(bytes + 2 * guard_bytes));
  sizes_.push_back(bytes);
  std::byte* memory = buffers_.back().data();
  std::fill(memory, memory + guard_bytes, guard);
  std::fill(memory + guard_bytes + bytes, memory + bytes + 2 * guard_bytes, guard);
  return {memory + guard_bytes, dtype, shape};
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

Weight Device::put_weight(const Values& values, Shape shape, bool packed) {
  Weight weight;
  weight.values = put(values, shape);
  if (packed) {
    packed_.push_back(backend_.pack(*stream_, weight.values));
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
    const std::byte* after = before + guard_bytes + sizes_[i];
    const auto touched = [](std::byte value) { return value != guard; };
    if (std::any_of(before, before + guard_bytes, touched) || std::any_of(after, after + guard_bytes, touched))
      return false;
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

double tolerance(const Case& c, double expected, double scale) {
  if (scale < 0) return 0.0;
  const double smallest_normal = std::numeric_limits<float>::min();  // below it kernels may flush to zero
  return std::max(smallest_normal, c.unit * std::sqrt(c.reduction_length) * std::max(std::fabs(expected), scale));
}

std::optional<std::string> find_mismatch(const Case& c, const std::vector<Output>& expected,
                                         const std::vector<Output>& found) {
  if (expected.size() != found.size()) return c.name + ": another number of outputs";
  for (std::size_t o = 0; o < expected.size(); ++o) {
    const Values& values = expected[o].values;
    const bool exact = !expected[o].from_operation;
    if (values.size() != found[o].values.size() || (!exact && c.scales.at(o).size() != values.size()))
      return c.name + " " + expected[o].name + ": another number of elements";
    for (std::size_t e = 0; e < values.size(); ++e) {
      const double allowed = exact ? 0.0 : tolerance(c, values[e], c.scales[o][e]);
      if (std::fabs(found[o].values[e] - values[e]) <= allowed) continue;  // false for NaN
      return c.name + " " + expected[o].name + "[" + std::to_string(e) + "]: found " +
             std::to_string(found[o].values[e]) + ", expected " + std::to_string(values[e]) + ", off by " +
             std::to_string(std::fabs(found[o].values[e] - values[e]) / allowed) + " tolerances";
    }
  }
  return std::nullopt;
}

void check_parity(const std::string& operation, const std::vector<Case>& cases) {
  CHECK(cases.size() >= 30);
  const auto expected = expected_outputs(cases);
  check_scales(cases, expected);
  for (const UnderTest& under_test : backends_under_test()) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      INFO(operation << " on " << under_test.name << ", case " << cases[i].name);
      Device device(*under_test.backend);
      const auto found = cases[i].run(device);
      const auto mismatch = find_mismatch(cases[i], expected[i], found);
      CHECK_MESSAGE(!mismatch.has_value(), mismatch.value_or(""));
      CHECK(device.guards_intact());
      Device again(*under_test.backend);
      CHECK(same_bits(found, cases[i].run(again)));
    }
  }
}

void check_that_planted_errors_are_found(const std::string& operation, const std::vector<Case>& cases) {
  const auto expected = expected_outputs(cases);
  const auto inner = make_reference_backend(DType::f32);
  PlantedError planted(*inner);
  int plants = 0;
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (std::size_t o = 0; o < expected[i].size(); ++o) {
      if (!expected[i][o].from_operation || expected[i][o].values.empty()) continue;
      INFO(operation << ", case " << cases[i].name << ", output " << expected[i][o].name);
      planted.plant(static_cast<int>(o),
                    3.0 * tolerance(cases[i], expected[i][o].values.back(), cases[i].scales[o].back()));
      Device device(planted);
      const auto mismatch = find_mismatch(cases[i], expected[i], cases[i].run(device));
      CHECK(mismatch.value_or("nothing found").find(" " + expected[i][o].name + "[") != std::string::npos);
      ++plants;
    }
  CHECK(plants >= 30);
}

}  // namespace scaletrain::parity
