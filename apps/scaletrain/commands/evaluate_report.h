// What evaluate says: of one model a line a measure, of several a table each, and JSON of all.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "infer/evaluate.h"

namespace scaletrain {

// A model's loss on a set.
struct SetReport {
  std::string model;
  std::optional<std::int64_t> step;  // of a checkpoint
  std::string set;
  EvaluationResult result;
  std::int64_t samples = 0;
  std::optional<std::int64_t> samples_in_run;  // of the run's own sets: what its evaluations measure
  std::string difference;                      // from the run's own evaluations, for people; may be empty
};

std::string text_of(const std::vector<SetReport>& reports);
nlohmann::json json_of(const SetReport& report);

}  // namespace scaletrain
