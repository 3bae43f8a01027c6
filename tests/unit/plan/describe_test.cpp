#include "plan/describe.h"

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "plan_helpers.h"

using namespace scaletrain;

TEST_CASE("405 billion parameters on 16,384 ranks are described within a second") {
  Config config = preset_config("llama-405b");
  config.parallel.tensor = 8;
  config.parallel.pipeline = 16;
  config.parallel.data.reset();
  config.parallel.zero = 1;
  config.precision.compute = Precision::bf16;
  config.train.global_batch = 2048;
  config.train.micro_batch = 1;
  const MonotonicTime start = monotonic_now();
  const RunPlan plan = make_run_plan(config, 257, 16384);
  const PlanDescription description = describe_plan(config, plan, 0);
  // Against work that grows with the world; the bar of one second is measured on the real program (tests/process),
  // because sanitizers and a busy machine slow this one.
  CHECK(seconds_since(start) < 10.0);
  const auto json = nlohmann::json::parse(description.json);
  CHECK(json.at("world") == 16384);
  CHECK(json.at("mesh").at("data") == 128);
  CHECK(json.at("parameters") == 405'853'388'800);
  CHECK(json.at("micro_batches") == 16);
  REQUIRE(json.at("stages").size() == 16);
  // The stages' parameters times the tensor ranks are the model, norms and other replicated rows counted 8 times.
  std::int64_t held = 0;
  for (const auto& stage : json.at("stages")) held += stage.at("parameters_per_rank").get<std::int64_t>();
  CHECK(held * 8 >= 405'853'388'800);
  CHECK(held * 8 < 405'900'000'000);
  // 1F1B with as many micro-batches as stages: (P - 1) / (M + P - 1) of the time is idle (Narayanan et al. 2021).
  CHECK(json.at("bubble").get<double>() == doctest::Approx(15.0 / 31.0));
  CHECK(contains(description.text, "405,853,388,800"));
  CHECK(contains(description.text, "16384 ranks"));
}

TEST_CASE("a pipeline too long for a page shows its ends and says so") {
  Config config = preset_config("llama-405b");
  config.parallel.pipeline = 63;
  config.train.global_batch = 64;
  config.train.micro_batch = 1;
  const RunPlan plan = make_run_plan(config, 257, std::nullopt);
  const PlanDescription description = describe_plan(config, plan, 0);
  CHECK(contains(description.text, "stage 62"));
  CHECK(contains(description.text, "60 more stages"));
  CHECK(nlohmann::json::parse(description.json).at("stages").size() == 3);
}

TEST_CASE("a schedule too long to simulate has no bubble figure and a short answer") {
  Config config = tiny_config();
  config.parallel.pipeline = 2;
  config.train.global_batch = 65536;
  config.train.micro_batch = 1;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const MonotonicTime start = monotonic_now();
  const PlanDescription description = describe_plan(config, plan, 0);
  // Against work that grows with the world; the bar of one second is measured on the real program (tests/process),
  // because sanitizers and a busy machine slow this one.
  CHECK(seconds_since(start) < 10.0);
  CHECK(nlohmann::json::parse(description.json).at("bubble").is_null());
}

TEST_CASE("a small pipeline shows its timeline, one rank does not") {
  Config config = tiny_config();
  CHECK_FALSE(contains(describe_plan(config, make_run_plan(config, 61, std::nullopt), 0).text, "F0"));
  config.parallel.pipeline = 2;
  const std::string text = describe_plan(config, make_run_plan(config, 61, std::nullopt), 0).text;
  CHECK(contains(text, "F0"));
  CHECK(contains(text, "B3"));
  CHECK(contains(text, "stage 1"));
}

TEST_CASE("stages in the description hold the blocks that the plan gives them") {
  Config config = tiny_config();
  config.parallel.pipeline = 2;
  config.parallel.stage_layers = std::vector<std::int64_t>{2, 4};
  const auto json = nlohmann::json::parse(describe_plan(config, make_run_plan(config, 61, std::nullopt), 7).json);
  CHECK(json.at("stages")[0].at("contents") == "embedding, blocks 0-1");
  CHECK(json.at("stages")[1].at("contents") == "blocks 2-5, head");
  CHECK(json.at("stages")[0].at("memory_per_rank").at("items").at("kernel workspace") == 7);
}
