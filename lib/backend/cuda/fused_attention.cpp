#include "backend/cuda/fused_attention.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "backend/cuda/kernels/workspace.h"
#include "base/numbers/checked.h"

namespace scaletrain::cuda {

namespace {

constexpr std::uintptr_t aligned_bytes = 16;
constexpr std::int64_t aligned_elements = 8;
constexpr std::uintptr_t workspace_alignment = 256;

bool is_for_library(const ConstHeadsView& operand) {
  return (operand.values.dtype() == DType::bf16 || operand.values.dtype() == DType::f16) &&
         operand.row_stride % aligned_elements == 0 &&
         reinterpret_cast<std::uintptr_t>(operand.values.data()) % aligned_bytes == 0;
}

bool is_for_library(const AttentionShape& shape, const ConstView& document_start, const ConstView& log_sum_exp,
                    std::initializer_list<ConstHeadsView> operands) {
  if (shape.num_queries != shape.num_keys || shape.first_query != shape.first_key || document_start || !log_sum_exp)
    return false;
  if (shape.batch == 0 || shape.scale <= 0 || !cuda_attention_workspace.is_of(shape)) return false;
  return std::all_of(operands.begin(), operands.end(),
                     [](const ConstHeadsView& operand) { return is_for_library(operand); });
}

ConstHeadsView as_const(const HeadsView& heads) {
  return {heads.values, heads.row_stride};
}

AttentionKind kind_of(const AttentionShape& shape, const ConstHeadsView& query, const ConstHeadsView& key,
                      const ConstHeadsView& value, std::int64_t output_stride) {
  return {.type = query.values.dtype(),
          .batch = shape.batch,
          .tokens = shape.num_queries,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_size = shape.head_size,
          .scale = shape.scale,
          .query_stride = query.row_stride,
          .key_stride = key.row_stride,
          .value_stride = value.row_stride,
          .output_stride = output_stride};
}

AttentionKind part_of(AttentionKind kind, const AttentionPart& part) {
  kind.heads = kind.heads / kind.kv_heads * part.kv_heads;
  kind.kv_heads = part.kv_heads;
  kind.batch = part.batch;
  return kind;
}

const std::uint16_t* at(const void* halves, std::int64_t element) {
  return static_cast<const std::uint16_t*>(halves) + element;
}
std::uint16_t* at(void* halves, std::int64_t element) {
  return static_cast<std::uint16_t*>(halves) + element;
}
// Where a part begins: one of whole batches, or of heads of one batch.
AttentionOperands part_of(const AttentionOperands& all, const AttentionKind& kind, std::int64_t first_batch,
                          std::int64_t first_kv_head) {
  const std::int64_t first_row = first_batch * kind.tokens;
  const std::int64_t first_head = kind.heads / kind.kv_heads * first_kv_head;
  const auto of_query = [&](std::int64_t stride) { return first_row * stride + first_head * kind.head_size; };
  const auto of_key = [&](std::int64_t stride) { return first_row * stride + first_kv_head * kind.head_size; };
  return {.query = at(all.query, of_query(kind.query_stride)),
          .key = at(all.key, of_key(kind.key_stride)),
          .value = at(all.value, of_key(kind.value_stride)),
          .output = at(all.output, of_query(kind.output_stride)),
          .log_sum_exp = all.log_sum_exp + (first_batch * kind.heads + first_head) * kind.tokens,
          .d_output = at(all.d_output, of_query(kind.d_output_stride)),
          .d_query = at(all.d_query, of_query(kind.d_query_stride)),
          .d_key = at(all.d_key, of_key(kind.d_key_stride)),
          .d_value = at(all.d_value, of_key(kind.d_value_stride))};
}

}  // namespace

bool FusedAttention::issue(cudaStream_t stream, std::byte* workspace, const AttentionForward& op) {
  if (op.dropout.mask ||
      !is_for_library(op.shape, op.document_start, op.log_sum_exp, {op.query, op.key, op.value, as_const(op.output)}))
    return false;
  const AttentionKind kind = kind_of(op.shape, op.query, op.key, op.value, op.output.row_stride);
  const auto bytes = library_->workspace_bytes(kind);
  if (!bytes || *bytes > workspace_bytes) return false;
  library_->run(stream, kind,
                {.query = op.query.values.data(),
                 .key = op.key.values.data(),
                 .value = op.value.values.data(),
                 .output = op.output.values.data(),
                 .log_sum_exp = static_cast<float*>(op.log_sum_exp.data())},
                workspace);
  return true;
}

bool FusedAttention::issue(cudaStream_t stream, const AttentionBackward& op) {
  if (!op.workspace || op.dropout.mask ||
      !is_for_library(op.shape, op.document_start, op.log_sum_exp,
                      {op.query, op.key, op.value, op.output, op.d_output, as_const(op.d_query), as_const(op.d_key),
                       as_const(op.d_value)}))
    return false;
  // However small a part is: whoever lends the memory has asked whether that is worth it.
  AttentionWorkspace any = cuda_attention_workspace;
  any.least_rows = 1;
  const auto part = any.largest_part(op.shape, op.workspace.num_elements());
  if (!part) return false;
  AttentionKind kind = kind_of(op.shape, op.query, op.key, op.value, op.output.row_stride);
  kind.is_backward = true;
  kind.d_output_stride = op.d_output.row_stride;
  kind.d_query_stride = op.d_query.row_stride;
  kind.d_key_stride = op.d_key.row_stride;
  kind.d_value_stride = op.d_value.row_stride;
  auto* const lent = static_cast<std::byte*>(op.workspace.data());
  std::byte* const workspace = lent + (-reinterpret_cast<std::uintptr_t>(lent) & (workspace_alignment - 1));
  const std::size_t bytes = op.workspace.num_bytes() - static_cast<std::size_t>(workspace - lent);
  // Nothing is issued before all of it is known to fit.
  for (const std::int64_t batch : {part->batch, kind.batch % part->batch})
    for (const std::int64_t kv_heads : {part->kv_heads, kind.kv_heads % part->kv_heads}) {
      if (batch == 0 || kv_heads == 0) continue;
      const auto needed = library_->workspace_bytes(part_of(kind, {batch, kv_heads}));
      if (!needed || *needed > bytes) return false;
    }
  // Operands are read only, whatever their pointers say.
  const AttentionOperands all = {.query = op.query.values.data(),
                                 .key = op.key.values.data(),
                                 .value = op.value.values.data(),
                                 .output = const_cast<void*>(op.output.values.data()),
                                 .log_sum_exp = static_cast<float*>(const_cast<void*>(op.log_sum_exp.data())),
                                 .d_output = op.d_output.values.data(),
                                 .d_query = op.d_query.values.data(),
                                 .d_key = op.d_key.values.data(),
                                 .d_value = op.d_value.values.data()};
  for (std::int64_t batch = 0; batch < kind.batch; batch += part->batch)
    for (std::int64_t kv_head = 0; kv_head < kind.kv_heads; kv_head += part->kv_heads)
      library_->run(
          stream,
          part_of(kind, {std::min(part->batch, kind.batch - batch), std::min(part->kv_heads, kind.kv_heads - kv_head)}),
          part_of(all, kind, batch, kv_head), workspace);
  return true;
}

}  // namespace scaletrain::cuda
