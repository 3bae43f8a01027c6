// How a rank carries a schedule out: depths against the simulator, receives posted ahead, and what stands with each
// instruction.
#include "parallel/schedule/execution.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "parallel/schedule/simulate.h"

using namespace scaletrain;

namespace {

struct ExecutedCase {
  ScheduleKind kind;
  std::int64_t stages;
  std::int64_t micro_batches;
  std::int64_t chunks;
};

std::vector<ExecutedCase> executed_cases() {
  std::vector<ExecutedCase> cases;
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1})
    for (const std::int64_t stages : {1, 2, 3})
      for (const std::int64_t micro_batches : {1, 2, 3, 8})
        cases.push_back({kind, stages, micro_batches, kind == ScheduleKind::interleaved ? 2 : 1});
  return cases;
}

Instruction instruction(Opcode op, std::int64_t micro_batch) {
  return {op, 0, MicroBatch(micro_batch), {}};
}

}  // namespace

TEST_CASE("the depth of every schedule is what the simulator measures") {
  for (const ExecutedCase& c : executed_cases()) {
    CAPTURE(static_cast<int>(c.kind));
    CAPTURE(c.stages);
    CAPTURE(c.micro_batches);
    const Schedule schedule = make_schedule(c.kind, c.stages, c.micro_batches, c.chunks);
    const Simulation simulation = simulate(schedule, ScheduleCosts{});
    REQUIRE(simulation.completed);
    for (std::size_t stage = 0; stage < schedule.steps.size(); ++stage) {
      const ScheduleDepth depth = schedule_depth(schedule.steps[stage]);
      CHECK(depth.saved == simulation.stages[stage].peak_saved);
      CHECK(depth.weight_work == simulation.stages[stage].peak_weight_work);
      CHECK(depth.in_flight >= std::max(depth.saved, depth.weight_work));
      CHECK(depth.in_flight <= depth.saved + depth.weight_work);
    }
  }
}

TEST_CASE("a buffer is held from the forward to the weight part") {
  // Two forwards; the first micro-batch's weight part waits until after the second's input part: never three at once.
  const std::vector<ScheduleStep> steps = {
      {instruction(Opcode::forward, 0), instruction(Opcode::forward, 1)},
      {instruction(Opcode::backward_input, 0), instruction(Opcode::backward_input, 1)},
      {instruction(Opcode::backward_weight, 0), instruction(Opcode::backward_weight, 1)},
      {instruction(Opcode::forward, 2), instruction(Opcode::backward_input, 2)},
      {instruction(Opcode::backward_weight, 2)}};
  const ScheduleDepth depth = schedule_depth(steps);
  CHECK(depth.saved == 2);
  CHECK(depth.weight_work == 2);
  CHECK(depth.in_flight == 2);
  // A third forward while one weight part waits: three.
  const std::vector<ScheduleStep> more = {{instruction(Opcode::forward, 0), instruction(Opcode::forward, 1)},
                                          {instruction(Opcode::backward_input, 0), instruction(Opcode::forward, 2)}};
  CHECK(schedule_depth(more).in_flight == 3);
  CHECK(schedule_depth(more).saved == 2);
}

TEST_CASE("zb-h1 holds as many micro-batches as 1f1b on the first stage") {
  // Qi et al. 2023: H1 keeps the peak memory of 1F1B.
  const std::int64_t stages = 4;
  const auto depth = [&](ScheduleKind kind) {
    return schedule_depth(make_stage_schedule(kind, stages, 16, 1, Stage(0))).in_flight;
  };
  CHECK(depth(ScheduleKind::one_f_one_b) == stages);
  CHECK(depth(ScheduleKind::zb_h1) == stages);
}

