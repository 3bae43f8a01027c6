#include "backend/cuda/fused_attention.h"

#include <algorithm>

#include "backend/cuda/kernels/workspace.h"

namespace scaletrain::cuda {

namespace {

constexpr std::int64_t aligned_bytes = 16;
constexpr std::int64_t aligned_elements = 8;
// Shorter sequences and other heads have not been seen to gain.
constexpr std::int64_t least_tokens = 128;
constexpr std::int64_t least_head_size = 64;
constexpr std::int64_t most_head_size = 128;

bool is_for_library(const ConstHeadsView& operand) {
  return (operand.values.dtype() == DType::bf16 || operand.values.dtype() == DType::f16) &&
         operand.row_stride % aligned_elements == 0 &&
         reinterpret_cast<std::uintptr_t>(operand.values.data()) % aligned_bytes == 0;
}

bool is_for_library(const AttentionForward& op) {
  const AttentionShape& shape = op.shape;
  if (shape.num_queries != shape.num_keys || shape.first_query != shape.first_key || op.document_start ||
      !op.log_sum_exp)
    return false;
  if (shape.batch == 0 || shape.num_queries < least_tokens || shape.scale <= 0) return false;
  if (shape.head_size < least_head_size || shape.head_size > most_head_size || shape.head_size % aligned_elements != 0)
    return false;
  const ConstHeadsView operands[] = {op.query, op.key, op.value, {op.output.values, op.output.row_stride}};
  return std::all_of(std::begin(operands), std::end(operands),
                     [](const ConstHeadsView& operand) { return is_for_library(operand); });
}

}  // namespace

bool FusedAttention::issue(cudaStream_t stream, std::byte* workspace, const AttentionForward& op) {
  if (!is_for_library(op)) return false;
  const AttentionKind kind = {.type = op.query.values.dtype(),
                              .batch = op.shape.batch,
                              .tokens = op.shape.num_queries,
                              .heads = op.shape.heads,
                              .kv_heads = op.shape.kv_heads,
                              .head_size = op.shape.head_size,
                              .scale = op.shape.scale,
                              .query_stride = op.query.row_stride,
                              .key_stride = op.key.row_stride,
                              .value_stride = op.value.row_stride,
                              .output_stride = op.output.row_stride};
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

}  // namespace scaletrain::cuda
