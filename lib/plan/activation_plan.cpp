#include "plan/activation_plan.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
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

std::size_t bundle_bytes(const Transformer& model, const BatchShape& shape, DType compute) {
  std::size_t bytes = 0;
  for (const BundleEntry& entry : model.boundary(shape, compute))
    bytes += align_up(static_cast<std::size_t>(entry.shape.num_elements()) * size_of(entry.dtype));
  return bytes;
}

std::size_t batch_bytes_of(const BatchShape& shape) {
  return num_batch_tensors * align_up(static_cast<std::size_t>(shape.rows()) * size_of(DType::i32));
}

}  // namespace

ScheduleDepth schedule_depth(std::span<const ScheduleStep> steps) {
  ScheduleDepth peak;
  ScheduleDepth now;
  for (const ScheduleStep& step : steps) {
    for (const Instruction& instruction : step) {
      const auto chunk = static_cast<std::size_t>(instruction.chunk);
      if (chunk >= peak.in_flight_of_chunk.size()) {
        peak.in_flight_of_chunk.resize(chunk + 1);
        now.in_flight_of_chunk.resize(chunk + 1);
      }
      switch (instruction.op) {
        case Opcode::forward:
          peak.saved = std::max(peak.saved, ++now.saved);
          peak.in_flight = std::max(peak.in_flight, ++now.in_flight);
          peak.in_flight_of_chunk[chunk] = std::max(peak.in_flight_of_chunk[chunk], ++now.in_flight_of_chunk[chunk]);
          break;
        case Opcode::backward:
          --now.saved;
          --now.in_flight;
          --now.in_flight_of_chunk[chunk];
          break;
        case Opcode::backward_input:
          --now.saved;
          peak.weight_work = std::max(peak.weight_work, ++now.weight_work);
          break;
        case Opcode::backward_weight:
          --now.weight_work;
          --now.in_flight;
          --now.in_flight_of_chunk[chunk];
          break;
        default:
          break;
      }
    }
  }
  return peak;
}

ActivationPlan make_activation_plan(const Transformer& model, std::vector<std::vector<int>> chunks,
                                    const BatchShape& shape, DType compute, const ScheduleDepth& depth) {
  SCALETRAIN_CHECK(!chunks.empty());
  SCALETRAIN_CHECK_LE(depth.in_flight_of_chunk.size(), chunks.size());
  ActivationPlan plan;
  plan.chunks = std::move(chunks);
  const std::size_t hidden = bundle_bytes(model, shape, compute);
  const std::size_t batch = batch_bytes_of(shape);
  const int head = narrow<int>(model.units().size()) - 1;
  const auto memory_of = [&](int unit) {
    return model.units()[static_cast<std::size_t>(unit)]->memory(shape, compute);
  };
  ArenaCutter arena;
  std::size_t scratch = 0;
  std::size_t most_units = 0;
  for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
    const std::vector<int>& units = plan.chunks[chunk];
    most_units = std::max(most_units, units.size());
    for (const int unit : units) {
      plan.work_bytes = std::max(plan.work_bytes, align_up(memory_of(unit).work));
      scratch = std::max(scratch, memory_of(unit).scratch);
    }
    const bool is_first = !units.empty() && units.front() == 0;  // a chunk without units passes on what it receives
    // A micro-batch that waits for its weight part still needs its inputs, and so its slot.
    const std::int64_t in_flight = chunk < depth.in_flight_of_chunk.size() ? depth.in_flight_of_chunk[chunk] : 0;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, in_flight); ++i) {
      plan.chunk_of_slot.push_back(narrow<std::int64_t>(chunk));
      plan.batches.push_back(arena.cut(batch));
      plan.batch_bytes += plan.batches.back().bytes;
      plan.inputs.push_back(arena.cut(is_first ? 0 : hidden));
      plan.boundary_bytes += plan.inputs.back().bytes;
      auto& slots = plan.slots.emplace_back();
      for (const int unit : units) {
        const UnitSlot regions{arena.cut(memory_of(unit).saved), arena.cut(unit == head ? 0 : hidden)};
        slots.push_back(regions);
        plan.saved_bytes += regions.saved.bytes;
        plan.boundary_bytes += regions.output.bytes;
      }
    }
  }
  plan.num_slots = narrow<std::int64_t>(plan.slots.size());
  for (ArenaRange& gradient : plan.gradients) {
    gradient = arena.cut(hidden);
    plan.boundary_bytes += gradient.bytes;
  }
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
  plan.num_slots = 1;
  ArenaCutter arena;
  UnitMemory largest;
  auto& units = plan.chunks.emplace_back();
  plan.chunk_of_slot = {0};
  for (const auto& unit : model.units()) {
    units.push_back(unit->index());
    const UnitMemory memory = unit->memory(shape, compute);
    largest.saved = std::max(largest.saved, memory.saved);
    largest.scratch = std::max(largest.scratch, memory.scratch);
  }
  plan.batches.push_back(arena.cut(batch_bytes_of(shape)));
  plan.inputs.emplace_back();
  const ArenaRange saved = arena.cut(largest.saved);
  const std::size_t hidden = bundle_bytes(model, shape, compute);
  const ArenaRange outputs[2] = {arena.cut(hidden), arena.cut(hidden)};
  auto& slot = plan.slots.emplace_back();
  for (std::size_t i = 0; i < units.size(); ++i) {
    const bool is_last = i + 1 == units.size();
    slot.push_back({saved, is_last ? ArenaRange{} : outputs[i % 2]});
  }
  plan.scratch = arena.cut(largest.scratch);
  plan.arena_bytes = arena.used();
  plan.saved_bytes = saved.bytes;
  plan.boundary_bytes = outputs[0].bytes + outputs[1].bytes;
  plan.batch_bytes = plan.batches.front().bytes;
  return plan;
}

}  // namespace scaletrain
