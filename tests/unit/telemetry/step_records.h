// Steps of a metrics file, for its tests.
#pragma once

#include <cstdint>
#include <vector>

#include "telemetry/metrics.h"
#include "telemetry/metrics_reader.h"

namespace scaletrain {

inline StepRecord step_at(std::int64_t step, double loss = 1.0) {
  return {.step = step, .tokens = step * 1000, .loss = loss, .learning_rate = 1e-3, .step_seconds = 0.5};
}

inline std::vector<std::int64_t> steps_of(const Metrics& metrics) {
  std::vector<std::int64_t> out;
  for (const auto& record : metrics.steps) out.push_back(record.step);
  return out;
}

}  // namespace scaletrain
