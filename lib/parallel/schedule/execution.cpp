#include "parallel/schedule/execution.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace scaletrain {

namespace {

bool is_receive(Opcode op) {
  return is_transfer(op) && !is_send(op);
}

bool is_transfer_step(const ScheduleStep& step) {
  return !step.empty() && is_transfer(step.front().op);
}

// Counts the buffers of received bundles while a stage's steps are walked. Where no transfer joins its chunks (one
// stage with several), a chunk's result is put into the next chunk's buffer when its work ends.
class ReceiveCount {
 public:
  explicit ReceiveCount(std::span<const ScheduleStep> steps) {
    bool has_transfers = false;
    for (const ScheduleStep& step : steps) {
      for (const Instruction& instruction : step) {
        const auto chunk = static_cast<std::size_t>(instruction.chunk);
        if (chunk >= receives_input_.size()) {
          receives_input_.resize(chunk + 1, false);
          receives_gradient_.resize(chunk + 1, false);
        }
        has_transfers |= is_transfer(instruction.op);
        trains_ |= instruction.op == Opcode::backward || instruction.op == Opcode::backward_input;
        if (instruction.op == Opcode::receive_activation) receives_input_[chunk] = true;
        if (instruction.op == Opcode::receive_gradient) receives_gradient_[chunk] = true;
        total_.inputs += instruction.op == Opcode::receive_activation ? 1 : 0;
        total_.gradients += instruction.op == Opcode::receive_gradient ? 1 : 0;
      }
    }
    hands_over_ = !has_transfers && receives_input_.size() > 1;
    if (!hands_over_) return;
    for (std::size_t chunk = 0; chunk < receives_input_.size(); ++chunk) {
      receives_input_[chunk] = chunk > 0;
      receives_gradient_[chunk] = trains_ && chunk + 1 < receives_input_.size();
    }
  }

  void apply(const Instruction& instruction) {
    const auto chunk = static_cast<std::size_t>(instruction.chunk);
    const auto free = [](std::int64_t& count, bool receives) { count -= receives ? 1 : 0; };
    switch (instruction.op) {
      case Opcode::receive_activation:
        take(now_.inputs, peak_.inputs);
        break;
      case Opcode::receive_gradient:
        take(now_.gradients, peak_.gradients);
        break;
      case Opcode::forward:
        if (hands_over_ && chunk + 1 < receives_input_.size()) take(now_.inputs, peak_.inputs);
        if (!trains_) free(now_.inputs, receives_input_[chunk]);
        break;
      case Opcode::backward:
      case Opcode::backward_input:
        if (hands_over_ && chunk > 0) take(now_.gradients, peak_.gradients);
        free(now_.gradients, receives_gradient_[chunk]);
        if (instruction.op == Opcode::backward) free(now_.inputs, receives_input_[chunk]);
        break;
      case Opcode::backward_weight:
        free(now_.inputs, receives_input_[chunk]);
        break;
      default:
        break;
    }
  }
  bool can_post(Opcode op, const ReceiveBuffers& buffers) const {
    return op == Opcode::receive_activation ? now_.inputs < buffers.inputs : now_.gradients < buffers.gradients;
  }
  // What is in use at most, and one for a receive posted ahead where receives are posted at all.
  ReceiveBuffers with_one_ahead() const {
    const auto more = [](std::int64_t peak, std::int64_t total) { return std::max(peak, std::min(peak + 1, total)); };
    return {more(peak_.inputs, total_.inputs), more(peak_.gradients, total_.gradients)};
  }

 private:
  static void take(std::int64_t& now, std::int64_t& peak) { peak = std::max(peak, ++now); }

  std::vector<bool> receives_input_;     // by chunk
  std::vector<bool> receives_gradient_;  // by chunk
  bool trains_ = false;
  bool hands_over_ = false;
  ReceiveBuffers now_;
  ReceiveBuffers peak_;
  ReceiveBuffers total_;
};

// Buffers and work regions, and gradients that wait for being sent.
class BufferCount {
 public:
  void apply(const Instruction& instruction) {
    const auto chunk = static_cast<std::size_t>(instruction.chunk);
    if (chunk >= peak_.in_flight_of_chunk.size()) {
      peak_.in_flight_of_chunk.resize(chunk + 1);
      now_.in_flight_of_chunk.resize(chunk + 1);
    }
    switch (instruction.op) {
      case Opcode::forward:
        peak_.saved = std::max(peak_.saved, ++now_.saved);
        peak_.in_flight = std::max(peak_.in_flight, ++now_.in_flight);
        peak_.in_flight_of_chunk[chunk] = std::max(peak_.in_flight_of_chunk[chunk], ++now_.in_flight_of_chunk[chunk]);
        break;
      case Opcode::backward:
        --now_.saved;
        leave(chunk);
        break;
      case Opcode::backward_input:
        --now_.saved;
        peak_.weight_work = std::max(peak_.weight_work, ++now_.weight_work);
        break;
      case Opcode::backward_weight:
        --now_.weight_work;
        leave(chunk);
        break;
      case Opcode::send_gradient:
        ++peak_.gradients_sent;
        break;
      default:
        break;
    }
  }
  const ScheduleDepth& peak() const { return peak_; }

