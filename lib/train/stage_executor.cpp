#include "train/stage_executor.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace scaletrain {

namespace {

bool is_receive(Opcode op) {
  return op == Opcode::receive_activation || op == Opcode::receive_gradient;
}

bool is_send(Opcode op) {
  return op == Opcode::send_activation || op == Opcode::send_gradient;
}

template <class Uses>
std::int64_t first_free(std::size_t count, Uses uses) {
  for (std::int64_t i = 0; i < narrow<std::int64_t>(count); ++i)
    if (!uses(i)) return i;
  return -1;
}

}  // namespace

ExecutionResult StageExecutor::run(std::span<const ScheduleStep> steps, MicroBatchSource& source, Phase phase,
                                   double loss_gradient, const OptimizerStep& optimizer_step) {
  start(steps, source, phase, loss_gradient);
  const ActivationPlan& plan = parts_.memory.plan();
  const ReceiveBuffers buffers{narrow<std::int64_t>(plan.inputs.size()),
                               narrow<std::int64_t>(plan.gradient_inputs.size())};
  const std::vector<ScheduleStep> order = order_of_execution(steps, buffers);
  for (std::size_t i = 0; i < order.size(); ++i) {
    next_unit_ = first_unit_after(order, i);
    execute(order[i], optimizer_step);
  }
  finish();
  return result_;
}

void StageExecutor::start(std::span<const ScheduleStep> steps, MicroBatchSource& source, Phase phase,
                          double loss_gradient) {
  SCALETRAIN_CHECK(flights_.empty() && arrivals_.empty() && departures_.empty() && posted_.empty());
  source_ = &source;
  phase_ = phase;
  loss_gradient_ = loss_gradient;
  // loss_sum is written by kernels, so its address must hold until the stream has run them.
  result_ = {};
  contributions_left_.assign(parts_.memory.plan().chunks.size(), 0);
  for (const ScheduleStep& step : steps) {
    for (const Instruction& instruction : step) {
      SCALETRAIN_CHECK(instruction.chunk >= 0);
      SCALETRAIN_CHECK_LT(static_cast<std::size_t>(instruction.chunk), contributions_left_.size());
      if (instruction.op == Opcode::backward || instruction.op == Opcode::backward_weight)
        ++contributions_left_[static_cast<std::size_t>(instruction.chunk)];
    }
  }
}

void StageExecutor::execute(const ScheduleStep& step, const OptimizerStep& optimizer_step) {
  if (!step.empty() && (is_receive(step.front().op) || is_send(step.front().op))) {
    const bool sends = std::any_of(step.begin(), step.end(), [](const Instruction& i) { return is_send(i.op); });
    if (sends) {
      post(step);
    } else {
      for (const Instruction& receive : step) post({&receive, 1});
    }
    return;
  }
  for (std::size_t i = 0; i < step.size(); ++i) {
    const Instruction& instruction = step[i];
    switch (instruction.op) {
      case Opcode::forward:
        forward(instruction.micro_batch.value(), instruction.chunk);
        break;
      case Opcode::backward:
      case Opcode::backward_input:
        backward(instruction.micro_batch.value(), instruction.chunk, instruction.op);
        break;
      case Opcode::backward_weight:
        backward_weight(instruction.micro_batch.value(), instruction.chunk);
        break;
      case Opcode::acquire:
        if (i + 1 < step.size()) prefetch(first_unit_of(step[i + 1]));
        break;
      case Opcode::release:
        break;  // each unit was released right behind its use
      case Opcode::reduce_gradients:
        // Begun by the chunk's last backward; waited for where the gradients are needed.
        chunks_to_reduce_.push_back(instruction.chunk);
        break;
      case Opcode::reduce_tied:
        finish_reductions();
        parts_.store.reduce_tied(parts_.stream);
        break;
      case Opcode::optimizer_step:
        finish_reductions();
        parts_.stream.synchronize();
        if (optimizer_step) optimizer_step(result_);
        tick();
        break;
      default:
        SCALETRAIN_CHECK(false && "recomputation, snapshots and transfers in a step of work are never scheduled");
    }
  }
}

