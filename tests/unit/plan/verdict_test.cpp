#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "backend/cuda_module.h"
#include "plan/describe/describe.h"
#include "plan/describe/devices.h"
#include "plan_helpers.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

using nlohmann::json;

struct Told {
  std::string text;
  json plan;
  std::string misfit;
};

Told told(const Config& config, const MemoryBudget& budget, std::vector<std::optional<SourceSize>> sources = {}) {
  DescribeOptions options;
  options.all_on_one_host = budget.kind == MemoryBudget::Kind::host;
  options.budget = budget;
  options.sources = std::move(sources);
  const PlanDescription description = describe_plan(config, make_run_plan(config, 50257, std::nullopt), options);
  return {description.text, json::parse(description.json), description.misfit};
}

MemoryBudget device_of(std::uint64_t memory, double peak = 0) {
  return {.kind = MemoryBudget::Kind::device, .name = "the device", .memory = memory, .peak_flops = peak};
}

// Planned apart from the verdict: of the rank that needs most, without what lies in host memory.
std::uint64_t device_bytes(const Config& config) {
  const RunPlan plan = make_run_plan(config, 50257, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  std::uint64_t most = 0;
  for (std::int64_t stage = 0; stage < phase.mesh.degree(Axis::pipeline); ++stage) {
    const MemoryPlan memory = phase.memory(phase.mesh.rank_of({.pipeline = stage}), 0);
    std::uint64_t bytes = 0;
    for (const MemoryItem& item : memory.items)
      if (!item.is_of_host && item.purpose != "kernel workspace") bytes += item.bytes;
    most = std::max(most, bytes);
  }
  return most;
}

Config gpt2() {
  Config config = preset_config("gpt2-124m");
  config.train.global_batch = 64;
  config.train.micro_batch = 16;
  return config;
}

std::string in_one_line(const std::string& text) {
  std::string out;
  for (const char c : text)
    if ((c != ' ' && c != '\n') || (!out.empty() && out.back() != ' ')) out += c == '\n' ? ' ' : c;
  return out;
}

std::optional<std::uint64_t> bytes_with(const json& settings, const std::string& setting) {
  for (const json& entry : settings)
    if (entry.at("setting") == setting) return entry.at("bytes").get<std::uint64_t>();
  return std::nullopt;
}

}  // namespace

TEST_CASE("a plan is judged by the device that needs most, to the byte") {
  Config config = gpt2();
  config.parallel.pipeline = 2;
  const std::uint64_t needed = device_bytes(config);
  const Told fitting = told(config, device_of(needed));
  CHECK(fitting.plan.at("verdict").at("fits") == true);
  CHECK(fitting.plan.at("verdict").at("needed") == needed);
  CHECK(fitting.plan.at("verdict").at("fits_with").empty());
  CHECK(fitting.text.starts_with("fits "));
  CHECK(fitting.misfit.empty());
  const Told failing = told(config, device_of(needed - 1));
  CHECK(failing.plan.at("verdict").at("fits") == false);
  CHECK(failing.text.starts_with("DOES NOT FIT "));
  CHECK(contains(in_one_line(failing.text), " 1 B too much"));
  CHECK(failing.misfit.starts_with("does not fit: each rank of stage "));
}

TEST_CASE("replicas that are left to a world take ranks from higher degrees, and to none leave them to it") {
  Config config = gpt2();
  config.train.micro_batch = 1;
  config.parallel.data = 1;
  Config halves = config;
  halves.parallel.tensor = 2;
  const std::uint64_t memory = device_bytes(halves);
  const auto tensor_helps = [&](const std::optional<std::int64_t>& data, std::optional<std::int64_t> world) {
    config.parallel.data = data;
    DescribeOptions options{.is_world_given = world.has_value(), .budget = device_of(memory)};
    const auto description = describe_plan(config, make_run_plan(config, 50257, world), options);
    return bytes_with(json::parse(description.json).at("verdict").at("fits_with"), "parallel.tensor: 2").has_value();
  };
  CHECK(tensor_helps(1, {}));
  CHECK(tensor_helps({}, {}));
  CHECK_FALSE(tensor_helps({}, 1));  // which has no rank for it
  CHECK(tensor_helps({}, 2));
}

