#include "nn/block_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace scaletrain {

double attention_scale(const ModelSpec& spec) {
  return spec.attention_scale > 0 ? spec.attention_scale : 1.0 / std::sqrt(static_cast<double>(spec.head_size));
}

// A window that holds all of a sequence is none.
AttentionShape attention_shape(const ModelSpec& spec, const BatchShape& shape) {
  return {.batch = shape.samples,
          .num_queries = shape.tokens,
          .num_keys = shape.tokens,
          .heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_size = spec.head_size,
          .scale = attention_scale(spec),
          .window = spec.window < shape.tokens ? spec.window : 0,
          .softcap = spec.attention_softcap};
}

std::int64_t qkv_features(const ModelSpec& spec) {
  return (spec.heads + 2 * spec.kv_heads) * spec.head_size;
}

namespace {

std::int64_t query_key_features(const ModelSpec& spec) {
  return (spec.heads + spec.kv_heads) * spec.head_size;
}

}  // namespace

std::int64_t pre_activation_features(const ModelSpec& spec) {
  return has_gate(spec.activation) ? 2 * spec.ffn_hidden : spec.ffn_hidden;
}

std::string_view ffn_input_layer(const ModelSpec& spec) {
  return has_gate(spec.activation) ? "ffn.gate_up" : "ffn.up";
}

BlockTensors carve_block(const BlockRegions& regions, const BlockExtent& extent) {
  const ModelSpec& spec = extent.spec;
  // Outputs of matrix products and of attention; what can be had of them without one.
  const bool keeps_products = extent.recompute != RecomputeKind::full;
  RegionAllocator& product = keeps_products ? regions.kept : regions.rebuilt;
  RegionAllocator& product_for_weights = keeps_products ? regions.kept : regions.rebuilt_for_weights;
  RegionAllocator& cheap = extent.recompute == RecomputeKind::none ? regions.kept : regions.rebuilt_for_weights;
  const DType compute = extent.compute;
  const std::int64_t rows = extent.shape.rows();
  const std::int64_t own = own_rows(extent.part, rows);
  BlockTensors t;
  t.attention_norm = carve_norm(cheap, spec, own, compute);
  RegionAllocator& qkv = spec.qk_norm ? product_for_weights : product;
  t.qkv = qkv.allocate(compute, {rows, qkv_features(spec)});
  if (spec.qk_norm) {
    RegionAllocator& statistics = extent.recompute == RecomputeKind::none ? regions.kept : regions.rebuilt_for_weights;
    RegionAllocator& normed = extent.recompute == RecomputeKind::none ? regions.kept : regions.rebuilt;
    t.query_key = normed.allocate(compute, {rows, query_key_features(spec)});
    t.query_rstd = statistics.allocate(accumulator_type(compute), {rows * spec.heads});
    t.key_rstd = statistics.allocate(accumulator_type(compute), {rows * spec.kv_heads});
  }
  t.attention = product_for_weights.allocate(compute, {rows, spec.heads * spec.head_size});
  t.log_sum_exp = product.allocate(accumulator_type(compute), {extent.shape.samples, spec.heads, extent.shape.tokens});
  if (spec.post_norm) {
    t.attention_output = product_for_weights.allocate(compute, {own, spec.hidden});
    t.ffn_output = product_for_weights.allocate(compute, {own, spec.hidden});
    // Few, and what is normed need not be normed again for them.
    t.attention_post_rstd = regions.kept.allocate(accumulator_type(compute), {own});
    t.ffn_post_rstd = regions.kept.allocate(accumulator_type(compute), {own});
  }
  t.middle = product_for_weights.allocate(compute, {own, spec.hidden});
  t.ffn_norm = carve_norm(cheap, spec, own, compute);
  t.pre_activation = product.allocate(compute, {rows, pre_activation_features(spec)});
  t.activation = cheap.allocate(compute, {rows, spec.ffn_hidden});
  return t;
}

BlockWork carve_block_work(RegionAllocator& region, const BlockExtent& extent, const BlockTensors& tensors) {
  const ModelSpec& spec = extent.spec;
  const DType compute = extent.compute;
  const std::int64_t rows = extent.shape.rows();
  const Shape own{own_rows(extent.part, rows), spec.hidden};
  BlockWork work;
  work.d_output = region.allocate(compute, own);
  work.d_pre_activation = region.allocate(compute, {rows, pre_activation_features(spec)});
  work.d_ffn_norm = region.allocate(compute, own);
  work.d_middle = region.allocate(compute, own);
  if (spec.post_norm || spec.dropout.residual > 0) {
    work.d_ffn_output = region.allocate(compute, own);
    work.d_attention_output = region.allocate(compute, own);
  }
  work.d_qkv = region.allocate(compute, {rows, qkv_features(spec)});
  if (spec.qk_norm) work.d_query_key = region.allocate(compute, {rows, query_key_features(spec)});
  const bool takes_qkv = extent.part.degree == 1 && extent.recompute != RecomputeKind::full && !spec.qk_norm &&
                         qkv_features(spec) >= spec.hidden;
  work.d_attention_norm = takes_qkv ? part(tensors.qkv, 0, own) : region.allocate(compute, own);
  return work;
}