void StageExecutor::finish() {
  finish_reductions();
  while (!departures_.empty()) {
    wait(departures_.back().posting.value());
    departures_.pop_back();
  }
  while (!flights_.empty()) {
    SCALETRAIN_CHECK(flights_.back().only_sends);
    retire(flights_.back().micro_batch, flights_.back().chunk);
  }
  SCALETRAIN_CHECK(arrivals_.empty());
  for (Posting posting = 0; posting < posted_.size(); ++posting) wait(posting);
  posted_.clear();
  parts_.stream.synchronize();
}

void StageExecutor::tick() {
  if (parts_.progress != nullptr) parts_.progress->fetch_add(1, std::memory_order_relaxed);
}

const std::vector<int>& StageExecutor::units_of(std::int64_t chunk) const {
  return parts_.memory.plan().chunks[static_cast<std::size_t>(chunk)];
}

bool StageExecutor::holds_embedding(std::int64_t chunk) const {
  return !units_of(chunk).empty() && units_of(chunk).front() == 0;
}

bool StageExecutor::holds_head(std::int64_t chunk) const {
  return !units_of(chunk).empty() && units_of(chunk).back() + 1 == narrow<int>(parts_.model.units().size());
}

UnitRun StageExecutor::unit_run(const Flight& flight, const UnitWeights& weights,
                                const UnitGradients* gradients) const {
  return {.backend = parts_.backend,
          .stream = parts_.stream,
          .batch = flight.batch,
          .weights = weights,
          .gradients = gradients,
          .tensor = parts_.tensor,
          .scratch = parts_.memory.region(parts_.memory.plan().scratch)};
}

void StageExecutor::copy(const Bundle& from, const Bundle& to) {
  parts_.backend.run(parts_.stream, Copy{.input = from.hidden, .output = to.hidden});
}

// ---- memory in use

StageExecutor::Flight& StageExecutor::find(MicroBatch micro_batch, std::int64_t chunk) {
  const auto found = std::find_if(flights_.begin(), flights_.end(), [micro_batch, chunk](const Flight& f) {
    return f.micro_batch == micro_batch && f.chunk == chunk;
  });
  SCALETRAIN_CHECK(found != flights_.end());
  return *found;
}

void StageExecutor::retire(MicroBatch micro_batch, std::int64_t chunk) {
  if (const auto& send = find(micro_batch, chunk).send) wait(*send);
  std::erase_if(flights_,
                [micro_batch, chunk](const Flight& f) { return f.micro_batch == micro_batch && f.chunk == chunk; });
}

// Ends the oldest flight of a chunk (-1: any that holds an input) that only waits for its output to be sent.
bool StageExecutor::retire_sender(std::int64_t chunk) {
  for (const Flight& flight : flights_) {
    if (!flight.only_sends || !flight.send) continue;
    if (chunk < 0 ? flight.input < 0 : flight.chunk != chunk) continue;
    retire(flight.micro_batch, flight.chunk);
    return true;
  }
  return false;
}

std::int64_t StageExecutor::free_slot(std::int64_t chunk) {
  const ActivationPlan& plan = parts_.memory.plan();
  const auto is_taken = [this, &plan, chunk](std::int64_t slot) {
    return plan.chunk_of_slot[static_cast<std::size_t>(slot)] != chunk ||
           std::any_of(flights_.begin(), flights_.end(), [slot](const Flight& f) { return f.slot == slot; });
  };
  std::int64_t slot = first_free(plan.slots.size(), is_taken);
  if (slot < 0 && retire_sender(chunk)) slot = first_free(plan.slots.size(), is_taken);
  SCALETRAIN_CHECK_LE(0, slot);
  return slot;
}

std::int64_t StageExecutor::free_work_set() const {
  return first_free(flights_.size() + 1, [this](std::int64_t set) {
    return std::any_of(flights_.begin(), flights_.end(), [set](const Flight& f) { return f.work_set == set; });
  });
}

std::int64_t StageExecutor::free_input() {
  const std::size_t count = parts_.memory.plan().inputs.size();
  const auto is_taken = [this](std::int64_t buffer) {
    return std::any_of(flights_.begin(), flights_.end(), [buffer](const Flight& f) { return f.input == buffer; }) ||
           std::any_of(arrivals_.begin(), arrivals_.end(),
                       [buffer](const Arrival& a) { return a.op == Opcode::receive_activation && a.buffer == buffer; });
  };
  std::int64_t buffer = first_free(count, is_taken);
  if (buffer < 0 && retire_sender(-1)) buffer = first_free(count, is_taken);
  SCALETRAIN_CHECK_LE(0, buffer);
  return buffer;
}