TEST_CASE("what a tiny run costs is told in digits that say something, and one layer is no layers") {
  Config config = gpt2();
  config.model.layers = 1;
  config.train.steps = 1;
  const std::string fast = in_one_line(told(config, device_of(std::uint64_t{1} << 40, 1e18)).text);
  CHECK(contains(fast, "under 0.001 device-hours"));
  CHECK(contains(fast, " parameters; 1 layer, hidden "));
  const std::string slow = in_one_line(told(config, device_of(std::uint64_t{1} << 40, 1e7)).text);
  CHECK_FALSE(contains(slow, " 0 tokens/s"));
}

TEST_CASE("what would make a plan fit is the smallest change of each key, and has really been planned") {
  const Config config = gpt2();
  Config smaller = config;
  smaller.train.micro_batch = 4;
  const std::uint64_t memory = device_bytes(smaller);
  const json verdict = told(config, device_of(memory)).plan.at("verdict");
  CHECK(bytes_with(verdict.at("fits_with"), "train.micro_batch: 4") == memory);
  CHECK_FALSE(bytes_with(verdict.at("fits_with"), "train.micro_batch: 8"));
  CHECK_FALSE(bytes_with(verdict.at("fits_with"), "train.micro_batch: 2"));
  // All of it can be run, recomputation too: with it the plan is really that small.
  for (const json& entry : verdict.at("fits_with")) CHECK(entry.at("supported") == true);
  Config again = config;
  again.train.recompute = RecomputeKind::selective;
  if (device_bytes(again) > memory) again.train.recompute = RecomputeKind::full;
  CHECK(bytes_with(verdict.at("fits_with"), fmt::format("train.recompute: {}", to_text(again.train.recompute))) ==
        device_bytes(again));
  for (const json& entry : verdict.at("fits_with")) CHECK(entry.at("bytes").get<std::uint64_t>() <= memory);
}

TEST_CASE("offload is not offered to an optimizer that cannot have it") {
  Config config = gpt2();
  config.run.device = DeviceKind::cuda;
  const auto offers = [&](OptimizerKind kind) {
    config.train.optimizer.type = kind;
    const json verdict = told(config, device_of(device_bytes(config) - (std::uint64_t{200} << 20))).plan.at("verdict");
    return bytes_with(verdict.at("fits_with"), "train.optimizer.offload: host").has_value();
  };
  CHECK(offers(OptimizerKind::adamw));
  CHECK_FALSE(offers(OptimizerKind::lamb));
  CHECK_FALSE(offers(OptimizerKind::muon));
}

TEST_CASE("moments in 8 bits are offered to the optimizer that may have them, and to a run that begins") {
  Config config = gpt2();
  Config in_8_bits = config;
  in_8_bits.train.optimizer.state = OptimizerStateType::int8;
  const std::uint64_t memory = device_bytes(in_8_bits);
  // Of matrices 8 bytes become 2 and the scales.
  CHECK(device_bytes(config) - memory > 5ull * 124'000'000);
  const auto offered = [&](std::int64_t step) {
    DescribeOptions options{.budget = device_of(memory), .so_far = RunSoFar{.step = step, .last_step = 10}};
    const auto description = describe_plan(config, make_run_plan(config, 50257, std::nullopt), options);
    return bytes_with(json::parse(description.json).at("verdict").at("fits_with"), "train.optimizer.state: int8");
  };
  CHECK(offered(0) == memory);
  CHECK_FALSE(offered(4));
  config.train.optimizer.type = OptimizerKind::lamb;
  CHECK_FALSE(offered(0));
}

