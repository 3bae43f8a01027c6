#include "plan/activation_plan.h"

#include <algorithm>
#include <utility>

#include "base/numbers/checked.h"
#include "tensor/buffer.h"

namespace scaletrain {

namespace {

constexpr std::size_t num_batch_tensors = 3;  // ids, targets, positions

// Hands out aligned, adjacent ranges of the arena to be.
class ArenaCutter {
 public:
  ArenaRange cut(std::size_t bytes) {
    const ArenaRange range{used_, align_up(bytes)};
    used_ = checked_add(used_, range.bytes);
    return range;
  }
  std::size_t used() const { return used_; }

 private:
  std::size_t used_ = 0;
};

// One entry crosses unit boundaries.
Shape bundle_shape(const Transformer& model, const BatchShape& shape, DType compute) {
  const std::vector<BundleEntry> entries = model.boundary(shape, compute);
  SCALETRAIN_CHECK_EQ(entries.size(), 1u);
  return entries.front().shape;
}

std::size_t bundle_bytes(const Transformer& model, const BatchShape& shape, DType compute) {
  return align_up(static_cast<std::size_t>(bundle_shape(model, shape, compute).num_elements()) * size_of(compute));
}

std::size_t batch_bytes_of(const BatchShape& shape) {
  return num_batch_tensors * align_up(static_cast<std::size_t>(shape.rows()) * size_of(DType::i32));
}

bool is_receive(Opcode op) {
  return op == Opcode::receive_activation || op == Opcode::receive_gradient;
}

bool is_transfer(Opcode op) {
  return is_receive(op) || op == Opcode::send_activation || op == Opcode::send_gradient;
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

ActivationPlan make_activation_plan(const Transformer& model, std::vector<std::vector<int>> chunks,
                                    const BatchShape& shape, DType compute, const ScheduleDepth& depth) {
  SCALETRAIN_CHECK(!chunks.empty());
  SCALETRAIN_CHECK_LE(depth.in_flight_of_chunk.size(), chunks.size());
  ActivationPlan plan;
  plan.chunks = std::move(chunks);
  plan.shape = shape;
  plan.bundle = bundle_shape(model, shape, compute);
  const std::size_t hidden = bundle_bytes(model, shape, compute);
  const std::size_t batch = batch_bytes_of(shape);
  const int head = narrow<int>(model.units().size()) - 1;
  const auto memory_of = [&](int unit) {
    return model.units()[static_cast<std::size_t>(unit)]->memory(shape, compute);
  };
  ArenaCutter arena;
  std::size_t scratch = 0;
  std::size_t most_selective = 0;
  std::size_t most_full = 0;
  std::size_t most_units = 0;
  for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
    const std::vector<int>& units = plan.chunks[chunk];
    most_units = std::max(most_units, units.size());
    for (const int unit : units) {
      plan.work_bytes = std::max(plan.work_bytes, align_up(memory_of(unit).work));
      scratch = std::max(scratch, memory_of(unit).scratch);
      most_selective = std::max(most_selective, memory_of(unit).recomputed_selective);
      most_full = std::max(most_full, memory_of(unit).recomputed_full);
    }
    // A micro-batch that waits for its weight part still needs its inputs, and so its buffer.
    const std::int64_t in_flight = chunk < depth.in_flight_of_chunk.size() ? depth.in_flight_of_chunk[chunk] : 0;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, in_flight); ++i) {
      plan.chunk_of_buffer.push_back(narrow<std::int64_t>(chunk));
      plan.batches.push_back(arena.cut(batch));
      plan.batch_bytes += plan.batches.back().bytes;
      auto& buffers = plan.buffers.emplace_back();
      for (const int unit : units) {
        const UnitBuffers regions{arena.cut(memory_of(unit).saved), arena.cut(unit == head ? 0 : hidden)};
        buffers.push_back(regions);
        plan.saved_bytes += regions.saved.bytes;
        plan.saved_if_selective += regions.saved.bytes - memory_of(unit).recomputed_selective;
        plan.saved_if_full += regions.saved.bytes - memory_of(unit).recomputed_full;
        plan.boundary_bytes += regions.output.bytes;
      }
    }
  }
  plan.saved_if_selective += most_selective;
  plan.saved_if_full += most_full;
  plan.num_buffers = narrow<std::int64_t>(plan.buffers.size());
  const auto cut_bundle = [&] {
    plan.boundary_bytes += hidden;
    return arena.cut(hidden);
  };
  for (std::int64_t i = 0; i < depth.inputs; ++i) plan.inputs.push_back(cut_bundle());
  for (ArenaRange& gradient : plan.gradients) gradient = cut_bundle();
  for (std::int64_t i = 0; i < depth.gradients_received; ++i) plan.gradient_inputs.push_back(cut_bundle());
  for (std::int64_t i = 0; i < depth.gradients_sent; ++i) plan.gradient_outputs.push_back(cut_bundle());
  const std::int64_t num_work = checked_mul(depth.weight_work, narrow<std::int64_t>(most_units));
  for (std::int64_t i = 0; i < num_work; ++i) {
    plan.work.push_back(arena.cut(plan.work_bytes));
    plan.work_total_bytes += plan.work.back().bytes;
  }
  plan.scratch = arena.cut(scratch);
  plan.arena_bytes = arena.used();
  return plan;
}

ActivationPlan make_forward_plan(const Transformer& model, const BatchShape& shape, DType compute) {
  ActivationPlan plan;
  plan.num_buffers = 1;
  plan.shape = shape;
  plan.bundle = bundle_shape(model, shape, compute);
  ArenaCutter arena;
  UnitMemory largest;
  auto& units = plan.chunks.emplace_back();
  plan.chunk_of_buffer = {0};
  for (const auto& unit : model.units()) {
    units.push_back(unit->index());
    const UnitMemory memory = unit->memory(shape, compute);
    largest.saved = std::max(largest.saved, memory.saved);
    largest.scratch = std::max(largest.scratch, memory.scratch);
  }
  plan.batches.push_back(arena.cut(batch_bytes_of(shape)));
  const ArenaRange saved = arena.cut(largest.saved);
  const std::size_t hidden = bundle_bytes(model, shape, compute);
  const ArenaRange outputs[2] = {arena.cut(hidden), arena.cut(hidden)};
  auto& buffer = plan.buffers.emplace_back();
  for (std::size_t i = 0; i < units.size(); ++i) {
    const bool is_last = i + 1 == units.size();
    buffer.push_back({saved, is_last ? ArenaRange{} : outputs[i % 2]});
  }
  plan.scratch = arena.cut(largest.scratch);
  plan.arena_bytes = arena.used();
  plan.saved_bytes = saved.bytes;
  plan.boundary_bytes = outputs[0].bytes + outputs[1].bytes;
  plan.batch_bytes = plan.batches.front().bytes;
  return plan;
}

}  // namespace scaletrain
