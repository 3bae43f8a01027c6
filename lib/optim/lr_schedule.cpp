#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace scaletrain {

double decayed_rate(const LrScheduleConfig& config, double peak, double progress) {
  SCALETRAIN_CHECK(progress >= 0.0 && progress <= 1.0);
  const double low = config.min_ratio;
  switch (config.type) {
    case LrScheduleKind::cosine:
      return peak * (low + (1.0 - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
    case LrScheduleKind::linear:
      return peak * (low + (1.0 - low) * (1.0 - progress));
    case LrScheduleKind::constant:
      return peak;
    case LrScheduleKind::wsd:
      throw UserError("train.lr_schedule.type: wsd is not supported yet; use cosine, linear or constant");
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
  return decayed_rate(config, peak,
                      total_updates <= start ? 1.0
                                             : std::min(1.0, static_cast<double>(update - start) /
                                                                 static_cast<double>(total_updates - start)));
}

}  // namespace scaletrain