TEST_CASE("what makes ZeRO divide less is offered to be taken back") {
  Config config = gpt2();
  config.parallel.data = 8;
  config.parallel.zero = 3;
  const std::uint64_t memory = device_bytes(config);
  config.parallel.zero_group = 2;
  CHECK(device_bytes(config) > memory);
  CHECK(bytes_with(told(config, device_of(memory)).plan.at("verdict").at("fits_with"), "parallel.zero_group: auto") ==
        memory);
  config.parallel.zero_group.reset();
  config.parallel.zero_reduce = ZeroReduceKind::step;
  CHECK(device_bytes(config) > memory);
  CHECK(bytes_with(told(config, device_of(memory)).plan.at("verdict").at("fits_with"), "parallel.zero_reduce: use") ==
        memory);
}

TEST_CASE("offload is offered where it makes a device's plan fit, with what it takes of the host") {
  Config config = gpt2();
  config.run.device = DeviceKind::cuda;
  config.precision.compute = Precision::bf16;
  config.checkpoint.background = false;
  Config offloaded = config;
  offloaded.train.optimizer.offload = OffloadKind::host;
  const std::uint64_t memory = device_bytes(offloaded);
  // Masters and two moments of 124,439,808 parameters are 1.39 GiB, and leave the device but for the staging.
  CHECK(device_bytes(config) - memory > 12ull * 124'439'808 - (std::uint64_t{73} << 20));
  const Told answer = told(config, device_of(memory));
  const json settings = answer.plan.at("verdict").at("fits_with");
  CHECK(bytes_with(settings, "train.optimizer.offload: host") == memory);
  const std::uint64_t of_host =
      make_run_plan(offloaded, 50257, std::nullopt).phases.front().memory(Rank(0), 0).total_of_host();
  CHECK(of_host > 12ull * 124'439'808);
  for (const json& entry : settings)
    CHECK(entry.at("of_host") == (entry.at("setting") == "train.optimizer.offload: host" ? of_host : 0));
  CHECK(contains(answer.text, fmt::format("{}; {} of host memory\n", bytes_text(memory), bytes_text(of_host))));
  // With it a plan fits to the byte, and says what goes to the device and back.
  const Told fitting = told(offloaded, device_of(memory));
  CHECK(fitting.plan.at("verdict").at("fits") == true);
  CHECK(contains(in_one_line(fitting.text), fmt::format("and {} of host memory", bytes_text(of_host))));
  CHECK_FALSE(bytes_with(told(offloaded, device_of(memory - 1)).plan.at("verdict").at("fits_with"),
                         "train.optimizer.offload: host"));
  // Not where the host's memory is all there is.
  const Told of_the_host = told(gpt2(), {.kind = MemoryBudget::Kind::host, .name = "this machine", .memory = 1 << 20});
  CHECK_FALSE(contains(of_the_host.plan.at("verdict").dump(), "offload"));
}

TEST_CASE("where no single key is enough the settings that are so together are told, or the nearest to it") {
  Config config = gpt2();
  config.parallel.data = 4;
  Config least = config;
  least.train.micro_batch = 1;
  least.checkpoint.background = false;
  const std::uint64_t memory = 4 * make_run_plan(least, 50257, std::nullopt).phases.front().memory(Rank(0), 0).total();
  Told answer = told(config, {.kind = MemoryBudget::Kind::host, .name = "this machine", .memory = memory});
  json verdict = answer.plan.at("verdict");
  CHECK(verdict.at("fits_with").empty());
  CHECK(verdict.at("fits_together") == true);
  CHECK(verdict.at("together").size() >= 2);
  CHECK(verdict.at("together").back().at("bytes").get<std::uint64_t>() <= memory);
  CHECK(contains(answer.text, "\nfits with "));
  CHECK(contains(answer.text, "\n      and "));
  // Far too little: the way there is told, and that it does not lead there.
  answer = told(config, device_of(1 << 20));
  verdict = answer.plan.at("verdict");
  CHECK(verdict.at("fits_with").empty());
  CHECK(verdict.at("fits_together") == false);
  REQUIRE(verdict.at("together").size() >= 2);
  std::uint64_t before = verdict.at("needed");
  for (const json& entry : verdict.at("together")) {
    CHECK(entry.at("bytes").get<std::uint64_t>() < before);
    before = entry.at("bytes");
  }
  CHECK(contains(answer.text, "\nnearest "));
}