namespace {

bool is_receive(Opcode op) {
  return op == Opcode::receive_activation || op == Opcode::receive_gradient;
}
// What breaks the promises of order_of_execution for one stage; empty if nothing does. Buffers in use are counted anew:
// from the receive of (kind, chunk, micro-batch) to the instruction that frees it.
std::string order_problem(const std::vector<ScheduleStep>& steps, const ReceiveBuffers& buffers) {
  struct Place {
    std::size_t work = 0;  // instructions other than receives that came before
    Instruction instruction;
  };
  const auto walk = [](const std::vector<ScheduleStep>& all, std::vector<Instruction>& others) {
    std::vector<Place> receives;
    for (const ScheduleStep& step : all)
      for (const Instruction& i : step) {
        if (is_receive(i.op)) {
          receives.push_back({others.size(), i});
        } else {
          others.push_back(i);
        }
      }
    return receives;
  };
  const std::vector<ScheduleStep> order = order_of_execution(steps, buffers);
  std::vector<Instruction> planned_others;
  std::vector<Instruction> others;
  const std::vector<Place> planned = walk(steps, planned_others);
  const std::vector<Place> receives = walk(order, others);
  if (others != planned_others) return "work or sends have moved";
  if (receives.size() != planned.size()) return "receives are lost or doubled";
  for (std::size_t i = 0; i < receives.size(); ++i) {
    if (!(receives[i].instruction == planned[i].instruction)) return "receives have changed places";
    if (receives[i].work > planned[i].work) return "a receive is posted late";
  }
  const bool trains = std::any_of(others.begin(), others.end(), [](const auto& i) {
    return i.op == Opcode::backward || i.op == Opcode::backward_input;
  });
  std::vector<Instruction> held;
  const auto free = [&held](Opcode op, const Instruction& by) {
    std::erase_if(held, [&](const Instruction& i) {
      return i.op == op && i.chunk == by.chunk && i.micro_batch == by.micro_batch;
    });
  };
  for (const ScheduleStep& step : order)
    for (const Instruction& i : step) {
      if (is_receive(i.op)) held.push_back(i);
      if (i.op == (trains ? Opcode::backward : Opcode::forward) || i.op == Opcode::backward_weight)
        free(Opcode::receive_activation, i);
      if (i.op == Opcode::backward || i.op == Opcode::backward_input) free(Opcode::receive_gradient, i);
      const auto inputs =
          std::count_if(held.begin(), held.end(), [](const auto& h) { return h.op == Opcode::receive_activation; });
      if (inputs > buffers.inputs) return "more inputs than buffers";
      if (static_cast<std::int64_t>(held.size()) - inputs > buffers.gradients) return "more gradients than buffers";
    }
  return {};
}

}  // namespace

TEST_CASE("receives are posted ahead in their order, within the planned buffers, and nothing else moves") {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1})
    for (std::int64_t stages = 1; stages <= 6; ++stages)
      for (const std::int64_t micro_batches : {1, 2, 3, 4, 5, 7, 12})
        for (const std::int64_t chunks : {1, 2, 3}) {
          if (chunks > 1 && kind != ScheduleKind::interleaved) continue;
          for (std::int64_t stage = 0; stage < stages; ++stage) {
            const auto steps = make_stage_schedule(kind, stages, micro_batches, chunks, Stage(stage));
            const ScheduleDepth depth = schedule_depth(steps);
            const ReceiveBuffers buffers{depth.inputs, depth.gradients_received};
            CAPTURE(static_cast<int>(kind));
            CAPTURE(stages);
            CAPTURE(micro_batches);
            CAPTURE(chunks);
            CAPTURE(stage);
            CHECK(order_problem(steps, buffers) == "");
            // Evaluations of any length run in the memory of training.
            for (const std::int64_t evaluated : {1, 2, 3, 5, 16})
              CHECK(order_problem(make_evaluation_schedule(stages, evaluated, chunks, Stage(stage)), buffers) == "");
          }
        }
}

TEST_CASE("in 1f1b every message is expected one piece of work before it is needed") {
  const std::int64_t stages = 4;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    const auto steps = make_stage_schedule(ScheduleKind::one_f_one_b, stages, 16, 1, Stage(stage));
    const ScheduleDepth depth = schedule_depth(steps);
    std::map<std::pair<Opcode, MicroBatch>, std::int64_t> posted;  // after how many pieces of work
    std::int64_t work = 0;
    for (const ScheduleStep& step : order_of_execution(steps, {depth.inputs, depth.gradients_received}))
      for (const Instruction& i : step) {
        if (is_receive(i.op)) posted[{i.op, *i.micro_batch}] = work;
        if (i.op != Opcode::forward && i.op != Opcode::backward) continue;
        const Opcode arrives = i.op == Opcode::forward ? Opcode::receive_activation : Opcode::receive_gradient;
        const auto found = posted.find({arrives, *i.micro_batch});
        // Nothing comes before a stage's first work.
        if (found != posted.end() && work > 0) CHECK(found->second < work);
        ++work;
      }
  }
}

TEST_CASE("a receive that has no free buffer waits for its own place") {
  const Instruction receive0{Opcode::receive_activation, 0, MicroBatch(0), Stage(0)};
  const Instruction receive1{Opcode::receive_activation, 0, MicroBatch(1), Stage(0)};
  const Instruction gradient{Opcode::receive_gradient, 0, MicroBatch(0), Stage(2)};
  const Instruction send{Opcode::send_activation, 0, MicroBatch(0), Stage(2)};
  const Instruction f0 = instruction(Opcode::forward, 0);
  const std::vector<ScheduleStep> steps = {
      {receive0}, {f0}, {receive1, send, gradient}, {instruction(Opcode::backward, 0)}};
  using Steps = std::vector<ScheduleStep>;
  CHECK(order_of_execution(steps, {2, 1}) ==
        Steps{{receive0}, {receive1, gradient}, {f0}, {send}, {instruction(Opcode::backward, 0)}});
  // What stands behind a receive that must wait is not posted before it.
  CHECK(order_of_execution(steps, {1, 1}) ==
        Steps{{receive0}, {f0}, {receive1, send, gradient}, {instruction(Opcode::backward, 0)}});
}

