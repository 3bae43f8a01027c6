#include "plan/activation_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "parallel/schedule/simulate.h"
#include "plan_helpers.h"
#include "tensor/buffer.h"

using namespace scaletrain;

namespace {

struct ScheduleCase {
  ScheduleKind kind;
  std::int64_t stages;
  std::int64_t micro_batches;
  std::int64_t chunks;
};

std::vector<ScheduleCase> schedule_cases() {
  std::vector<ScheduleCase> cases;
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1})
    for (const std::int64_t stages : {1, 2, 3})
      for (const std::int64_t micro_batches : {1, 2, 3, 8})
        cases.push_back({kind, stages, micro_batches, kind == ScheduleKind::interleaved ? 2 : 1});
  return cases;
}

std::vector<ArenaRange> all_ranges(const ActivationPlan& plan) {
  std::vector<ArenaRange> ranges(std::begin(plan.gradients), std::end(plan.gradients));
  ranges.insert(ranges.end(), plan.inputs.begin(), plan.inputs.end());
  ranges.insert(ranges.end(), plan.gradient_inputs.begin(), plan.gradient_inputs.end());
  ranges.insert(ranges.end(), plan.gradient_outputs.begin(), plan.gradient_outputs.end());
  ranges.insert(ranges.end(), plan.batches.begin(), plan.batches.end());
  ranges.insert(ranges.end(), plan.work.begin(), plan.work.end());
  ranges.push_back(plan.scratch);
  for (const auto& buffer : plan.buffers)
    for (const UnitBuffers& unit : buffer) {
      ranges.push_back(unit.saved);
      ranges.push_back(unit.output);
    }
  return ranges;
}

// Every range starts aligned and ends before the next one starts; the last ends where the arena does.
void check_disjoint(const ActivationPlan& plan) {
  std::vector<ArenaRange> ranges = all_ranges(plan);
  std::erase_if(ranges, [](const ArenaRange& range) { return range.bytes == 0; });
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::size_t end = 0;
  for (const ArenaRange& range : ranges) {
    CHECK(range.offset % buffer_alignment == 0);
    CHECK(range.offset >= end);
    end = range.offset + range.bytes;
  }
  CHECK(end <= plan.arena_bytes);
  std::size_t sum = 0;
  for (const ArenaRange& range : ranges) sum += range.bytes;
  CHECK(sum == plan.arena_bytes);  // no gaps either
}

Instruction instruction(Opcode op, std::int64_t micro_batch) {
  return {op, 0, MicroBatch(micro_batch), std::nullopt};
}

}  // namespace

