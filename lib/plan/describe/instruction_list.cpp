#include "plan/describe/instruction_list.h"

#include <fmt/format.h>

#include <algorithm>

namespace scaletrain {

namespace {

// What the executor passes over: weights are gathered unit by unit where they are used, sums of one are none, and a
// backward through frozen layers alone is none.
bool does_nothing(const Instruction& instruction, const PhasePlan& phase, std::int64_t stage) {
  switch (instruction.op) {
    case Opcode::backward:
    case Opcode::backward_input:
    case Opcode::backward_weight:
      return instruction.chunk * phase.mesh.degree(Axis::pipeline) + stage <
             phase.lowest_backward(phase.table.first_trained_unit());
    case Opcode::acquire:
    case Opcode::release:
      return true;
    case Opcode::reduce_gradients:
      return phase.mesh.degree(Axis::data) == 1 && phase.mesh.degree(Axis::tensor) == 1;
    case Opcode::reduce_tied:
      return !phase.model.tie_embeddings;
    default:
      return false;
  }
}

// In the order in which the executor goes through them.
std::vector<ScheduleStep> executed_steps(const PhasePlan& phase, const std::vector<ScheduleStep>& steps,
                                         std::int64_t at) {
  const ScheduleDepth depth = schedule_depth(steps);
  std::vector<ScheduleStep> order = order_of_execution(steps, {depth.inputs, depth.gradients_received});
  for (ScheduleStep& step : order)
    std::erase_if(step, [&](const Instruction& instruction) { return does_nothing(instruction, phase, at); });
  std::erase_if(order, [](const ScheduleStep& step) { return step.empty(); });
  return order;
}

std::string step_text(const ScheduleStep& step, std::int64_t chunks) {
  std::string text;
  for (const Instruction& instruction : step) {
    if (!text.empty()) text += " | ";
    text += to_text(instruction, chunks);
  }
  return text;
}

// Of what occurs.
std::string legend(const PhasePlan& phase) {
  const bool is_pipeline = phase.mesh.degree(Axis::pipeline) > 1;
  std::string text = "  F0: forward of micro-batch 0; ";
  text += phase.schedule_kind == ScheduleKind::zb_h1
              ? "I0, W0: its backward in two parts, for the inputs and for the weights\n"
              : "B0: its backward\n";
  if (phase.chunks > 1) text += "  c1 behind it: of the stage's model chunk 1\n";
  if (is_pipeline) {
    text += "  send a0>1: the activations of micro-batch 0 to stage 1; receive g0<1: their gradients from stage 1\n";
    text += "  receives are posted as early as there is a buffer, and the work that needs one waits for it\n";
  }
  if (phase.mesh.degree(Axis::data) > 1 && phase.zero.shard_parameters)
    text += "  weights are gathered by layer inside F and B, the next layer's while one works\n";
  const std::string chunk = phase.chunks > 1 ? "a chunk's" : "the";
  if (phase.mesh.degree(Axis::data) > 1) {
    text += fmt::format("  reduce: {} gradients are summed over the replicas, begun in the last backward\n", chunk);
  } else if (phase.mesh.degree(Axis::tensor) > 1) {
    text += fmt::format("  reduce: {} gradients of norms and biases are summed over the tensor ranks\n", chunk);
  }
  if (is_pipeline && phase.model.tie_embeddings)
    text += "  reduce tied: the tied embedding's gradient is summed over the first and the last stage\n";
  text += "  step: the optimizer's update, behind all sums\n";
  return text;
}

std::string side_by_side(const std::vector<std::vector<std::string>>& stages, const std::vector<std::size_t>& widths) {
  std::string text;
  std::size_t lines = 0;
  for (const auto& steps : stages) lines = std::max(lines, steps.size());
  for (std::size_t line = 0; line <= lines; ++line) {
    std::string row;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      std::string cell;
      if (line == 0) cell = fmt::format("stage {}", stage);
      if (line > 0 && line <= stages[stage].size()) cell = stages[stage][line - 1];
      row += fmt::format("{:<{}}  ", cell, widths[stage]);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

std::string one_below_the_other(const std::vector<std::vector<std::string>>& stages, std::size_t page_width) {
  std::string text;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    text += fmt::format("stage {}\n", stage);
    std::string line;
    for (const std::string& step : stages[stage]) {
      if (!line.empty() && line.size() + step.size() + 4 > page_width) {
        text += line + ";\n";
        line.clear();
      }
      line += (line.empty() ? "  " : "; ") + step;
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::vector<std::vector<std::string>> instructions_of(const PhasePlan& phase) {
  const Schedule schedule =
      make_schedule(phase.schedule_kind, phase.mesh.degree(Axis::pipeline), phase.num_micro_batches, phase.chunks,
                    phase.lowest_backward(phase.table.first_trained_unit()));
  std::vector<std::vector<std::string>> out;
  for (const std::vector<ScheduleStep>& stage : schedule.steps) {
    const std::int64_t at = std::ssize(out);
    std::vector<std::string>& steps = out.emplace_back();
    for (const ScheduleStep& step : executed_steps(phase, stage, at)) steps.push_back(step_text(step, phase.chunks));
  }
  return out;
}

std::string instructions_text(const PhasePlan& phase, std::size_t page_width) {
  const std::vector<std::vector<std::string>> stages = instructions_of(phase);
  std::vector<std::size_t> widths;
  std::size_t total = 0;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    std::size_t width = fmt::format("stage {}", stage).size();
    for (const std::string& step : stages[stage]) width = std::max(width, step.size());
    widths.push_back(width);
    total += width + 2;
  }
  return "\ninstructions of one step\n" + legend(phase) + "\n" +
         (total <= page_width + 2 ? side_by_side(stages, widths) : one_below_the_other(stages, page_width));
}

}  // namespace scaletrain