std::int64_t StageExecutor::free_gradient_input() const {
  const std::int64_t buffer = first_free(parts_.memory.plan().gradient_inputs.size(), [this](std::int64_t candidate) {
    return candidate == gradient_in_use_ ||
           std::any_of(arrivals_.begin(), arrivals_.end(), [candidate](const Arrival& a) {
             return a.op == Opcode::receive_gradient && a.buffer == candidate;
           });
  });
  SCALETRAIN_CHECK_LE(0, buffer);
  return buffer;
}

std::int64_t StageExecutor::free_gradient_output() {
  const std::size_t count = parts_.memory.plan().gradient_outputs.size();
  if (departures_.size() == count) {
    // The oldest one's memory is needed again.
    SCALETRAIN_CHECK(!departures_.empty() && departures_.front().posting.has_value());
    wait(*departures_.front().posting);
    departures_.erase(departures_.begin());
  }
  return first_free(count, [this](std::int64_t buffer) {
    return std::any_of(departures_.begin(), departures_.end(),
                       [buffer](const Departure& d) { return d.buffer == buffer; });
  });
}

// ---- transfers

Bundle StageExecutor::output_of(const Flight& flight) const {
  const ActivationPlan& plan = parts_.memory.plan();
  const auto& units = plan.slots[static_cast<std::size_t>(flight.slot)];
  // A chunk without units passes on what it received.
  if (units.empty()) return parts_.memory.bundle(plan.inputs[static_cast<std::size_t>(flight.input)]);
  return parts_.memory.bundle(units.back().output);
}

Transfer StageExecutor::prepare(const Instruction& instruction, Posting posting) {
  const ActivationPlan& plan = parts_.memory.plan();
  const MicroBatch micro_batch = instruction.micro_batch.value();
  const std::int64_t chunk = instruction.chunk;
  const int peer = narrow<int>(instruction.peer.value().value());
  switch (instruction.op) {
    case Opcode::send_activation: {
      Flight& flight = find(micro_batch, chunk);
      flight.send = posting;
      return {.direction = Transfer::Direction::send, .peer = peer, .data = output_of(flight).hidden};
    }
    case Opcode::receive_activation: {
      const std::int64_t buffer = free_input();
      arrivals_.push_back({instruction.op, micro_batch, chunk, buffer, posting});
      return {.direction = Transfer::Direction::receive,
              .peer = peer,
              .data = parts_.memory.bundle(plan.inputs[static_cast<std::size_t>(buffer)]).hidden};
    }
    case Opcode::send_gradient: {
      const auto departure = std::find_if(departures_.begin(), departures_.end(), [micro_batch, chunk](const auto& d) {
        return d.micro_batch == micro_batch && d.chunk == chunk;
      });
      SCALETRAIN_CHECK(departure != departures_.end() && !departure->posting);
      departure->posting = posting;
      const ArenaRange& range = plan.gradient_outputs[static_cast<std::size_t>(departure->buffer)];
      return {.direction = Transfer::Direction::send, .peer = peer, .data = parts_.memory.bundle(range).hidden};
    }
    case Opcode::receive_gradient: {
      const std::int64_t buffer = free_gradient_input();
      arrivals_.push_back({instruction.op, micro_batch, chunk, buffer, posting});
      return {.direction = Transfer::Direction::receive,
              .peer = peer,
              .data = parts_.memory.bundle(plan.gradient_inputs[static_cast<std::size_t>(buffer)]).hidden};
    }
    default:
      SCALETRAIN_CHECK(false && "transfers and work never share a step");
  }
}

void StageExecutor::post(std::span<const Instruction> transfers) {
  SCALETRAIN_CHECK(parts_.pipeline != nullptr);
  std::vector<Transfer> prepared;
  prepared.reserve(transfers.size());
  for (const Instruction& instruction : transfers) prepared.push_back(prepare(instruction, posted_.size()));
  posted_.push_back({parts_.pipeline->exchange(prepared), false});
}

void StageExecutor::wait(Posting posting) {
  Posted& posted = posted_[posting];
  if (posted.is_done) return;
  posted.ticket.before(parts_.stream);
  posted.ticket = Ticket();
  posted.is_done = true;
  tick();
}

