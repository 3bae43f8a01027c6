#include "telemetry/loss_text.h"

#include <fmt/format.h>

#include <cmath>

namespace scaletrain {

namespace {

constexpr double spelled_out = 1e5;

}  // namespace

std::string loss_text(double loss) {
  if (std::isnan(loss)) return "nan";
  if (std::isinf(loss) || std::abs(loss) >= spelled_out) return fmt::format("{:.3e}", loss);
  return fmt::format("{:.4f}", loss);
}

}  // namespace scaletrain
