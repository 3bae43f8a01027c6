#include "telemetry/metrics_table.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

using namespace scaletrain;

namespace {

Metrics two_steps() {
  Metrics metrics;
  metrics.steps.push_back({.step = 1, .tokens = 64, .loss = 0.1, .learning_rate = 1e-5, .grad_norm = 1.0 / 3.0});
  metrics.steps.push_back({.step = 2, .tokens = 128, .loss = std::nan(""), .learning_rate = 0.5, .grad_norm = 2});
  metrics.evaluations.push_back({.step = 2, .dataset = "web", .loss = 3.5});
  metrics.evaluations.push_back({.step = 2, .dataset = "a,\"b\"", .loss = 4.5});
  metrics.skips.push_back({.step = 2, .reason = "non-finite gradient"});
  return metrics;
}

std::string message_of(const Metrics& metrics, const std::vector<std::string>& keys) {
  try {
    table_of(metrics, keys);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a table has a line per step with its evaluations, and numbers to the bit") {
  CHECK(
      to_csv(table_of(two_steps(), {"loss", "grad_norm", "skip", "validation/a,\"b\"/loss", "validation/web/loss"})) ==
      "step,loss,grad_norm,skip,\"validation/a,\"\"b\"\"/loss\",validation/web/loss\n"
      "1,0.1,0.3333333333333333,,,\n"
      "2,nan,2.0,non-finite gradient,4.5,3.5\n");
  CHECK(to_json_lines(table_of(two_steps(), {"validation/web/loss", "loss", "tokens"})) ==
        "{\"step\":1,\"loss\":0.1,\"tokens\":64}\n"
        "{\"step\":2,\"validation/web/loss\":3.5,\"loss\":null,\"tokens\":128}\n");
  CHECK(to_columns(table_of(two_steps(), {"grad_norm", "validation/web/loss"})) ==
        "step  grad_norm  validation/web/loss\n"
        "   1   0.333333                    -\n"
        "   2          2                  3.5\n");
}

TEST_CASE("a table has the columns of which a step has a number, in one order, and step once") {
  const std::vector<std::string> keys = {"step",
                                         "tokens",
                                         "loss",
                                         "learning_rate",
                                         "grad_norm",
                                         "step_seconds",
                                         "tokens_per_second",
                                         "mfu",
                                         "elapsed_seconds",
                                         "skip",
                                         "validation/web/loss",
                                         "validation/a,\"b\"/loss"};
  CHECK(table_of(two_steps()).keys == keys);
  CHECK(table_of(two_steps(), {"loss", "step"}).keys == std::vector<std::string>{"step", "loss"});
  // Known, though this run has none: a script may ask for it of every run.
  CHECK(to_csv(table_of(two_steps(), {"loss_scale"})) == "step,loss_scale\n1,\n2,\n");
  Metrics measured = two_steps();
  measured.steps.at(1).noise = NoiseRecord{.square = 0.5, .variance = 2.0, .scale = 4.0, .batch_small = 4};
  CHECK(to_csv(table_of(measured, {"noise_variance", "noise_scale", "noise_batch_small"})) ==
        "step,noise_variance,noise_scale,noise_batch_small\n1,,,\n2,2.0,4.0,4\n");
}

TEST_CASE("accuracies on tasks are columns of their own") {
  Metrics metrics = two_steps();
  metrics.tasks.push_back({.step = 2, .task = "quiz", .accuracy = 0.25, .normalized_accuracy = 0.5});
  const MetricsTable table = table_of(metrics, {"step", "task/quiz/accuracy", "task/quiz/normalized_accuracy"});
  CHECK(to_csv(table) == "step,task/quiz/accuracy,task/quiz/normalized_accuracy\n1,,\n2,0.25,0.5\n");
}

TEST_CASE("of a step that was cut the evaluation is a line by itself") {
  Metrics metrics;
  metrics.evaluations.push_back({.step = 7, .dataset = "web", .loss = 3.5});
  CHECK(to_csv(table_of(metrics)) == "step,validation/web/loss\n7,3.5\n");
  CHECK(to_csv(table_of(Metrics())) == "step\n");
}

TEST_CASE("a column that there is not is refused with those that there are") {
  CHECK(message_of(two_steps(), {"lss"}) == "--keys: this run has no \"lss\"; did you mean loss?");
  CHECK(message_of(two_steps(), {"perplexity"})
            .starts_with("--keys: this run has no \"perplexity\"; there are: step, tokens, loss, "));
  CHECK(message_of(two_steps(), {"loss", "loss"}) == "--keys: loss is there twice");
}