TEST_CASE("the ranks of one machine share its memory, and more of them are no remedy") {
  Config config = gpt2();
  config.parallel.data = 2;
  const PhasePlan phase = make_run_plan(config, 50257, std::nullopt).phases.front();
  const std::uint64_t both = 2 * phase.memory(Rank(0), 0).total();
  const auto judged = [&](std::uint64_t memory) {
    return told(config, {.kind = MemoryBudget::Kind::host, .name = "this machine", .memory = memory})
        .plan.at("verdict");
  };
  CHECK(judged(both).at("fits") == true);
  const json verdict = judged(both - 1);
  CHECK(verdict.at("needed") == both);
  for (const json& entry : verdict.at("fits_with"))
    CHECK_FALSE(entry.at("setting").get<std::string>().starts_with("parallel.tensor"));
  CHECK(bytes_with(verdict.at("fits_with"), "checkpoint.background: false"));
}

TEST_CASE("work, epochs and time follow from the model, the batch and the device") {
  Config config = gpt2();
  config.train.steps = 1000;
  config.parallel.data = 8;
  for (const auto& [path, weight] : {std::pair{"a", 3.0}, {"b", 1.0}, {"c", 0.5}}) {
    config.data.train.emplace_back().path = path;
    config.data.train.back().weight = weight;
  }
  const double tokens = 1000.0 * 64 * 1024;
  const Told answer =
      told(config, device_of(80ull << 30, 312e12),
           {SourceSize{10'000'000, "2 bytes a token"}, SourceSize{30'000'000, "a byte a token"}, std::nullopt});
  const json& work = answer.plan.at("work");
  CHECK(work.at("tokens") == tokens);
  CHECK(work.at("samples") == 64000.0);
  // 6N + 6·L·C·T, N without the position table.
  const double flops = 6.0 * (124'439'808 - 1024 * 768) + 6.0 * 12 * 768 * 1024;
  CHECK(work.at("flops").get<double>() == Near(tokens * flops).epsilon(1e-9));
  REQUIRE(work.at("sources").size() == 2);
  CHECK(work.at("sources")[0].at("epochs").get<double>() == Near(tokens * 3 / 4.5 / 10e6));
  CHECK(work.at("sources")[1].at("epochs").get<double>() == Near(tokens * 1 / 4.5 / 30e6));
  const json& time = answer.plan.at("time");
  const double seconds = tokens * flops / (8 * 0.4 * 312e12);
  CHECK(time.at("seconds").get<double>() == Near(seconds).epsilon(1e-9));
  CHECK(time.at("step_seconds").get<double>() == Near(seconds / 1000).epsilon(1e-9));
  CHECK(time.at("tokens_per_second").get<double>() == Near(tokens / seconds).epsilon(1e-9));
  CHECK(time.at("device_hours").get<double>() == Near(seconds / 3600 * 8).epsilon(1e-9));
  CHECK(contains(in_one_line(answer.text), "at 40 % (assumed) of the peak of 8 x the device (312 TFLOP/s each)"));
}

TEST_CASE("the time counts what the pipeline idles on devices, and what is computed again") {
  const auto seconds_of = [](const MemoryBudget& budget, std::int64_t stages, RecomputeKind recompute) {
    Config config = gpt2();
    config.train.steps = 10;
    config.parallel.pipeline = stages;
    config.train.recompute = recompute;
    return told(config, budget, {}).plan.at("time");
  };
  const MemoryBudget device = device_of(80ull << 30, 312e12);
  const json plain = seconds_of(device, 1, RecomputeKind::none);
  CHECK(plain.at("bubble") == 0.0);
  CHECK(plain.at("recomputed") == 0.0);
  const double one = plain.at("seconds");
  const json staged = seconds_of(device, 2, RecomputeKind::none);
  // Two stages and M micro-batches of F and B = 2F each: 1 of M + 1 turns is idle, more where the stages differ.
  const double least = 1.0 / (64.0 / 16.0 + 1);
  CHECK(staged.at("bubble").get<double>() >= least - 1e-9);
  CHECK(staged.at("bubble").get<double>() < 3 * least);
  CHECK(staged.at("seconds").get<double>() == Near(one / 2 / (1 - staged.at("bubble").get<double>())).epsilon(1e-9));
  // A block's forward but for its last product, 4·C·4C of 24·C·C multiply-adds and attention, of three forwards.
  const json full = seconds_of(device, 1, RecomputeKind::full);
  CHECK(full.at("recomputed").get<double>() > 0.15);
  CHECK(full.at("recomputed").get<double>() < 1.0 / 3);
  CHECK(full.at("seconds").get<double>() == Near(one * (1 + full.at("recomputed").get<double>())).epsilon(1e-9));
}

