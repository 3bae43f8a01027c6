// What is said of a run whose batch follows the gradient noise.
#include "plan/describe/describe.h"
#include "plan_helpers.h"

using namespace scaletrain;

// Steps fall to `min` where the caps leave no more, so that the largest batch that a step may have asks for nothing.
TEST_CASE("epoch_caps_are_judged_by_the_tokens_that_a_run_with_a_batch_that_is_auto_has_left") {
  Config config = planned_config();
  config.train.adapts_batch = true;
  config.train.batch_auto = BatchAutoConfig{};
  config.train.batch_auto->min = 3;
  config.train.batch_auto->max = 96;
  config.train.global_batch = 96;
  config.train.steps.reset();
  const std::int64_t context = config.model.context;
  config.train.tokens = 469 * context;
  config.data.train.resize(1);
  config.data.train[0].path = "a";
  config.data.train[0].epochs = 1.0;
  const auto shortage_of = [&](std::int64_t samples_read, std::uint64_t samples) {
    DescribeOptions options;
    options.sources = {SourceSize{samples * static_cast<std::uint64_t>(context), "a byte a token"}};
    if (samples_read > 0)
      options.so_far = RunSoFar{.step = 20,
                                .last_step = 200,
                                .epochs_read = {static_cast<double>(samples_read) / static_cast<double>(samples)},
                                .tokens = samples_read * context};
    return describe_plan(config, make_run_plan(config, 61, std::nullopt), options).shortage;
  };
  CHECK(shortage_of(0, 500).empty());
  CHECK(shortage_of(240, 500).empty());
  CHECK_FALSE(shortage_of(0, 400).empty());
  CHECK_FALSE(shortage_of(240, 400).empty());
}
