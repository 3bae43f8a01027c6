// What gradients that travel between replicas in bf16 may differ by from those that travel in fp32.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

#include "support/ranks/rank_trainer.h"

namespace scaletrain {

// Two roundings to nearest: of what each replica sends, and of the sum. Of one number each is off by epsilon = 2^-8 at
// most, relative. Over all numbers errors are spread evenly between -epsilon and epsilon, or within less: a root mean
// square of epsilon / sqrt(3), and of sqrt(2) times that for both. They have no direction either, so the part along the
// gradients, which makes all of them longer or shorter, is left to chance, of which four standard deviations are
// allowed: for independent errors of a relative size, that size times sqrt(sum g^4) / sum g^2. Where either rounding is
// done towards zero that part is near half an epsilon.
inline void check_rounded_once_and_as_a_sum(const GlobalTensors& found, const GlobalTensors& exact) {
  double squares = 0;
  double fourth_powers = 0;
  double error_squares = 0;
  double products = 0;
  for (const auto& [name, values] : exact) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = found.at(name).at(i) - values[i];
      squares += values[i] * values[i];
      fourth_powers += std::pow(values[i], 4);
      error_squares += error * error;
      products += error * values[i];
    }
  }
  const double allowed = std::sqrt(2.0 / 3.0) * std::ldexp(1.0, -8);
  const double size = std::sqrt(error_squares / squares);
  CHECK(size > 0);
  CHECK(size <= allowed);
  CHECK(std::abs(products / squares) <= 4 * allowed * std::sqrt(fourth_powers) / squares);
}

}  // namespace scaletrain
