#include "plan/describe/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "config/phases.h"
#include "plan/describe/trained_text.h"
#include "plan/stage_work.h"
#include "plan_helpers.h"
#include "support/near.h"
#include "support/processor_time.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

// Whether a line begins with these words, however far apart.
bool has_row(const std::string& text, const std::string& words) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line;
    for (const char c : text.substr(begin, end - begin))
      if (c != ' ' || (!line.empty() && line.back() != ' ')) line += c;
    if (line.starts_with(words)) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

TEST_CASE("stages whose ranks are in no group that sums are listed beside those that are") {
  Config config = planned_config();
  config.run.device = DeviceKind::cuda;
  config.model.tie_embeddings = true;  // first and last stage sum its gradient
  config.parallel.pipeline = 3;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const std::string text = describe_plan(config, plan, {.verbose = true}).text;
  CHECK(contains(text, "sums between GPUs             16.0 MiB       0 B  16.0 MiB\n"));
}

TEST_CASE("405 billion parameters on 16,384 ranks are described within a second") {
  Config config = preset_config("llama-405b");
  config.parallel.tensor = 8;
  config.parallel.pipeline = 16;
  config.parallel.data.reset();
  config.parallel.zero = 1;
  config.precision.compute = Precision::bf16;
  config.train.global_batch = 2048;
  config.train.micro_batch = 1;
  const double start = processor_seconds();
  const RunPlan plan = make_run_plan(config, 257, 16384);
  const PlanDescription description = describe_plan(config, plan, {.verbose = true});
  // Against work that grows with the world; the bar of one second is measured on the real program (tests/process),
  // because sanitizers slow this one.
  CHECK(processor_seconds() - start < 10.0);
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
  // stages are alike. 126 blocks on 16 stages are 8 on most and 7 on the first and on the last, which has the head.
  CHECK(json.at("bubble_of_equal_stages").get<double>() == Near(15.0 / 31.0));
  CHECK(json.at("bubble").get<double>() > 15.0 / 31.0 - 0.01);
  CHECK(json.at("balance").at("slowest_stage") == 1);
  // The head is a product of 128,256 x 16,384 beside blocks of 3.19 billion weights and 16,384 x 8,192 for attention.
  CHECK(json.at("balance").at("most_to_mean").get<double>() ==
        Near(8.0 * 16 / (126 + 2.1013 / (3.1876 + 0.1342))).epsilon(1e-4));
  CHECK(contains(description.text, "405,853,388,800"));
  CHECK(contains(description.text, "16384 ranks"));
}

