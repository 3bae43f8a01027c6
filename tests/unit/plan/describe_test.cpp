#include "plan/describe.h"

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "plan/timeline.h"
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
  const std::string alone = describe_plan(config, make_run_plan(config, 61, std::nullopt), 0).text;
  CHECK_FALSE(contains(alone, "timeline"));
  CHECK_FALSE(contains(alone, "groups"));
  config.parallel.pipeline = 2;
  const std::string text = describe_plan(config, make_run_plan(config, 61, std::nullopt), 0).text;
  // By hand: 1F1B of two stages and four micro-batches, a backward as long as two forwards.
  CHECK(contains(text,
                 "stage 0 F0 F1 .  .  B0    F2 B1    F3 B2    .  B3\n"
                 "stage 1 .  F0 B0    F1 B1    F2 B2    F3 B3    .  .\n"));
}

TEST_CASE("a timeline that is too wide for names has letters, and none that is too wide for those") {
  const auto chart = [](std::int64_t micro_batches, std::size_t width) {
    return timeline_text(make_timetable(make_schedule(ScheduleKind::zb_h1, 2, micro_batches, 1), {}), 1, width);
  };
  CHECK(chart(2, 17) ==
        "stage 0 FF.IWIW\n"
        "stage 1 .FIFIWW\n");
  CHECK(chart(2, 14).empty());
  CHECK(contains(chart(2, 80), "I0"));
}

TEST_CASE("ranks and groups are shown by pattern, and one by one where they are few") {
  Config config = tiny_config();
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  const std::string few = describe_plan(config, make_run_plan(config, 61, std::nullopt), 0).text;
  CHECK(contains(few, "rank = tensor + 2 * (data + 2 * pipeline)"));
  CHECK(contains(few, "      5       1       0         1\n"));  // 1 + 2 * (0 + 2 * 1)
  CHECK(contains(few, "data       4 groups of 2 ranks; that of rank 0: 0, 2\n"));
  CHECK(contains(few, "tied       4 groups of 2 ranks; that of rank 0: 0, 4\n"));
  config.parallel.data = 12;
  config.train.micro_batch = 1;
  const PlanDescription many = describe_plan(config, make_run_plan(config, 61, std::nullopt), 0);
  CHECK(contains(many.text, "...\n"));
  CHECK(contains(many.text, "     47       1      11         1\n"));
  CHECK_FALSE(contains(many.text, "     20       0      10         0\n"));
  CHECK(contains(many.text, "data       4 groups of 12 ranks; that of rank 0: 0, 2 .. 22\n"));
  const auto groups = nlohmann::json::parse(many.json).at("groups");
  CHECK(groups[1] == nlohmann::json{{"group", "data"}, {"size", 12}, {"count", 4}, {"stride", 2}});
}

TEST_CASE("what a combination costs is said") {
  Config config = tiny_config();
  const auto costs = [&] {
    return nlohmann::json::parse(describe_plan(config, make_run_plan(config, 61, std::nullopt), 0).json).at("costs");
  };
  CHECK(costs().empty());
  config.parallel.data = 2;
  config.parallel.zero = 3;
  config.train.micro_batch = 1;  // six per replica
  REQUIRE(costs().size() == 2);
  // Embedding (tied, and its position table), six blocks and the head are gathered; the traffic table says as many.
  CHECK(contains(costs()[0], "parallel.zero 3 gathers weights"));
  const auto phase = make_run_plan(config, 61, std::nullopt).phases.front();
  std::int64_t gathers = 0;
  for (const CommunicationVolume& volume : phase.communication(Rank(0)))
    if (volume.purpose == "weights") gathers += volume.calls;
  CHECK(contains(costs()[0], ": " + std::to_string(gathers) + " gathers a step on stage 0, where 1 and 2 do 9"));
  CHECK(contains(costs()[1], "6 times a step"));
  config.parallel.zero = 1;
  CHECK(costs().empty());
  config.parallel.tensor = 4;
  REQUIRE(costs().size() == 1);
  CHECK(contains(costs()[0], "2 key/value heads on 4 tensor ranks: each is held and computed 2 times"));
  config.parallel.tensor = 1;
  config.parallel.data = 1;
  config.parallel.pipeline = 2;
  config.parallel.schedule = ScheduleKind::zb_h1;
  REQUIRE(costs().size() == 2);
  CHECK(contains(costs()[0], "zb-h1 computes the head's logits twice"));
  CHECK(contains(costs()[1], "zb-h1 keeps what the weight parts need: "));
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
