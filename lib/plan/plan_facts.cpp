#include "plan/plan_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "config/keys.h"

namespace scaletrain {

namespace {

// A simulation replays every instruction of every stage: beyond this many it would cost more than an answer may take.
constexpr std::int64_t max_simulated_instructions = 200'000;
// So many stages are always looked at one by one; more, where their schedules are short.
constexpr std::int64_t max_listed_stages = 16;
constexpr std::int64_t max_listed_work = 16'384;  // stages times chunks times micro-batches

std::string blocks_text(const PhasePlan& phase, std::int64_t stage) {
  std::string text;
  const std::int64_t degree = phase.mesh.degree(Axis::pipeline);
  for (std::int64_t chunk = 0; chunk < phase.chunks; ++chunk) {
    const StageBlocks& blocks = phase.stages[static_cast<std::size_t>(chunk * degree + stage)];
    if (!text.empty()) text += "; ";
    if (blocks.embedding) text += "embedding, ";
    if (blocks.count == 1) {
      text += fmt::format("block {}", blocks.first);
    } else if (blocks.count > 0) {
      text += fmt::format("blocks {}-{}", blocks.first, blocks.first + blocks.count - 1);
    } else {
      text += "no blocks";
    }
    if (blocks.head) text += ", head";
  }
  return text;
}

std::int64_t num_blocks(const PhasePlan& phase, std::int64_t stage) {
  std::int64_t sum = 0;
  const std::int64_t degree = phase.mesh.degree(Axis::pipeline);
  for (std::int64_t chunk = 0; chunk < phase.chunks; ++chunk)
    sum += phase.stages[static_cast<std::size_t>(chunk * degree + stage)].count;
  return sum;
}

StageFacts stage_facts(const PhasePlan& phase, std::int64_t stage, double work, std::size_t workspace) {
  const Rank rank = phase.mesh.rank_of({0, 0, stage});
  return {.stage = stage,
          .blocks = blocks_text(phase, stage),
          .parameters = phase.layout(rank).num_elements(ParamRole::trained),
          .work = work,
          .memory = phase.memory(rank, workspace),
          .communication = phase.communication(rank)};
}

// All stages if that is quick, else the first two and the last.
std::vector<StageFacts> choose_stages(const PhasePlan& phase, const StageWork& work, std::size_t workspace) {
  const std::int64_t count = phase.mesh.degree(Axis::pipeline);
  std::vector<std::int64_t> chosen;
  if (count <= max_listed_stages || count * phase.chunks * phase.num_micro_batches <= max_listed_work) {
    chosen.resize(static_cast<std::size_t>(count));
    std::iota(chosen.begin(), chosen.end(), std::int64_t{0});
  } else {
    // Depth falls with the stage and contents differ by a block, so the second stage bounds those between.
    chosen = {0, 1, count - 1};
  }
  std::vector<StageFacts> facts;
  facts.reserve(chosen.size());
  for (const std::int64_t stage : chosen)
    facts.push_back(stage_facts(phase, stage, work.stages[static_cast<std::size_t>(stage)], workspace));
  return facts;
}

std::vector<GroupFact> group_facts_of(const PhasePlan& phase, std::int64_t ranks_per_host) {
  std::vector<GroupFact> out;
  for (const GroupKind kind :
       {GroupKind::tensor, GroupKind::holders, GroupKind::data, GroupKind::pipeline, GroupKind::tied}) {
    const auto group = group_of(phase.mesh, kind, Rank(0), phase.group_facts());
    if (!group) continue;
    const auto size = static_cast<std::int64_t>(group->members.size());
    const std::int64_t members =
        kind == GroupKind::tied ? 2 * phase.mesh.world() / phase.mesh.degree(Axis::pipeline) : phase.mesh.world();
    out.push_back({kind, size, members / size, group->members[0], group->members[1], group->members.back(),
                   reach_of(kind, phase.mesh, phase.group_facts(), ranks_per_host)});
  }
  return out;
}

Balance balance_of(const StageWork& work) {
  const auto most = std::max_element(work.stages.begin(), work.stages.end());
  Balance balance{.slowest = most - work.stages.begin(),
                  .ratio = *most,
                  .least = *std::min_element(work.stages.begin(), work.stages.end())};
  constexpr double alike = 1e-9;  // sums of the same numbers, but for rounding
  balance.as_slow = std::count_if(work.stages.begin(), work.stages.end(),
                                  [&](double stage) { return stage >= *most * (1 - alike); }) -
                    1;
  return balance;
}

void replay(PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  const std::int64_t stages = phase.mesh.degree(Axis::pipeline);
  // Forward, backward, their transfers and brackets: about ten instructions a micro-batch and chunk.
  const auto instructions = try_mul(stages * phase.chunks * 10, phase.num_micro_batches);
  if (!instructions || *instructions > max_simulated_instructions) return;
  const Schedule schedule = make_schedule(phase.schedule_kind, stages, phase.num_micro_batches, phase.chunks);
  facts.timetable = make_timetable(schedule, {.of_chunks = facts.work.chunks});
  facts.equal_bubble = simulate(schedule, {}).bubble;
}

std::uint64_t memory_of(const PlanFacts& facts, std::int64_t stage) {
  for (const StageFacts& listed : facts.stages)
    if (listed.stage == stage) return listed.memory.total();
  return facts.stages[1].memory.total();
}

std::uint64_t memory_of_range(const PlanFacts& facts, std::int64_t first, std::int64_t count) {
  std::uint64_t sum = 0;
  for (const auto& [stage, ranks] : ranks_by_stage(facts.phase.mesh, first, count))
    sum += memory_of(facts, stage) * static_cast<std::uint64_t>(ranks);
  return sum;
}

std::uint64_t most_memory_of_a_host(const PlanFacts& facts) {
  const std::int64_t world = facts.phase.mesh.world();
  const std::int64_t size = std::min(world, facts.hosts.ranks_per_host);
  const std::int64_t stage_size = world / facts.phase.mesh.degree(Axis::pipeline);
  std::uint64_t most = 0;
  const auto consider = [&](std::int64_t host) {
    const std::int64_t first = host * size;
    if (first < world) most = std::max(most, memory_of_range(facts, first, std::min(size, world - first)));
  };
  // Hosts between two that hold a stage's first rank hold that stage alone, all alike.
  for (std::int64_t stage = 0; stage < facts.phase.mesh.degree(Axis::pipeline); ++stage) {
    consider(stage * stage_size / size);
    consider(stage * stage_size / size + 1);
  }
  return most;
}

// Of the listed stage that gathers most often.
std::string gather_cost(const PlanFacts& facts) {
  const StageFacts* most = nullptr;
  const auto gathers_of = [](const StageFacts& stage) {
    const CommunicationVolume* weights = find_volume(stage, GroupKind::data, "weights");
    return weights == nullptr ? 0 : weights->calls;
  };
  for (const StageFacts& stage : facts.stages) {
    if (most == nullptr || gathers_of(stage) > gathers_of(*most)) most = &stage;
  }
  const ShardLayout layout = facts.phase.layout(facts.phase.mesh.rank_of({0, 0, most->stage}));
  const auto once = std::count_if(layout.segments().begin(), layout.segments().end(), [&](const Segment& segment) {
    return layout.buffers()[static_cast<std::size_t>(segment.buffer)].role == ParamRole::trained;
  });
  return fmt::format("parallel.zero 3 gathers weights when they are needed: {} a step on stage {}, where 1 and 2 do {}",
                     count_text(gathers_of(*most), "gather"), most->stage, once);
}

// ZB-H1 puts off the weight part of each backward.
std::vector<std::string> weight_phase_costs(const PlanFacts& facts) {
  std::vector<std::string> lines;
  const ModelSpec& model = facts.phase.model;
  const double logits = 2.0 * static_cast<double>(model.vocab) * static_cast<double>(model.hidden);
  lines.push_back(
      fmt::format("zb-h1 computes the head's logits twice, for the input and for the weight part: {:.1f} % more work",
                  100.0 * logits / model_flops_per_token(model)));
  const StageFacts* most = nullptr;
  const auto bytes_of = [](const StageFacts& stage) {
    const auto found = std::find_if(stage.memory.items.begin(), stage.memory.items.end(),
                                    [](const MemoryItem& item) { return item.purpose == "deferred weight gradients"; });
    return found == stage.memory.items.end() ? std::size_t{0} : found->bytes;
  };
  for (const StageFacts& stage : facts.stages) {
    if (most == nullptr || bytes_of(stage) > bytes_of(*most)) most = &stage;
  }
  lines.push_back(fmt::format("zb-h1 keeps what the deferred weight gradients need: {} on stage {}",
                              bytes_text(bytes_of(*most)), most->stage));
  return lines;
}

}  // namespace

std::string count_text(std::int64_t count, std::string_view thing, std::string_view plural) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : plural);
}