TEST_CASE("an offloaded update takes what its bytes take over the link to the host, behind the step") {
  constexpr double link = 25e9;
  const auto time_of = [](Config config, OffloadKind offload, double rate) {
    config.run.device = DeviceKind::cuda;
    config.precision.compute = Precision::bf16;
    config.train.optimizer.offload = offload;
    MemoryBudget device = device_of(80ull << 30, 312e12);
    device.host_link = rate;
    return told(config, device);
  };
  // What a step takes longer than without.
  const auto added = [&](const Config& config) {
    const json with = time_of(config, OffloadKind::host, link).plan.at("time");
    const json without = time_of(config, OffloadKind::none, link).plan.at("time");
    CHECK(without.at("offloaded_update") == nullptr);
    const double seconds = with.at("step_seconds").get<double>() - without.at("step_seconds").get<double>();
    CHECK(with.at("offloaded_update").at("seconds").get<double>() == Near(seconds).epsilon(1e-9));
    CHECK(with.at("seconds").get<double>() - without.at("seconds").get<double>() ==
          Near(seconds * static_cast<double>(*config.train.steps)).epsilon(1e-9));
    return seconds;
  };
  // The master and two moments of each parameter, four bytes each, in and back at the same time; but when the last
  // piece, of 2^21 parameters, has come, it has yet to go back.
  constexpr double parameters = 124'439'808;
  constexpr double piece = 1 << 21;
  const Config one = gpt2();
  CHECK(added(one) == Near(12 * (parameters + piece) / link).epsilon(1e-4));
  Config sgd = one;
  sgd.train.optimizer.type = OptimizerKind::sgd;
  CHECK(added(sgd) == Near(4 * (parameters + piece) / link).epsilon(1e-4));
  Config replicas = one;
  replicas.parallel.data = 4;
  replicas.parallel.zero = 0;
  CHECK(added(replicas) == Near(12 * (parameters + piece) / link).epsilon(1e-4));
  replicas.parallel.zero = 1;
  CHECK(added(replicas) == Near(12 * (parameters / 4 + piece) / link).epsilon(1e-4));
  // Of two stages the first has both embeddings; the last has the tied one and the last norm.
  Config stages = one;
  stages.parallel.pipeline = 2;
  stages.parallel.stage_layers = {8, 4};
  const double block = 12.0 * 768 * 768 + 13 * 768;
  const double first = (50257 + 1024) * 768 + 8 * block;
  CHECK(added(stages) == Near(12 * (first + piece) / link).epsilon(1e-4));
  stages.parallel.stage_layers = {4, 8};
  const double last = 50257 * 768 + 8 * block + 2 * 768;
  CHECK(added(stages) == Near(12 * (last + piece) / link).epsilon(1e-4));

  const Told known = time_of(one, OffloadKind::host, link);
  CHECK(known.plan.at("time").at("offloaded_update").at("assumed_bytes_per_second") == link);
  CHECK(contains(in_one_line(known.text),
                 "; 60.7 ms of each step are the way of 1.39 GiB to the device and back (train.optimizer.offload), at "
                 "25 GB/s (assumed) each way"));
  const Told unknown = time_of(one, OffloadKind::host, 0);
  CHECK(unknown.plan.at("time").at("offloaded_update").at("seconds") == nullptr);
  CHECK(unknown.plan.at("time").at("step_seconds") ==
        time_of(one, OffloadKind::none, 0).plan.at("time").at("step_seconds"));
  CHECK(contains(in_one_line(unknown.text),
                 "; without the way of 1.39 GiB to the device and back (train.optimizer.offload): the rate of its link "
                 "to the host is not known"));
}

