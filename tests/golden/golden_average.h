// The average of the weights behind twenty AdamW steps, held against PyTorch's AveragedModel (make_averages.py).
#pragma once

#include "golden_models.h"

namespace scaletrain {

inline void check_averages(const std::string& model, std::unique_ptr<Backend> backend, double tolerance) {
  CAPTURE(model);
  const Expected expected(golden_folder(model) / "averages.safetensors");
  const Course course =
      train_twenty_steps(model, std::move(backend), 1.0, {.ema = EmaConfig{.decay = expected.number("decay")}});
  CHECK_FALSE(course.averages.empty());
  for (const auto& [name, values] : course.averages) {
    const std::string& tensor = name;
    CAPTURE(tensor);
    const auto average = expected.values<double>("average/" + name);
    REQUIRE(average.size() == values.size());
    std::vector<double> difference = values;
    for (std::size_t i = 0; i < average.size(); ++i) difference[i] -= average[i];
    CHECK(norm(difference) <= tolerance * norm(average));
  }
}

}  // namespace scaletrain
