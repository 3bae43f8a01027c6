// The trained model of the tests of commands, the text that it is measured on, and how a loss is read.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "process/tiny_run.h"

namespace scaletrain {

inline std::string held() {
  return (workspace() / "held.txt").string();
}
inline std::string newest() {
  return checkpoint(undisturbed_run(), tiny_steps).string();
}

// Of `evaluate --json` of one data set.
inline double loss_of(const Ended& end) {
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const nlohmann::json answer = nlohmann::json::parse(end.output);
  REQUIRE(answer.size() == 1);
  return answer.at(0).at("loss").get<double>();
}

}  // namespace scaletrain