namespace {

// None where the compute type is that of sums.
Shape attention_workspace_shape(const BlockExtent& extent) {
  if (accumulator_type(extent.compute) == extent.compute) return {0};
  return {extent.attention_workspace.lent(attention_shape(extent.spec, extent.shape))};
}

bool fits_pre_activation(const Shape& workspace, const BlockExtent& extent) {
  const std::int64_t elements = extent.shape.rows() * pre_activation_features(extent.spec);
  return static_cast<std::size_t>(workspace.num_elements()) * size_of(accumulator_type(extent.compute)) <=
         static_cast<std::size_t>(elements) * size_of(extent.compute);
}

}  // namespace

View attention_workspace(const BlockExtent& extent, const BlockTensors& tensors, const BlockScratch& scratch) {
  const Shape shape = attention_workspace_shape(extent);
  if (shape.num_elements() == 0) return {};
  if (!fits_pre_activation(shape, extent)) return scratch.attention_workspace;
  return {tensors.pre_activation.data(), accumulator_type(extent.compute), shape, tensors.pre_activation.space()};
}

BlockScratch carve_block_scratch(RegionAllocator& region, const BlockExtent& extent) {
  const ModelSpec& spec = extent.spec;
  const std::int64_t rows = extent.shape.rows();
  std::int64_t features = std::max(pre_activation_features(spec), qkv_features(spec));
  BlockScratch scratch;
  if (const Shape workspace = attention_workspace_shape(extent); !fits_pre_activation(workspace, extent))
    scratch.attention_workspace = region.allocate(accumulator_type(extent.compute), workspace);
  if (spec.post_norm || spec.dropout.residual > 0)
    scratch.d_branch = region.allocate(extent.compute, {own_rows(extent.part, rows), spec.hidden});
  if (const std::int64_t heads = spec.heads * spec.head_size; heads > spec.hidden)
    scratch.d_attention = region.allocate(extent.compute, {rows, heads});
  if (!divides_rows(extent.part)) {
    scratch.wide = region.allocate(extent.compute, {rows, features});
    return scratch;
  }
  features = std::max(features, spec.hidden);
  scratch.wide = region.allocate(extent.compute, {rows, features});
  scratch.unsharded_in_wide = part(scratch.wide, 0, {rows, spec.hidden});
  scratch.unsharded = region.allocate(extent.compute, {rows, spec.hidden});
  return scratch;
}

BlockMemory carve_block_memory(RegionAllocator& saved, RegionAllocator& scratch, RegionAllocator* work,
                               const BlockExtent& extent) {
  BlockMemory memory;
  memory.tensors = carve_block({saved, scratch, work != nullptr ? *work : scratch}, extent);
  if (work != nullptr) memory.work = carve_block_work(*work, extent, memory.tensors);
  memory.scratch = carve_block_scratch(scratch, extent);
  RegionAllocator& for_weights = work != nullptr ? *work : scratch;
  const bool keeps_products = extent.recompute != RecomputeKind::full;
  memory.adapters = carve_adapters({keeps_products ? saved : for_weights, for_weights, scratch}, extent.adapted,
                                   extent.spec.lora, extent.scratch_rows, extent.shape.rows(), extent.compute);
  return memory;
}

QkvHeads split_qkv(const View& qkv, const View& query_key, const ModelSpec& spec, const BatchShape& shape) {
  const auto heads = [&](const View& matrix, std::int64_t first_head, std::int64_t count) {
    const std::int64_t first = first_head * spec.head_size;
    // The logical shape; the rows lie a stride apart, so the last one ends before the matrix does.
    const Shape logical{shape.samples, shape.tokens, count, spec.head_size};
    return HeadsView{part(matrix, first, logical), matrix.shape()[1]};
  };
  const View& former = query_key ? query_key : qkv;
  return {heads(former, 0, spec.heads), heads(former, spec.heads, spec.kv_heads),
          heads(qkv, spec.heads + spec.kv_heads, spec.kv_heads)};
}

void rotate_query_key(const UnitOps& ops, const ModelSpec& spec, const View& qkv, const View& query_key,
                      ConstView positions, bool inverse) {
  if (spec.position != PositionKind::rope) return;
  const View& values = query_key ? query_key : qkv;
  ops.run(RopeRotate{.values = values,
                     .row_stride = values.shape()[1],
                     .num_heads = spec.heads + spec.kv_heads,
                     .head_size = spec.head_size,
                     .positions = positions,
                     .theta = spec.rope_theta,
                     .inverse = inverse,
                     .scaling = spec.rope_scaling});
}