StageExecutor::Arrival StageExecutor::take_arrival(Opcode op, MicroBatch micro_batch, std::int64_t chunk) {
  const auto found = std::find_if(arrivals_.begin(), arrivals_.end(), [op, micro_batch, chunk](const Arrival& arrival) {
    return arrival.op == op && arrival.micro_batch == micro_batch && arrival.chunk == chunk;
  });
  SCALETRAIN_CHECK(found != arrivals_.end());
  const Arrival arrival = *found;
  arrivals_.erase(found);
  if (arrival.posting) wait(*arrival.posting);
  return arrival;
}

// ---- work

// Whose weights a piece of work uses first; -1: none.
int StageExecutor::first_unit_of(const Instruction& instruction) const {
  const std::vector<int>& units = units_of(instruction.chunk);
  if (units.empty()) return -1;
  if (instruction.op == Opcode::forward) return units.front();
  return instruction.op == Opcode::backward || instruction.op == Opcode::backward_input ? units.back() : -1;
}

// The same for the first work behind a step that uses any, before the weights change.
int StageExecutor::first_unit_after(std::span<const ScheduleStep> order, std::size_t step) const {
  for (++step; step < order.size(); ++step) {
    for (const Instruction& instruction : order[step]) {
      if (instruction.op == Opcode::optimizer_step) return -1;
      if (const int unit = first_unit_of(instruction); unit >= 0) return unit;
    }
  }
  return -1;
}

void StageExecutor::prefetch(int unit) {
  if (unit >= 0) parts_.store.prefetch(parts_.stream, unit);
}

void StageExecutor::forward(MicroBatch micro_batch, std::int64_t chunk) {
  const ActivationPlan& plan = parts_.memory.plan();
  const std::vector<int>& units = units_of(chunk);
  const std::int64_t slot = free_slot(chunk);
  const BatchSlot batch = parts_.memory.batch(slot);
  const MicroBatchSource::Filled filled = source_->fill(micro_batch, batch.tensors());
  if (holds_head(chunk)) result_.target_tokens += filled.target_tokens;
  Flight& flight = flights_.emplace_back();
  flight.micro_batch = micro_batch;
  flight.chunk = chunk;
  flight.slot = slot;
  flight.batch = {.shape = plan.shape,
                  .phase = phase_,
                  .ids = batch.ids,
                  .targets = batch.targets,
                  .positions = batch.positions,
                  .document_start = {},
                  .first_sample = filled.first_sample,
                  .loss_gradient = loss_gradient_,
                  .loss_sum = &result_.loss_sum};
  Bundle input;
  if (!holds_embedding(chunk)) {
    flight.input = take_arrival(Opcode::receive_activation, micro_batch, chunk).buffer;
    input = parts_.memory.bundle(plan.inputs[static_cast<std::size_t>(flight.input)]);
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitSlot& regions = plan.slots[static_cast<std::size_t>(slot)][i];
    const Bundle output = parts_.memory.bundle(regions.output);
    const UnitWeights& weights = parts_.store.acquire(parts_.stream, units[i]);
    prefetch(i + 1 < units.size() ? units[i + 1] : next_unit_);
    flight.saved.push_back(unit_at(units[i]).forward(unit_run(flight, weights, nullptr), input, output,
                                                     parts_.memory.region(regions.saved)));
    parts_.store.release(units[i]);
    tick();
    input = output;
  }
  const bool hands_over = parts_.pipeline == nullptr && !holds_head(chunk);
  if (hands_over) {
    const std::int64_t buffer = free_input();
    copy(output_of(flight), parts_.memory.bundle(plan.inputs[static_cast<std::size_t>(buffer)]));
    arrivals_.push_back({Opcode::receive_activation, micro_batch, chunk + 1, buffer, {}});
  }
  if (phase_ == Phase::train) return;
  if (hands_over || holds_head(chunk)) {
    retire(micro_batch, chunk);
    return;
  }
  flight.only_sends = true;
  flight.saved.clear();
  if (!units.empty()) flight.input = -1;
}

