#include "infer/stage_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace scaletrain {

HostBatch::HostBatch(Backend& backend, const ActivationPlan& plan)
    : rows_(plan.shape.rows()),
      samples_(plan.has_samples ? plan.shape.samples : 0),
      tells_documents_apart_(plan.document_attention == DocumentAttention::within),
      memory_(backend.allocate_pinned(static_cast<std::size_t>(samples_) * sizeof(std::int64_t) +
                                      static_cast<std::size_t>(num_batch_tensors(plan.document_attention) * rows_) *
                                          sizeof(std::int32_t))) {}

View HostBatch::row(std::int64_t index) const {
  const std::size_t first = static_cast<std::size_t>(samples_) * sizeof(std::int64_t);
  return memory_.view(first + static_cast<std::size_t>(index * rows_) * sizeof(std::int32_t), DType::i32, {rows_});
}
View HostBatch::samples() const {
  return memory_.view(0, DType::i64, {samples_});
}

BatchTensors HostBatch::tensors() const {
  const auto values = [this](std::int64_t index) {
    return std::span(row(index).as<std::int32_t>(), static_cast<std::size_t>(rows_));
  };
  BatchTensors tensors{values(0), values(1), values(2), tells_documents_apart_ ? values(3) : std::span<std::int32_t>()};
  if (samples_ > 0) tensors.samples = {samples().as<std::int64_t>(), static_cast<std::size_t>(samples_)};
  return tensors;
}

void HostBatch::copy_to(Backend& backend, Stream& stream, const BatchBuffer& batch) {
  if (batch.ids) backend.copy(stream, row(0), batch.ids);
  if (batch.targets) backend.copy(stream, row(1), batch.targets);
  if (batch.positions) backend.copy(stream, row(2), batch.positions);
  if (batch.document_start) backend.copy(stream, row(3), batch.document_start);
  if (batch.samples) backend.copy(stream, samples(), batch.samples);
  copied_ = stream.record();
}

StageMemory::StageMemory(Backend& backend, ActivationPlan plan, std::size_t bytes)
    : plan_(std::move(plan)),
      compute_(backend.compute_type()),
      arena_(backend.allocate(std::max(plan_.arena_bytes, bytes))) {}

StageMemory::StageMemory(const StageMemory& of, ActivationPlan plan)
    : plan_(std::move(plan)), compute_(of.compute_), shared_(&of) {
  SCALETRAIN_CHECK_LE(plan_.arena_bytes, arena().size());
}

Bundle StageMemory::bundle(const ArenaRange& range) const {
  if (range.bytes == 0) return {};
  return {arena().view(range.offset, compute_, plan_.bundle)};
}

BatchBuffer StageMemory::batch(std::int64_t buffer) const {
  RegionAllocator cut(region(plan_.batches[static_cast<std::size_t>(buffer)]));
  const Shape rows{plan_.shape.rows()};
  // In this order: the members of an aggregate are initialised one after the other.
  return {cut.allocate(DType::i32, rows), cut.allocate(DType::i32, rows), cut.allocate(DType::i32, rows),
          plan_.document_attention == DocumentAttention::within ? cut.allocate(DType::i32, rows) : View(),
          plan_.has_samples ? cut.allocate(DType::i64, {plan_.shape.samples}) : View()};
}

}  // namespace scaletrain
