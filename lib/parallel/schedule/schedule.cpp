#include "parallel/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "config/keys/keys.h"
#include "parallel/schedule/schedule_order.h"

namespace scaletrain {

namespace {

struct OpcodeRow {
  Opcode op;
  std::string_view name;   // in messages
  std::string_view brief;  // in printed schedules
};

constexpr OpcodeRow opcode_rows[] = {
    {Opcode::forward, "forward", "F"},
    {Opcode::backward, "backward", "B"},
    {Opcode::backward_input, "backward_input", "I"},
    {Opcode::backward_weight, "backward_weight", "W"},
    {Opcode::send_activation, "send_activation", "send a"},
    {Opcode::receive_activation, "receive_activation", "receive a"},
    {Opcode::send_gradient, "send_gradient", "send g"},
    {Opcode::receive_gradient, "receive_gradient", "receive g"},
    {Opcode::acquire, "acquire", "acquire"},
    {Opcode::release, "release", "release"},
    {Opcode::reduce_gradients, "reduce_gradients", "reduce"},
    {Opcode::reduce_tied, "reduce_tied", "reduce tied"},
    {Opcode::optimizer_step, "optimizer_step", "step"},
};

const OpcodeRow& row_of(Opcode op) {
  const auto index = static_cast<std::size_t>(op);
  SCALETRAIN_CHECK(index < std::size(opcode_rows) && opcode_rows[index].op == op);
  return opcode_rows[index];
}

bool has_chunk(Opcode op) {
  return op != Opcode::reduce_tied && op != Opcode::optimizer_step;
}

// A transfer of one stage, at its place in the common order of all transfers: two stages that sort by `key` agree.
struct PlannedTransfer {
  std::size_t before_work = 0;  // index of the work that it precedes
  std::tuple<std::int64_t, Opcode, std::int64_t, std::int64_t>
      key;  // time, receiving opcode, virtual receiver, micro-batch
  Instruction instruction;
};

// Which transfers a stage takes part in and where in its order they stand.
//
// A transfer stands, on both sides, behind all work that starts before the result exists in the ideal timeline. So
// nothing that precedes a transfer on either side depends on a later transfer: the earliest one not yet done can always
// be posted by both sides, even if every transfer blocks its stage. That is why no schedule can deadlock, whatever real
// times are.
std::vector<PlannedTransfer> plan_transfers(const ScheduleShape& shape, const Timeline& timeline, std::int64_t stage) {
  std::vector<PlannedTransfer> transfers;
  if (shape.stages == 1) return transfers;
  const std::vector<std::int64_t>& start = timeline.start[static_cast<std::size_t>(stage)];
  const auto add = [&](Opcode op, std::int64_t time, std::int64_t receiver, std::int64_t own, std::int64_t other,
                       std::int64_t micro_batch) {
    const auto place = std::lower_bound(start.begin(), start.end(), time);
    const bool is_activation = op == Opcode::send_activation || op == Opcode::receive_activation;
    const Opcode arriving = is_activation ? Opcode::receive_activation : Opcode::receive_gradient;
    transfers.push_back({.before_work = static_cast<std::size_t>(place - start.begin()),
                         .key = {time, arriving, receiver, micro_batch},
                         .instruction = {.op = op,
                                         .chunk = own / shape.stages,
                                         .micro_batch = MicroBatch(micro_batch),
                                         .peer = Stage(other % shape.stages)}});
  };
  const std::int64_t last = shape.virtual_stages() - 1;
  for (std::int64_t own = stage; own <= last; own += shape.stages) {
    for (std::int64_t m = 0; m < shape.micro_batches; ++m) {
      const auto time = [&](const std::vector<std::int64_t>& ends, std::int64_t virtual_stage) {
        return ends[static_cast<std::size_t>(virtual_stage * shape.micro_batches + m)];
      };
      if (own > 0) add(Opcode::receive_activation, time(timeline.activation, own - 1), own, own, own - 1, m);
      if (own < last) add(Opcode::send_activation, time(timeline.activation, own), own + 1, own, own + 1, m);
      if (shape.forward_only) continue;
      if (own < last && own >= shape.lowest_backward)
        add(Opcode::receive_gradient, time(timeline.gradient, own + 1), own, own, own + 1, m);
      if (own > shape.lowest_backward)
        add(Opcode::send_gradient, time(timeline.gradient, own), own - 1, own, own - 1, m);
    }
  }
  std::sort(transfers.begin(), transfers.end(),
            [](const PlannedTransfer& a, const PlannedTransfer& b) { return a.key < b.key; });
  return transfers;
}

ScheduleStep work_step(const Work& work) {
  const Instruction instruction{
      .op = work.op, .chunk = work.chunk, .micro_batch = MicroBatch(work.micro_batch), .peer = {}};
  if (work.op == Opcode::backward_weight) return {instruction};
  return {{.op = Opcode::acquire, .chunk = work.chunk, .micro_batch = {}, .peer = {}},
          instruction,
          {.op = Opcode::release, .chunk = work.chunk, .micro_batch = {}, .peer = {}}};
}

std::vector<ScheduleStep> stage_steps(const ScheduleShape& shape, const std::vector<Work>& order,
                                      const Timeline& timeline, std::int64_t stage) {
  const std::vector<PlannedTransfer> transfers = plan_transfers(shape, timeline, stage);
  std::vector<std::int64_t> left(static_cast<std::size_t>(shape.chunks), 0);  // backward work still to come
  const auto completes_gradients = [](Opcode op) { return op == Opcode::backward || op == Opcode::backward_weight; };
  for (const Work& work : order) left[static_cast<std::size_t>(work.chunk)] += completes_gradients(work.op) ? 1 : 0;

  std::vector<ScheduleStep> steps;
  std::size_t next_transfer = 0;
  std::optional<std::int64_t> complete_chunk;  // its gradients await their reduction
  for (std::size_t index = 0; index <= order.size(); ++index) {
    ScheduleStep posted;
    for (; next_transfer < transfers.size() && transfers[next_transfer].before_work == index; ++next_transfer)
      posted.push_back(transfers[next_transfer].instruction);
    if (!posted.empty()) steps.push_back(std::move(posted));
    // Behind the transfers: the stage before must not wait for this stage's reduction to get its gradient.
    if (complete_chunk)
      steps.push_back({{.op = Opcode::reduce_gradients, .chunk = *complete_chunk, .micro_batch = {}, .peer = {}}});
    complete_chunk.reset();
    if (index == order.size()) break;
    const Work& work = order[index];
    steps.push_back(work_step(work));
    if (completes_gradients(work.op) && --left[static_cast<std::size_t>(work.chunk)] == 0) complete_chunk = work.chunk;
  }
  SCALETRAIN_CHECK_EQ(next_transfer, transfers.size());
  if (shape.forward_only) return steps;
  if (shape.stages > 1 && (stage == 0 || stage == shape.stages - 1))
    steps.push_back({{.op = Opcode::reduce_tied, .chunk = 0, .micro_batch = {}, .peer = {}}});
  steps.push_back({{.op = Opcode::optimizer_step, .chunk = 0, .micro_batch = {}, .peer = {}}});
  return steps;
}

ScheduleShape checked_shape(ScheduleKind kind, std::int64_t stages, std::int64_t micro_batches, std::int64_t chunks) {
  SCALETRAIN_CHECK(stages >= 1 && micro_batches >= 1 && chunks >= 1);
  if (chunks != 1 && kind != ScheduleKind::interleaved) {
    throw UserError(
        fmt::format("parallel.chunks: {} chunks per stage, but parallel.schedule is {}, which has one; "
                    "set parallel.schedule: interleaved or parallel.chunks: 1",
                    chunks, to_text(kind)));
  }
  return {.kind = kind, .stages = stages, .micro_batches = micro_batches, .chunks = chunks};
}

std::vector<std::vector<Work>> all_orders(const ScheduleShape& shape) {
  std::vector<std::vector<Work>> orders;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) orders.push_back(work_order(shape, stage));
  return orders;
}

std::vector<ScheduleStep> one_stage(const ScheduleShape& shape, Stage stage) {
  SCALETRAIN_CHECK(stage.value() >= 0);
  SCALETRAIN_CHECK_LT(stage.value(), shape.stages);
  const std::vector<std::vector<Work>> orders = all_orders(shape);
  const Timeline timeline = ideal_timeline(shape, orders);
  return stage_steps(shape, orders[static_cast<std::size_t>(stage.value())], timeline, stage.value());
}

std::string step_text(const ScheduleStep& step, std::int64_t chunks) {
  std::string text;
  for (const Instruction& instruction : step) {
    if (!text.empty()) text += " | ";
    text += to_text(instruction, chunks);
  }
  return text;
}

}  // namespace