void StageExecutor::backward(MicroBatch micro_batch, std::int64_t chunk, Opcode op) {
  const ActivationPlan& plan = parts_.memory.plan();
  const std::vector<int>& units = units_of(chunk);
  const bool splits = op == Opcode::backward_input;
  // Gradients are complete when the last micro-batch has passed.
  const bool is_last = !splits && --contributions_left_[static_cast<std::size_t>(chunk)] == 0;
  Flight& flight = find(micro_batch, chunk);
  SCALETRAIN_CHECK_EQ(flight.saved.size(), units.size());
  if (splits) {
    flight.work_set = free_work_set();
    flight.work.resize(units.size());
  }
  Bundle d_output;
  if (!holds_head(chunk)) {
    gradient_in_use_ = take_arrival(Opcode::receive_gradient, micro_batch, chunk).buffer;
    d_output = parts_.memory.bundle(plan.gradient_inputs[static_cast<std::size_t>(gradient_in_use_)]);
  }
  const Bundle outgoing = outgoing_gradient(micro_batch, chunk);
  std::size_t side = 0;
  for (std::size_t i = units.size(); i-- > 0;) {
    const Unit& unit = unit_at(units[i]);
    const Bundle d_input = i == 0 ? outgoing : parts_.memory.bundle(plan.gradients[side]);
    const UnitWeights& weights = parts_.store.acquire(parts_.stream, units[i]);
    prefetch(i > 0 ? units[i - 1] : next_unit_);
    if (splits) {
      const std::size_t work = static_cast<std::size_t>(flight.work_set) * units.size() + i;
      SCALETRAIN_CHECK_LT(work, plan.work.size());
      flight.work[i] = unit.backward_input(unit_run(flight, weights, nullptr), std::move(flight.saved[i]), d_output,
                                           d_input, parts_.memory.region(plan.work[work]));
    } else {
      const UnitGradients& gradients = parts_.store.acquire_gradients(parts_.stream, units[i]);
      unit.backward(unit_run(flight, weights, &gradients), std::move(flight.saved[i]), d_output, d_input, Region{});
      parts_.store.release_gradients(parts_.stream, units[i], is_last);
    }
    parts_.store.release(units[i]);
    tick();
    d_output = d_input;
    side = 1 - side;
  }
  if (units.empty()) copy(d_output, outgoing);
  gradient_in_use_ = -1;
  if (!splits) retire(micro_batch, chunk);
}

// Where the input's gradient of a chunk goes: to the stage before, or to the chunk before on this stage; nowhere for
// the embedding.
Bundle StageExecutor::outgoing_gradient(MicroBatch micro_batch, std::int64_t chunk) {
  const ActivationPlan& plan = parts_.memory.plan();
  if (holds_embedding(chunk)) return {};
  if (parts_.pipeline == nullptr) {
    const std::int64_t buffer = free_gradient_input();
    arrivals_.push_back({Opcode::receive_gradient, micro_batch, chunk - 1, buffer, {}});
    return parts_.memory.bundle(plan.gradient_inputs[static_cast<std::size_t>(buffer)]);
  }
  const std::int64_t buffer = free_gradient_output();
  departures_.push_back({micro_batch, chunk, buffer, {}});
  return parts_.memory.bundle(plan.gradient_outputs[static_cast<std::size_t>(buffer)]);
}

void StageExecutor::backward_weight(MicroBatch micro_batch, std::int64_t chunk) {
  const bool is_last = --contributions_left_[static_cast<std::size_t>(chunk)] == 0;
  const UnitWeights none;
  Flight& flight = find(micro_batch, chunk);
  const std::vector<int>& units = units_of(chunk);
  SCALETRAIN_CHECK_EQ(flight.work.size(), units.size());
  for (std::size_t i = units.size(); i-- > 0;) {
    const Unit& unit = unit_at(units[i]);
    const bool reads_weights = unit.weight_phase_reads_weights();
    const UnitWeights& weights = reads_weights ? parts_.store.acquire(parts_.stream, units[i]) : none;
    const UnitGradients& gradients = parts_.store.acquire_gradients(parts_.stream, units[i]);
    unit.backward_weight(unit_run(flight, weights, &gradients), std::move(flight.work[i]));
    parts_.store.release_gradients(parts_.stream, units[i], is_last);
    if (reads_weights) parts_.store.release(units[i]);
    tick();
  }
  retire(micro_batch, chunk);
}

void StageExecutor::finish_reductions() {
  for (const std::int64_t chunk : chunks_to_reduce_) parts_.store.finish_gradients(parts_.stream, units_of(chunk));
  chunks_to_reduce_.clear();
}

}  // namespace scaletrain
