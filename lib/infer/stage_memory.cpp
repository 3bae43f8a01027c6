#include "infer/stage_memory.h"

#include <utility>

namespace scaletrain {

namespace {
std::span<std::int32_t> ints(const View& view) {
  return {view.as<std::int32_t>(), static_cast<std::size_t>(view.num_elements())};
}
}  // namespace

BatchTensors BatchBuffer::tensors() const {
  return {ints(ids), ints(targets), ints(positions)};
}

StageMemory::StageMemory(Backend& backend, ActivationPlan plan)
    : plan_(std::move(plan)), compute_(backend.compute_type()), arena_(backend.allocate(plan_.arena_bytes)) {}

Bundle StageMemory::bundle(const ArenaRange& range) const {
  if (range.bytes == 0) return {};
  return {arena_.view(range.offset, compute_, plan_.bundle)};
}

BatchBuffer StageMemory::batch(std::int64_t buffer) const {
  RegionAllocator cut(region(plan_.batches[static_cast<std::size_t>(buffer)]));
  const Shape rows{plan_.shape.rows()};
  // In this order: the members of an aggregate are initialised one after the other.
  return {cut.allocate(DType::i32, rows), cut.allocate(DType::i32, rows), cut.allocate(DType::i32, rows)};
}

}  // namespace scaletrain