// Of a matrix of R by C, R at most C, X·Xᵀ, A² and what X is multiplied by take 2R²C, 2R³ and 2R²C flops, five times:
// of a block's four of 768 by 768 30·768³ each, of the two of 3072 by 768 90·768³.
TEST_CASE("the time of a step has the products of Muon's update, of the rank that makes most of them") {
  const auto time_of = [](Config config, OptimizerKind optimizer) {
    config.run.device = DeviceKind::cuda;
    config.precision.compute = Precision::bf16;
    config.train.optimizer.type = optimizer;
    return told(config, device_of(80ull << 30, 312e12));
  };
  const auto seconds_of = [&](const Config& config) {
    const json with = time_of(config, OptimizerKind::muon).plan.at("time");
    const json without = time_of(config, OptimizerKind::adamw).plan.at("time");
    CHECK_FALSE(without.contains("update_product_seconds"));
    const double seconds = with.at("update_product_seconds").get<double>();
    CHECK(with.at("step_seconds").get<double>() - without.at("step_seconds").get<double>() ==
          Near(seconds).epsilon(1e-9));
    return seconds;
  };
  const double block = (4 * 30 + 2 * 90) * std::pow(768.0, 3) / (0.4 * 312e12);
  Config config = gpt2();
  CHECK(seconds_of(config) == Near(12 * block));
  CHECK(contains(in_one_line(time_of(config, OptimizerKind::muon).text),
                 "; 13.1 ms of each step are the update's products (train.optimizer.type muon)"));
  config.parallel.pipeline = 2;
  config.parallel.stage_layers = {8, 4};
  CHECK(seconds_of(config) == Near(8 * block));
  // Each tensor rank orthogonalises whole matrices.
  config.parallel.tensor = 2;
  CHECK(seconds_of(config) == Near(8 * block));
  // Replicas share the work where ZeRO divides the state: about, since a matrix at the edge of a shard is both ranks'.
  config.parallel.data = 2;
  config.parallel.zero = 0;
  CHECK(seconds_of(config) == Near(8 * block));
  config.parallel.zero = 1;
  CHECK(seconds_of(config) < 0.75 * 8 * block);
  // Of eight, the one whose shard ends in one of the two large matrices and begins in the other makes both.
  Config eight = gpt2();
  eight.train.micro_batch = 8;
  eight.parallel.data = 8;
  eight.parallel.zero = 1;
  CHECK(seconds_of(eight) == Near(12 * 2 * 90 * std::pow(768.0, 3) / (0.4 * 312e12)));
}

TEST_CASE("what would make ranks that share a GPU fit is planned without what NCCL would take") {
  Config config = gpt2();
  config.run.device = DeviceKind::cuda;
  config.parallel.data = 2;
  const auto needs = [&](std::int64_t micro_batch, bool may_be_direct) {
    Config smaller = config;
    smaller.train.micro_batch = micro_batch;
    RunPlan plan = make_run_plan(smaller, 50257, std::nullopt);
    plan.phases.front().may_be_direct = may_be_direct;
    const MemoryPlan memory = plan.phases.front().memory(Rank(0), 0);
    return memory.total() - memory.total_of_host();
  };
  const std::uint64_t memory = needs(4, false);
  CHECK(needs(4, true) > memory);
  RunPlan plan = make_run_plan(config, 50257, std::nullopt);
  plan.phases.front().may_be_direct = false;
  DescribeOptions options;
  options.budget = device_of(memory);
  const json verdict = json::parse(describe_plan(config, plan, options).json).at("verdict");
  CHECK(bytes_with(verdict.at("fits_with"), "train.micro_batch: 4") == memory);
}

