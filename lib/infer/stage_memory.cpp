#include "infer/stage_memory.h"

#include <utility>

namespace scaletrain {

namespace {
std::span<std::int32_t> ints(const View& view) {
  return {view.as<std::int32_t>(), static_cast<std::size_t>(view.num_elements())};
}
}  // namespace

BatchTensors BatchSlot::tensors() const {
  return {ints(ids), ints(targets), ints(positions)};
}

StageMemory::StageMemory(Backend& backend, ActivationPlan plan, const BatchShape& shape, std::int64_t hidden)
    : plan_(std::move(plan)),
      shape_(shape),
      hidden_(hidden),
      compute_(backend.compute_type()),
      arena_(backend.allocate(plan_.arena_bytes)) {}

Bundle StageMemory::bundle(const ArenaRange& range) const {
  if (range.bytes == 0) return {};
  return {arena_.view(range.offset, compute_, Shape{shape_.rows(), hidden_})};
}

BatchSlot StageMemory::batch(std::int64_t slot) const {
  RegionAllocator cut(region(plan_.batches[static_cast<std::size_t>(slot)]));
  const Shape rows{shape_.rows()};
  // In this order: the members of an aggregate are initialised one after the other.
  return {cut.allocate(DType::i32, rows), cut.allocate(DType::i32, rows), cut.allocate(DType::i32, rows)};
}

}  // namespace scaletrain
