#include "plan/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/checked.h"
#include "base/text.h"
#include "config/keys.h"
#include "parallel/simulate.h"
#include "plan/timeline.h"

namespace scaletrain {

namespace {

// A simulation replays every instruction of every stage: beyond this many it would cost more than an answer may take.
constexpr std::int64_t max_simulated_instructions = 200'000;
// What fits a page.
constexpr std::size_t page_width = 120;
constexpr std::int64_t max_listed_ranks = 16;
constexpr std::int64_t max_listed_stages = 16;
constexpr std::size_t max_communication_stages = 6;
constexpr std::int64_t max_instruction_stages = 4;
constexpr std::int64_t max_instruction_micro_batches = 8;

struct StageFacts {
  std::int64_t stage = 0;
  std::string blocks;
  std::int64_t parameters = 0;  // held by the stage's first rank
  MemoryPlan memory;
  std::vector<CommunicationVolume> communication;
};

struct Facts {
  const Config& config;
  const PhasePlan& phase;
  std::vector<StageFacts> stages;
  std::optional<Timetable> timetable;
};

std::string count_text(std::int64_t count, std::string_view thing, std::string_view plural = "s") {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : plural);
}

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

StageFacts stage_facts(const PhasePlan& phase, std::int64_t stage, std::size_t workspace) {
  const Rank rank = phase.mesh.rank_of({0, 0, stage});
  return {stage, blocks_text(phase, stage), phase.layout(rank).num_elements(ParamRole::trained),
          phase.memory(rank, workspace), phase.communication(rank)};
}

std::optional<Timetable> simulate_phase(const PhasePlan& phase) {
  const std::int64_t stages = phase.mesh.degree(Axis::pipeline);
  // Forward, backward, their transfers and brackets: about ten instructions a micro-batch and chunk.
  const auto instructions = try_mul(stages * phase.chunks * 10, phase.num_micro_batches);
  if (!instructions || *instructions > max_simulated_instructions) return std::nullopt;
  return make_timetable(make_schedule(phase.schedule_kind, stages, phase.num_micro_batches, phase.chunks),
                        ScheduleCosts{});
}

std::string rank_pattern(const PhasePlan& phase) {
  const std::int64_t tensor = phase.mesh.degree(Axis::tensor);
  const std::int64_t data = phase.mesh.degree(Axis::data);
  return fmt::format("rank = tensor + {} * (data + {} * pipeline)", tensor, data);
}

std::string rank_line(const PhasePlan& phase, std::int64_t rank) {
  const MeshPosition at = phase.mesh.position_of(Rank(rank));
  return fmt::format("{:>7} {:>7} {:>7} {:>9}\n", rank, at.tensor, at.data, at.pipeline);
}

// All ranks of a small world, else the first and the last ones.
std::string rank_map_text(const PhasePlan& phase) {
  const std::int64_t world = phase.mesh.world();
  if (world == 1) return {};
  std::string text = fmt::format("\n{:>7} {:>7} {:>7} {:>9}\n", "rank", "tensor", "data", "pipeline");
  const std::int64_t shown = world <= max_listed_ranks ? world : 4;
  for (std::int64_t rank = 0; rank < shown; ++rank) text += rank_line(phase, rank);
  if (shown == world) return text;
  text += fmt::format("{:>7}\n", "...");
  for (std::int64_t rank = world - 4; rank < world; ++rank) text += rank_line(phase, rank);
  return text;
}

struct GroupFact {
  GroupKind kind = GroupKind::tensor;
  std::int64_t size = 0;
  std::int64_t count = 0;
  Rank first{0}, second{0}, last{0};  // of the group of rank 0
};

std::vector<GroupFact> group_facts_of(const PhasePlan& phase) {
  std::vector<GroupFact> out;
  for (const GroupKind kind :
       {GroupKind::tensor, GroupKind::holders, GroupKind::data, GroupKind::pipeline, GroupKind::tied}) {
    const auto group = group_of(phase.mesh, kind, Rank(0), phase.group_facts());
    if (!group) continue;
    const auto size = static_cast<std::int64_t>(group->members.size());
    const std::int64_t members =
        kind == GroupKind::tied ? 2 * phase.mesh.world() / phase.mesh.degree(Axis::pipeline) : phase.mesh.world();
    out.push_back({kind, size, members / size, group->members[0], group->members[1], group->members.back()});
  }
  return out;
}

std::string groups_text(const PhasePlan& phase) {
  std::string text;
  for (const GroupFact& group : group_facts_of(phase)) {
    std::string members = fmt::format("{}, {}", group.first.value(), group.second.value());
    if (group.size > 2) members += fmt::format(" .. {}", group.last.value());
    text += fmt::format("  {:<10} {} of {} ranks; that of rank 0: {}\n", to_text(group.kind),
                        count_text(group.count, "group"), group.size, members);
  }
  return text.empty() ? text : "\ngroups\n" + text;
}

// Rows of numbers with one column per listed stage, as many blocks of columns as the page needs.
using Cells = std::vector<std::string>;  // [stage]
struct TableRow {
  std::string name;
  Cells cells;
  GroupKind kind = GroupKind::tensor;
};

std::string table_text(const std::vector<StageFacts>& stages, const std::vector<TableRow>& rows) {
  std::size_t name_width = 0;
  std::size_t cell_width = fmt::format("stage {}", stages.back().stage).size();
  for (const TableRow& row : rows) {
    name_width = std::max(name_width, row.name.size());
    for (const std::string& cell : row.cells) cell_width = std::max(cell_width, cell.size());
  }
  const std::size_t columns = std::max<std::size_t>(1, (page_width - 2 - name_width) / (cell_width + 2));
  std::string text;
  for (std::size_t first = 0; first < stages.size(); first += columns) {
    const std::size_t last = std::min(stages.size(), first + columns);
    std::string heading = fmt::format("\n  {:<{}}", "", name_width);
    for (std::size_t s = first; s < last; ++s)
      heading += fmt::format("  {:>{}}", fmt::format("stage {}", stages[s].stage), cell_width);
    text += heading + "\n";
    for (const TableRow& row : rows) {
      text += fmt::format("  {:<{}}", row.name, name_width);
      for (std::size_t s = first; s < last; ++s) text += fmt::format("  {:>{}}", row.cells[s], cell_width);
      text += "\n";
    }
  }
  return text;
}

std::string memory_text(const std::vector<StageFacts>& stages) {
  std::vector<TableRow> rows;
  for (std::size_t item = 0; item < stages.front().memory.items.size(); ++item) {
    TableRow row{.name = stages.front().memory.items[item].purpose, .cells = {}};
    std::size_t most = 0;
    for (const StageFacts& stage : stages) {
      const std::size_t bytes = stage.memory.items[item].bytes;
      most = std::max(most, bytes);
      row.cells.push_back(bytes_text(bytes));
    }
    if (most > 0) rows.push_back(std::move(row));
  }
  TableRow total{.name = "total", .cells = {}};
  for (const StageFacts& stage : stages) total.cells.push_back(bytes_text(stage.memory.total()));
  rows.push_back(std::move(total));
  return "\nmemory of the first rank of a stage at its peak" + table_text(stages, rows);
}

const CommunicationVolume* find_volume(const StageFacts& stage, GroupKind kind, const std::string& purpose) {
  for (const CommunicationVolume& volume : stage.communication)
    if (volume.kind == kind && volume.purpose == purpose) return &volume;
  return nullptr;
}

// Stages between the ends send alike: of many, the first two and the last are enough.
std::string communication_text(const std::vector<StageFacts>& all_stages) {
  std::vector<StageFacts> stages = all_stages;
  if (stages.size() > max_communication_stages) stages = {all_stages[0], all_stages[1], all_stages.back()};
  std::vector<TableRow> rows;
  for (const StageFacts& listed : stages) {
    for (const CommunicationVolume& volume : listed.communication) {
      const std::string name = fmt::format("{}: {}", to_text(volume.kind), volume.purpose);
      if (std::any_of(rows.begin(), rows.end(), [&](const TableRow& row) { return row.name == name; })) continue;
      TableRow row{.name = name, .cells = {}, .kind = volume.kind};
      for (const StageFacts& stage : stages) {
        const CommunicationVolume* found = find_volume(stage, volume.kind, volume.purpose);
        row.cells.push_back(found == nullptr ? "-" : fmt::format("{} ({})", bytes_text(found->bytes), found->calls));
      }
      rows.push_back(std::move(row));
    }
  }
  if (rows.empty()) return {};
  std::stable_sort(rows.begin(), rows.end(), [](const TableRow& a, const TableRow& b) { return a.kind < b.kind; });
  TableRow total{.name = "total", .cells = {}};
  for (const StageFacts& stage : stages) {
    std::uint64_t bytes = 0;
    for (const CommunicationVolume& volume : stage.communication) bytes += volume.bytes;
    total.cells.push_back(bytes_text(bytes));
  }
  rows.push_back(std::move(total));
  return "\nsent by the first rank of a stage in one step (in so many calls)" + table_text(stages, rows);
}

// Of the listed stage that gathers most often.
std::string gather_cost(const Facts& facts) {
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
std::vector<std::string> weight_phase_costs(const Facts& facts) {
  std::vector<std::string> lines;
  const ModelSpec& model = facts.phase.model;
  const double logits = 2.0 * static_cast<double>(model.vocab) * static_cast<double>(model.hidden);
  lines.push_back(
      fmt::format("zb-h1 computes the head's logits twice, for the input and for the weight part: {:.1f} % more work",
                  100.0 * logits / model_flops_per_token(model)));
  const StageFacts* most = nullptr;
  const auto bytes_of = [](const StageFacts& stage) {
    const auto found = std::find_if(stage.memory.items.begin(), stage.memory.items.end(),
                                    [](const MemoryItem& item) { return item.purpose == "weight-gradient work"; });
    return found == stage.memory.items.end() ? std::size_t{0} : found->bytes;
  };
  for (const StageFacts& stage : facts.stages) {
    if (most == nullptr || bytes_of(stage) > bytes_of(*most)) most = &stage;
  }
  lines.push_back(
      fmt::format("zb-h1 keeps what the weight parts need: {} on stage {}", bytes_text(bytes_of(*most)), most->stage));
  return lines;
}

// What a combination costs that another layout would not.
std::vector<std::string> cost_lines(const Facts& facts) {
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

std::string head_text(const Facts& facts) {
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
  line("mesh",
       fmt::format("{} = {}; {}", phase.mesh.text(), count_text(phase.mesh.world(), "rank"), rank_pattern(phase)));
  line("batch", fmt::format("{} of {} per replica and step", count_text(phase.num_micro_batches, "micro-batch", "es"),
                            count_text(phase.micro_batch.samples, "sample")));
  line("zero", fmt::format("stage {}", facts.config.parallel.zero));
  if (phase.mesh.degree(Axis::tensor) > 1)
    line("sequence",
         phase.sequence ? "norms and residuals are divided among tensor ranks" : "whole on every tensor rank");
  const ScheduleDepth depth = schedule_depth(phase.schedule(Rank(0)));
  // With several chunks a micro-batch is held once for each chunk that it has passed.
  line("schedule", fmt::format("{}, {} per stage; stage 0 holds at most {}", to_text(phase.schedule_kind),
                               count_text(phase.chunks, "chunk"),
                               phase.chunks > 1 ? fmt::format("{} micro-batches times chunks", depth.saved)
                                                : count_text(depth.saved, "micro-batch", "es")));
  if (facts.timetable)
    line("bubble", fmt::format("{:.1f} % of the step where forward, input and weight parts cost the same",
                               100.0 * facts.timetable->simulation.bubble));
  for (const std::string& cost : cost_lines(facts)) line("cost", cost);
  return text;
}

std::string stages_text(const Facts& facts) {
  std::string text = "\n";
  for (const StageFacts& stage : facts.stages)
    text += fmt::format("stage {}: {}; {} parameters on its first rank\n", stage.stage, stage.blocks,
                        grouped_digits(static_cast<std::uint64_t>(stage.parameters)));
  const auto all = facts.phase.mesh.degree(Axis::pipeline);
  const auto listed = static_cast<std::int64_t>(facts.stages.size());
  if (listed < all) text += fmt::format("({} more stages: the first two and the last are shown)\n", all - listed);
  return text;
}

std::string schedule_text(const Facts& facts) {
  const PhasePlan& phase = facts.phase;
  const std::int64_t stages = phase.mesh.degree(Axis::pipeline);
  if (stages == 1) return {};
  std::string text;
  if (facts.timetable) {
    const std::string chart = timeline_text(*facts.timetable, phase.chunks, page_width);
    if (!chart.empty())
      text += "\ntimeline: a column is the time of a forward, an input part or a weight part\n" + chart;
  }
  if (stages <= max_instruction_stages && phase.num_micro_batches <= max_instruction_micro_batches && phase.chunks == 1)
    text += "\n" + to_text(make_schedule(phase.schedule_kind, stages, phase.num_micro_batches, phase.chunks));
  return text;
}

std::string facts_text(const Facts& facts) {
  return head_text(facts) + rank_map_text(facts.phase) + groups_text(facts.phase) + stages_text(facts) +
         memory_text(facts.stages) + communication_text(facts.stages) + schedule_text(facts);
}

nlohmann::json memory_json(const MemoryPlan& memory) {
  nlohmann::json items = nlohmann::json::object();
  for (const MemoryItem& item : memory.items) items[item.purpose] = item.bytes;
  return {{"items", items}, {"total", memory.total()}};
}

nlohmann::json communication_json(const std::vector<CommunicationVolume>& volumes) {
  nlohmann::json out = nlohmann::json::array();
  for (const CommunicationVolume& volume : volumes)
    out.push_back({{"group", std::string(to_text(volume.kind))},
                   {"purpose", volume.purpose},
                   {"calls", volume.calls},
                   {"elements", volume.elements},
                   {"bytes", volume.bytes}});
  return out;
}

nlohmann::json groups_json(const PhasePlan& phase) {
  nlohmann::json out = nlohmann::json::array();
  for (const GroupFact& group : group_facts_of(phase))
    out.push_back({{"group", std::string(to_text(group.kind))},
                   {"size", group.size},
                   {"count", group.count},
                   {"stride", group.second.value() - group.first.value()}});
  return out;
}

// The work of each stage with its times, in units of one forward; null where there is none to show.
nlohmann::json timeline_json(const Facts& facts) {
  const bool fits = facts.timetable && facts.timetable->simulation.makespan <= static_cast<double>(page_width);
  if (!fits) return nullptr;
  nlohmann::json out = nlohmann::json::array();
  for (const auto& work : facts.timetable->work) {
    nlohmann::json row = nlohmann::json::array();
    for (const WorkInterval& interval : work)
      row.push_back({{"work", to_text(interval.instruction, facts.phase.chunks)},
                     {"start", interval.start},
                     {"end", interval.end}});
    out.push_back(std::move(row));
  }
  return out;
}

std::string facts_json(const Facts& facts) {
  const PhasePlan& phase = facts.phase;
  nlohmann::json stages = nlohmann::json::array();
  for (const StageFacts& stage : facts.stages)
    stages.push_back({{"stage", stage.stage},
                      {"contents", stage.blocks},
                      {"parameters_per_rank", stage.parameters},
                      {"memory_per_rank", memory_json(stage.memory)},
                      {"sent_per_rank_and_step", communication_json(stage.communication)}});
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
      {"rank_of", rank_pattern(phase)},
      {"groups", groups_json(phase)},
      {"sequence", phase.sequence},
      {"zero", facts.config.parallel.zero},
      {"schedule", std::string(to_text(phase.schedule_kind))},
      {"chunks", phase.chunks},
      {"stages", stages},
      {"costs", cost_lines(facts)},
      {"timeline", timeline_json(facts)},
  };
  out["bubble"] = facts.timetable ? nlohmann::json(facts.timetable->simulation.bubble) : nlohmann::json(nullptr);
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