 private:
  void leave(std::size_t chunk) {
    --now_.in_flight;
    --now_.in_flight_of_chunk[chunk];
  }
  ScheduleDepth peak_;
  ScheduleDepth now_;
};

bool is_backward(Opcode op) {
  return op == Opcode::backward || op == Opcode::backward_input || op == Opcode::backward_weight;
}

bool adds_to_gradients(Opcode op) {
  return op == Opcode::backward || op == Opcode::backward_weight;
}

// Whose weights an instruction uses first; -1: none's.
int first_unit_used(const Instruction& instruction, const UnitsByChunk& units, int first_trained) {
  const std::vector<int>& held = units[static_cast<std::size_t>(instruction.chunk)];
  if (held.empty()) return -1;
  if (instruction.op == Opcode::forward) return held.front();
  const bool reads = instruction.op == Opcode::backward || instruction.op == Opcode::backward_input;
  return reads && held.back() >= first_trained ? held.back() : -1;
}

}  // namespace

ScheduleDepth schedule_depth(std::span<const ScheduleStep> steps) {
  BufferCount buffers;
  ReceiveCount receives(steps);
  for (const ScheduleStep& step : steps) {
    for (const Instruction& instruction : step) {
      buffers.apply(instruction);
      receives.apply(instruction);
    }
  }
  ScheduleDepth depth = buffers.peak();
  const ReceiveBuffers received = receives.with_one_ahead();
  depth.inputs = received.inputs;
  depth.gradients_received = received.gradients;
  // A gradient is sent right behind the backward that made it: one is being computed, one on its way.
  depth.gradients_sent = std::min<std::int64_t>(depth.gradients_sent, 2);
  return depth;
}

std::vector<ScheduleStep> order_of_execution(std::span<const ScheduleStep> steps, const ReceiveBuffers& buffers) {
  ReceiveCount count(steps);
  std::vector<ScheduleStep> order;
  std::size_t ahead = 0;  // receives of the next transfer step that are posted already
  const auto post_ahead = [&](std::size_t first) {
    ahead = 0;
    while (first < steps.size() && !is_transfer_step(steps[first])) ++first;
    if (first == steps.size()) return;
    ScheduleStep posted;
    for (const Instruction& instruction : steps[first]) {
      if (!is_receive(instruction.op)) continue;
      if (!count.can_post(instruction.op, buffers)) break;
      count.apply(instruction);
      posted.push_back(instruction);
    }
    ahead = posted.size();
    if (!posted.empty()) order.push_back(std::move(posted));
  };
  if (!steps.empty() && !is_transfer_step(steps.front())) post_ahead(0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool transfers = is_transfer_step(steps[i]);
    ScheduleStep left;
    for (const Instruction& instruction : steps[i]) {
      if (is_receive(instruction.op) && ahead > 0) {
        --ahead;
        continue;
      }
      count.apply(instruction);
      left.push_back(instruction);
    }
    if (!left.empty()) order.push_back(std::move(left));
    if (transfers) post_ahead(i + 1);
  }
  return order;
}

ExecutionOrder execution_order(std::span<const ScheduleStep> steps, const UnitsByChunk& units, int first_trained) {
  std::size_t count = 0;
  for (const ScheduleStep& step : steps) count += step.size();
  ExecutionOrder order(count);
  std::vector<char> is_complete(units.size(), 0);  // by chunk: no later instruction adds to its gradients
  int behind = -1;
  for (std::size_t i = steps.size(); i-- > 0;) {
    const ScheduleStep& step = steps[i];
    int first = behind;  // used by this step or, where it uses none, behind it
    for (std::size_t k = step.size(); k-- > 0;) {
      const Instruction& instruction = step[k];
      SCALETRAIN_CHECK(instruction.chunk >= 0);
      SCALETRAIN_CHECK_LT(static_cast<std::size_t>(instruction.chunk), units.size());
      ExecutedInstruction& executed = order[--count];
      executed.instruction = instruction;
      if (instruction.op == Opcode::acquire)
        executed.next_unit = k + 1 < step.size() ? first_unit_used(step[k + 1], units, first_trained) : -1;
      if (is_backward(instruction.op)) executed.first_trained = first_trained;
      if (adds_to_gradients(instruction.op))
        executed.is_last = std::exchange(is_complete[static_cast<std::size_t>(instruction.chunk)], char{1}) == 0;
      // The weights change there: what is gathered before is old.
      if (instruction.op == Opcode::optimizer_step) first = -1;
      if (const int unit = first_unit_used(instruction, units, first_trained); unit >= 0) {
        executed.next_unit = behind;
        first = unit;
      }
    }
    behind = first;
  }
  return order;
}

std::vector<UnitTurn> turns_of(Opcode work, std::span<const int> units, int next_unit, int first_trained) {
  const std::size_t count = units.size();
  std::vector<UnitTurn> turns;
  for (std::size_t turn = 0; turn < count; ++turn) {
    const std::size_t index = work == Opcode::forward ? turn : count - 1 - turn;
    if (work != Opcode::forward && units[index] < first_trained) break;  // units ascend
    if (!turns.empty()) turns.back().next_unit = units[index];
    turns.push_back({.index = index, .unit = units[index], .next_unit = -1});
  }
  if (!turns.empty()) turns.back().next_unit = next_unit;
  if (work == Opcode::backward_weight) {  // few units read weights there
    for (UnitTurn& turn : turns) turn.next_unit = -1;
  }
  return turns;
}

}  // namespace scaletrain