bool is_transfer(Opcode op) {
  return op == Opcode::send_activation || op == Opcode::receive_activation || op == Opcode::send_gradient ||
         op == Opcode::receive_gradient;
}
bool is_send(Opcode op) {
  return op == Opcode::send_activation || op == Opcode::send_gradient;
}
bool is_activation(Opcode op) {
  return op == Opcode::send_activation || op == Opcode::receive_activation;
}

std::string_view to_text(Opcode op) {
  return row_of(op).name;
}

Schedule make_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t micro_batches, std::int64_t chunks,
                       std::int64_t lowest_backward) {
  ScheduleShape shape = checked_shape(kind, stages, micro_batches, chunks);
  shape.lowest_backward = lowest_backward;
  Schedule schedule{.kind = kind,
                    .stages = stages,
                    .micro_batches = micro_batches,
                    .chunks = chunks,
                    .lowest_backward = lowest_backward,
                    .steps = {}};
  const std::vector<std::vector<Work>> orders = all_orders(shape);
  const Timeline timeline = ideal_timeline(shape, orders);
  for (std::int64_t stage = 0; stage < stages; ++stage)
    schedule.steps.push_back(stage_steps(shape, orders[static_cast<std::size_t>(stage)], timeline, stage));
  return schedule;
}

std::vector<ScheduleStep> make_stage_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t micro_batches,
                                              std::int64_t chunks, Stage stage, std::int64_t lowest_backward) {
  ScheduleShape shape = checked_shape(kind, stages, micro_batches, chunks);
  shape.lowest_backward = lowest_backward;
  return one_stage(shape, stage);
}