TEST_CASE("the depth of every schedule is what the simulator measures") {
  for (const ScheduleCase& c : schedule_cases()) {
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

TEST_CASE("the ranges of every stage's plan are aligned, disjoint and fill the arena") {
  for (const ScheduleCase& c : schedule_cases()) {
    Config config = planned_config();
    config.parallel.schedule = c.kind;
    config.parallel.pipeline = c.stages;
    config.parallel.chunks = c.chunks;
    config.train.global_batch = 3 * c.micro_batches;
    const RunPlan run = make_run_plan(config, 61, std::nullopt);
    const PhasePlan& phase = run.phases.front();
    for (std::int64_t stage = 0; stage < c.stages; ++stage) {
      const Rank rank = phase.mesh.rank_of({0, 0, stage});
      const ScheduleDepth depth = schedule_depth(phase.schedule(rank));
      const ActivationPlan plan = phase.activations(rank);
      REQUIRE(plan.chunks.size() == static_cast<std::size_t>(c.chunks));
      CHECK(plan.buffers.size() == static_cast<std::size_t>(plan.num_buffers));
      CHECK(plan.batches.size() == plan.buffers.size());
      CHECK(plan.inputs.size() == static_cast<std::size_t>(depth.inputs));
      CHECK(plan.gradient_inputs.size() == static_cast<std::size_t>(depth.gradients_received));
      CHECK(plan.gradient_outputs.size() == static_cast<std::size_t>(depth.gradients_sent));
      // The model's first virtual stage makes its input from the ids, and sends no gradient; the last receives none.
      CHECK(plan.inputs.empty() == (stage == 0 && c.chunks == 1));
      CHECK(plan.gradient_inputs.empty() == (stage + 1 == c.stages && c.chunks == 1));
      CHECK(plan.gradient_outputs.empty() == (c.stages == 1 || (stage == 0 && c.chunks == 1)));
      if (c.chunks == 1) {
        CHECK(plan.num_buffers == depth.in_flight);
        CHECK(plan.work.size() == static_cast<std::size_t>(depth.weight_work) * plan.chunks[0].size());
      }
      check_disjoint(plan);
      for (std::size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
        const std::int64_t chunk = plan.chunk_of_buffer[buffer];
        const std::vector<int>& units = plan.chunks[static_cast<std::size_t>(chunk)];
        CHECK(units == phase.units_of_chunk(stage, chunk));
        REQUIRE(plan.buffers[buffer].size() == units.size());
        // Only the head has no output.
        for (std::size_t i = 0; i < units.size(); ++i)
          CHECK((plan.buffers[buffer][i].output.bytes == 0) == (units[i] == 7));
      }
      // As many buffers of each chunk as its own forwards and backwards ever leave open.
      for (std::int64_t chunk = 0; chunk < c.chunks; ++chunk) {
        std::int64_t open = 0;
        std::int64_t most = 0;
        for (const ScheduleStep& step : phase.schedule(rank))
          for (const Instruction& i : step) {
            if (i.chunk != chunk) continue;
            if (i.op == Opcode::forward) most = std::max(most, ++open);
            if (i.op == Opcode::backward || i.op == Opcode::backward_weight) --open;
          }
        CHECK(open == 0);
        CHECK(std::count(plan.chunk_of_buffer.begin(), plan.chunk_of_buffer.end(), chunk) == most);
      }
    }
  }
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

TEST_CASE("every region is as large as its unit asks for") {
  const RunPlan run = make_run_plan(planned_config(), 61, std::nullopt);
  const PhasePlan& phase = run.phases.front();
  const Transformer model(phase.model);
  const ActivationPlan plan = phase.activations(Rank(0));
  const std::size_t hidden_bytes = 3 * 7 * 24 * 4;
  for (std::size_t i = 0; i < plan.chunks[0].size(); ++i) {
    const UnitMemory memory = model.units()[i]->memory(phase.micro_batch, DType::f32);
    CHECK(plan.buffers[0][i].saved.bytes == align_up(memory.saved));
    CHECK(plan.scratch.bytes >= memory.scratch);
    if (i + 1 < plan.chunks[0].size()) CHECK(plan.buffers[0][i].output.bytes == align_up(hidden_bytes));
  }
  CHECK(plan.gradients[0].bytes == align_up(hidden_bytes));
  CHECK(plan.batches[0].bytes == 3 * align_up(3 * 7 * 4));
}

TEST_CASE("a plan for evaluation keeps one saved region and lets neighbours never share an output") {
  const RunPlan run = make_run_plan(planned_config(), 61, std::nullopt);
  const PhasePlan& phase = run.phases.front();
  const Transformer model(phase.model);
  const ActivationPlan plan = make_forward_plan(model, phase.micro_batch, DType::f32);
  REQUIRE(plan.buffers.size() == 1);
  REQUIRE(plan.buffers[0].size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(plan.buffers[0][i].saved.offset == plan.buffers[0][0].saved.offset);
    CHECK(plan.buffers[0][i].saved.bytes >= model.units()[i]->memory(phase.micro_batch, DType::f32).saved);
    if (i > 0) CHECK(plan.buffers[0][i].output.offset != plan.buffers[0][i - 1].output.offset);
  }
  CHECK(plan.buffers[0][7].output.bytes == 0);
  CHECK(plan.arena_bytes < phase.activations(Rank(0)).arena_bytes / 2);
  const std::vector<ArenaRange> ranges = {plan.batches[0], plan.buffers[0][0].saved, plan.buffers[0][0].output,
                                          plan.buffers[0][1].output, plan.scratch};
  std::size_t end = 0;
  for (const ArenaRange& range : ranges) {
    CHECK(range.offset == end);
    end += range.bytes;
  }
  CHECK(end == plan.arena_bytes);
}