TEST_CASE("a pipeline too long for a page is told in ranges of stages alike, and a program gets every stage") {
  Config config = preset_config("llama-405b");
  config.parallel.pipeline = 63;
  config.train.global_batch = 64;
  config.train.micro_batch = 1;
  const RunPlan plan = make_run_plan(config, 257, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  const PlanDescription description = describe_plan(config, plan, {.verbose = true});
  // Two blocks for each of 63 stages are 126.
  CHECK(contains(description.text, "\nstage 0: embedding, blocks 0-1; "));
  CHECK(contains(description.text, "\nstages 1-61: blocks 2-123, 2 each; "));
  CHECK(contains(description.text, "\nstage 62: blocks 124-125, head; "));
  CHECK(contains(description.text, "... (47 stages)\n"));
  // 1F1B: stage 1 holds 62 micro-batches, stage 61 two.
  const auto bytes = [&](std::int64_t stage) {
    return bytes_text(phase.memory(phase.mesh.rank_of({.pipeline = stage}), 0).total());
  };
  CHECK(contains(description.text, bytes(1) + " .. " + bytes(61)));
  const auto json = nlohmann::json::parse(description.json);
  REQUIRE(json.at("stages").size() == 63);
  for (std::int64_t stage = 0; stage < 63; ++stage) {
    const auto& told = json.at("stages")[static_cast<std::size_t>(stage)];
    CHECK(told.at("saved_micro_batches") == 63 - stage);
    CHECK(told.at("memory_per_rank").at("total") == phase.memory(phase.mesh.rank_of({.pipeline = stage}), 0).total());
  }
}

TEST_CASE("a step of many micro-batches has its bubble, timeline and all stages in a short answer") {
  struct Shape {
    std::int64_t pipeline;
    std::int64_t micro_batches;
  };
  for (const Shape shape : {Shape{16, 4096}, Shape{126, 256}, Shape{2, 62'500}}) {
    if (is_sanitized && shape.pipeline == 126) continue;
    CAPTURE(shape.pipeline);
    Config config = preset_config("llama-405b");
    config.parallel.tensor = 8;
    config.parallel.pipeline = shape.pipeline;
    config.train.global_batch = shape.micro_batches;
    config.train.micro_batch = 1;
    const RunPlan plan = make_run_plan(config, 128256, std::nullopt);
    const double start = processor_seconds();
    const PlanDescription description = describe_plan(config, plan, {.verbose = true});
    // Against work that grows with the step; a bound that sanitizers do not break.
    CHECK(processor_seconds() - start < 10.0);
    const auto json = nlohmann::json::parse(description.json);
    const auto p = static_cast<double>(shape.pipeline);
    const auto m = static_cast<double>(shape.micro_batches);
    // Narayanan et al. 2021: (P - 1) of M + P - 1.
    CHECK(json.at("bubble_of_equal_stages").get<double>() == Near((p - 1) / (m + p - 1)).epsilon(1e-9));
    CHECK(json.at("bubble").get<double>() > 0.5 * (p - 1) / (m + p - 1));
    CHECK(json.at("stages").size() == static_cast<std::size_t>(shape.pipeline));
    CHECK(json.at("timeline").at("stages").size() == static_cast<std::size_t>(shape.pipeline));
    CHECK(contains(description.text, "\ntimeline of "));
    const std::int64_t replayed = json.at("timeline").at("micro_batches").get<std::int64_t>();
    CHECK(contains(description.text, "from a replay of " + std::to_string(replayed) + " micro-batches") ==
          (replayed < shape.micro_batches));
  }
}

TEST_CASE("a small pipeline shows its timeline, one rank does not") {
  Config config = planned_config();
  const std::string alone = describe_plan(config, make_run_plan(config, 61, std::nullopt), {.verbose = true}).text;
  CHECK_FALSE(contains(alone, "timeline"));
  CHECK_FALSE(contains(alone, "groups"));
  CHECK_FALSE(contains(alone, "--instructions"));
  CHECK_FALSE(contains(alone, "bubble"));
  config.parallel.pipeline = 2;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const std::string text = describe_plan(config, plan, {.verbose = true}).text;
  CHECK(contains(text, "F0: forward of micro-batch 0; B0: its backward"));
  CHECK(contains(text, "(--instructions lists"));
  CHECK_FALSE(contains(text, "acquire"));
  const PlanDescription listed = describe_plan(config, plan, {.instructions = true, .verbose = true});
  CHECK_FALSE(contains(listed.text, "acquire"));
  CHECK_FALSE(contains(listed.text, "(--instructions lists"));
  const auto json = nlohmann::json::parse(listed.json);
  // Four micro-batches of 1F1B, each receive a piece of work ahead of its use. One replica: no sums but the tied one's.
  const auto stage = [&](std::size_t index) {
    std::string joined;
    for (const auto& step : json.at("instructions")[index]) joined += step.get<std::string>() + "; ";
    return joined;
  };
  CHECK(stage(0) ==
        "F0; send a0>1; receive g0<1; F1; send a1>1; receive g1<1; B0; F2; send a2>1; receive g2<1; B1; "
        "F3; send a3>1; receive g3<1; B2; B3; reduce tied; step; ");
  CHECK(stage(1) ==
        "receive a0<0; receive a1<0; F0; B0; send g0>0; receive a2<0; F1; B1; send g1>0; receive a3<0; "
        "F2; B2; send g2>0; F3; B3; send g3>0; reduce tied; step; ");
  CHECK(json.at("timeline").at("unit") == "forward of one micro-batch through the mean model chunk");
  CHECK(json.at("timeline").at("stages")[0][0].at("work") == "F0");
}

TEST_CASE("instructions too wide to stand side by side stand one below the other") {
  Config config = planned_config();
  config.model.layers = 12;
  config.parallel.pipeline = 12;
  config.train.micro_batch = 1;
  const std::string text =
      describe_plan(config, make_run_plan(config, 61, std::nullopt), {.instructions = true, .verbose = true}).text;
  CHECK(contains(text, "\nstage 11\n  receive a0<10; "));
  std::size_t longest = 0;
  for (std::size_t begin = text.find("\ninstructions"); begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin + 1), text.size());
    longest = std::max(longest, end - begin - 1);
    begin = end;
  }
  CHECK(longest <= 120);
}

TEST_CASE("the memory of all ranks of a machine is summed, and what run would refuse is said") {
  Config config = planned_config();
  config.parallel.data = 2;
  config.parallel.pipeline = 2;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  const std::uint64_t sum = 2 * (phase.memory(Rank(0), 5).total() + phase.memory(Rank(2), 5).total());
  const auto described = [&](std::optional<std::uint64_t> memory) {
    return describe_plan(config, plan, {.backend_workspace = 5, .machine_memory = memory, .verbose = true});
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
  // But a verdict on this machine is not of those.
  const auto judged = [&](MemoryBudget::Kind kind, bool verbose) {
    const MemoryBudget budget{.kind = kind, .name = "it", .memory = sum - 1};
    return describe_plan(config, plan,
                         {.backend_workspace = 5, .machine_memory = sum - 1, .verbose = verbose, .budget = budget});
  };
  CHECK_FALSE(contains(judged(MemoryBudget::Kind::host, false).text, "hosts  "));
  CHECK(contains(judged(MemoryBudget::Kind::host, true).text, "\nhosts         from here on "));
  CHECK(contains(judged(MemoryBudget::Kind::device, false).text, "are assumed; launch.ranks_per_node"));
  CHECK(described(std::nullopt).refusal.empty());
}

TEST_CASE("a host of a cluster needs the memory of the ranks on it, whichever host needs most") {
  Config config = planned_config();
  config.parallel.data = 3;
  config.parallel.pipeline = 2;
  config.train.micro_batch = 1;
  config.launch.ranks_per_node = 2;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  // Ranks 0 and 1 are of the first stage, 2 and 3 of both, 4 and 5 of the second.
  const std::uint64_t most = std::max(phase.memory(Rank(0), 0).total(), phase.memory(Rank(3), 0).total());
  const PlanDescription description = describe_plan(config, plan, {.machine_memory = 1, .verbose = true});
  const auto hosts = nlohmann::json::parse(description.json).at("hosts");
  CHECK(hosts.at("memory_of_largest_host") == 2 * most);
  CHECK(hosts.at("ranks_per_host") == 2);
  CHECK(hosts.at("basis") == "launch.ranks_per_node");
  CHECK(hosts.at("run_refuses") == false);
  CHECK(contains(description.text, "hosts         3 of 2 ranks (launch.ranks_per_node)\n"));
  CHECK(contains(description.text, "a host of 2 ranks needs up to "));
}

TEST_CASE("traffic is told by collective, and by whether it leaves a host") {
  Config config = planned_config();
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  config.launch.ranks_per_node = 4;
  const PlanDescription description = describe_plan(config, make_run_plan(config, 61, std::nullopt), {.verbose = true});
  const auto row = [&](const std::string& words) { return has_row(description.text, words); };
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

TEST_CASE("groups that ZeRO divides among are told, and what leaves a group") {
  Config config = planned_config();
  config.parallel.data = 8;
  config.parallel.zero = 3;
  config.parallel.zero_group = 4;
  config.launch.ranks_per_node = 4;
  const std::string text = describe_plan(config, make_run_plan(config, 61, std::nullopt), {.verbose = true}).text;
  CHECK(has_row(text, "zero stage 3; divided among 4 replicas, 2 groups of them"));
  CHECK(has_row(text, "shard 2 groups of 4 ranks; that of rank 0: 0, 1 .. 3"));
  CHECK(has_row(text, "copies 4 groups of 2 ranks; that of rank 0: 0, 4"));
  // Weights are gathered, and gradients scattered, inside a host.
  CHECK(has_row(text, "shard inside all-gather weights "));
  CHECK(has_row(text, "shard inside reduce-scatter gradients "));
  CHECK(has_row(text, "copies across all-reduce gradients "));
}

TEST_CASE("ranks and groups are shown by pattern, and one by one where they are few") {
  Config config = planned_config();
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  const std::string few = describe_plan(config, make_run_plan(config, 61, std::nullopt), {.verbose = true}).text;
  CHECK(contains(few, "rank = tensor + 2 * (data + 2 * pipeline)"));
  CHECK(contains(few, "      5       1       0         1\n"));  // 1 + 2 * (0 + 2 * 1)
  CHECK(contains(few, "data       4 groups of 2 ranks; that of rank 0: 0, 2\n"));
  CHECK(contains(few, "tied       4 groups of 2 ranks; that of rank 0: 0, 4\n"));
  config.parallel.data = 12;
  config.train.micro_batch = 1;
  const PlanDescription many = describe_plan(config, make_run_plan(config, 61, std::nullopt), {.verbose = true});
  CHECK(contains(many.text, "...\n"));
  CHECK(contains(many.text, "     47       1      11         1\n"));
  CHECK_FALSE(contains(many.text, "     20       0      10         0\n"));
  CHECK(contains(many.text, "data       4 groups of 12 ranks; that of rank 0: 0, 2 .. 22\n"));
  const auto groups = nlohmann::json::parse(many.json).at("groups");
  CHECK(groups[1] == nlohmann::json{{"group", "data"}, {"size", 12}, {"count", 4}, {"stride", 2}, {"hosts", "inside"}});
}

namespace {

std::vector<std::string> costs_of(const Config& config) {
  return nlohmann::json::parse(describe_plan(config, make_run_plan(config, 61, std::nullopt), {.verbose = true}).json)
      .at("costs")
      .get<std::vector<std::string>>();
}

}  // namespace

TEST_CASE("what recomputation costs is said: work, and traffic of the tensor group") {
  Config config = planned_config();
  config.parallel.tensor = 2;
  CHECK(costs_of(config).empty());
  config.train.recompute = RecomputeKind::selective;
  REQUIRE(costs_of(config).size() == 1);
  CHECK(contains(costs_of(config)[0], "train.recompute selective computes norms and activation functions again"));
  config.train.recompute = RecomputeKind::full;
  REQUIRE(costs_of(config).size() == 1);
  const PhasePlan phase = make_run_plan(config, 61, std::nullopt).phases.front();
  CHECK(contains(costs_of(config)[0],
                 fmt::format("{:.1f} % more work, which MFU leaves out", 100 * stage_work(phase).recomputed)));
  // Four micro-batches of 3 x 7 tokens, six blocks: a sum of 24 columns each, of which a rank of two sends as much.
  CHECK(contains(costs_of(config)[0], fmt::format("and {} more a step in the tensor group of stage 0",
                                                  bytes_text(std::uint64_t{4 * 6 * 3 * 7 * 24 * 4}))));
  config.parallel.tensor = 1;
  CHECK_FALSE(contains(costs_of(config)[0], "tensor group"));
}

TEST_CASE("what steps in halves cost is said: padding, a second filling of the pipeline, sums and memory") {
  Config config = planned_config();  // 12 samples in micro-batches of 3
  config.log.gradient_noise = GradientNoiseConfig{.every = 5};
  REQUIRE(costs_of(config).size() == 1);
  CHECK(costs_of(config)[0] ==
        "log.gradient_noise makes one step of 5 in two halves, of 2 and 2 micro-batches in place of 4, which takes 0 % "
        "longer");
  config.train.micro_batch = 4;
  CHECK(contains(costs_of(config)[0], "of 2 and 2 micro-batches in place of 3, which takes 33 % longer"));
  config.parallel.data = 3;
  CHECK(contains(costs_of(config)[0],
                 "of 1 and 1 micro-batch in place of 1, which takes 100 % longer but for its sums of gradients, which "
                 "are made twice"));
  config.parallel.zero = 0;
  const PhasePlan plan = make_run_plan(config, 61, std::nullopt).phases.front();
  const MemoryPlan memory = plan.memory(Rank(0), 0);
  const auto bytes_of = [&memory](const std::string& purpose) {
    const auto found = std::find_if(memory.items.begin(), memory.items.end(),
                                    [&](const MemoryItem& item) { return item.purpose == purpose; });
    return found == memory.items.end() ? 0 : found->bytes;
  };
  CHECK(bytes_of("gradients of half a batch") == bytes_of("gradients"));
  CHECK(bytes_of("gradients of half a batch") > 0);
}

TEST_CASE("what a combination costs is said") {
  Config config = planned_config();
  const auto costs = [&] { return costs_of(config); };
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

TEST_CASE("a cost is said only where there is one") {
  Config config = planned_config();
  const auto costs = [&] { return costs_of(config); };
  // Chunks of one stage send nothing.
  config.parallel.schedule = ScheduleKind::interleaved;
  config.parallel.chunks = 2;
  CHECK(costs().empty());
  config.parallel.pipeline = 2;
  CHECK(contains(costs()[0], "parallel.chunks 2 sends activations between stages 2 times as often"));
  // One layer, one micro-batch: what the forward gathers is still there for the backward.
  config.parallel = {};
  config.model.layers = 1;
  config.parallel.data = 2;
  config.parallel.zero = 3;
  config.train.micro_batch = 6;
  const auto phase = make_run_plan(config, 61, std::nullopt).phases.front();
  std::int64_t gathers = 0;
  for (const CommunicationVolume& volume : phase.communication(Rank(0)))
    if (volume.purpose == "weights") gathers += volume.calls;
  const auto once = static_cast<std::int64_t>(phase.layout(Rank(0)).buckets().size());
  CHECK(costs().empty() == (gathers <= once));
}

TEST_CASE("what sequence shards send more than whole activations is said") {
  Config config = preset_config("llama-8b");
  config.parallel.tensor = 8;
  config.parallel.sequence = true;
  config.train.micro_batch = 1;
  config.train.global_batch = 8;
  const auto sent = [&](bool sequence) {
    config.parallel.sequence = sequence;
    std::uint64_t bytes = 0;
    const PhasePlan phase = make_run_plan(config, 128256, std::nullopt).phases.front();
    const auto volumes = phase.communication(phase.mesh.rank_of({.pipeline = 1}));
    for (const CommunicationVolume& volume : volumes)
      if (volume.kind == GroupKind::tensor && volume.purpose == "activations") bytes += volume.bytes;
    return bytes;
  };
  const auto cost = [&] {
    config.parallel.sequence = true;
    return nlohmann::json::parse(
               describe_plan(config, make_run_plan(config, 128256, std::nullopt), {.verbose = true}).json)
        .at("costs")[0]
        .get<std::string>();
  };
  config.parallel.pipeline = 4;
  // A layer sums four times and gathers six times, each half of an all-reduce, where four all-reduces would do; split
  // backwards gather eight times. The embedding and the head lie on the first and the last stage.
  CHECK(4 * sent(true) == 5 * sent(false));
  CHECK(contains(cost(), "parallel.sequence gathers activations again in the backward: "));
  CHECK(contains(cost(), "(+25 %)"));
  config.parallel.schedule = ScheduleKind::zb_h1;
  CHECK(4 * sent(true) == 6 * sent(false));
  CHECK(contains(cost(), "with zb-h1 in both of its parts: "));
  CHECK(contains(cost(), "(+50 %)"));
  CHECK(contains(cost(), bytes_text(sent(false))));
}

TEST_CASE("the members of a small group are all named") {
  Config config = planned_config();
  config.parallel.data = 3;
  CHECK(contains(describe_plan(config, make_run_plan(config, 61, std::nullopt), {.verbose = true}).text,
                 "that of rank 0: 0, 1, 2\n"));
  config.parallel.data = 4;
  CHECK(contains(describe_plan(config, make_run_plan(config, 61, std::nullopt), {.verbose = true}).text,
                 "that of rank 0: 0, 1 .. 3\n"));
}

TEST_CASE("stages in the description hold the blocks that the plan gives them") {
  Config config = planned_config();
  config.parallel.pipeline = 2;
  config.parallel.stage_layers = std::vector<std::int64_t>{2, 4};
  const auto json = nlohmann::json::parse(
      describe_plan(config, make_run_plan(config, 61, std::nullopt), {.backend_workspace = 7}).json);
  CHECK(json.at("stages")[0].at("contents") == "embedding, blocks 0-1");
  CHECK(json.at("stages")[1].at("contents") == "blocks 2-5, head");
  CHECK(json.at("stages")[0].at("memory_per_rank").at("items").at("kernel workspace") == 7);
}

// By hand: 3 steps of 4 samples of 8 tokens and 5 of 12 of 16; of the second phase a tenth is of the first source.
TEST_CASE("phases are told one by one, with what each is of the work and of the time") {
  Config config = planned_config();
  config.model.context = 16;
  config.train.global_batch = 12;
  config.train.steps.reset();
  config.data.train.resize(2);
  config.data.train[0].path = "web";
  config.data.train[0].name = "web";
  config.data.train[1].path = "books";
  config.train.phases = {
      PhaseConfig{.steps = 3, .context = 8, .global_batch = 4},
      PhaseConfig{.tokens = 900, .weights = {{"web", 0.5}, {"1", 4.5}}, .learning_rate_factor = 0.5}};
  fill_phases(config);
  CHECK(config.train.steps == 8);
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  CHECK(plan.phases.front().shorter_contexts == std::vector<std::int64_t>{8});
  DescribeOptions options;
  options.sources = {SourceSize{.tokens = 320, .basis = "counted"}, SourceSize{.tokens = 1600, .basis = "counted"}};
  options.budget =
      MemoryBudget{.kind = MemoryBudget::Kind::host, .name = "a host", .memory = 1u << 30, .peak_flops = 1e9};
  const PlanDescription description = describe_plan(config, plan, options);
  CHECK(has_row(description.text, "steps 8 of at most 12 samples (192 tokens each)"));
  CHECK(has_row(description.text, "phase 0: steps 1 to 3 of 4 samples of 8 tokens, sources web 1, 1 1; 96"));
  CHECK(has_row(description.text, "phase 1: steps 4 to 8 of 12 samples of 16 tokens, sources web 0.5, 1"));
  CHECK(contains(description.text, "learning rate times 0.5"));
  const auto json = nlohmann::json::parse(description.json);
  CHECK(json.at("work").at("tokens") == 96.0 + 960.0);
  CHECK(json.at("work").at("samples") == 3.0 * 4 + 5 * 12);
  const auto& phases = json.at("phases");
  REQUIRE(phases.size() == 2);
  CHECK(phases[0].at("tokens") == 96.0);
  CHECK(phases[1].at("first_step") == 3);
  CHECK(phases[1].at("weights").at("web") == 0.5);
  const double flops = phases[0].at("flops").get<double>() + phases[1].at("flops").get<double>();
  CHECK(json.at("work").at("flops").get<double>() == Near(flops));
  const double seconds = phases[0].at("seconds").get<double>() + phases[1].at("seconds").get<double>();
  CHECK(json.at("time").at("seconds").get<double>() == Near(seconds));
  const auto& sources = json.at("work").at("sources");
  CHECK(sources[0].at("epochs").get<double>() == Near((48 + 96) / 320.0));
  CHECK(sources[1].at("epochs").get<double>() == Near((48 + 864) / 1600.0));
  // Muon's products are of every step, however many tokens it has.
  config.train.optimizer.type = OptimizerKind::muon;
  const auto muon = nlohmann::json::parse(describe_plan(config, make_run_plan(config, 61, std::nullopt), options).json);
  const double products = muon.at("time").at("update_product_seconds");
  CHECK(products > 0.0);
  const auto added = [&](std::size_t phase) {
    return muon.at("phases")[phase].at("seconds").get<double>() - phases[phase].at("seconds").get<double>();
  };
  CHECK(added(0) == Near(3 * products));
  CHECK(added(1) == Near(5 * products));
  CHECK(muon.at("time").at("seconds").get<double>() == Near(seconds + 8 * products));
}

// Steps of 2, 2, 7, 7, 12 and 12 samples: of 4 at a time in 1, 1, 2, 2, 3 and 3 micro-batches, 12 where full steps make
// 18.
TEST_CASE("steps of a ramp are priced by the micro-batches that they make, and each fills and empties a pipeline") {
  Config config = planned_config();
  config.train.global_batch = 12;
  config.train.micro_batch = 4;
  config.train.steps.reset();
  config.train.tokens = 42 * config.model.context;
  const auto told = [&](MemoryBudget::Kind kind) {
    DescribeOptions options;
    options.budget = MemoryBudget{.kind = kind, .name = "it", .memory = 1u << 30, .peak_flops = 1e9};
    return describe_plan(config, make_run_plan(config, 61, std::nullopt), options);
  };
  const auto time_of = [&](MemoryBudget::Kind kind) { return nlohmann::json::parse(told(kind).json).at("time"); };
  config.train.batch_ramp = BatchRampConfig{.from = 2, .by = 5, .steps = 4};
  const PlanDescription ramp = told(MemoryBudget::Kind::host);
  CHECK(has_row(ramp.text, "steps 6 of at most 12 samples"));
  const auto json = nlohmann::json::parse(ramp.json);
  CHECK(json.at("work").at("samples") == 42.0);
  const double seconds = json.at("time").at("seconds");
  CHECK(json.at("time").at("tokens_per_second").get<double>() ==
        Near(42.0 * static_cast<double>(config.model.context) / seconds));
  config.parallel.pipeline = 2;
  const double staged = time_of(MemoryBudget::Kind::device).at("seconds");
  // The same steps, all of them full.
  config.train.batch_ramp.reset();
  config.train.tokens = 72 * config.model.context;
  const auto full = time_of(MemoryBudget::Kind::device);
  const double bubble = full.at("bubble");
  CHECK(bubble > 0.0);
  const double idle = 3 * bubble / (1 - bubble);  // of a step, in micro-batches
  CHECK(staged == Near(full.at("seconds").get<double>() * (12 + 6 * idle) / (18 + 6 * idle)));
  config.parallel.pipeline = 1;
  CHECK(seconds == Near(time_of(MemoryBudget::Kind::host).at("seconds").get<double>() * 12 / 18));
}

TEST_CASE("what is trained, what joins and what is frozen are told by units, in the plan and in a line") {
  Config config = planned_config();  // six blocks, and a head that is tied to the embedding
  CHECK(trained_text(make_run_plan(config, 61, std::nullopt).phases.front().table).empty());
  config.finetune.freeze = {"embedding.*", "blocks.?.*.bias", "blocks.0.*", "blocks.2.*"};
  config.finetune.unfreeze = {{.step = 1000, .patterns = {"blocks.2.*"}}, {.step = 3000, .patterns = {"embedding.*"}}};
  config.precision.compute = Precision::bf16;
  const RunPlan plan = make_run_plan(config, 61, std::nullopt);
  const ParamTable& table = plan.phases.front().table;
  // By the sizes of the model: C = 24, F = 40, V = 61, and half as many key and value heads. A block has 3 C^2 + 2 C F
  // weights of maps and 2 C of norms, and as biases 3 C + F + C of maps and 2 C of norms: 16 tensors.
  const std::int64_t weights = 3 * 24 * 24 + 2 * 24 * 40 + 2 * 24;
  const std::int64_t biases = 3 * 24 + 40 + 24 + 2 * 24;
  const std::int64_t embedding = (61 + config.model.context) * 24;
  const std::int64_t head = 2 * 24;  // its norm
  const auto digits = [](std::int64_t count) { return grouped_digits(static_cast<std::uint64_t>(count)); };
  const std::string text = fmt::format(
      "34 of 100 tensors, {} of {} parameters; after 1,000 steps also blocks.2 ({} parameters); after 3,000 steps also "
      "embedding ({} parameters); frozen: blocks.0, part of blocks.1, parts of blocks.3 to blocks.5 ({} parameters)",
      digits(4 * weights + head), digits(6 * (weights + biases) + embedding + head), digits(weights + biases),
      digits(embedding), digits(weights + biases + 4 * biases));
  CHECK(trained_text(table) == text);
  // What has joined is trained.
  CHECK(contains(trained_text(table, 1000), "50 of 100 tensors, "));
  CHECK_FALSE(contains(trained_text(table, 1000), "blocks.2 ("));
  const std::string told = describe_plan(config, plan, {}).text;
  CHECK(has_row(told, "trained 34 of 100 tensors, "));
  std::string unbroken;
  for (const char c : told)
    if (c != '\n' && (c != ' ' || !unbroken.ends_with(' '))) unbroken += c;
  CHECK_MESSAGE(contains(unbroken, "held and stored in bf16; what joins has its memory from the start"), told);
}
