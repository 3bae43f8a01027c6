#include "train/stage_executor.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace scaletrain {

ExecutionResult StageExecutor::run(std::span<const ScheduleStep> steps, MicroBatchSource& source, Phase phase,
                                   double loss_gradient, const OptimizerStep& optimizer_step) {
  SCALETRAIN_CHECK(in_flight_.empty());
  source_ = &source;
  phase_ = phase;
  loss_gradient_ = loss_gradient;
  result_ = {};
  // loss_sum is written by kernels, so its address must hold until the stream has run them.
  for (const ScheduleStep& step : steps) {
    for (const Instruction& instruction : step) {
      SCALETRAIN_CHECK_EQ(instruction.chunk, 0);
      switch (instruction.op) {
        case Opcode::forward:
          forward(instruction.micro_batch.value());
          break;
        case Opcode::backward:
        case Opcode::backward_input:
          backward(instruction.micro_batch.value(), instruction.op);
          break;
        case Opcode::backward_weight:
          backward_weight(instruction.micro_batch.value());
          break;
        case Opcode::acquire:
          acquire_chunk();
          break;
        case Opcode::release:
          release_chunk();
          break;
        case Opcode::reduce_gradients:
        case Opcode::reduce_tied:
          break;  // sums over groups of one rank
        case Opcode::optimizer_step:
          parts_.stream.synchronize();
          if (optimizer_step) optimizer_step(result_);
          tick();
          break;
        case Opcode::snapshot:
        case Opcode::recompute:
        case Opcode::send_activation:
        case Opcode::receive_activation:
        case Opcode::send_gradient:
        case Opcode::receive_gradient:
          SCALETRAIN_CHECK(false &&
                           "an instruction that a single stage without recomputation or background saves never has");
      }
    }
  }
  parts_.stream.synchronize();
  SCALETRAIN_CHECK(in_flight_.empty());
  return result_;
}

void StageExecutor::acquire_chunk() {
  for (const int unit : parts_.memory.plan().chunks[0]) parts_.store.acquire(parts_.stream, unit);
}

void StageExecutor::release_chunk() {
  for (const int unit : parts_.memory.plan().chunks[0]) parts_.store.release(unit);
}

void StageExecutor::tick() {
  if (parts_.progress != nullptr) parts_.progress->fetch_add(1, std::memory_order_relaxed);
}

std::int64_t StageExecutor::free_slot() const {
  std::int64_t slot = 0;
  while (std::any_of(in_flight_.begin(), in_flight_.end(), [slot](const InFlight& f) { return f.slot == slot; }))
    ++slot;
  SCALETRAIN_CHECK_LT(slot, parts_.memory.plan().num_slots);
  return slot;
}

std::int64_t StageExecutor::free_work_set() const {
  std::int64_t set = 0;
  while (std::any_of(in_flight_.begin(), in_flight_.end(), [set](const InFlight& f) { return f.work_set == set; }))
    ++set;
  return set;
}

StageExecutor::InFlight& StageExecutor::find(MicroBatch micro_batch) {
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [micro_batch](const InFlight& f) { return f.micro_batch == micro_batch; });
  SCALETRAIN_CHECK(found != in_flight_.end());
  return *found;
}

void StageExecutor::retire(MicroBatch micro_batch) {
  std::erase_if(in_flight_, [micro_batch](const InFlight& f) { return f.micro_batch == micro_batch; });
}

UnitRun StageExecutor::begin(const Unit& unit, const BatchContext& batch, bool with_gradients) {
  const bool tied = unit.uses_tied_embedding();
  const UnitWeights& weights = parts_.store.acquire(parts_.stream, unit.index());
  const UnitWeights* tied_weights = tied ? &parts_.store.acquire(parts_.stream, 0) : nullptr;
  return {.backend = parts_.backend,
          .stream = parts_.stream,
          .batch = batch,
          .weights = weights,
          .gradients = with_gradients ? &parts_.store.gradients(unit.index()) : nullptr,
          .tied_weights = tied_weights,
          .tied_gradients = with_gradients && tied ? &parts_.store.gradients(0) : nullptr,
          .scratch = parts_.memory.region(parts_.memory.plan().scratch)};
}

