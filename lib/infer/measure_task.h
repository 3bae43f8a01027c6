// The accuracy of a model on a multiple-choice task.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/tasks/choice_task.h"
#include "infer/model.h"

namespace scaletrain {

// log p(choice | question) of every row of the task, in nats. The task was made with the model's tokenizer and no more
// than its context. `progress` is called with (done, all) rows, first with none done.
std::vector<double> measure_rows(LoadedModel& model, const ChoiceTask& task, std::int64_t micro_batch,
                                 const std::function<void(std::int64_t done, std::int64_t all)>& progress);

}  // namespace scaletrain