std::vector<ScheduleStep> make_evaluation_schedule(std::int64_t stages, std::int64_t micro_batches, std::int64_t chunks,
                                                   Stage stage) {
  ScheduleShape shape = checked_shape(ScheduleKind::interleaved, stages, micro_batches, chunks);
  shape.forward_only = true;
  return one_stage(shape, stage);
}

std::string to_text(const Instruction& instruction, std::int64_t chunks) {
  std::string text(row_of(instruction.op).brief);
  if (instruction.micro_batch) text += fmt::format("{}", instruction.micro_batch->value());
  if (chunks > 1 && has_chunk(instruction.op))
    text += fmt::format("{}c{}", instruction.micro_batch ? "" : " ", instruction.chunk);
  const bool is_send = instruction.op == Opcode::send_activation || instruction.op == Opcode::send_gradient;
  if (instruction.peer) text += fmt::format("{}{}", is_send ? '>' : '<', instruction.peer->value());
  return text;
}

std::string to_text(const Schedule& schedule) {
  std::vector<std::vector<std::string>> columns;
  std::vector<std::size_t> widths;
  std::size_t num_lines = 0;
  for (std::size_t stage = 0; stage < schedule.steps.size(); ++stage) {
    std::vector<std::string> column{fmt::format("stage {}", stage)};
    for (const ScheduleStep& step : schedule.steps[stage]) column.push_back(step_text(step, schedule.chunks));
    std::size_t width = 0;
    for (const std::string& line : column) width = std::max(width, line.size());
    num_lines = std::max(num_lines, column.size());
    widths.push_back(width);
    columns.push_back(std::move(column));
  }
  std::string text = fmt::format("{}, {} stages, {} micro-batches, {} chunks per stage\n", to_text(schedule.kind),
                                 schedule.stages, schedule.micro_batches, schedule.chunks);
  for (std::size_t line = 0; line < num_lines; ++line) {
    std::string row;
    for (std::size_t stage = 0; stage < columns.size(); ++stage) {
      const std::string cell = line < columns[stage].size() ? columns[stage][line] : "";
      row += fmt::format("{:<{}}", cell, widths[stage] + 3);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + '\n';
  }
  return text;
}

}  // namespace scaletrain
