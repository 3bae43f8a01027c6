#include "train/start/peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "base/error.h"
#include "telemetry/metrics_reader.h"

namespace scaletrain {

double peak_before(const WorkerParts& parts, const WorkerOptions& options) {
  if (options.start.cause.empty() || parts.config.supervise.elastic_min_data) return 0.0;
  double peak = 0.0;
  try {
    const MetricsTail tail = parts.is_first() ? read_metrics_tail(options.paths.metrics(), 0) : MetricsTail();
    if (tail.mfu > 0.0 && tail.tokens_per_second > 0.0)
      peak = model_flops_per_token(parts.phase.model) * tail.tokens_per_second / tail.mfu;
  } catch (const InputError&) {  // then it is measured
  }
  sum_over_world(parts.groups, {&peak, 1});
  return std::isfinite(peak) ? peak : 0.0;
}

// The best of a rank's repetitions had its threads' processors to itself, which it may have to share.
double measure_peak(WorkerParts& parts, double seconds, double processors_per_thread) {
  if (seconds <= 0.0) return 0.0;
  double peak = std::numeric_limits<double>::quiet_NaN();
  try {
    // Of that processor time ranks that share processors have a part each, so that together they take no longer.
    const double share = std::min(1.0, processors_per_thread);
    peak = calibrate_matmul(*parts.backend, *parts.stream, seconds * share) * share;
  } catch (const std::exception& error) {
    // No memory for it, say: a share of peak is not worth a run. The others learn by the sum that it is not known.
    parts.log.warn(fmt::format("the processor's peak could not be measured, mfu is not known: {}", error.what()));
  }
  sum_over_world(parts.groups, {&peak, 1});
  return std::isfinite(peak) ? peak : 0.0;
}

}  // namespace scaletrain
