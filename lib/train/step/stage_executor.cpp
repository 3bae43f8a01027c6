#include "train/step/stage_executor.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "plan/communication/transfer.h"
#include "plan/run_plan.h"

namespace scaletrain {

StageExecutor::FreeList::FreeList(std::int64_t count) {
  // The first ones are taken first.
  for (std::int64_t place = count; place-- > 0;) free_.push_back(place);
}

std::int64_t StageExecutor::FreeList::take() {
  SCALETRAIN_CHECK(!free_.empty());
  const std::int64_t place = free_.back();
  free_.pop_back();
  return place;
}

StageExecutor::StageExecutor(const Parts& parts) : parts_(parts), loss_sum_(parts.backend, sizeof(double)) {
  const ActivationPlan& plan = parts.memory.plan();
  bool embeds = false;
  bool scores = false;
  for (std::int64_t chunk = 0; chunk < narrow<std::int64_t>(plan.chunks.size()); ++chunk) {
    SCALETRAIN_CHECK(!units_of(chunk).empty());
    units_per_work_set_ = std::max(units_per_work_set_, units_of(chunk).size());
    embeds = embeds || holds_embedding(chunk);
    scores = scores || holds_head(chunk);
  }
  holds_both_ends_ = embeds && scores;
  free_buffers_.resize(plan.chunks.size());
  for (std::int64_t buffer = narrow<std::int64_t>(plan.buffers.size()); buffer-- > 0;)
    free_buffers_[static_cast<std::size_t>(plan.chunk_of_buffer[static_cast<std::size_t>(buffer)])].add(buffer);
  senders_.resize(plan.chunks.size());
  work_sets_ = FreeList(narrow<std::int64_t>(plan.work.size() / units_per_work_set_));
  inputs_ = FreeList(narrow<std::int64_t>(plan.inputs.size()));
  gradient_inputs_ = FreeList(narrow<std::int64_t>(plan.gradient_inputs.size()));
  gradient_outputs_ = FreeList(narrow<std::int64_t>(plan.gradient_outputs.size()));
  // All of them now: in a step the device may wait for peers, and what allocates for the device.
  if (!is_host_accessible(parts.backend.space()))
    while (std::ssize(host_batches_) < batches_ahead) add_host_batch();
}

StageExecutor::~StageExecutor() {
  try {
    parts_.stream.synchronize();
  } catch (...) {  // NOLINT: a destructor reports nothing
  }
}

ExecutionOrder StageExecutor::order_of(std::span<const ScheduleStep> steps, int first_trained) const {
  const ActivationPlan& plan = parts_.memory.plan();
  const ReceiveBuffers buffers{narrow<std::int64_t>(plan.inputs.size()),
                               narrow<std::int64_t>(plan.gradient_inputs.size())};
  return execution_order(order_of_execution(steps, buffers), plan.chunks, first_trained);
}

void StageExecutor::train(const ExecutionOrder& order, MicroBatchSource& source, double loss_gradient,
                          const OptimizerStep& optimizer_step, SumsOf sums_of) {
  mode_ = Mode::train;
  loss_gradient_ = loss_gradient;
  if (sums_of == SumsOf::this_part) begin({});
  run(order, source, optimizer_step);
  if (optimizer_step) return;
  loss_sum_.to_host(parts_.stream);
  parts_.stream.synchronize();
}

ExecutionResult StageExecutor::evaluate(const ExecutionOrder& order, MicroBatchSource& source,
                                        const ExecutionResult& before) {
  mode_ = Mode::evaluate;
  loss_gradient_ = 0.0;
  begin(before);
  run(order, source, {});
  loss_sum_.to_host(parts_.stream);
  parts_.stream.synchronize();
  return sums();
}

void StageExecutor::evaluate_samples(const ExecutionOrder& order, MicroBatchSource& source,
                                     std::int64_t num_micro_batches, const MirroredBuffer& losses,
                                     std::span<double> sums) {
  const std::int64_t count = num_micro_batches * parts_.memory.shape().samples;
  SCALETRAIN_CHECK_EQ(std::ssize(sums), count);
  mode_ = Mode::evaluate;
  loss_gradient_ = 0.0;
  begin({});
  auto* const told = losses.host(0, DType::f64, {count}).as<double>();
  std::fill_n(told, count, 0.0);
  losses.to_device(parts_.stream, losses.device(0, DType::f64, {count}));
  sample_losses_ = &losses;
  run(order, source, {});
  sample_losses_ = nullptr;
  losses.to_host(parts_.stream, losses.device(0, DType::f64, {count}));
  parts_.stream.synchronize();
  std::copy_n(told, count, sums.begin());
}

View StageExecutor::sample_losses(MicroBatch micro_batch) const {
  if (sample_losses_ == nullptr) return {};
  const std::int64_t samples = parts_.memory.shape().samples;
  return sample_losses_->device(static_cast<std::size_t>(micro_batch.value() * samples) * sizeof(double), DType::f64,
                                {samples});
}

// Nothing that was issued before reads or writes the sum any more: whoever ran it has waited for it.
void StageExecutor::begin(const ExecutionResult& sums) {
  target_tokens_ = sums.target_tokens;
  *loss_sum_.host(0, DType::f64, {1}).as<double>() = sums.loss_sum;
  loss_sum_.to_device(parts_.stream);
}

ExecutionResult StageExecutor::sums() const {
  return {.loss_sum = *loss_sum_.host(0, DType::f64, {1}).as<double>(), .target_tokens = target_tokens_};
}

void StageExecutor::run(const ExecutionOrder& order, MicroBatchSource& source, const OptimizerStep& optimizer_step) {
  SCALETRAIN_CHECK(in_flight_.empty() && activations_.empty() && gradients_.empty() && pending_sends_.empty());
  source_ = &source;
  for (const ExecutedInstruction& executed : order) execute(executed, optimizer_step);
  finish();
}

void StageExecutor::execute(const ExecutedInstruction& executed, const OptimizerStep& optimizer_step) {
  const Instruction& instruction = executed.instruction;
  const auto key = [&instruction] { return WorkKey{instruction.chunk, instruction.micro_batch.value()}; };
  switch (instruction.op) {
    case Opcode::forward:
      return forward(key(), executed.next_unit);
    case Opcode::backward:
    case Opcode::backward_input:
      return backward(key(), executed);
    case Opcode::backward_weight:
      return backward_weight(key(), executed);
    case Opcode::send_activation:
    case Opcode::receive_activation:
    case Opcode::send_gradient:
    case Opcode::receive_gradient:
      return post(instruction);
    case Opcode::acquire:  // gathered while the bookkeeping of the work that follows is done
      return prefetch(executed.next_unit);
    case Opcode::release:  // each unit was released right behind its use
      return;
    case Opcode::reduce_gradients:
      // Begun by the chunk's last backward; waited for where the gradients are needed.
      chunks_to_reduce_.push_back(instruction.chunk);
      return;
    case Opcode::reduce_tied:
      parts_.store.reduce_tied(parts_.stream);
      return;
    case Opcode::optimizer_step:
      finish_reductions();
      if (optimizer_step) {
        loss_sum_.to_host(parts_.stream);
        optimizer_step();
      }
      tick();
      return;
  }
  SCALETRAIN_CHECK(false && "no instruction");
}

void StageExecutor::finish() {
  finish_reductions();
  while (!pending_sends_.empty()) complete_first_send();
  for (std::int64_t chunk = 0; chunk < narrow<std::int64_t>(senders_.size()); ++chunk) {
    auto& senders = senders_[static_cast<std::size_t>(chunk)];
    for (; !senders.empty(); senders.pop_front()) retire({chunk, senders.front()});
  }
  SCALETRAIN_CHECK(in_flight_.empty() && activations_.empty() && gradients_.empty() && read_targets_.empty());
}

void StageExecutor::tick() {
  count_work(parts_.work);
}

const std::vector<int>& StageExecutor::units_of(std::int64_t chunk) const {
  return parts_.memory.plan().chunks[static_cast<std::size_t>(chunk)];
}

bool StageExecutor::holds_embedding(std::int64_t chunk) const {
  return units_of(chunk).front() == 0;
}

bool StageExecutor::holds_head(std::int64_t chunk) const {
  return units_of(chunk).back() + 1 == narrow<int>(parts_.model.units().size());
}

UnitRun StageExecutor::unit_run(const InFlight& micro, const UnitWeights& weights,
                                const UnitGradients* gradients) const {
  return {.backend = parts_.backend,
          .stream = parts_.stream,
          .batch = micro.batch,
          .weights = weights,
          .gradients = gradients,
          .tensor = parts_.tensor,
          .scratch = parts_.memory.region(parts_.memory.plan().scratch)};
}

void StageExecutor::copy(const Bundle& from, const Bundle& to) {
  parts_.backend.run(parts_.stream, Copy{.input = from.hidden, .output = to.hidden});
}

// ---- memory in use

StageExecutor::InFlight& StageExecutor::find(const WorkKey& key) {
  const auto found = in_flight_.find(key);
  SCALETRAIN_CHECK(found != in_flight_.end());
  return found->second;
}

void StageExecutor::retire(const WorkKey& key) {
  const auto found = in_flight_.find(key);
  SCALETRAIN_CHECK(found != in_flight_.end());
  InFlight& micro = found->second;
  if (micro.send) wait(*micro.send);
  free_buffers_[static_cast<std::size_t>(key.chunk)].add(micro.buffer);
  if (micro.work_set >= 0) work_sets_.add(micro.work_set);
  if (micro.input >= 0) inputs_.add(micro.input);
  in_flight_.erase(found);
}

// Where an evaluation has filled all of them, the oldest output must have been sent.
std::int64_t StageExecutor::free_buffer(std::int64_t chunk) {
  FreeList& buffers = free_buffers_[static_cast<std::size_t>(chunk)];
  auto& senders = senders_[static_cast<std::size_t>(chunk)];
  if (buffers.empty() && !senders.empty()) {
    retire({chunk, senders.front()});
    senders.pop_front();
  }
  return buffers.take();
}

std::int64_t StageExecutor::free_gradient_output() {
  if (gradient_outputs_.empty() && !pending_sends_.empty()) complete_first_send();
  return gradient_outputs_.take();
}

void StageExecutor::complete_first_send() {
  PendingSend& send = pending_sends_.front();
  wait(send.ticket.value());
  gradient_outputs_.add(send.buffer);
  pending_sends_.pop_front();
}

Bundle StageExecutor::input_bundle(std::int64_t buffer) const {
  return parts_.memory.bundle(parts_.memory.plan().inputs[static_cast<std::size_t>(buffer)]);
}

Bundle StageExecutor::gradient_bundle(std::int64_t buffer) const {
  return parts_.memory.bundle(parts_.memory.plan().gradient_inputs[static_cast<std::size_t>(buffer)]);
}

Bundle StageExecutor::output_of(const InFlight& micro) const {
  return parts_.memory.bundle(parts_.memory.plan().buffers[static_cast<std::size_t>(micro.buffer)].back().output);
}

// ---- transfers

void StageExecutor::post(const Instruction& transfer) {
  SCALETRAIN_CHECK(parts_.pipeline != nullptr);
  const WorkKey key{transfer.chunk, transfer.micro_batch.value()};
  switch (transfer.op) {
    case Opcode::send_activation: {
      InFlight& micro = find(key);
      micro.send = post(transfer, output_of(micro));
      return;
    }
    case Opcode::receive_activation: {
      const std::int64_t buffer = inputs_.take();
      activations_[key] = {buffer, post(transfer, input_bundle(buffer))};
      return;
    }
    case Opcode::send_gradient: {
      const auto send = std::find_if(pending_sends_.begin(), pending_sends_.end(),
                                     [&key](const PendingSend& d) { return d.key == key; });
      SCALETRAIN_CHECK(send != pending_sends_.end() && !send->ticket);
      const ArenaRange& range = parts_.memory.plan().gradient_outputs[static_cast<std::size_t>(send->buffer)];
      send->ticket = post(transfer, parts_.memory.bundle(range));
      return;
    }
    case Opcode::receive_gradient: {
      const std::int64_t buffer = gradient_inputs_.take();
      gradients_[key] = {buffer, post(transfer, gradient_bundle(buffer))};
      return;
    }
    default:
      SCALETRAIN_CHECK(false && "no transfer");
  }
}

// A call for each one: who waits for a receive is not to wait for a send, which may need the peer to get further.
Ticket StageExecutor::post(const Instruction& transfer, const Bundle& bundle) {
  const Transfer call = transfer_of(transfer.op, transfer.peer.value().value(), bundle.hidden);
  return parts_.pipeline->exchange(parts_.stream, {&call, 1});
}

void StageExecutor::wait(Ticket& ticket) {
  ticket.before(parts_.stream);
  tick();
}

// The buffer that it lies in.
std::int64_t StageExecutor::take_received(PendingReceives& pending, const WorkKey& key) {
  auto received = pending.extract(key);
  SCALETRAIN_CHECK(!received.empty());
  if (received.mapped().ticket) wait(*received.mapped().ticket);
  return received.mapped().buffer;
}

// ---- work

void StageExecutor::prefetch(int unit) {
  if (unit >= 0) parts_.store.prefetch(parts_.stream, unit);
}

void StageExecutor::add_host_batch() {
  host_batches_.emplace_front(parts_.backend, parts_.memory.plan());
}

HostBatch& StageExecutor::free_host_batch() {
  const bool is_free = !host_batches_.empty() && host_batches_.front().is_copied();
  if (!is_free && std::ssize(host_batches_) < batches_ahead) add_host_batch();
  host_batches_.push_back(std::move(host_batches_.front()));
  host_batches_.pop_front();
  host_batches_.back().wait_until_copied();
  return host_batches_.back();
}

// Reads a sample once, though both of the model's ends may lie in different chunks of this stage.
void StageExecutor::fill(const WorkKey& key, InFlight& micro) {
  const BatchBuffer buffer = parts_.memory.batch(micro.buffer);
  HostBatch& host = free_host_batch();
  const BatchTensors all = host.tensors();
  const bool embeds = holds_embedding(key.chunk);
  const bool scores = holds_head(key.chunk);
  const bool reads_ahead = holds_both_ends_ && embeds && !scores;
  const bool was_read = holds_both_ends_ && scores && !embeds;
  BatchTensors wanted = all;
  if (!embeds) wanted.ids = {};
  if (!reads_ahead && (!scores || was_read)) wanted.targets = {};
  const MicroBatchSource::Filled filled = source_->fill(key.micro_batch, wanted);
  std::int64_t num_targets = scores ? filled.target_tokens : 0;
  if (reads_ahead) read_targets_[key.micro_batch] = {{all.targets.begin(), all.targets.end()}, filled.target_tokens};
  if (was_read) {
    const auto known = read_targets_.extract(key.micro_batch);
    SCALETRAIN_CHECK(!known.empty());
    std::copy(known.mapped().values.begin(), known.mapped().values.end(), all.targets.begin());
    num_targets = known.mapped().num_unmasked;
  }
  target_tokens_ += num_targets;
  const BatchBuffer read{.ids = embeds ? buffer.ids : View(),
                         .targets = scores ? buffer.targets : View(),
                         .positions = buffer.positions,
                         .document_start = buffer.document_start,
                         .samples = buffer.samples};
  host.copy_to(parts_.backend, parts_.stream, read);
  micro.batch = {.shape = parts_.memory.plan().shape,
                 .mode = mode_,
                 .ids = read.ids,
                 .targets = read.targets,
                 .positions = read.positions,
                 .document_start = read.document_start,
                 .samples = read.samples,
                 .seed = parts_.seed,
                 .loss_gradient = loss_gradient_,
                 .loss_sum = loss_sum(),
                 .sample_losses = sample_losses(key.micro_batch)};
}

void StageExecutor::forward(const WorkKey& key, int next_unit) {
  const ActivationPlan& plan = parts_.memory.plan();
  const std::vector<int>& units = units_of(key.chunk);
  const std::int64_t buffer = free_buffer(key.chunk);
  const auto [place, is_new] = in_flight_.try_emplace(key);
  SCALETRAIN_CHECK(is_new);
  InFlight& micro = place->second;
  micro.buffer = buffer;
  fill(key, micro);
  Bundle input;
  if (!holds_embedding(key.chunk)) {
    micro.input = take_received(activations_, key);
    input = input_bundle(micro.input);
  }
  for (const UnitTurn& turn : turns_of(Opcode::forward, units, next_unit)) {
    const UnitBuffers& regions = plan.buffers[static_cast<std::size_t>(buffer)][turn.index];
    const Bundle output = parts_.memory.bundle(regions.output);
    const UnitWeights& weights = parts_.store.acquire(parts_.stream, turn.unit);
    prefetch(turn.next_unit);
    micro.saved.push_back(unit_at(turn.unit).forward(unit_run(micro, weights, nullptr), input, output,
                                                     parts_.memory.region(regions.saved)));
    parts_.store.release(turn.unit);
    tick();
    input = output;
  }
  const bool hands_over = parts_.pipeline == nullptr && !holds_head(key.chunk);
  if (hands_over) {
    const std::int64_t next_input = inputs_.take();
    copy(output_of(micro), input_bundle(next_input));
    activations_[{key.chunk + 1, key.micro_batch}] = {next_input, {}};
  }
  if (mode_ == Mode::train) return;
  if (hands_over || holds_head(key.chunk)) return retire(key);
  // Only its output is left, until it has been sent.
  micro.saved.clear();
  if (micro.input >= 0) inputs_.add(std::exchange(micro.input, -1));
  senders_[static_cast<std::size_t>(key.chunk)].push_back(key.micro_batch);
}

void StageExecutor::backward(const WorkKey& key, const ExecutedInstruction& executed) {
  const ActivationPlan& plan = parts_.memory.plan();
  const std::vector<int>& units = units_of(key.chunk);
  const Opcode op = executed.instruction.op;
  const bool splits = op == Opcode::backward_input;
  InFlight& micro = find(key);
  SCALETRAIN_CHECK_EQ(micro.saved.size(), units.size());
  if (splits) {
    micro.work_set = work_sets_.take();
    micro.work.resize(units.size());
  }
  const std::vector<UnitTurn> turns = turns_of(op, units, executed.next_unit, executed.first_trained);
  std::int64_t arrived = -1;
  Bundle d_output;
  if (!holds_head(key.chunk) && !turns.empty()) {
    arrived = take_received(gradients_, key);
    d_output = gradient_bundle(arrived);
  }
  const Bundle outgoing = outgoing_gradient(key, executed.first_trained);
  std::size_t side = 0;
  for (const UnitTurn& turn : turns) {
    const Unit& unit = unit_at(turn.unit);
    Bundle d_input;  // nobody needs that of the first unit that is trained
    if (turn.unit != executed.first_trained)
      d_input = turn.index == 0 ? outgoing : parts_.memory.bundle(plan.gradients[side]);
    const UnitWeights& weights = parts_.store.acquire(parts_.stream, turn.unit);
    prefetch(turn.next_unit);
    if (splits) {
      const std::size_t work = static_cast<std::size_t>(micro.work_set) * units_per_work_set_ + turn.index;
      micro.work[turn.index] =
          unit.backward_input(unit_run(micro, weights, nullptr), std::move(micro.saved[turn.index]), d_output, d_input,
                              parts_.memory.region(plan.work[work]));
    } else {
      const UnitGradients& gradients = parts_.store.acquire_gradients(parts_.stream, turn.unit);
      unit.backward(unit_run(micro, weights, &gradients), std::move(micro.saved[turn.index]), d_output, d_input,
                    Region{});
      parts_.store.release_gradients(parts_.stream, turn.unit, executed.is_last);
    }
    parts_.store.release(turn.unit);
    tick();
    d_output = d_input;
    side = 1 - side;
  }
  if (arrived >= 0) gradient_inputs_.add(arrived);
  if (!splits) retire(key);
}

// Where the input's gradient of a chunk goes: to the stage before, or to the chunk before on this stage; nowhere if
// nothing is trained before it.
Bundle StageExecutor::outgoing_gradient(const WorkKey& key, int first_trained) {
  if (units_of(key.chunk).front() <= first_trained) return {};
  if (parts_.pipeline == nullptr) {
    const std::int64_t buffer = gradient_inputs_.take();
    gradients_[{key.chunk - 1, key.micro_batch}] = {buffer, {}};
    return gradient_bundle(buffer);
  }
  const std::int64_t buffer = free_gradient_output();
  pending_sends_.push_back({key, buffer, {}});
  return parts_.memory.bundle(parts_.memory.plan().gradient_outputs[static_cast<std::size_t>(buffer)]);
}

void StageExecutor::backward_weight(const WorkKey& key, const ExecutedInstruction& executed) {
  const UnitWeights none;
  InFlight& micro = find(key);
  const std::vector<int>& units = units_of(key.chunk);
  SCALETRAIN_CHECK_EQ(micro.work.size(), units.size());
  for (const UnitTurn& turn : turns_of(Opcode::backward_weight, units, -1, executed.first_trained)) {
    const Unit& unit = unit_at(turn.unit);
    const bool reads_weights = unit.weight_pass_reads_weights();
    const UnitWeights& weights = reads_weights ? parts_.store.acquire(parts_.stream, turn.unit) : none;
    const UnitGradients& gradients = parts_.store.acquire_gradients(parts_.stream, turn.unit);
    unit.backward_weight(unit_run(micro, weights, &gradients), std::move(micro.work[turn.index]));
    parts_.store.release_gradients(parts_.stream, turn.unit, executed.is_last);
    if (reads_weights) parts_.store.release(turn.unit);
    tick();
  }
  retire(key);
}

void StageExecutor::finish_reductions() {
  for (const std::int64_t chunk : chunks_to_reduce_) parts_.store.finish_gradients(parts_.stream, units_of(chunk));
  chunks_to_reduce_.clear();
}

}  // namespace scaletrain