TEST_CASE("a capped source is drawn from up to its cap and hands its weight to the rest") {
  Config config = gpt2();
  config.train.steps = 1000;
  for (const auto& [path, weight] : {std::pair{"a", 2.0}, {"b", 1.0}, {"c", 1.0}}) {
    config.data.train.emplace_back().path = path;
    config.data.train.back().weight = weight;
  }
  config.data.train[1].epochs = 1.0;
  config.data.train[2].epochs = 3.0;
  const MemoryBudget device = device_of(80ull << 30);
  const SourceSize large{100'000'000, "a byte a token"};
  const SourceSize small{1'000'000, "a byte a token"};
  const double tokens = 1000.0 * 64 * 1024;
  const json sources = told(config, device, {large, small, small}).plan.at("work").at("sources");
  CHECK(sources[0].at("epochs").get<double>() == Near((tokens - 4e6) / 100e6));
  CHECK(sources[1].at("epochs").get<double>() == Near(1.0));
  CHECK(sources[2].at("epochs").get<double>() == Near(3.0));
  // A cap that the run does not reach changes nothing.
  const json far = told(config, device, {large, large, large}).plan.at("work").at("sources");
  CHECK(far[0].at("epochs").get<double>() == Near(tokens / 2 / 100e6));
}

TEST_CASE("epoch caps that leave too few samples are told, and refused where they clearly do") {
  Config config = gpt2();
  config.train.steps = 1000;
  config.data.train.emplace_back().path = "a";
  config.data.train.emplace_back().path = "b";
  config.data.train[1].epochs = 2.0;
  const auto told_of = [&](std::uint64_t first_tokens) {
    DescribeOptions options;
    options.budget = device_of(80ull << 30);
    options.sources = {SourceSize{first_tokens, "a byte a token"}, SourceSize{1024, "a byte a token"}};
    return describe_plan(config, make_run_plan(config, 50257, std::nullopt), options);
  };
  const std::uint64_t tokens = 1000 * 64 * 1024;
  CHECK(told_of(tokens / 4).shortage.empty());  // without a cap it is read again
  config.data.train[0].epochs = 1.0;
  CHECK(told_of(tokens).shortage.empty());
  const PlanDescription close = told_of(tokens / 10 * 6);
  CHECK(close.shortage.starts_with("data.train.0.epochs: "));
  CHECK_FALSE(close.is_clearly_short);
  const PlanDescription clear = told_of(tokens / 4);
  CHECK(clear.is_clearly_short);
  CHECK(contains(clear.shortage, "1,000 steps need 64,000 samples"));
  CHECK(contains(clear.shortage, "about 16,002"));
  CHECK(contains(clear.shortage, "reduce train.steps"));
  config.data.train[0].epochs.reset();
  config.data.train.resize(1);
  CHECK_FALSE(told_of(1024).is_clearly_short);
}

TEST_CASE("one of a thing is told as one, and many with their digits grouped") {
  Config config = gpt2();
  config.train.steps = 1;
  config.train.global_batch = 1;
  config.train.micro_batch = 1;
  const auto text_of = [&] {
    return in_one_line(describe_plan(config, make_run_plan(config, 50257, std::nullopt), DescribeOptions{}).text);
  };
  CHECK(contains(text_of(), "work 1.02K tokens in 1 sample and 1 step, "));
  CHECK(contains(text_of(), "steps 1 of 1 sample (1,024 tokens each)"));
  config.train.steps = 1'000'000;
  config.train.global_batch = 4;
  CHECK(contains(text_of(), "steps 1,000,000 of 4 samples (4,096 tokens each)"));
}

TEST_CASE("epoch caps are judged by the steps that are left, and refused as if nothing had been read") {
  Config config = gpt2();
  config.train.steps = 1000;
  config.data.train.emplace_back().path = "a";
  config.data.train[0].epochs = 1.0;
  const auto told_at = [&](std::int64_t step, double epochs_read, std::uint64_t samples) {
    DescribeOptions options;
    options.budget = device_of(80ull << 30);
    options.sources = {SourceSize{samples * 1024, "a byte a token"}};
    options.so_far = RunSoFar{.step = step, .last_step = 1000, .epochs_read = {epochs_read}};
    return describe_plan(config, make_run_plan(config, 50257, std::nullopt), options);
  };
  CHECK(told_at(990, 0.0, 640).shortage.empty());
  CHECK(contains(in_one_line(told_at(990, 0.0, 640).text), "data from step 990 on about 1 epoch of a "));
  const PlanDescription read = told_at(990, 0.75, 640);
  CHECK(contains(read.shortage,
                 "10 steps from step 990 on need 640 samples, and the epoch caps of data.train leave about 160;"));
  CHECK_FALSE(read.is_clearly_short);
  CHECK(contains(in_one_line(read.text), "about 160 of the 640 samples that it takes from step 990 on"));
  CHECK(told_at(990, 0.75, 319).is_clearly_short);
  CHECK(contains(told_at(999, 1.0, 20).shortage, "the run's step from step 999 on needs 64 samples"));
  // Where nothing is left to do nothing is short.
  CHECK(told_at(1000, 1.0, 640).shortage.empty());
}

