#include "plan/describe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "config/keys.h"
#include "plan/instruction_list.h"
#include "plan/plan_facts.h"
#include "plan/timeline.h"

namespace scaletrain {

namespace {

// What fits a page.
constexpr std::size_t page_width = 120;
constexpr std::int64_t max_listed_ranks = 16;
constexpr std::size_t max_listed_stages = 16;
constexpr std::size_t max_timeline_stages = 16;

// Words of the memory table that the literature has no common one for.
struct Explanation {
  std::string_view purpose;
  std::string_view meaning;
};
constexpr Explanation memory_words[] = {
    {"weights in compute precision", "a second copy, which the layers read"},
    {"gathered weights", "whole weights of the layers in use, gathered from the replicas' shards"},
    {"gradient staging", "whole gradients of the layers whose sum over the replicas is under way"},
    {"saved activations", "inside the layers, from the forward to the backward of each micro-batch under way"},
    {"activations between layers", "layer outputs, with a pipeline also what is received and sent"},
    {"deferred weight gradients", "what the weight parts that zb-h1 puts off still need"},
    {"scratch", "temporaries inside one layer"},
    {"batches", "token ids, targets and positions"},
    {"communication staging", "received pieces of sums under way"},
    {"kernel workspace", "temporaries of the processor's kernels, by thread"},
    {"checkpoint staging", "the copy that a checkpoint is written from in the background"},
};

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

std::string groups_text(const PlanFacts& facts) {
  std::string text;
  for (const GroupFact& group : facts.groups) {
    std::string members = fmt::format("{}, {}", group.first.value(), group.second.value());
    if (group.size > 2) members += fmt::format(" .. {}", group.last.value());
    text += fmt::format("  {:<10} {} of {} ranks; that of rank 0: {}\n", to_text(group.kind),
                        count_text(group.count, "group"), group.size, members);
  }
  if (text.empty()) return text;
  for (const GroupFact& group : facts.groups) {
    if (group.kind == GroupKind::holders) text += "  holders: ranks with the same key/value heads\n";
    if (group.kind == GroupKind::tied) text += "  tied: first and last stage, which both hold the tied embedding\n";
  }
  return "\ngroups\n" + text;
}

// Of all stages, those that a page has room for: all, or the first two and the last.
std::vector<const StageFacts*> shown_stages(const PlanFacts& facts) {
  std::vector<const StageFacts*> shown;
  for (const StageFacts& stage : facts.stages) shown.push_back(&stage);
  if (shown.size() > max_listed_stages) shown = {shown[0], shown[1], shown.back()};
  return shown;
}

// Rows of cells with one column per stage, as many blocks of columns as the page needs.
struct TableRow {
  std::string name;
  std::vector<std::string> cells;  // by shown stage
  GroupKind kind = GroupKind::tensor;
};

// Neighbouring stages with the same cells.
struct TableColumn {
  std::string heading;
  std::size_t cell = 0;  // index of one of them
};

std::vector<TableColumn> columns_of(const std::vector<const StageFacts*>& stages, const std::vector<TableRow>& rows) {
  std::vector<TableColumn> columns;
  const auto alike = [&](std::size_t a, std::size_t b) {
    return stages[b]->stage == stages[b - 1]->stage + 1 &&
           std::all_of(rows.begin(), rows.end(), [&](const TableRow& row) { return row.cells[a] == row.cells[b]; });
  };
  for (std::size_t first = 0; first < stages.size();) {
    std::size_t last = first;
    while (last + 1 < stages.size() && alike(first, last + 1)) ++last;
    const std::string heading = first == last ? fmt::format("stage {}", stages[first]->stage)
                                              : fmt::format("stages {}-{}", stages[first]->stage, stages[last]->stage);
    columns.push_back({heading, first});
    first = last + 1;
  }
  return columns;
}

std::string table_text(const std::vector<const StageFacts*>& stages, const std::vector<TableRow>& rows,
                       const std::string& name_heading) {
  const std::vector<TableColumn> all_columns = columns_of(stages, rows);
  std::size_t name_width = name_heading.size();
  std::size_t cell_width = 0;
  for (const TableColumn& column : all_columns) cell_width = std::max(cell_width, column.heading.size());
  for (const TableRow& row : rows) {
    name_width = std::max(name_width, row.name.size());
    for (const std::string& cell : row.cells) cell_width = std::max(cell_width, cell.size());
  }
  const std::size_t columns = std::max<std::size_t>(1, (page_width - 2 - name_width) / (cell_width + 2));
  std::string text;
  for (std::size_t first = 0; first < all_columns.size(); first += columns) {
    const std::size_t last = std::min(all_columns.size(), first + columns);
    std::string heading = fmt::format("\n  {:<{}}", name_heading, name_width);
    for (std::size_t c = first; c < last; ++c) heading += fmt::format("  {:>{}}", all_columns[c].heading, cell_width);
    text += heading + "\n";
    for (const TableRow& row : rows) {
      text += fmt::format("  {:<{}}", row.name, name_width);
      for (std::size_t c = first; c < last; ++c)
        text += fmt::format("  {:>{}}", row.cells[all_columns[c].cell], cell_width);
      text += "\n";
    }
  }
  return text;
}

std::string memory_words_text(const std::vector<TableRow>& rows) {
  std::string text;
  for (const Explanation& word : memory_words) {
    const bool occurs =
        std::any_of(rows.begin(), rows.end(), [&](const TableRow& row) { return row.name == word.purpose; });
    if (occurs) text += fmt::format("  {}: {}\n", word.purpose, word.meaning);
  }
  return text;
}

std::string memory_text(const PlanFacts& facts) {
  const std::vector<const StageFacts*> stages = shown_stages(facts);
  std::vector<TableRow> rows;
  for (std::size_t item = 0; item < stages.front()->memory.items.size(); ++item) {
    TableRow row{.name = stages.front()->memory.items[item].purpose, .cells = {}};
    std::size_t most = 0;
    for (const StageFacts* stage : stages) {
      const std::size_t bytes = stage->memory.items[item].bytes;
      most = std::max(most, bytes);
      row.cells.push_back(bytes_text(bytes));
    }
    if (most > 0) rows.push_back(std::move(row));
  }
  TableRow total{.name = "total", .cells = {}};
  for (const StageFacts* stage : stages) total.cells.push_back(bytes_text(stage->memory.total()));
  rows.push_back(std::move(total));
  std::string text =
      facts.phase.mesh.world() == 1 ? "\nmemory at its peak" : "\nmemory of the first rank of a stage at its peak";
  text += table_text(stages, rows, "");
  for (const std::string& line : host_memory_lines(facts)) text += "  " + line + "\n";
  return text + memory_words_text(rows);
}

const CommunicationVolume* find_row(const StageFacts& stage, const CommunicationVolume& like) {
  for (const CommunicationVolume& volume : stage.communication)
    if (volume.kind == like.kind && volume.collective == like.collective && volume.purpose == like.purpose)
      return &volume;
  return nullptr;
}

std::string communication_name(std::string_view group, std::string_view hosts, std::string_view collective,
                               std::string_view what) {
  return fmt::format("{:<9} {:<7} {:<15} {}", group, hosts, collective, what);
}

// The bytes of the groups that leave a host, or of those that do not.
TableRow total_row(const PlanFacts& facts, const std::vector<const StageFacts*>& stages, std::string_view hosts) {
  TableRow row{.name = communication_name("total", hosts, "", ""), .cells = {}};
  for (const StageFacts* stage : stages) {
    std::uint64_t bytes = 0;
    for (const CommunicationVolume& volume : stage->communication)
      if (hosts.empty() || to_text(reach_of(facts, volume.kind)) == hosts) bytes += volume.bytes;
    row.cells.push_back(bytes_text(bytes));
  }
  return row;
}

std::vector<TableRow> communication_rows(const PlanFacts& facts, const std::vector<const StageFacts*>& stages) {
  std::vector<TableRow> rows;
  for (const StageFacts* listed : stages) {
    for (const CommunicationVolume& volume : listed->communication) {
      TableRow row{.name = communication_name(to_text(volume.kind), to_text(reach_of(facts, volume.kind)),
                                              collective_name(volume.collective), volume.purpose),
                   .cells = {},
                   .kind = volume.kind};
      if (std::any_of(rows.begin(), rows.end(), [&](const TableRow& other) { return other.name == row.name; }))
        continue;
      for (const StageFacts* stage : stages) {
        const CommunicationVolume* found = find_row(*stage, volume);
        row.cells.push_back(found == nullptr ? "-" : fmt::format("{} ({})", bytes_text(found->bytes), found->calls));
      }
      rows.push_back(std::move(row));
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const TableRow& a, const TableRow& b) { return a.kind < b.kind; });
  return rows;
}

// Rows and words that need one, as far as they occur.
std::string communication_words_text(const std::vector<const StageFacts*>& stages) {
  std::string text =
      "  hosts: whether a group lies inside one or reaches across several, as the hosts line above says\n";
  text += "  loss, norm, votes: the few numbers of a step that all ranks sum\n";
  const auto occurs = [&](GroupKind kind, const std::string& purpose) {
    return std::any_of(stages.begin(), stages.end(),
                       [&](const StageFacts* stage) { return find_volume(*stage, kind, purpose) != nullptr; });
  };
  if (occurs(GroupKind::tensor, "softmax statistics"))
    text += "  softmax statistics: maxima and sums of the loss over a divided vocabulary\n";
  if (occurs(GroupKind::tensor, "gradients"))
    text += "  gradients of a tensor group: of norms and biases, to which each rank adds its share of the tokens\n";
  return text;
}

std::string communication_text(const PlanFacts& facts) {
  const std::vector<const StageFacts*> stages = shown_stages(facts);
  std::vector<TableRow> rows = communication_rows(facts, stages);
  if (rows.empty()) return {};
  std::vector<std::string_view> reaches;
  for (const GroupReach reach : {GroupReach::inside_host, GroupReach::partly_inside, GroupReach::across_hosts}) {
    const bool occurs = std::any_of(facts.groups.begin(), facts.groups.end(),
                                    [&](const GroupFact& group) { return group.reach == reach; });
    if (occurs) reaches.push_back(to_text(reach));
  }
  if (reaches.size() > 1)
    for (const std::string_view reach : reaches) rows.push_back(total_row(facts, stages, reach));
  rows.push_back(total_row(facts, stages, ""));
  return "\nsent by the first rank of a stage in one step: bytes (calls)" +
         table_text(stages, rows, communication_name("group", "hosts", "collective", "of")) +
         communication_words_text(stages);
}

std::string bubble_text(const PlanFacts& facts) {
  const double bubble = 100.0 * facts.timetable->simulation.bubble;
  const double equal = 100.0 * facts.equal_bubble;
  std::string text = fmt::format("{:.1f} % of the stages' time is idle", bubble);
  constexpr double shown = 0.05;
  if (bubble > equal + shown || bubble < equal - shown)
    text += fmt::format("; {:.1f} % if all stages took equally long", equal);
  return text;
}

std::string head_text(const PlanFacts& facts) {
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
  const bool is_alone = phase.mesh.world() == 1;
  line("mesh", fmt::format("{} = {}{}", phase.mesh.text(), count_text(phase.mesh.world(), "rank"),
                           is_alone ? "" : "; " + rank_pattern(phase)));
  line("batch", fmt::format("{} of {} per replica and step", count_text(phase.num_micro_batches, "micro-batch", "es"),
                            count_text(phase.micro_batch.samples, "sample")));
  line("zero", fmt::format("stage {}{}", facts.config.parallel.zero,
                           phase.mesh.degree(Axis::data) > 1 ? "" : " (one replica: nothing to divide)"));
  if (!is_alone) line("hosts", placement_text(facts));
  if (phase.mesh.degree(Axis::tensor) > 1)
    line("sequence",
         phase.sequence ? "norms and residuals are divided among tensor ranks" : "whole on every tensor rank");
  if (phase.mesh.degree(Axis::pipeline) > 1 || phase.chunks > 1) {
    const ScheduleDepth depth = schedule_depth(phase.schedule(Rank(0)));
    // With several chunks a micro-batch is held once for each chunk that it has passed.
    const std::string held = phase.chunks > 1 ? fmt::format("{} (counted once per model chunk)",
                                                            count_text(depth.saved, "micro-batch", "es"))
                                              : count_text(depth.saved, "micro-batch", "es");
    line("schedule", fmt::format("{}, {} per stage; stage 0 holds the activations of up to {}",
                                 to_text(phase.schedule_kind), count_text(phase.chunks, "model chunk"), held));
  }
  if (phase.mesh.degree(Axis::pipeline) > 1) {
    line("bubble", facts.timetable ? bubble_text(facts) : "not computed: the schedule is too long to replay");
    line("balance", balance_text(facts));
  }
  for (const std::string& cost : cost_lines(facts)) line("cost", cost);
  return text;
}

std::string stages_text(const PlanFacts& facts) {
  std::string text = "\n";
  const auto all = facts.phase.mesh.degree(Axis::pipeline);
  const bool one_rank = facts.phase.mesh.world() == 1;
  const std::vector<const StageFacts*> shown = shown_stages(facts);
  for (const StageFacts* stage : shown) {
    text += fmt::format("stage {}: {}; {} parameters{}", stage->stage, stage->blocks,
                        grouped_digits(static_cast<std::uint64_t>(stage->parameters)), one_rank ? "" : " per rank");
    text += all > 1 ? fmt::format("; work {:.2f} x the mean\n", stage->work) : "\n";
  }
  const auto listed = static_cast<std::int64_t>(shown.size());
  if (listed < all) text += fmt::format("({} more stages: the first two and the last are shown)\n", all - listed);
  return text;
}

std::string chart_text(const PlanFacts& facts) {
  const TimelineChart chart = draw_timeline(*facts.timetable, facts.phase.chunks, page_width, max_timeline_stages);
  const bool is_split = facts.phase.schedule_kind == ScheduleKind::zb_h1;
  std::string text = "\ntimeline of one step, to scale by floating-point operations; transfers count as free\n";
  if (chart.is_named) {
    text += fmt::format("  F0: forward of micro-batch 0; {}{}; '.': idle\n",
                        is_split ? "I0, W0: its backward for the inputs and for the weights" : "B0: its backward",
                        facts.phase.chunks > 1 ? "; c1 behind it: of model chunk 1" : "");
  } else {
    const std::string letters =
        chart.forwards_per_column > 1.0
            ? fmt::format("a column is the time of {:.1f} forwards, what is shorter may be missing",
                          chart.forwards_per_column)
            : "micro-batches take turns in capital and small letters";
    text += fmt::format("  F: forward; {}; '.': idle; {}\n",
                        is_split ? "I, W: backward for the inputs and for the weights" : "B: backward", letters);
  }
  if (chart.columns_left_out > 0)
    text += fmt::format("  '~': {} columns of the middle are left out; a column is the time of a typical forward\n",
                        chart.columns_left_out);
  return text + chart.rows;
}

std::string schedule_text(const PlanFacts& facts) {
  const bool has_pipeline = facts.phase.mesh.degree(Axis::pipeline) > 1;
  std::string text;
  if (has_pipeline && facts.timetable) text += chart_text(facts);
  if (facts.options.instructions) return text + instructions_text(facts.phase, page_width);
  if (has_pipeline) text += "(--instructions lists what each stage does in one step, with transfers and reductions)\n";
  return text;
}

}  // namespace

std::string facts_text(const PlanFacts& facts) {
  return head_text(facts) + rank_map_text(facts.phase) + groups_text(facts) + stages_text(facts) + memory_text(facts) +
         communication_text(facts) + schedule_text(facts);
}

PlanDescription describe_plan(const Config& config, const RunPlan& plan, const DescribeOptions& options) {
  const PlanFacts facts = gather_facts(config, plan, options);
  return {facts_text(facts), facts_json(facts), facts.refused ? host_memory_lines(facts).front() : ""};
}

}  // namespace scaletrain
