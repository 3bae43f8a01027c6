// The memory of one block, and the parts of its forward that training and decoding share. Internal to nn.
//
// Every carve function runs on a counting allocator for Unit::memory() and on the real region for use, so the two
// cannot disagree. With H heads, G key/value heads of size D: qkv rows are H·D of query, G·D of key, G·D of value.
#pragma once

#include "nn/unit_ops.h"

namespace scaletrain {

// What a block's memory depends on. spec is the rank's part of the model: H, G and F are its own. Of the N rows n are
// its own between the parallel parts (see tensor_sums.h).
struct BlockExtent {
  const ModelSpec& spec;
  TensorPart part;
  BatchShape shape;
  DType compute;
  RecomputeKind recompute = RecomputeKind::none;
  AttentionWorkspace attention_workspace{};
  std::span<const AdaptedLayer> adapted{};  // its layers with adapters, which outlive what is carved
  ScratchRows scratch_rows{};
};

// Where a block's tensors lie: what is kept, what the backward computes again and, of that, what the weight pass reads.
// They may be the same.
struct BlockRegions {
  RegionAllocator& kept;
  RegionAllocator& rebuilt;
  RegionAllocator& rebuilt_for_weights;
};

// What the backward needs of the forward.
struct BlockTensors {
  NormTensors attention_norm;  // of n rows, as everything with C columns
  View qkv;                    // [N, (H+2G)·D], query and key rotated where positions are rotary
  // With query and key norms those two are as the maps made them in qkv, and normed and rotated here: [N, (H+G)·D],
  // with the statistics of each head's norm [N·H], [N·G].
  View query_key, query_rstd, key_rstd;
  View attention;    // [N, H·D]
  View log_sum_exp;  // [B, H, T]
  // With norms behind the maps: what the maps back to C give, [n,C], and the statistics of their norms, [n].
  View attention_output, attention_post_rstd;
  View ffn_output, ffn_post_rstd;
  View middle;  // [n,C] x + attention(norm(x))
  NormTensors ffn_norm;
  View pre_activation;  // [N,F], or [N,2F] with a gate
  View activation;      // [N,F]
};
BlockTensors carve_block(const BlockRegions& regions, const BlockExtent& extent);
inline BlockTensors carve_block(RegionAllocator& region, const BlockExtent& extent) {
  return carve_block({region, region, region}, extent);
}

// Output-gradients that the split backward keeps for the weight pass.
struct BlockWork {
  View d_output;          // [n,C]
  View d_pre_activation;  // as pre_activation
  View d_ffn_norm;        // [n,C]
  View d_middle;          // [n,C]
  // [n,C] with norms behind the maps back to C, or with dropout: the gradients of what the maps give; else d_output and
  // d_middle are those.
  View d_ffn_output, d_attention_output;
  View d_qkv;        // as qkv
  View d_query_key;  // as query_key
  // [n,C]; in the memory of BlockTensors::qkv where that is kept and not read any more, and large enough for sure:
  // degree one.
  View d_attention_norm;
};
BlockWork carve_block_work(RegionAllocator& region, const BlockExtent& extent, const BlockTensors& tensors);

// Memory within one call; what lies in it has no overlapping lives.
struct BlockScratch {
  View wide;       // [N, the most of what it holds]: the gradient of pre_activation or qkv, and what leads to them
  View unsharded;  // [N,C] with sequence shards: gathered rows, or a partial sum
  View unsharded_in_wide;    // the same in the memory of `wide`
  View d_branch;             // [n,C] as BlockWork::d_ffn_output; of a weight pass what dropout makes of the gradient
  View d_attention;          // [N, H·D] where that is more than C
  View attention_workspace;  // where pre_activation is too small for it
};
BlockScratch carve_block_scratch(RegionAllocator& region, const BlockExtent& extent);

// AttentionBackward::workspace of halves, where the activation's gradient is done: in the memory of pre_activation,
// which nothing reads after that, unless the scratch has it. Empty where the compute type is that of sums.
View attention_workspace(const BlockExtent& extent, const BlockTensors& tensors, const BlockScratch& scratch);

// All that one pass uses. What is computed again lies in scratch, where the forward leaves it to be overwritten. A
// split backward computes it in both: what its weight pass reads is carved from `work`.
struct BlockMemory {
  BlockTensors tensors;
  BlockWork work;  // of the split backward's passes alone
  BlockScratch scratch;
  AdapterTensors adapters;
};
// work: null for the forward and for the backward that is not split.
BlockMemory carve_block_memory(RegionAllocator& saved, RegionAllocator& scratch, RegionAllocator* work,
                               const BlockExtent& extent);

// Of whole sequences.
AttentionShape attention_shape(const ModelSpec& spec, const BatchShape& shape);
double attention_scale(const ModelSpec& spec);
// Of the ffn, as that of attention is a part of block_forward_middle.
void block_forward_ffn_output(const UnitOps& ops, const BlockTensors& t, View unsharded);
std::int64_t qkv_features(const ModelSpec& spec);
std::int64_t pre_activation_features(const ModelSpec& spec);

// Query, key and value heads of the fused matrix, or the former two of query_key where there is one.
struct QkvHeads {
  HeadsView query, key, value;
};
QkvHeads split_qkv(const View& qkv, const View& query_key, const ModelSpec& spec, const BatchShape& shape);

// Rotates query and key in place, in qkv or, where there is one, query_key; nothing without rotary positions.
void rotate_query_key(const UnitOps& ops, const ModelSpec& spec, const View& qkv, const View& query_key,
                      ConstView positions, bool inverse);
// Gradients of query and key behind their norms, in d_query_key, become those before them, in d_qkv; both may be the
// same matrix: then d_query_key is absent. Nothing without such norms.
void norm_backward_query_key(const UnitOps& ops, const ModelSpec& spec, const BlockTensors& t, const View& d_query_key,
                             const View& d_qkv);
void norm_backward_query_key_weight(const UnitOps& ops, const ModelSpec& spec, const BlockTensors& t,
                                    const View& d_query_key, const View& d_qkv);
// input → attention_norm, qkv (rotated). `unsharded`: as BlockScratch::unsharded, here and below.
void block_forward_qkv(const UnitOps& ops, const ModelSpec& spec, ConstView input, ConstView positions,
                       const BlockTensors& t, View unsharded = {});
// input, attention → middle, ffn_norm, pre_activation, activation.
void block_forward_middle(const UnitOps& ops, const ModelSpec& spec, ConstView input, const BlockTensors& t,
                          View unsharded = {});
// activation, middle → output.
void block_forward_output(const UnitOps& ops, const ModelSpec& spec, View output, const BlockTensors& t,
                          View unsharded = {});
// Without a matrix product or a sum: input, middle → attention_norm, ffn_norm; qkv → query_key; pre_activation →
// activation.
void block_rebuild_cheap(const UnitOps& ops, const ModelSpec& spec, ConstView input, ConstView positions,
                         const BlockTensors& t);

// What keys the dropout of a block's two branches.
inline constexpr std::string_view attention_branch = "attention";
inline constexpr std::string_view ffn_branch = "ffn";

// The layer that feeds the activation: one matrix with the gate, or "ffn.up".
std::string_view ffn_input_layer(const ModelSpec& spec);

}  // namespace scaletrain
