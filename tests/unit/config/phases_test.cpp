#include "config/phases.h"

#include <doctest/doctest.h>

#include "config/batch_ramp.h"
#include "config_helpers.h"

using namespace scaletrain;

namespace {

const std::string two_sources = "data.train=[{path: a, name: web}, {path: b, weight: 3}]";

Config with_phases(const std::string& phases, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"train.steps=null", "phases=" + phases, two_sources});
  return load_text(kLeast, more).config;
}

std::string refusal_of(const std::string& phases, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"train.steps=null", "phases=" + phases});
  return override_errors(more);
}

}  // namespace

// By hand: 1000 tokens of 8 samples of 64 are 1.95 steps.
TEST_CASE("phases follow each other, and what one does not say is the run's") {
  const Config config = with_phases(
      "[{steps: 3, context: 64, global_batch: 4}, {tokens: 1000, context: 64}, "
      "{tokens: 1025, learning_rate_factor: 0.5, weights: {web: 2}}, {steps: 1, "
      "weights: {'1': 0.5, web: 0.25}}]",
      {"model.context=128", "train.global_batch=8"});
  const std::vector<TrainingPhase> phases = training_phases(config);
  REQUIRE(phases.size() == 4);
  const std::vector<std::int64_t> firsts = {0, 3, 5, 7};
  const std::vector<std::int64_t> steps = {3, 2, 2, 1};
  const std::vector<std::int64_t> contexts = {64, 64, 128, 128};
  const std::vector<std::int64_t> batches = {4, 8, 8, 8};
  const std::vector<double> factors = {1, 1, 0.5, 1};
  const std::vector<std::vector<double>> weights = {{1, 3}, {1, 3}, {2, 0}, {0.25, 0.5}};
  for (std::size_t i = 0; i < phases.size(); ++i) {
    CAPTURE(i);
    CHECK(phases[i].index == static_cast<std::int64_t>(i));
    CHECK(phases[i].first_step == firsts[i]);
    CHECK(phases[i].steps == steps[i]);
    CHECK(phases[i].context == contexts[i]);
    CHECK(phases[i].global_batch == batches[i]);
    CHECK(phases[i].learning_rate_factor == factors[i]);
    CHECK(phases[i].weights == weights[i]);
  }
  CHECK(config.train.steps == 8);
  CHECK(shorter_contexts(config) == std::vector<std::int64_t>{64});
  const std::vector<std::int64_t> index_of_step = {0, 0, 0, 1, 1, 2, 2, 3, 3, 3};
  std::int64_t samples = 0;
  for (std::size_t step = 0; step < index_of_step.size(); ++step) {
    CAPTURE(step);
    const auto at = static_cast<std::int64_t>(step);
    CHECK(phase_of_step(config, at).index == index_of_step[step]);
    CHECK(batch_of_step(config.train, at) == batches[static_cast<std::size_t>(index_of_step[step])]);
    samples += batch_of_step(config.train, at);
    CHECK(samples_from(config.train, 0, at + 1) == samples);
    CHECK(steps_to_samples(config.train, 0, samples) == at + 1);
    CHECK(steps_to_samples(config.train, 0, samples - 1) == at + 1);
  }
}

TEST_CASE("a run without phases is one of its own settings") {
  const Config config = load_text(kLeast, {"train.global_batch=8", "model.context=32"}).config;
  const std::vector<TrainingPhase> phases = training_phases(config);
  REQUIRE(phases.size() == 1);
  CHECK(phases[0].context == 32);
  CHECK(phases[0].global_batch == 8);
  CHECK(phases[0].learning_rate_factor == 1.0);
  CHECK(phase_of_step(config, 1000000).index == 0);
  CHECK(shorter_contexts(config).empty());
}

TEST_CASE("phases are read back as they were written, with what they did not say") {
  const Config config = with_phases("[{steps: 3, context: 64}, {tokens: 1K, weights: {'1': 0.5, web: 0.25}}]",
                                    {"model.context=128", "train.global_batch=8"});
  const std::string yaml = resolved_yaml(config);
  CHECK(contains(yaml,
                 "phases:\n"
                 "  - {steps: 3, tokens: null, context: 64, global_batch: 8, weights: null, "
                 "learning_rate_factor: 1}\n"
                 "  - {steps: null, tokens: 1000, context: 128, global_batch: 8, weights: {\"1\": 0.5, web: "
                 "0.25}, learning_rate_factor: 1}\n"));
  const Config back = parse_resolved_config(yaml, "manifest");
  CHECK(compare_configs(config, back).empty());
  CHECK(back.train.phases == config.train.phases);
  CHECK(back.train.steps == 4);
}

TEST_CASE("phases that do not fit are refused, each with what helps") {
  const std::vector<std::string> sizes = {"model.context=128", "train.global_batch=8", two_sources};
  const auto check = [&](const std::string& phases, const std::string& expected,
                         const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = sizes;
    all.insert(all.end(), more.begin(), more.end());
    const std::string found = refusal_of(phases, all);
    CAPTURE(found);
    CHECK(contains(found, expected));
  };
  check("[{context: 64}]", "phases.0.steps: is missing; set steps, or tokens such as 2B");
  check("[{steps: 2, tokens: 5}]", "phases.0.tokens: steps and tokens are both set; keep one");
  check("[{steps: 0}]", "phases.0.steps");
  check("[{steps: 2}, {steps: 2, context: 256}]", "phases.1.context: 256 is longer than model.context 128");
  check("[{steps: 2, context: 60}]", "phases.0.context: 60 does not divide model.context 128");
  check("[{steps: 2, context: 60}]", "write 32");
  check("[{steps: 2, global_batch: 9}]", "phases.0.global_batch: 9 is larger than train.global_batch 8");
  check("[{steps: 2, weights: {books: 1}}]",
        "phases.0.weights: \"books\" is no source of data.train; there are web, 1");
  check("[{steps: 2, weights: {web: 0}}]", "phases.0.weights: web:");
  check("[{steps: 2, weights: {}}]", "phases.0.weights: is empty");
  check("[{steps: 2}]", "train.tokens: the phases say how long the run is", {"train.tokens=100"});
  check("[{steps: 2}]", "train.epochs: the phases say how long the run is", {"train.epochs=1"});
  check("[{steps: 2}]", "train.steps: 3, but the phases have 2 steps together", {"train.steps=3"});
  check("[{steps: 9}]", "train.batch_ramp: a batch cannot grow by a ramp and by phases",
        {"train.batch_ramp={from: 2, by: 2, steps: 4}"});
  check("[{steps: 9}]", "log.gradient_noise: the noise is not measured in a run of phases yet",
        {"log.gradient_noise={}"});
  check("[{steps: 9}]", "train.global_batch: auto has no say in a run of phases yet",
        {"log.gradient_noise={}", "train.global_batch=auto", "train.batch_auto={min: 2, max: 8}"});
  check("[{steps: 2, learning_rate: 0.1}]", "phases.0.learning_rate");
  CHECK(contains(
      refusal_of("[{steps: 2, context: 64}]", {"model.context=128", "data.train=[{path: a.jsonl, records: messages}]"}),
      "are not cut into shorter ones yet"));
  CHECK(contains(override_errors({"data.train=[{path: a, name: x}, {path: b, name: x}]"}), "names two sources"));
  CHECK(
      contains(override_errors({"data.train=[{path: a, name: '0'}]"}), "data.train.0.name: \"0\" is how phases call"));
  CHECK(refusal_of("[{steps: 2, context: 64, weights: {web: 1}}, {tokens: 1M}]", sizes) == "accepted");
}
