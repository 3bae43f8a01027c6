// The memory of one block, and the parts of its forward that training and decoding share. Internal to nn.
//
// Every carve function runs on a counting allocator for Unit::memory() and on the real region for use, so the two
// cannot disagree. With H heads, G key/value heads of size D: qkv rows are H·D of query, G·D of key, G·D of value.
#pragma once

#include "nn/unit_ops.h"

namespace scaletrain {

// What the forward leaves for the backward.
struct BlockTensors {
  NormTensors attention_norm;
  View qkv;          // [N, (H+2G)·D], query and key rotated where positions are rotary
  View attention;    // [N, H·D]
  View log_sum_exp;  // [B, H, T]
  View middle;       // [N,C] x + attention(norm(x))
  NormTensors ffn_norm;
  View pre_activation;  // [N,F], or [N,2F] with a gate
  View activation;      // [N,F]
};
BlockTensors carve_block(RegionAllocator& region, const ModelSpec& spec, const BatchShape& shape, DType compute);

// Output-gradients that the split backward keeps for the weight phase. The attention norm's lies in BlockTensors::qkv.
struct BlockWork {
  View d_output;          // [N,C]
  View d_pre_activation;  // as pre_activation
  View d_ffn_norm;        // [N,C]
  View d_middle;          // [N,C]
  View d_qkv;             // as qkv
};
BlockWork carve_block_work(RegionAllocator& region, const ModelSpec& spec, const BatchShape& shape, DType compute);

std::int64_t qkv_features(const ModelSpec& spec);
std::int64_t pre_activation_features(const ModelSpec& spec);

// Query, key and value heads of a fused matrix of rows that start at `first_row`.
struct QkvHeads {
  HeadsView query, key, value;
};
QkvHeads split_qkv(const View& qkv, const ModelSpec& spec, const BatchShape& shape);

// Rotates query and key in place; nothing without rotary positions.
void rotate_query_key(const UnitOps& ops, const ModelSpec& spec, const View& qkv, ConstView positions, bool inverse);
// input → attention_norm, qkv (rotated).
void block_forward_qkv(const UnitOps& ops, const ModelSpec& spec, ConstView input, ConstView positions,
                       const BlockTensors& t);
// input, attention → middle, ffn_norm, pre_activation, activation, output.
void block_forward_rest(const UnitOps& ops, const ModelSpec& spec, ConstView input, View output, const BlockTensors& t);

// The layer that feeds the activation: one matrix with the gate, or "ffn.up".
std::string_view ffn_input_layer(const ModelSpec& spec);

}  // namespace scaletrain
