#include "backend/moment_codes.h"

#include <vector>

namespace scaletrain {

namespace {

// fraction_bits: behind no leading zeros; one fewer behind each further one.
MomentCodes make_codes(int fraction_bits, bool is_signed) {
  constexpr int exponents = 7;
  std::vector<double> numbers = {0.0, 1.0};
  for (int exponent = 0; exponent < exponents; ++exponent) {
    const int count = 1 << (fraction_bits - (exponents - 1 - exponent));
    for (int i = 0; i < count; ++i) {
      const double fraction = 0.1 + 0.9 * (i + 0.5) / count;
      const double number = fraction * std::pow(10.0, exponent - (exponents - 1));
      numbers.push_back(number);
      if (is_signed) numbers.push_back(-number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  MomentCodes codes{};
  for (std::size_t i = 0; i < codes.values.size(); ++i) codes.values[i] = static_cast<float>(numbers.at(i));
  return codes;
}

}  // namespace

const MomentCodes& first_moment_codes() {
  static const MomentCodes codes = make_codes(6, true);
  return codes;
}

const MomentCodes& second_moment_codes() {
  static const MomentCodes codes = [] {
    MomentCodes made = make_codes(7, false);
    made.smallest = 1;
    return made;
  }();
  return codes;
}

}  // namespace scaletrain
