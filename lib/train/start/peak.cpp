#include "train/start/peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>

#include "base/error.h"
#include "plan/describe/devices.h"
#include "telemetry/metrics_reader.h"

namespace scaletrain {

namespace {

// This rank's part of its device's. In fp32 a GPU's library has several ways to multiply, and of a device that is not
// known nothing is.
std::optional<double> peak_of_data_sheet(const WorkerParts& parts) {
  const auto device = parts.backend->device();
  const Precision precision = parts.config.compute_precision();
  if (!device || precision == Precision::fp32) return std::nullopt;
  const DeviceModel* const model = find_device_of_driver(device->name);
  const std::optional<double> peak = model == nullptr ? std::nullopt : peak_flops(*model, precision);
  return peak ? std::optional(*peak / static_cast<double>(parts.gpu_sharers)) : std::nullopt;
}

double peak_before(const WorkerParts& parts, const WorkerOptions& options) {
  if (options.start.cause.empty() || parts.config.supervise.elastic_min_data) return 0.0;
  double peak = 0.0;
  try {
    const MetricsTail tail = parts.is_first() ? read_metrics_tail(options.paths.metrics(), 0) : MetricsTail();
    if (tail.mfu > 0.0 && tail.tokens_per_second > 0.0)
      peak = model_flops_per_token(parts.phase.model, parts.phase.table, tail.step - 1) * tail.tokens_per_second /
             tail.mfu;
  } catch (const InputError&) {  // then it is measured
  }
  sum_over_world(parts.groups, {&peak, 1});
  return std::isfinite(peak) ? peak : 0.0;
}

}  // namespace

DevicePeak known_peak(const WorkerParts& parts, const WorkerOptions& options) {
  if (const auto peak = parts.config.log.peak_flops())
    return {.flops = *peak * static_cast<double>(parts.phase.mesh.world())};
  if (parts.backend->device() && options.calibration_seconds > 0.0) {
    double peak = peak_of_data_sheet(parts).value_or(std::numeric_limits<double>::quiet_NaN());
    sum_over_world(parts.groups, {&peak, 1});
    if (std::isfinite(peak)) return {.flops = peak};
  }
  const double before = peak_before(parts, options);
  return {.flops = before, .is_measured = before > 0.0};
}

// The best of a rank's repetitions had its threads' processors to itself, which it may have to share. Of a GPU that
// others share it gets its part by the clock.
DevicePeak measure_peak(WorkerParts& parts, double seconds, double processors_per_thread) {
  if (seconds <= 0.0) return {};
  double peak = std::numeric_limits<double>::quiet_NaN();
  try {
    // Of that processor time ranks that share processors have a part each, so that together they take no longer.
    const double share = parts.backend->device() ? 1.0 : std::min(1.0, processors_per_thread);
    const std::optional<double> known = peak_of_data_sheet(parts);
    peak = known ? *known : calibrate_matmul(*parts.backend, *parts.stream, seconds * share) * share;
  } catch (const std::exception& error) {
    // No memory for it, say: a share of peak is not worth a run. The others learn by the sum that it is not known.
    parts.log.warn(fmt::format("the peak of the {} could not be measured, mfu is not known: {}",
                               parts.backend->device() ? "GPU" : "processor", error.what()));
  }
  sum_over_world(parts.groups, {&peak, 1});
  if (!std::isfinite(peak)) return {};
  return {.flops = peak, .is_measured = true};
}

}  // namespace scaletrain