void StageExecutor::end(const Unit& unit) {
  if (unit.uses_tied_embedding()) parts_.store.release(0);
  parts_.store.release(unit.index());
  tick();
}

void StageExecutor::forward(MicroBatch micro_batch) {
  const ActivationPlan& plan = parts_.memory.plan();
  const std::vector<int>& units = plan.chunks[0];
  const std::int64_t slot = free_slot();
  const BatchSlot batch = parts_.memory.batch(slot);
  const MicroBatchSource::Filled filled = source_->fill(micro_batch, batch.tensors());
  result_.target_tokens += filled.target_tokens;
  in_flight_.push_back({.micro_batch = micro_batch,
                        .slot = slot,
                        .work_set = -1,
                        .batch = {.shape = parts_.memory.shape(),
                                  .phase = phase_,
                                  .ids = batch.ids,
                                  .targets = batch.targets,
                                  .positions = batch.positions,
                                  .document_start = {},
                                  .first_sample = filled.first_sample,
                                  .loss_gradient = loss_gradient_,
                                  .loss_sum = &result_.loss_sum},
                        .saved = {},
                        .work = {}});
  InFlight& flight = in_flight_.back();
  Bundle input = parts_.memory.bundle(plan.inputs[static_cast<std::size_t>(slot)]);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = *parts_.model.units()[static_cast<std::size_t>(units[i])];
    const UnitSlot& regions = plan.slots[static_cast<std::size_t>(slot)][i];
    const Bundle output = parts_.memory.bundle(regions.output);
    const UnitRun run = begin(unit, flight.batch, false);
    flight.saved.push_back(unit.forward(run, input, output, parts_.memory.region(regions.saved)));
    end(unit);
    input = output;
  }
  if (phase_ == Phase::evaluate) retire(micro_batch);
}

void StageExecutor::backward(MicroBatch micro_batch, Opcode op) {
  const ActivationPlan& plan = parts_.memory.plan();
  const std::vector<int>& units = plan.chunks[0];
  InFlight& flight = find(micro_batch);
  const bool split = op == Opcode::backward_input;
  if (split) {
    flight.work_set = free_work_set();
    flight.work.resize(units.size());
  }
  std::size_t side = 0;
  Bundle d_output;
  for (std::size_t i = units.size(); i-- > 0;) {
    const Unit& unit = *parts_.model.units()[static_cast<std::size_t>(units[i])];
    // The embedding has no input to send a gradient to.
    const Bundle d_input = unit.index() == 0 ? Bundle{} : parts_.memory.bundle(plan.gradients[side]);
    const UnitRun run = begin(unit, flight.batch, true);
    if (split) {
      const std::size_t work = static_cast<std::size_t>(flight.work_set) * units.size() + i;
      SCALETRAIN_CHECK_LT(work, plan.work.size());
      flight.work[i] = unit.backward_input(run, std::move(flight.saved[i]), d_output, d_input,
                                           parts_.memory.region(plan.work[work]));
    } else {
      unit.backward(run, std::move(flight.saved[i]), d_output, d_input, Region{});
    }
    end(unit);
    d_output = d_input;
    side = 1 - side;
  }
  if (!split) retire(micro_batch);
}

void StageExecutor::backward_weight(MicroBatch micro_batch) {
  InFlight& flight = find(micro_batch);
  const ActivationPlan& plan = parts_.memory.plan();
  const std::vector<int>& units = plan.chunks[0];
  for (std::size_t i = units.size(); i-- > 0;) {
    const Unit& unit = *parts_.model.units()[static_cast<std::size_t>(units[i])];
    const UnitRun run = begin(unit, flight.batch, true);
    unit.backward_weight(run, std::move(flight.work[i]));
    end(unit);
  }
  retire(micro_batch);
}

}  // namespace scaletrain
