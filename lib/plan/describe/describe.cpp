#include "plan/describe/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/numbers/checked.h"
#include "base/numbers/magnitude.h"
#include "base/text.h"
#include "config/keys/keys.h"
#include "plan/describe/instruction_list.h"
#include "plan/describe/plan_facts.h"
#include "plan/describe/timeline.h"
#include "plan/describe/trained_text.h"
#include "plan/size_limits.h"

namespace scaletrain {

namespace {

// What fits a terminal, and for the long form a page.
std::size_t page_width(const PlanFacts& facts) {
  return facts.options.verbose ? 120 : 80;
}
constexpr std::int64_t max_listed_ranks = 16;
constexpr std::size_t max_listed_stages = 16;  // more are told in ranges
constexpr std::size_t max_timeline_stages = 16;

// Words of the memory table that the literature has no common one for.
struct Explanation {
  std::string_view purpose;
  std::string_view meaning;
};
constexpr Explanation memory_words[] = {
    {"weights in compute precision", "a second copy, which the layers read"},
    {"packed weights", "tiles that matrix products read, of each weight and its transpose"},
    {"gathered weights", "unsharded weights of the layers in use, gathered from the replicas' shards"},
    {"gradient staging", "unsharded gradients of the layers whose sum over the replicas is under way"},
    {"saved activations", "inside the layers, from the forward to the backward of each micro-batch under way"},
    {"activations between layers", "layer outputs, with a pipeline also what is received and sent"},
    {"deferred weight gradients", "what the weight parts that zb-h1 puts off still need"},
    {"scratch", "temporaries inside one layer; with train.recompute what its backward computes again"},
    {"batches", "token ids, targets and positions"},
    {"communication staging", "received pieces of sums under way"},
    {"sums between GPUs", "what ranks sum by where they exchange by NCCL"},
    {"connections between GPUs", "what NCCL takes for them, an estimate"},
    {process_memory, "what CUDA takes for a process on a GPU, an estimate"},
    {"kernel workspace", "temporaries of the processor's kernels, by thread"},
    {"whole matrices of the update", "what train.optimizer.type muon orthogonalises, one at a time"},
    {"sums of the update", "squares by row and column, and their inverse roots, of train.optimizer.type adafactor"},
    {"sums of the update, on the host", "the same, where the host adds them up"},
    {"staging of offloaded state", "pieces of the host's masters and optimizer state that an update has on the device"},
    {"pinned staging", "batches and pieces of a checkpoint on their way between the host and its device"},
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

// Of the columns that names of groups stand in, with the space behind them.
std::size_t group_width(const PlanFacts& facts) {
  std::size_t width = std::string_view("pipeline").size();
  for (const GroupFact& group : facts.groups) width = std::max(width, to_text(group.kind).size());
  return width + 1;
}

std::string groups_text(const PlanFacts& facts) {
  std::string text;
  for (const GroupFact& group : facts.groups) {
    std::string members = fmt::format("{}, {}", group.first.value(), group.second.value());
    if (group.size > 2) members += fmt::format("{}{}", group.size > 3 ? " .. " : ", ", group.last.value());
    text += fmt::format("  {:<{}} {} of {} ranks; that of rank 0: {}\n", to_text(group.kind), group_width(facts) + 1,
                        counted(group.count, "group"), group.size, members);
  }
  if (text.empty()) return text;
  for (const GroupFact& group : facts.groups) {
    if (group.kind == GroupKind::replication) text += "  replication: ranks with the same key/value heads\n";
    if (group.kind == GroupKind::shard) text += "  shard: replicas that share one copy of what ZeRO divides\n";
    if (group.kind == GroupKind::copies) text += "  copies: replicas that hold the same shard of it\n";
    if (group.kind == GroupKind::tied) text += "  tied: first and last stage, which both hold the tied embedding\n";
    if (is_control(group.kind))
      text += fmt::format("  {}: the same ranks, for the few numbers of their hosts\n", to_text(group.kind));
  }
  return "\ngroups\n" + text;
}

bool tells_ranges(const PlanFacts& facts) {
  return facts.stages.size() > max_listed_stages;
}

struct Cell {
  std::uint64_t value = 0;
  std::string text;
};

// Rows of cells by stage, as many blocks of columns as the page needs.
struct TableRow {
  std::string name;
  std::vector<Cell> cells;
  GroupKind kind = GroupKind::tensor;
};

std::string heading_of(const StageRange& range) {
  return range.first == range.last ? fmt::format("stage {}", range.first)
                                   : fmt::format("stages {}-{}", range.first, range.last);
}

// Neighbouring stages share a column if all of their cells are the same. Where that leaves too many columns, those do
// that hold as much of the same; their cells then tell from where to where they go.
std::vector<StageRange> columns_of(const PlanFacts& facts, const std::vector<TableRow>& rows) {
  std::vector<StageRange> columns;
  for (std::size_t stage = 0; stage < facts.stages.size(); ++stage) {
    const bool alike = !columns.empty() && std::all_of(rows.begin(), rows.end(), [&](const TableRow& row) {
      return row.cells[static_cast<std::size_t>(columns.back().first)].text == row.cells[stage].text;
    });
    const auto number = static_cast<std::int64_t>(stage);
    if (alike) {
      columns.back().last = number;
    } else {
      columns.push_back({number, number});
    }
  }
  return tells_ranges(facts) && columns.size() > max_listed_stages / 2 ? alike_stages(facts) : columns;
}

std::string cell_text(const TableRow& row, const StageRange& column) {
  const auto first = row.cells.begin() + column.first;
  const auto end = row.cells.begin() + column.last + 1;
  if (std::all_of(first, end, [&](const Cell& cell) { return cell.text == first->text; })) return first->text;
  const auto by_value = [](const Cell& a, const Cell& b) { return a.value < b.value; };
  const std::string& least = std::min_element(first, end, by_value)->text;
  const std::string& most = std::max_element(first, end, by_value)->text;
  // In the order of the stages, where they rise or fall evenly.
  return first->value <= (end - 1)->value ? least + " .. " + most : most + " .. " + least;
}

std::string table_text(const PlanFacts& facts, const std::vector<TableRow>& rows, const std::string& name_heading) {
  const std::vector<StageRange> all_columns = columns_of(facts, rows);
  std::size_t name_width = name_heading.size();
  std::size_t cell_width = 0;
  for (const StageRange& column : all_columns) cell_width = std::max(cell_width, heading_of(column).size());
  for (const TableRow& row : rows) {
    name_width = std::max(name_width, row.name.size());
    for (const StageRange& column : all_columns) cell_width = std::max(cell_width, cell_text(row, column).size());
  }
  const std::size_t columns = std::max<std::size_t>(1, (page_width(facts) - 2 - name_width) / (cell_width + 2));
  std::string text;
  for (std::size_t first = 0; first < all_columns.size(); first += columns) {
    const std::size_t last = std::min(all_columns.size(), first + columns);
    std::string heading = fmt::format("\n  {:<{}}", name_heading, name_width);
    for (std::size_t c = first; c < last; ++c)
      heading += fmt::format("  {:>{}}", heading_of(all_columns[c]), cell_width);
    text += heading + "\n";
    for (const TableRow& row : rows) {
      text += fmt::format("  {:<{}}", row.name, name_width);
      for (std::size_t c = first; c < last; ++c)
        text += fmt::format("  {:>{}}", cell_text(row, all_columns[c]), cell_width);
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

Cell bytes_cell(std::uint64_t bytes) {
  return {bytes, bytes_text(bytes)};
}

std::vector<TableRow> memory_rows(const PlanFacts& facts) {
  std::vector<TableRow> rows;
  for (std::size_t item = 0; item < facts.stages.front().survey.memory.items.size(); ++item) {
    TableRow row{.name = facts.stages.front().survey.memory.items[item].purpose, .cells = {}};
    std::uint64_t most = 0;
    for (const StageFacts& stage : facts.stages) {
      const std::uint64_t bytes = stage.survey.memory.items[item].bytes;
      most = std::max(most, bytes);
      row.cells.push_back(bytes_cell(bytes));
    }
    if (most > 0) rows.push_back(std::move(row));
  }
  TableRow total{.name = "total", .cells = {}};
  for (const StageFacts& stage : facts.stages) total.cells.push_back(bytes_cell(stage.survey.memory.total()));
  rows.push_back(std::move(total));
  return rows;
}

std::string memory_text(const PlanFacts& facts) {
  const std::vector<TableRow> rows = memory_rows(facts);
  std::string text =
      facts.phase.mesh.world() == 1 ? "\nmemory at its peak" : "\nmemory of the first rank of a stage at its peak";
  text += table_text(facts, rows, "");
  for (const std::string& line : host_memory_lines(facts)) text += "  " + line + "\n";
  return text + memory_words_text(rows);
}

// Of the stage whose ranks need most.
std::string short_memory_text(const PlanFacts& facts) {
  const auto total_of = [](const StageFacts& stage) { return stage.survey.memory.total(); };
  const auto most =
      std::max_element(facts.stages.begin(), facts.stages.end(),
                       [&](const StageFacts& a, const StageFacts& b) { return total_of(a) < total_of(b); });
  std::string text =
      facts.stages.size() == 1
          ? fmt::format("\nmemory of {} at its peak\n", facts.phase.mesh.world() == 1 ? "the rank" : "a rank")
          : fmt::format("\nmemory of a rank of stage {}, which needs most, at its peak\n", most->stage);
  for (const TableRow& row : memory_rows(facts)) {
    const Cell& cell = row.cells[static_cast<std::size_t>(most->stage)];
    if (cell.value > 0) text += fmt::format("  {:<28} {:>8}\n", row.name, cell.text);
  }
  return text;
}

const CommunicationVolume* find_row(const StageFacts& stage, const CommunicationVolume& like) {
  for (const CommunicationVolume& volume : stage.survey.communication)
    if (volume.kind == like.kind && volume.collective == like.collective && volume.purpose == like.purpose)
      return &volume;
  return nullptr;
}

std::string communication_name(const PlanFacts& facts, std::string_view group, std::string_view hosts,
                               std::string_view collective, std::string_view what) {
  return fmt::format("{:<{}} {:<7} {:<15} {}", group, group_width(facts), hosts, collective, what);
}

// The bytes of the groups that leave a host, or of those that do not.
TableRow total_row(const PlanFacts& facts, std::string_view hosts) {
  TableRow row{.name = communication_name(facts, "total", hosts, "", ""), .cells = {}};
  for (const StageFacts& stage : facts.stages) {
    std::uint64_t bytes = 0;
    for (const CommunicationVolume& volume : stage.survey.communication)
      if (hosts.empty() || to_text(reach_of(facts, volume.kind)) == hosts) bytes += volume.bytes;
    row.cells.push_back(bytes_cell(bytes));
  }
  return row;
}

std::vector<TableRow> communication_rows(const PlanFacts& facts) {
  std::vector<TableRow> rows;
  for (const StageFacts& listed : facts.stages) {
    for (const CommunicationVolume& volume : listed.survey.communication) {
      TableRow row{.name = communication_name(facts, to_text(volume.kind), to_text(reach_of(facts, volume.kind)),
                                              collective_name(volume.collective), volume.purpose),
                   .cells = {},
                   .kind = volume.kind};
      if (std::any_of(rows.begin(), rows.end(), [&](const TableRow& other) { return other.name == row.name; }))
        continue;
      for (const StageFacts& stage : facts.stages) {
        const CommunicationVolume* found = find_row(stage, volume);
        if (found == nullptr) {
          row.cells.push_back({0, "-"});
        } else {
          row.cells.push_back({found->bytes, fmt::format("{} ({})", bytes_text(found->bytes), found->calls)});
        }
      }
      rows.push_back(std::move(row));
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const TableRow& a, const TableRow& b) { return a.kind < b.kind; });
  return rows;
}

// Rows and words that need one, as far as they occur.
std::string communication_words_text(const PlanFacts& facts) {
  std::string text =
      "  hosts: whether a group lies inside one or reaches across several, as the hosts line above says\n";
  text += "  loss, norm, votes: the few numbers of a step that all ranks sum\n";
  const auto occurs_anywhere = [&](const std::string& purpose) {
    return std::any_of(group_kinds.begin(), group_kinds.end(), [&](GroupKind kind) {
      return std::any_of(facts.stages.begin(), facts.stages.end(),
                         [&](const StageFacts& stage) { return find_volume(stage, kind, purpose) != nullptr; });
    });
  };
  if (occurs_anywhere(std::string(to_text(CallPurpose::squares))))
    text += "  squares by row and column: a number for each row and column of a stage's matrices (adafactor)\n";
  const auto occurs = [&](GroupKind kind, const std::string& purpose) {
    return std::any_of(facts.stages.begin(), facts.stages.end(),
                       [&](const StageFacts& stage) { return find_volume(stage, kind, purpose) != nullptr; });
  };
  if (occurs(GroupKind::tensor, "softmax statistics"))
    text += "  softmax statistics: maxima and sums of the loss over a divided vocabulary\n";
  if (occurs(GroupKind::tensor, "gradients"))
    text += "  gradients of a tensor group: of norms and biases, to which each rank adds its share of the tokens\n";
  return text;
}

std::string communication_text(const PlanFacts& facts) {
  std::vector<TableRow> rows = communication_rows(facts);
  if (rows.empty()) return {};
  std::vector<std::string_view> reaches;
  for (const GroupReach reach : {GroupReach::inside_host, GroupReach::partly_inside, GroupReach::across_hosts}) {
    const bool occurs = std::any_of(facts.groups.begin(), facts.groups.end(),
                                    [&](const GroupFact& group) { return group.reach == reach; });
    if (occurs) reaches.push_back(to_text(reach));
  }
  if (reaches.size() > 1)
    for (const std::string_view reach : reaches) rows.push_back(total_row(facts, reach));
  rows.push_back(total_row(facts, ""));
  return "\nsent by the first rank of a stage in one step: bytes (calls)" +
         table_text(facts, rows, communication_name(facts, "group", "hosts", "collective", "of")) +
         communication_words_text(facts);
}

std::string bubble_text(const PlanFacts& facts) {
  const double bubble = 100.0 * facts.replay.bubble;
  const double equal = 100.0 * facts.replay.equal_bubble;
  std::string text = fmt::format("{:.1f} % of the stages' time is idle", bubble);
  constexpr double shown = 0.05;
  if (bubble > equal + shown || bubble < equal - shown)
    text += fmt::format("; {:.1f} % if all stages took equally long", equal);
  if (facts.short_step.repeats > 0)
    text += fmt::format("; from a replay of {} micro-batches, whose middle repeats", facts.short_step.micro_batches);
  return text;
}

// The verdict is of all ranks on this machine, which they do not fit; what follows is of the hosts that they would
// need.
bool is_refused_here(const PlanFacts& facts) {
  return facts.refused && facts.verdict && facts.verdict->budget.kind == MemoryBudget::Kind::host;
}

std::string zero_text(const PlanFacts& facts) {
  const Mesh& mesh = facts.phase.mesh;
  std::string text = fmt::format("stage {}", facts.config.parallel.zero);
  if (mesh.degree(Axis::data) == 1) return text + " (one replica: nothing to divide)";
  if (facts.config.parallel.zero_reduce == ZeroReduceKind::step) text += ", gradients whole and summed once a step";
  if (mesh.is_hierarchical())
    text += fmt::format("; divided among {} replicas, {} of them", mesh.shards(), counted(mesh.copies(), "group"));
  return text;
}

// What is trained, where that is not all of the model from the start, and what it takes; else empty.
std::string trained_value(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  std::string text = trained_text(phase.table);
  if (text.empty()) return text;
  if (phase.table.num_parameters(ParamRole::frozen) > 0 && phase.compute != DType::f32) {
    const auto& parameters = phase.table.parameters();
    const bool are_stored = std::any_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
      return parameter.role == ParamRole::frozen && !parameter.in_base;
    });
    text += fmt::format(", held{} in {}", are_stored ? " and stored" : "", to_text(facts.config.compute_precision()));
  }
  if (!joining_parameters(phase.table).empty()) text += "; what joins has its memory from the start";
  return text;
}

// "0: steps 1 to 1,000 of 64 samples of 512 tokens (code 0.3, web 0.7), learning rate times 0.1; 32.8M tokens, 3 h".
std::string phase_value(const PlanFacts& facts, const RunWork::Phase& of) {
  const TrainingPhase& phase = of.phase;
  const auto digits = [](std::int64_t count) { return grouped_digits(static_cast<std::uint64_t>(count)); };
  std::string text = fmt::format("{}: steps {} to {} of {} of {}", phase.index, digits(phase.first_step + 1),
                                 digits(phase.first_step + phase.steps),
                                 grouped_count(static_cast<std::uint64_t>(phase.global_batch), "sample"),
                                 grouped_count(static_cast<std::uint64_t>(phase.context), "token"));
  std::string mix;
  for (std::size_t i = 0; i < phase.weights.size() && phase.weights.size() > 1; ++i)
    if (phase.weights[i] > 0)
      mix += fmt::format("{}{} {:g}", mix.empty() ? "" : ", ", name_of_source(facts.config.data, i), phase.weights[i]);
  if (!mix.empty()) text += fmt::format(", sources {}", mix);
  if (phase.learning_rate_factor != 1.0) text += fmt::format(", learning rate times {:g}", phase.learning_rate_factor);
  text += fmt::format("; {} tokens", short_count(of.tokens));
  if (const auto seconds = seconds_of_phase(facts, of))
    text += ", " + (*seconds < 1 ? fmt::format("{:.3g} ms", 1000 * *seconds) : duration_text(*seconds));
  return text;
}

std::string head_text(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  const ModelSpec& model = phase.model;
  std::string text;
  const auto line = [&text](std::string_view key, const std::string& value) { text += keyed_lines(key, value); };
  const bool has_own_size = model.heads * model.head_size != model.hidden;
  line("model", fmt::format("{} parameters; {}, hidden {}, {} ({} key/value){}, ffn {}, vocabulary {}, context {}",
                            grouped_digits(static_cast<std::uint64_t>(phase.table.num_parameters())),
                            counted(model.layers, "layer"), model.hidden, counted(model.heads, "head"), model.kv_heads,
                            has_own_size ? fmt::format(" of {}", model.head_size) : "", model.ffn_hidden, model.vocab,
                            model.context));
  if (model.window > 0 && model.window < model.context) {
    const std::int64_t global = model.global_every > 0 ? model.layers / model.global_every : 0;
    line("attention", fmt::format("a window of {} tokens in {}, {:.0f}% of what attention would be without",
                                  model.window, counted(model.layers - global, "layer"), 100 * attention_share(model)));
  }
  if (const std::string trained = trained_value(facts); !trained.empty()) line("trained", trained);
  line("compute", fmt::format("{:.4g} FLOP per token, {}", model_flops_per_token(model, phase.table),
                              to_text(facts.config.compute_precision())));
  const bool is_largest = !facts.work_of_run.phases.empty() || facts.config.train.batch_ramp;
  line("steps",
       fmt::format("{} of {}{} ({} each)", steps_text(facts), is_largest ? "at most " : "",
                   grouped_count(static_cast<std::uint64_t>(phase.global_batch), "sample"),
                   grouped_count(static_cast<std::uint64_t>(checked_mul(phase.global_batch, model.context)), "token")));
  if (const auto& ramp = facts.config.train.batch_ramp)
    line("batch ramp", fmt::format("{} at first, {} more at a time, for {}; then as many as steps have",
                                   grouped_count(static_cast<std::uint64_t>(ramp->from), "sample"), ramp->by,
                                   grouped_count(static_cast<std::uint64_t>(ramp->steps), "step")));
  if (const auto& bounds = facts.config.train.batch_auto)
    line("batch auto", fmt::format("{} at first, then by the gradient noise scale up to {}, doubled or halved every {}",
                                   grouped_count(static_cast<std::uint64_t>(bounds->min), "sample"), bounds->max,
                                   grouped_count(static_cast<std::uint64_t>(bounds->every), "step")));
  for (const RunWork::Phase& each : facts.work_of_run.phases) line("phase", phase_value(facts, each));
  const bool is_alone = phase.mesh.world() == 1;
  line("mesh", fmt::format("{} = {}{}", phase.mesh.text(), counted(phase.mesh.world(), "rank"),
                           is_alone ? "" : "; " + unbroken(rank_pattern(phase))));
  line("batch", fmt::format("{} of {} per replica and step", counted(phase.num_micro_batches, "micro-batch", "es"),
                            counted(phase.micro_batch.samples, "sample")));
  line("zero", zero_text(facts));
  if (!is_alone && !is_refused_here(facts)) line("hosts", placement_text(facts));
  if (is_refused_here(facts) && facts.options.verbose) line("hosts", "from here on " + placement_text(facts));
  if (phase.mesh.degree(Axis::tensor) > 1)
    line("sequence",
         phase.sequence ? "norms and residuals are divided among tensor ranks" : "unsharded on every tensor rank");
  if (phase.mesh.degree(Axis::pipeline) > 1 || phase.chunks > 1) {
    const std::int64_t saved = facts.stages.front().survey.saved;
    // With several chunks a micro-batch is held once for each chunk that it has passed.
    const std::string held = phase.chunks > 1
                                 ? fmt::format("{} (counted once per model chunk)", counted(saved, "micro-batch", "es"))
                                 : counted(saved, "micro-batch", "es");
    line("schedule", fmt::format("{}, {} per stage; stage 0 holds the activations of up to {}",
                                 to_text(phase.schedule_kind), counted(phase.chunks, "model chunk"), held));
  }
  if (phase.mesh.degree(Axis::pipeline) > 1) {
    line("bubble", bubble_text(facts));
    line("balance", balance_text(facts));
  }
  for (const std::string& cost : cost_lines(facts)) line("cost", cost);
  if (const std::string save = save_text(facts.save); !save.empty()) line("checkpoint", save);
  return text;
}

std::string stages_text(const PlanFacts& facts) {
  std::string text = "\n";
  const bool has_pipeline = facts.phase.mesh.degree(Axis::pipeline) > 1;
  const bool one_rank = facts.phase.mesh.world() == 1;
  std::vector<StageRange> ranges;
  for (const StageFacts& stage : facts.stages) ranges.push_back({stage.stage, stage.stage});
  if (tells_ranges(facts)) ranges = alike_stages(facts);
  for (const StageRange& range : ranges) {
    const StageFacts& stage = facts.stages[static_cast<std::size_t>(range.first)];
    text += fmt::format("{}: {}; {} parameters{}", heading_of(range), contents_text(facts.phase, range),
                        grouped_digits(static_cast<std::uint64_t>(stage.parameters)), one_rank ? "" : " per rank");
    text += has_pipeline ? fmt::format("; work {:.2f} x the mean\n", stage.work) : "\n";
  }
  return text;
}

std::string chart_text(const PlanFacts& facts) {
  const TimelineChart chart =
      draw_timeline(facts.replay.timetable, facts.phase.chunks, page_width(facts), max_timeline_stages);
  const bool is_split = facts.phase.schedule_kind == ScheduleKind::zb_h1;
  const std::string length = facts.short_step.repeats > 0
                                 ? fmt::format("a step of {} micro-batches (that of {} repeats its middle)",
                                               facts.short_step.micro_batches, facts.phase.num_micro_batches)
                                 : "one step";
  std::string text =
      fmt::format("\ntimeline of {}, to scale by floating-point operations; transfers count as free\n", length);
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
    const std::string chunk = chart.tells_chunks ? "0" : "";
    text += fmt::format("  F{}: forward{}; {}; '.': idle; {}\n", chunk, chart.tells_chunks ? " of model chunk 0" : "",
                        is_split ? "I, W: backward for the inputs and for the weights" : "B" + chunk + ": backward",
                        letters);
  }
  if (chart.columns_left_out > 0)
    text += fmt::format("  '~': {} columns of the middle are left out; a typical forward takes {}\n",
                        chart.columns_left_out, counted(chart.columns_per_forward, "column"));
  return text + chart.rows;
}

std::string schedule_text(const PlanFacts& facts) {
  const bool has_pipeline = facts.phase.mesh.degree(Axis::pipeline) > 1;
  std::string text;
  if (has_pipeline) text += chart_text(facts);
  if (facts.options.instructions) return text + instructions_text(facts.phase, page_width(facts));
  if (has_pipeline) text += "(--instructions lists what each stage does in one step, with transfers and reductions)\n";
  return text;
}

}  // namespace

std::string facts_text(const PlanFacts& facts) {
  const std::string begin = budget_text(facts) + "\n" + head_text(facts);
  if (!facts.options.verbose)
    return begin + short_memory_text(facts) +
           (facts.options.instructions ? "\n" + instructions_text(facts.phase, page_width(facts)) : "") +
           "(--verbose: stages, ranks, groups, traffic, timeline and the meaning of words)\n";
  return begin + rank_map_text(facts.phase) + groups_text(facts) + stages_text(facts) + memory_text(facts) +
         communication_text(facts) + schedule_text(facts);
}

PlanDescription describe_plan(const Config& config, const RunPlan& plan, const DescribeOptions& options) {
  return within_size_limits(config, [&]() -> PlanDescription {
    const PlanFacts facts = gather_facts(config, plan, options);
    std::string refusal = save_refusal(facts.save);
    if (refusal.empty() && facts.refused) refusal = host_memory_lines(facts).front();
    return {facts_text(facts),  facts_json(facts),    std::move(refusal),
            misfit_text(facts), shortage_text(facts), is_clearly_short(facts.work_of_run)};
  });
}

}  // namespace scaletrain