namespace {

// "F0 >2 last": brings unit 2 along, and is the last to add to its chunk's gradients.
std::string text_of(const ExecutionOrder& order) {
  std::string lines;
  for (const ExecutedInstruction& executed : order) {
    std::string line = to_text(executed.instruction, 2);
    if (executed.next_unit >= 0) line += " >" + std::to_string(executed.next_unit);
    lines += line + (executed.is_last ? " last" : "") + "\n";
  }
  return lines;
}

}  // namespace

TEST_CASE("an instruction says whose weights are used next, and which is a chunk's last contribution") {
  const auto of_chunk = [](Opcode op, std::int64_t chunk, std::int64_t micro_batch) {
    return Instruction{op, chunk, MicroBatch(micro_batch), {}};
  };
  const auto acquire = [](std::int64_t chunk) { return Instruction{Opcode::acquire, chunk, {}, {}}; };
  const std::vector<ScheduleStep> steps = {{acquire(0), of_chunk(Opcode::forward, 0, 0)},
                                           {acquire(1), of_chunk(Opcode::forward, 1, 0)},
                                           {of_chunk(Opcode::backward, 1, 0)},
                                           {of_chunk(Opcode::backward_input, 0, 0)},
                                           {of_chunk(Opcode::backward, 1, 1)},
                                           {of_chunk(Opcode::backward_weight, 0, 0)},
                                           {{Opcode::optimizer_step, 0, {}, {}}},
                                           {of_chunk(Opcode::forward, 0, 1)}};
  const UnitsByChunk units = {{0, 1}, {2, 3}};
  // A backward goes through the units from behind, a weight part brings nothing, and nothing is brought over an update.
  CHECK(text_of(execution_order(steps, units)) ==
        "acquire c0 >0\nF0c0 >2\nacquire c1 >2\nF0c1 >3\nB0c1 >1\nI0c0 >3\nB1c1 last\nW0c0 last\nstep\nF1c0\n");
}

TEST_CASE("a forward goes through the units in order, a backward from behind, and brings the next one's weights") {
  const std::vector<int> units = {4, 5, 6};
  const auto text = [&](Opcode work) {
    std::string out;
    for (const UnitTurn& turn : turns_of(work, units, 9))
      out += std::to_string(turn.index) + ":" + std::to_string(turn.unit) + ">" + std::to_string(turn.next_unit) + " ";
    return out;
  };
  CHECK(text(Opcode::forward) == "0:4>5 1:5>6 2:6>9 ");
  CHECK(text(Opcode::backward) == "2:6>5 1:5>4 0:4>9 ");
  CHECK(text(Opcode::backward_input) == "2:6>5 1:5>4 0:4>9 ");
  CHECK(text(Opcode::backward_weight) == "2:6>-1 1:5>-1 0:4>-1 ");
  CHECK(turns_of(Opcode::forward, {}, 9).empty());
}

TEST_CASE("a backward has no turn for units before the first that trains, and brings none of them along") {
  const auto text = [](Opcode work, const std::vector<int>& units) {
    std::string out;
    for (const UnitTurn& turn : turns_of(work, units, 9, 5))
      out += std::to_string(turn.index) + ":" + std::to_string(turn.unit) + ">" + std::to_string(turn.next_unit) + " ";
    return out;
  };
  CHECK(text(Opcode::forward, {4, 5, 6}) == "0:4>5 1:5>6 2:6>9 ");
  CHECK(text(Opcode::backward, {4, 5, 6}) == "2:6>5 1:5>9 ");
  CHECK(text(Opcode::backward_input, {4, 5, 6}) == "2:6>5 1:5>9 ");
  CHECK(text(Opcode::backward_weight, {4, 5, 6}) == "2:6>-1 1:5>-1 ");
  CHECK(text(Opcode::backward, {3, 4}) == "");
  const auto of_chunk = [](Opcode op, std::int64_t chunk) { return Instruction{op, chunk, MicroBatch(0), {}}; };
  const std::vector<ScheduleStep> steps = {{of_chunk(Opcode::forward, 0)},
                                           {of_chunk(Opcode::forward, 1)},
                                           {{Opcode::acquire, 0, {}, {}}, of_chunk(Opcode::backward, 0)},
                                           {of_chunk(Opcode::backward, 1)}};
  const ExecutionOrder order = execution_order(steps, {{0, 1}, {2, 3}}, 2);
  CHECK(text_of(order) == "F0c0 >2\nF0c1 >3\nacquire c0\nB0c0 last\nB0c1 last\n");
  for (const ExecutedInstruction& executed : order)
    CHECK(executed.first_trained == (executed.instruction.op == Opcode::backward ? 2 : 0));
}
