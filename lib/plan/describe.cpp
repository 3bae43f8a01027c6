#include "plan/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/checked.h"
#include "base/text.h"
#include "config/keys.h"
#include "parallel/simulate.h"

namespace scaletrain {

namespace {

// A simulation replays every instruction of every stage: beyond this many it would cost more than an answer may take.
constexpr std::int64_t max_simulated_instructions = 200'000;
// What fits a page.
constexpr std::int64_t max_timeline_stages = 8;
constexpr std::int64_t max_timeline_micro_batches = 8;
constexpr std::int64_t max_listed_stages = 16;

struct StageFacts {
  std::int64_t stage = 0;
  std::string blocks;
  std::int64_t parameters = 0;  // held by one rank of the stage
  MemoryPlan memory;
};

std::string blocks_text(const PhasePlan& phase, std::int64_t stage) {
  std::string text;
  const std::int64_t degree = phase.mesh.degree(Axis::pipeline);
  for (std::int64_t chunk = 0; chunk < phase.chunks; ++chunk) {
    const StageBlocks& blocks = phase.stages[static_cast<std::size_t>(chunk * degree + stage)];
    if (!text.empty()) text += "; ";
    if (blocks.embedding) text += "embedding, ";
    if (blocks.count > 0) {
      text += fmt::format("blocks {}-{}", blocks.first, blocks.first + blocks.count - 1);
    } else {
      text += "no blocks";
    }
    if (blocks.head) text += ", head";
  }
  return text;
}

StageFacts stage_facts(const PhasePlan& phase, std::int64_t stage, std::size_t workspace) {
  const Rank rank = phase.mesh.rank_of({0, 0, stage});
  return {stage, blocks_text(phase, stage), phase.layout(rank).num_elements(ParamRole::trained),
          phase.memory(rank, workspace)};
}

std::optional<Simulation> simulate_phase(const PhasePlan& phase) {
  const std::int64_t stages = phase.mesh.degree(Axis::pipeline);
  // Forward, backward, their transfers and brackets: about ten instructions a micro-batch and chunk.
  const auto instructions = try_mul(stages * phase.chunks * 10, phase.num_micro_batches);
  if (!instructions || *instructions > max_simulated_instructions) return std::nullopt;
  return simulate(make_schedule(phase.schedule_kind, stages, phase.num_micro_batches, phase.chunks), ScheduleCosts{});
}

std::string rank_pattern(const PhasePlan& phase) {
  const std::int64_t tensor = phase.mesh.degree(Axis::tensor);
  const std::int64_t data = phase.mesh.degree(Axis::data);
  return fmt::format("rank = tensor + {} * (data + {} * pipeline)", tensor, data);
}

nlohmann::json memory_json(const MemoryPlan& memory) {
  nlohmann::json items = nlohmann::json::object();
  for (const MemoryItem& item : memory.items) items[item.purpose] = item.bytes;
  return {{"items", items}, {"total", memory.total()}};
}

struct Facts {
  const Config& config;
  const PhasePlan& phase;
  std::vector<StageFacts> stages;
  std::optional<Simulation> simulation;
};

std::string facts_text(const Facts& facts) {
  const PhasePlan& phase = facts.phase;
  const ModelSpec& model = phase.model;
  std::string text;
  const auto line = [&text](std::string_view key, const std::string& value) {
    text += fmt::format("{:<12} {}\n", key, value);
  };
  line("model",
       fmt::format("{} parameters; {} layers, hidden {}, {} heads ({} key/value), ffn {}, vocabulary {}, context {}",
                   grouped_digits(static_cast<std::uint64_t>(phase.table.num_parameters())), model.layers, model.hidden,
                   model.heads, model.kv_heads, model.ffn_hidden, model.vocab, model.context));
  line("compute",
       fmt::format("{:.4g} FLOP per token, {}", model_flops_per_token(model), to_text(facts.config.precision.compute)));
  line("steps", fmt::format("{} of {} samples ({} tokens each)", phase.num_steps, phase.global_batch,
                            grouped_digits(static_cast<std::uint64_t>(phase.global_batch * model.context))));
  line("mesh", fmt::format("{} = {} rank{}; {}", phase.mesh.text(), phase.mesh.world(),
                           phase.mesh.world() == 1 ? "" : "s", rank_pattern(phase)));
  line("batch", fmt::format("{} micro-batch{} of {} sample{} per replica and step", phase.num_micro_batches,
                            phase.num_micro_batches == 1 ? "" : "es", phase.micro_batch.samples,
                            phase.micro_batch.samples == 1 ? "" : "s"));
  line("zero", fmt::format("stage {}", facts.config.parallel.zero));
  const ScheduleDepth depth = schedule_depth(phase.schedule(Rank(0)));
  // With several chunks a micro-batch is held once for each chunk that it has passed.
  line("schedule", fmt::format("{}, {} chunk{} per stage; stage 0 holds at most {} {}", to_text(phase.schedule_kind),
                               phase.chunks, phase.chunks == 1 ? "" : "s", depth.saved,
                               phase.chunks > 1   ? "micro-batches times chunks"
                               : depth.saved == 1 ? "micro-batch"
                                                  : "micro-batches"));
  if (facts.simulation)
    line("bubble", fmt::format("{:.1f} % of the step where forward, input and weight parts cost the same",
                               100.0 * facts.simulation->bubble));
  for (const StageFacts& stage : facts.stages) {
    text += fmt::format("\nstage {}: {}; {} parameters on each rank\n", stage.stage, stage.blocks,
                        grouped_digits(static_cast<std::uint64_t>(stage.parameters)));
    text += stage.memory.text();
  }
  const auto all_stages = phase.mesh.degree(Axis::pipeline);
  if (static_cast<std::int64_t>(facts.stages.size()) < all_stages)
    text += fmt::format("\n({} more stages: the first two and the last are shown)\n",
                        all_stages - static_cast<std::int64_t>(facts.stages.size()));
  if (all_stages > 1 && all_stages <= max_timeline_stages && phase.num_micro_batches <= max_timeline_micro_batches)
    text += "\n" + to_text(make_schedule(phase.schedule_kind, all_stages, phase.num_micro_batches, phase.chunks));
  return text;
}

std::string facts_json(const Facts& facts) {
  const PhasePlan& phase = facts.phase;
  nlohmann::json stages = nlohmann::json::array();
  for (const StageFacts& stage : facts.stages)
    stages.push_back({{"stage", stage.stage},
                      {"contents", stage.blocks},
                      {"parameters_per_rank", stage.parameters},
                      {"memory_per_rank", memory_json(stage.memory)}});
  nlohmann::json out = {
      {"parameters", phase.table.num_parameters()},
      {"flops_per_token", model_flops_per_token(phase.model)},
      {"steps", phase.num_steps},
      {"global_batch", phase.global_batch},
      {"micro_batch", phase.micro_batch.samples},
      {"micro_batches", phase.num_micro_batches},
      {"world", phase.mesh.world()},
      {"mesh",
       {{"data", phase.mesh.degree(Axis::data)},
        {"tensor", phase.mesh.degree(Axis::tensor)},
        {"pipeline", phase.mesh.degree(Axis::pipeline)}}},
      {"zero", facts.config.parallel.zero},
      {"schedule", std::string(to_text(phase.schedule_kind))},
      {"chunks", phase.chunks},
      {"stages", stages},
  };
  out["bubble"] = facts.simulation ? nlohmann::json(facts.simulation->bubble) : nlohmann::json(nullptr);
  return out.dump(2);
}

// All stages if they are few, else the first two and the last.
std::vector<StageFacts> choose_stages(const PhasePlan& phase, std::size_t workspace) {
  const std::int64_t count = phase.mesh.degree(Axis::pipeline);
  std::vector<StageFacts> facts;
  if (count <= max_listed_stages) {
    for (std::int64_t stage = 0; stage < count; ++stage) facts.push_back(stage_facts(phase, stage, workspace));
    return facts;
  }
  // Depth falls with the stage and contents differ by a block, so the second stage bounds those between.
  for (const std::int64_t stage : {std::int64_t{0}, std::int64_t{1}, count - 1})
    facts.push_back(stage_facts(phase, stage, workspace));
  return facts;
}

}  // namespace

PlanDescription describe_plan(const Config& config, const RunPlan& plan, std::size_t backend_workspace) {
  SCALETRAIN_CHECK(!plan.phases.empty());
  const PhasePlan& phase = plan.phases.front();
  const Facts facts{config, phase, choose_stages(phase, backend_workspace), simulate_phase(phase)};
  return {facts_text(facts), facts_json(facts)};
}

}  // namespace scaletrain