namespace {

// The heads of one of the two norms as rows, in a matrix of all of them.
struct NormedHeads {
  std::string_view layer;
  std::int64_t first, count;
  View rstd;

  HeadRows in(const View& matrix, const ModelSpec& spec) const {
    const Shape logical{matrix.shape()[0] * count, spec.head_size};
    return {part(matrix, first * spec.head_size, logical), {count, matrix.shape()[1]}};
  }
};

std::array<NormedHeads, 2> normed_heads(const ModelSpec& spec, const BlockTensors& t) {
  return {{{"attention.query_norm", 0, spec.heads, t.query_rstd},
           {"attention.key_norm", spec.heads, spec.kv_heads, t.key_rstd}}};
}

// qkv → query_key, normed and rotated.
void norm_query_key(const UnitOps& ops, const ModelSpec& spec, ConstView positions, const BlockTensors& t) {
  if (spec.qk_norm)
    for (const NormedHeads& heads : normed_heads(spec, t))
      ops.head_norm_forward(heads.layer, heads.in(t.qkv, spec), heads.in(t.query_key, spec), heads.rstd);
  rotate_query_key(ops, spec, t.qkv, t.query_key, positions, false);
}

}  // namespace

void norm_backward_query_key(const UnitOps& ops, const ModelSpec& spec, const BlockTensors& t, const View& d_query_key,
                             const View& d_qkv) {
  if (!spec.qk_norm) return;
  for (const NormedHeads& heads : normed_heads(spec, t))
    ops.head_norm_backward_input(heads.layer, heads.in(d_query_key ? d_query_key : d_qkv, spec), heads.in(t.qkv, spec),
                                 heads.rstd, heads.in(d_qkv, spec));
}

void norm_backward_query_key_weight(const UnitOps& ops, const ModelSpec& spec, const BlockTensors& t,
                                    const View& d_query_key, const View& d_qkv) {
  if (!spec.qk_norm) return;
  for (const NormedHeads& heads : normed_heads(spec, t))
    ops.head_norm_backward_weight(heads.layer, heads.in(d_query_key ? d_query_key : d_qkv, spec), heads.in(t.qkv, spec),
                                  heads.rstd);
}

void block_forward_qkv(const UnitOps& ops, const ModelSpec& spec, ConstView input, ConstView positions,
                       const BlockTensors& t, View unsharded) {
  ops.norm_forward("attention_norm", input, t.attention_norm);
  ops.column_forward("attention.qkv", t.attention_norm.output, t.qkv, unsharded);
  norm_query_key(ops, spec, positions, t);
}

void block_forward_middle(const UnitOps& ops, const ModelSpec& spec, ConstView input, const BlockTensors& t,
                          View unsharded) {
  const DropoutMask dropped = ops.dropped(attention_branch, spec.dropout.residual);
  const ConstView addend = dropped ? ConstView() : input;
  if (spec.post_norm) {
    ops.row_forward("attention.output", t.attention, t.attention_output, {}, unsharded);
    ops.post_norm_forward("attention_post_norm", t.attention_output, t.middle, t.attention_post_rstd, addend);
  } else {
    ops.row_forward("attention.output", t.attention, t.middle, addend, unsharded);
  }
  if (dropped) ops.drop_rows(dropped, t.middle, input, t.middle);
  ops.norm_forward("ffn_norm", t.middle, t.ffn_norm);
  ops.column_forward(ffn_input_layer(spec), t.ffn_norm.output, t.pre_activation, t.activation, unsharded);
}

void block_forward_ffn_output(const UnitOps& ops, const BlockTensors& t, View unsharded) {
  ops.row_forward("ffn.down", t.activation, t.ffn_output, {}, unsharded);
}

void block_forward_output(const UnitOps& ops, const ModelSpec& spec, View output, const BlockTensors& t,
                          View unsharded) {
  const DropoutMask dropped = ops.dropped(ffn_branch, spec.dropout.residual);
  const ConstView addend = dropped ? ConstView() : t.middle;
  if (spec.post_norm) {
    block_forward_ffn_output(ops, t, unsharded);
    ops.post_norm_forward("ffn_post_norm", t.ffn_output, output, t.ffn_post_rstd, addend);
  } else {
    ops.row_forward("ffn.down", t.activation, output, addend, unsharded);
  }
  if (dropped) ops.drop_rows(dropped, output, t.middle, output);
}

void block_rebuild_cheap(const UnitOps& ops, const ModelSpec& spec, ConstView input, ConstView positions,
                         const BlockTensors& t) {
  ops.norm_forward("attention_norm", input, t.attention_norm);
  if (spec.qk_norm) norm_query_key(ops, spec, positions, t);
  ops.norm_forward("ffn_norm", t.middle, t.ffn_norm);
  ops.run(ActivationForward{.type = activation_type(spec), .input = t.pre_activation, .output = t.activation});
}

}  // namespace scaletrain
