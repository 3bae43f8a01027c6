#include "plan/activation_plan.h"

#include <algorithm>
#include <utility>

#include "base/numbers/checked.h"
#include "tensor/buffer.h"

namespace scaletrain {

namespace {

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

std::size_t batch_bytes_of(const ActivationPlan& plan) {
  const std::size_t of_tokens = static_cast<std::size_t>(num_batch_tensors(plan.document_attention)) *
                                align_up(static_cast<std::size_t>(plan.shape.rows()) * size_of(DType::i32));
  if (!plan.has_samples) return of_tokens;
  return of_tokens + align_up(static_cast<std::size_t>(plan.shape.samples) * size_of(DType::i64));
}

// Whether a unit of a chunk and the next one take no part in any backward: nothing is read of what passes between them
// when the next one has read it.
bool hands_on_inside(const std::vector<int>& units, std::size_t place, int first_trained) {
  return place + 1 < units.size() && units[place + 1] < first_trained;
}

// Whether a unit gives its input's gradient to another of its chunk. Where all is trained the places are there always.
bool hands_gradients_on(const UnitsByChunk& chunks, int first_trained) {
  return first_trained == 0 || std::any_of(chunks.begin(), chunks.end(), [&](const std::vector<int>& units) {
           return units.size() > 1 && units.back() > first_trained;
         });
}

// Of the units that no backward goes through, shared by all of them and by all micro-batches.
struct PassingMemory {
  ArenaRange saved;
  ArenaRange outputs[2];
};

PassingMemory cut_passing(const Transformer& model, ActivationPlan& plan, const BatchShape& shape, DType compute,
                          int first_trained, std::size_t hidden, ArenaCutter& arena) {
  std::size_t saved = 0;
  bool is_used[2] = {false, false};
  for (const std::vector<int>& units : plan.chunks) {
    for (std::size_t place = 0; place < units.size() && units[place] < first_trained; ++place) {
      saved = std::max(saved, model.units()[static_cast<std::size_t>(units[place])]->memory(shape, compute).saved);
      if (hands_on_inside(units, place, first_trained)) is_used[place % 2] = true;
    }
  }
  PassingMemory passing;
  if (saved > 0) passing.saved = arena.cut(saved);
  plan.saved_bytes += passing.saved.bytes;
  for (std::size_t turn = 0; turn < 2; ++turn) {
    if (is_used[turn]) passing.outputs[turn] = arena.cut(hidden);
    plan.boundary_bytes += passing.outputs[turn].bytes;
  }
  return passing;
}

}  // namespace

std::int64_t num_batch_tensors(DocumentAttention document_attention) {
  return document_attention == DocumentAttention::within ? 4 : 3;
}

ActivationPlan make_activation_plan(const Transformer& model, std::vector<std::vector<int>> chunks,
                                    const BatchShape& shape, DType compute, const ScheduleDepth& depth,
                                    DocumentAttention document_attention, int first_trained) {
  SCALETRAIN_CHECK(!chunks.empty());
  SCALETRAIN_CHECK_LE(depth.in_flight_of_chunk.size(), chunks.size());
  ActivationPlan plan;
  plan.chunks = std::move(chunks);
  plan.shape = shape;
  plan.document_attention = document_attention;
  plan.has_samples = has_dropout(model.spec());
  plan.bundle = bundle_shape(model, shape, compute);
  const std::size_t hidden = bundle_bytes(model, shape, compute);
  const std::size_t batch = batch_bytes_of(plan);
  const int head = narrow<int>(model.units().size()) - 1;
  ArenaCutter arena;
  const PassingMemory passing = cut_passing(model, plan, shape, compute, first_trained, hidden, arena);
  std::size_t scratch = 0;
  std::vector<std::size_t> work;  // by place in a chunk: the most of any chunk's unit there
  for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
    const std::vector<int>& units = plan.chunks[chunk];
    work.resize(std::max(work.size(), units.size()));
    std::vector<UnitMemory> memory;  // by unit of the chunk
    for (std::size_t place = 0; place < units.size(); ++place) {
      const Unit& unit = *model.units()[static_cast<std::size_t>(units[place])];
      const UnitMemory& of = memory.emplace_back(unit.memory(shape, compute));
      if (units[place] >= first_trained) work[place] = std::max(work[place], of.work);
      scratch = std::max(scratch, of.scratch);
    }
    // A micro-batch that waits for its weight part still needs its inputs, and so its buffer.
    const std::int64_t in_flight = chunk < depth.in_flight_of_chunk.size() ? depth.in_flight_of_chunk[chunk] : 0;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, in_flight); ++i) {
      plan.chunk_of_buffer.push_back(narrow<std::int64_t>(chunk));
      plan.batches.push_back(arena.cut(batch));
      plan.batch_bytes += plan.batches.back().bytes;
      auto& buffers = plan.buffers.emplace_back();
      for (std::size_t unit = 0; unit < units.size(); ++unit) {
        if (units[unit] < first_trained) {
          UnitBuffers passed{passing.saved, passing.outputs[unit % 2]};
          if (!hands_on_inside(units, unit, first_trained)) {
            passed.output = arena.cut(hidden);
            plan.boundary_bytes += passed.output.bytes;
          }
          buffers.push_back(passed);
          continue;
        }
        const UnitBuffers regions{arena.cut(memory[unit].saved), arena.cut(units[unit] == head ? 0 : hidden)};
        buffers.push_back(regions);
        plan.saved_bytes += regions.saved.bytes;
        plan.boundary_bytes += regions.output.bytes;
      }
    }
  }
  plan.num_buffers = narrow<std::int64_t>(plan.buffers.size());
  const auto cut_bundle = [&] {
    plan.boundary_bytes += hidden;
    return arena.cut(hidden);
  };
  for (std::int64_t i = 0; i < depth.inputs; ++i) plan.inputs.push_back(cut_bundle());
  if (hands_gradients_on(plan.chunks, first_trained))
    for (ArenaRange& gradient : plan.gradients) gradient = cut_bundle();
  for (std::int64_t i = 0; i < depth.gradients_received; ++i) plan.gradient_inputs.push_back(cut_bundle());
  for (std::int64_t i = 0; i < depth.gradients_sent; ++i) plan.gradient_outputs.push_back(cut_bundle());
  for (std::int64_t set = 0; set < depth.weight_work; ++set)
    for (const std::size_t bytes : work) {
      plan.work.push_back(arena.cut(bytes));
      plan.work_total_bytes += plan.work.back().bytes;
    }
  plan.scratch = arena.cut(scratch);
  plan.arena_bytes = arena.used();
  return plan;
}

ActivationPlan make_forward_plan(const Transformer& model, const BatchShape& shape, DType compute,
                                 DocumentAttention document_attention) {
  ActivationPlan plan;
  plan.num_buffers = 1;
  plan.shape = shape;
  plan.document_attention = document_attention;
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
  plan.batches.push_back(arena.cut(batch_bytes_of(plan)));
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
