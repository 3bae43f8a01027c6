// What evaluate says: of one model a line a measure, of several a table each, and JSON of all.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/tasks/choice_task.h"
#include "infer/evaluate.h"

namespace scaletrain {

// A model's loss on a set.
struct SetReport {
  std::string model;
  std::optional<std::int64_t> step;  // of a checkpoint
  std::string set;
  EvaluationResult result;
  DocumentsConfig documents;  // as the model's config has it
  std::int64_t samples = 0;
  std::optional<std::int64_t> samples_in_run;  // of the run's own sets: what its evaluations measure
  std::string difference;                      // from the run's own evaluations, for people; may be empty
};

// A model's accuracy on a multiple-choice task.
struct TaskReport {
  std::string model;
  std::optional<std::int64_t> step;
  std::string task;
  TaskScore score;
  std::int64_t num_cut = 0;  // texts of which the beginning was not read
};

std::string text_of(const std::vector<SetReport>& reports);
std::string text_of(const std::vector<TaskReport>& reports);
nlohmann::json json_of(const TaskReport& report);
nlohmann::json json_of(const SetReport& report);

}  // namespace scaletrain
