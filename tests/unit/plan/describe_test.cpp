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
  const PlanDescription description = describe_plan(config, plan, {});
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
  // 1F1B with as many micro-batches as stages: (P - 1) / (M + P - 1) of the time is idle (Narayanan et al. 2021) if all
  // stages are alike. 126 blocks on 16 stages are 8 on most and 7 on the last ones, which wait more.
  CHECK(json.at("bubble_of_equal_stages").get<double>() == doctest::Approx(15.0 / 31.0));
  CHECK(json.at("bubble").get<double>() > 15.0 / 31.0 - 0.01);
  CHECK(json.at("balance").at("slowest_stage") == 0);
  // The head is a product of 128,256 x 16,384 beside blocks of 3.19 billion weights and 16,384 x 8,192 for attention.
  CHECK(json.at("balance").at("most_to_mean").get<double>() ==
        doctest::Approx(8.0 * 16 / (126 + 2.1013 / (3.1876 + 0.1342))).epsilon(1e-4));
  CHECK(contains(description.text, "405,853,388,800"));
  CHECK(contains(description.text, "16384 ranks"));
}

TEST_CASE("a pipeline too long for a page shows its ends and says so") {
  Config config = preset_config("llama-405b");
  config.parallel.pipeline = 63;
  config.train.global_batch = 64;
  config.train.micro_batch = 1;
  const RunPlan plan = make_run_plan(config, 257, std::nullopt);
  const PlanDescription description = describe_plan(config, plan, {});
  CHECK(contains(description.text, "stage 62"));
  CHECK(contains(description.text, "60 more stages"));
  CHECK(contains(description.text, "... (47 stages)\n"));
  // A program gets them all.
  CHECK(nlohmann::json::parse(description.json).at("stages").size() == 63);
  config.train.global_batch = 32'768;
  const PlanDescription deep = describe_plan(config, make_run_plan(config, 257, std::nullopt), {});
  const auto json = nlohmann::json::parse(deep.json);
  CHECK(json.at("stages").size() == 3);
  CHECK(json.at("hosts").at("memory_is_bound") == true);
  CHECK(contains(deep.text, "the 63 ranks need at most "));
}

TEST_CASE("a schedule too long to simulate has no bubble figure and a short answer") {
  Config config = tiny_config();
  config.parallel.pipeline = 2;
  config.train.global_batch = 65536;
  config.train.micro_batch = 1;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const MonotonicTime start = monotonic_now();
  const PlanDescription description = describe_plan(config, plan, {});
  // Against work that grows with the world; the bar of one second is measured on the real program (tests/process),
  // because sanitizers and a busy machine slow this one.
  CHECK(seconds_since(start) < 10.0);
  CHECK(nlohmann::json::parse(description.json).at("bubble").is_null());
}

TEST_CASE("a small pipeline shows its timeline, one rank does not") {
  Config config = tiny_config();
  const std::string alone = describe_plan(config, make_run_plan(config, 61, std::nullopt), {}).text;
  CHECK_FALSE(contains(alone, "timeline"));
  CHECK_FALSE(contains(alone, "groups"));
  CHECK_FALSE(contains(alone, "--instructions"));
  CHECK_FALSE(contains(alone, "bubble"));
  config.parallel.pipeline = 2;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const std::string text = describe_plan(config, plan, {}).text;
  CHECK(contains(text, "F0: forward of micro-batch 0; B0: its backward"));
  CHECK(contains(text, "(--instructions lists"));
  CHECK_FALSE(contains(text, "acquire"));
  const PlanDescription listed = describe_plan(config, plan, {.instructions = true});
  CHECK(contains(listed.text, "acquire | F0 | release"));
  CHECK_FALSE(contains(listed.text, "(--instructions lists"));
  const auto json = nlohmann::json::parse(listed.json);
  CHECK(json.at("instructions")[0][0] == "acquire | F0 | release");
  CHECK(json.at("instructions")[1][0] == "receive a0<0");
}

TEST_CASE("instructions too wide to stand side by side stand one below the other") {
  Config config = tiny_config();
  config.parallel.pipeline = 6;
  const std::string text = describe_plan(config, make_run_plan(config, 61, std::nullopt), {.instructions = true}).text;
  CHECK(contains(text, "\nstage 5\n  receive a0<4; acquire | F0 | release; "));
  std::size_t longest = 0;
  for (std::size_t begin = text.find("\ninstructions"); begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin + 1), text.size());
    longest = std::max(longest, end - begin - 1);
    begin = end;
  }
  CHECK(longest <= 120);
}

TEST_CASE("the memory of all ranks of a machine is summed, and what run would refuse is said") {
  Config config = tiny_config();
  config.parallel.data = 2;
  config.parallel.pipeline = 2;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  const std::uint64_t sum = 2 * (phase.memory(Rank(0), 5).total() + phase.memory(Rank(2), 5).total());
  const auto described = [&](std::optional<std::uint64_t> memory) {
    return describe_plan(config, plan, {.backend_workspace = 5, .machine_memory = memory});
  };
  const auto json = [&](std::uint64_t memory) { return nlohmann::json::parse(described(memory).json).at("hosts"); };
  CHECK(json(sum).at("memory_of_all_ranks") == sum);
  CHECK(json(sum).at("memory_of_largest_host") == sum);
  CHECK(json(sum).at("run_refuses") == false);
  CHECK(described(sum).refusal.empty());
  CHECK(contains(described(sum).text, "and the 4 ranks need "));
  CHECK(json(sum - 1).at("run_refuses") == true);
  CHECK(json(sum - 1).at("this_machine_has") == sum - 1);
  CHECK(contains(described(sum - 1).refusal, "`scaletrain run` refuses to start them all here"));
  CHECK(contains(described(sum - 1).text, described(sum - 1).refusal));
  // What does not fit one machine must run on several: the traffic is told for those.
  CHECK(json(sum - 1).at("basis") == "assumed");
  CHECK(described(std::nullopt).refusal.empty());
}