std::string rank_pattern(const PhasePlan& phase) {
  const std::int64_t tensor = phase.mesh.degree(Axis::tensor);
  const std::int64_t data = phase.mesh.degree(Axis::data);
  return fmt::format("rank = tensor + {} * (data + {} * pipeline)", tensor, data);
}

const CommunicationVolume* find_volume(const StageFacts& stage, GroupKind kind, const std::string& purpose) {
  for (const CommunicationVolume& volume : stage.communication)
    if (volume.kind == kind && volume.purpose == purpose) return &volume;
  return nullptr;
}

GroupReach reach_of(const PlanFacts& facts, GroupKind kind) {
  return reach_of(kind, facts.phase.mesh, facts.phase.group_facts(), facts.hosts.ranks_per_host);
}

std::string collective_name(CollectiveKind kind) {
  if (kind == CollectiveKind::exchange) return "send";
  std::string name(to_text(kind));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::vector<std::string> cost_lines(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  const std::int64_t data = phase.mesh.degree(Axis::data);
  const std::int64_t stages = phase.mesh.degree(Axis::pipeline);
  const std::int64_t tensor = phase.mesh.degree(Axis::tensor);
  const std::int64_t m = phase.num_micro_batches;
  std::vector<std::string> lines;
  if (data > 1 && phase.zero.shard_parameters) lines.push_back(gather_cost(facts));
  if (data > 1 && phase.zero.shard_gradients && m > 1)
    lines.push_back(
        fmt::format("parallel.zero {} sums gradients after every micro-batch: {} times a step, where 1 does once",
                    facts.config.parallel.zero, m));
  if (phase.chunks > 1)
    lines.push_back(fmt::format("parallel.chunks {} sends activations between stages {} times as often as 1f1b",
                                phase.chunks, phase.chunks));
  if (phase.schedule_kind == ScheduleKind::zb_h1) {
    for (std::string& line : weight_phase_costs(facts)) lines.push_back(std::move(line));
  }
  if (phase.chunks > 1 && m % stages != 0)
    lines.push_back(fmt::format(
        "interleaved goes by groups of {} micro-batches, and {} is no multiple: the last group idles", stages, m));
  if (stages > 1 && m < stages)
    lines.push_back(
        fmt::format("{} for {} stages: the pipeline is never full", count_text(m, "micro-batch", "es"), stages));
  if (phase.model.kv_heads < tensor)
    lines.push_back(fmt::format("{} key/value heads on {} tensor ranks: each is held and computed {} times",
                                phase.model.kv_heads, tensor, tensor / phase.model.kv_heads));
  return lines;
}

std::string balance_text(const PlanFacts& facts) {
  const std::int64_t stages = facts.phase.mesh.degree(Axis::pipeline);
  if (stages == 1) return {};
  const Balance& balance = facts.balance;
  constexpr double alike = 0.005;  // less than the printed digits show
  if (balance.ratio < 1 + alike && balance.least > 1 - alike) return "all stages take equally long";
  const std::string who =
      balance.as_slow > 0 ? fmt::format("stage {} and {} are", balance.slowest, count_text(balance.as_slow, "other"))
                          : fmt::format("stage {} is", balance.slowest);
  const std::string why =
      balance.slowest == stages - 1
          ? fmt::format("{:.0f} % of its work is the head", 100.0 * facts.work.head_share)
          : fmt::format("{} of {} blocks", num_blocks(facts.phase, balance.slowest), facts.phase.model.layers);
  return fmt::format("{} the slowest, {:.2f} x the mean ({}); the fastest takes {:.2f} x", who, balance.ratio, why,
                     balance.least);
}

std::string placement_text(const PlanFacts& facts) {
  const std::int64_t world = facts.phase.mesh.world();
  const std::int64_t size = facts.hosts.ranks_per_host;
  switch (facts.hosts.basis) {
    case HostPlacement::Basis::one_host:
      return "all ranks on one";
    case HostPlacement::Basis::configured:
      return fmt::format("{} of {} (launch.ranks_per_node)", ceil_div(world, size), count_text(size, "rank"));
    case HostPlacement::Basis::assumed:
      return fmt::format("{} of {}, a tensor group each, are assumed; launch.ranks_per_node sets it",
                         ceil_div(world, size), count_text(size, "rank"));
  }
  SCALETRAIN_CHECK(false);
}

std::vector<std::string> host_memory_lines(const PlanFacts& facts) {
  const std::int64_t world = facts.phase.mesh.world();
  const std::string bound = facts.lists_all_stages() ? "" : "at most ";
  const std::string all = world == 1 ? "the rank needs" : fmt::format("the {} ranks need", world);
  const auto& available = facts.options.machine_memory;
  std::vector<std::string> lines;
  if (facts.refused) {
    lines.push_back(fmt::format("this machine has {} and {} {}{}: `scaletrain run` refuses to start them all here",
                                bytes_text(*available), all, bound, bytes_text(facts.world_memory)));
  } else if (available && facts.hosts.basis == HostPlacement::Basis::one_host) {
    lines.push_back(fmt::format("this machine has {} and {} {}{}", bytes_text(*available), all, bound,
                                bytes_text(facts.world_memory)));
  } else if (world > 1) {
    lines.push_back(fmt::format("{} {}{} together", all, bound, bytes_text(facts.world_memory)));
  }
  if (facts.hosts.basis != HostPlacement::Basis::one_host)
    lines.push_back(fmt::format("a host of {} needs up to {}", count_text(facts.hosts.ranks_per_host, "rank"),
                                bytes_text(facts.host_memory)));
  return lines;
}

PlanFacts gather_facts(const Config& config, const RunPlan& plan, const DescribeOptions& options) {
  SCALETRAIN_CHECK(!plan.phases.empty());
  const PhasePlan& phase = plan.phases.front();
  PlanFacts facts{.config = config,
                  .plan = plan,
                  .phase = phase,
                  .options = options,
                  .hosts = place_on_hosts(config, phase.mesh, options.all_on_one_host),
                  .stages = {},
                  .groups = {},
                  .work = stage_work(phase),
                  .balance = {},
                  .timetable = {}};
  facts.stages = choose_stages(phase, facts.work, options.backend_workspace);
  facts.balance = balance_of(facts.work);
  replay(facts);
  facts.world_memory = memory_of_range(facts, 0, phase.mesh.world());
  if (options.all_on_one_host && facts.hosts.basis == HostPlacement::Basis::one_host && options.machine_memory &&
      facts.world_memory > *options.machine_memory) {
    facts.refused = true;
    // If they are to run, then on other hosts.
    facts.hosts = place_on_hosts(config, phase.mesh, false);
  }
  facts.host_memory = most_memory_of_a_host(facts);
  facts.groups = group_facts_of(phase, facts.hosts.ranks_per_host);
  return facts;
}

}  // namespace scaletrain