TEST_CASE("a plan that fits opens with the epoch caps that do not let it run") {
  Config config = gpt2();
  config.train.steps = 1000;
  config.data.train.emplace_back().path = "a";
  config.data.train[0].epochs = 1.0;
  const std::uint64_t tokens = 1000 * 64 * 1024;
  const auto told_of = [&](std::optional<SourceSize> size) {
    return told(config, device_of(1ull << 40), {std::move(size)});
  };
  const auto text_of = [&](std::optional<SourceSize> size) { return told_of(std::move(size)).text; };
  const std::string enough = text_of(SourceSize{tokens, "a byte a token"});
  CHECK(enough.starts_with("fits "));
  CHECK(contains(enough, "about 1 epoch of a ("));
  CHECK(text_of(SourceSize{tokens / 10 * 6, "a byte a token"}).starts_with("MAY NOT RUN "));
  const std::string clear = text_of(SourceSize{tokens / 4, "a byte a token"});
  CHECK(clear.starts_with("DOES NOT RUN  the epoch caps"));
  CHECK(contains(in_one_line(clear), "leave about 16.0K of the 64.0K samples that it takes fits "));
  // What is not known is said to be so, and is no cap that has been counted.
  const std::string unknown = text_of(std::nullopt);
  CHECK(unknown.starts_with("fits "));
  CHECK(contains(in_one_line(unknown), "data the size of a is not known, nor what its epoch cap leaves"));
  CHECK(told_of(std::nullopt).plan.at("work").at("sources_of_unknown_caps") == json::array({"a"}));
}

TEST_CASE("the short form keeps to 80 columns and the long one has all of it") {
  Config config = gpt2();
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  DescribeOptions options;
  options.budget = device_of(1ull << 30, 312e12);
  const RunPlan plan = make_run_plan(config, 50257, std::nullopt);
  const std::string text = describe_plan(config, plan, options).text;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    CHECK_MESSAGE(end - begin <= 80, text.substr(begin, end - begin));
    begin = end + 1;
  }
  CHECK_FALSE(contains(text, "timeline of"));
  options.verbose = true;
  const std::string verbose = describe_plan(config, plan, options).text;
  for (const char* part : {"timeline of", "groups\n", "sent by the first rank", "stage 0: "})
    CHECK(contains(verbose, part));
}

TEST_CASE("half precision is offered to both precisions that are kept in four bytes, and to no other") {
  Config half = gpt2();
  half.precision.compute = Precision::bf16;
  const std::uint64_t memory = device_bytes(half);
  for (const Precision precision : {Precision::fp32, Precision::tf32}) {
    Config config = gpt2();
    config.precision.compute = precision;
    REQUIRE(device_bytes(config) > memory);
    const json verdict = told(config, device_of(memory)).plan.at("verdict");
    CHECK(bytes_with(verdict.at("fits_with"), "precision.compute: bf16") == memory);
  }
  Config other = gpt2();
  other.precision.compute = Precision::fp16;
  const json verdict = told(other, device_of(memory / 2)).plan.at("verdict");
  REQUIRE(verdict.at("fits") == false);
  CHECK_FALSE(bytes_with(verdict.at("fits_with"), "precision.compute: bf16"));
  CHECK_FALSE(bytes_with(verdict.at("together"), "precision.compute: bf16"));
}
