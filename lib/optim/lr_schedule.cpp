#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace scaletrain {

namespace {

// From 1 at x = 0 to 0 at x = 1.
double half_cosine(double x) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * x));
}

double decay_of(DecayShape shape, double x) {
  switch (shape) {
    case DecayShape::linear:
      return 1.0 - x;
    case DecayShape::cosine:
      return half_cosine(x);
    case DecayShape::one_minus_sqrt:
      return 1.0 - std::sqrt(x);
  }
  SCALETRAIN_CHECK(false);
}

// In updates, whatever the unit of the way is.
double way_of_decay(const LrScheduleConfig& config, const ScheduleWay& way) {
  const double whole = way.whole / way.update;
  const double all = whole + way.warmup / way.update;
  const double wanted = config.decay_steps ? static_cast<double>(*config.decay_steps) : config.decay_share * all;
  const double length = std::min(wanted, whole);
  const double gone = way.done / way.update - (whole - length);
  return gone <= 0.0 ? 0.0 : std::min(1.0, gone / length);
}

double way_of_cycle(const LrScheduleConfig& config, const ScheduleWay& way) {
  double gone = way.done / way.update;
  auto length = static_cast<double>(config.restart_steps);
  if (config.restart_factor == 1.0) return std::fmod(gone, length) / length;
  for (; gone >= length; length *= config.restart_factor) gone -= length;
  return gone / length;
}

}  // namespace

double decayed_rate(const LrScheduleConfig& config, double peak, const ScheduleWay& way) {
  SCALETRAIN_CHECK(way.done >= 0.0 && way.done <= way.whole && way.update > 0.0);
  const double low = config.min_ratio;
  const double progress = way.whole > 0.0 ? way.done / way.whole : 1.0;
  switch (config.type) {
    case LrScheduleKind::cosine:
      return peak * (low + (1.0 - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
    case LrScheduleKind::linear:
      return peak * (low + (1.0 - low) * (1.0 - progress));
    case LrScheduleKind::constant:
      return peak;
    case LrScheduleKind::inverse_sqrt:
      return peak * std::max(low, std::sqrt(way.warmup / (way.warmup + way.done)));
    case LrScheduleKind::wsd:
      return peak * (low + (1.0 - low) * decay_of(config.decay_shape, way_of_decay(config, way)));
    case LrScheduleKind::cosine_restarts:
      return peak * (low + (1.0 - low) * half_cosine(way_of_cycle(config, way)));
  }
  SCALETRAIN_CHECK(false);
}

double learning_rate(const LrScheduleConfig& config, double peak, std::int64_t update, std::int64_t total_updates) {
  SCALETRAIN_CHECK_LE(1, update);
  SCALETRAIN_CHECK_LE(1, total_updates);
  const std::int64_t warmup = config.warmup.value_or(default_warmup(total_updates));
  SCALETRAIN_CHECK_LE(0, warmup);
  if (update < warmup) return peak * (static_cast<double>(update) / static_cast<double>(warmup));
  const std::int64_t start = std::max<std::int64_t>(warmup, 1);
  if (update <= start) return peak;
  const std::int64_t whole = std::max<std::int64_t>(total_updates - start, 0);
  return decayed_rate(config, peak,
                      {.done = static_cast<double>(std::min(update - start, whole)),
                       .whole = static_cast<double>(whole),
                       .warmup = static_cast<double>(start)});
}

}  // namespace scaletrain