TEST_CASE("a host of a cluster needs the memory of the ranks on it, whichever host needs most") {
  Config config = tiny_config();
  config.parallel.data = 3;
  config.parallel.pipeline = 2;
  config.train.micro_batch = 1;
  config.launch.ranks_per_node = 2;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  // Ranks 0 and 1 are of the first stage, 2 and 3 of both, 4 and 5 of the second.
  const std::uint64_t most = std::max(phase.memory(Rank(0), 0).total(), phase.memory(Rank(3), 0).total());
  const PlanDescription description = describe_plan(config, plan, {.machine_memory = 1});
  const auto hosts = nlohmann::json::parse(description.json).at("hosts");
  CHECK(hosts.at("memory_of_largest_host") == 2 * most);
  CHECK(hosts.at("ranks_per_host") == 2);
  CHECK(hosts.at("basis") == "launch.ranks_per_node");
  CHECK(hosts.at("run_refuses") == false);
  CHECK(contains(description.text, "hosts        3 of 2 ranks (launch.ranks_per_node)\n"));
  CHECK(contains(description.text, "a host of 2 ranks needs up to "));
}

TEST_CASE("traffic is told by collective, and by whether it leaves a host") {
  Config config = tiny_config();
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  config.launch.ranks_per_node = 4;
  const PlanDescription description = describe_plan(config, make_run_plan(config, 61, std::nullopt), {});
  const auto row = [&](const std::string& text) {
    // The first words of a line, however far apart.
    std::size_t begin = 0;
    while (begin < description.text.size()) {
      const std::size_t end = description.text.find('\n', begin);
      std::string line;
      for (const char c : description.text.substr(begin, end - begin))
        if (c != ' ' || (!line.empty() && line.back() != ' ')) line += c;
      if (line.starts_with(text)) return true;
      begin = end + 1;
    }
    return false;
  };
  CHECK(row("tensor inside all-reduce activations "));
  CHECK(row("tensor inside all-gather softmax statistics - "));  // the head is on the last stage
  CHECK(row("data inside reduce-scatter gradients "));
  CHECK(row("data inside all-gather weights "));
  CHECK(row("pipeline across send activations "));
  CHECK(row("tied across all-reduce gradients "));
  CHECK(row("total across "));
  const auto json = nlohmann::json::parse(description.json);
  CHECK(json.at("groups")[0].at("hosts") == "inside");
  CHECK(json.at("groups")[2].at("hosts") == "across");
  for (const auto& sent : json.at("stages")[0].at("sent_per_rank_and_step"))
    if (sent.at("purpose") == "weights") CHECK(sent.at("collective") == "all-gather");
}

TEST_CASE("ranks and groups are shown by pattern, and one by one where they are few") {
  Config config = tiny_config();
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  const std::string few = describe_plan(config, make_run_plan(config, 61, std::nullopt), {}).text;
  CHECK(contains(few, "rank = tensor + 2 * (data + 2 * pipeline)"));
  CHECK(contains(few, "      5       1       0         1\n"));  // 1 + 2 * (0 + 2 * 1)
  CHECK(contains(few, "data       4 groups of 2 ranks; that of rank 0: 0, 2\n"));
  CHECK(contains(few, "tied       4 groups of 2 ranks; that of rank 0: 0, 4\n"));
  config.parallel.data = 12;
  config.train.micro_batch = 1;
  const PlanDescription many = describe_plan(config, make_run_plan(config, 61, std::nullopt), {});
  CHECK(contains(many.text, "...\n"));
  CHECK(contains(many.text, "     47       1      11         1\n"));
  CHECK_FALSE(contains(many.text, "     20       0      10         0\n"));
  CHECK(contains(many.text, "data       4 groups of 12 ranks; that of rank 0: 0, 2 .. 22\n"));
  const auto groups = nlohmann::json::parse(many.json).at("groups");
  CHECK(groups[1] == nlohmann::json{{"group", "data"}, {"size", 12}, {"count", 4}, {"stride", 2}, {"hosts", "inside"}});
}

TEST_CASE("what a combination costs is said") {
  Config config = tiny_config();
  const auto costs = [&] {
    return nlohmann::json::parse(describe_plan(config, make_run_plan(config, 61, std::nullopt), {}).json).at("costs");
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
  CHECK(contains(costs()[1], "zb-h1 keeps what the deferred weight gradients need: "));
}

TEST_CASE("stages in the description hold the blocks that the plan gives them") {
  Config config = tiny_config();
  config.parallel.pipeline = 2;
  config.parallel.stage_layers = std::vector<std::int64_t>{2, 4};
  const auto json = nlohmann::json::parse(
      describe_plan(config, make_run_plan(config, 61, std::nullopt), {.backend_workspace = 7}).json);
  CHECK(json.at("stages")[0].at("contents") == "embedding, blocks 0-1");
  CHECK(json.at("stages")[1].at("contents") == "blocks 2-5, head");
  CHECK(json.at("stages")[0].at("memory_per_rank").at("items").at("kernel workspace") == 7);
}
