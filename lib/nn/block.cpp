// One pre-norm transformer block. With x the input and m = x + attention(norm(x)) the output is m + ffn(norm(m));
// backward, the residual path's gradient is the addend of each norm's input gradient, so it costs no pass of its own.
//
// With norms behind the maps, too, x + norm(attention(norm(x))) and so on: each norm's output-gradient is the residual
// path's.
//
// Recomputation runs the forward's own operations on the same operands: it changes no bit. It leaves out the last
// product and its sum over the tensor group, whose result no backward reads but that of a norm behind it.
//
// Tensor parallel: qkv and the ffn's input map are column-parallel, the maps back to C row-parallel. With sequence
// shards everything with C columns is the rank's own rows; gathered rows live in scratch, and what the forward gathered
// the backward gathers again.
#include <fmt/format.h>

#include <algorithm>

#include "base/numbers/checked.h"
#include "nn/block_tensors.h"
#include "nn/units.h"

namespace scaletrain {

namespace {

class Block : public Unit {
 public:
  Block(const ModelSpec& spec, const TensorPart& tensor_part, std::int64_t layer, RecomputeKind recompute,
        const ScratchRows& scratch_rows, const AttentionWorkspace& attention_workspace)
      : spec_(layer_spec(local_spec(spec, tensor_part), layer)),
        part_(tensor_part),
        recompute_(recompute),
        scratch_rows_(scratch_rows),
        attention_workspace_(attention_workspace),
        adapted_(adapted_layers(spec, tensor_part)),
        index_(narrow<int>(layer + 1)),
        name_(fmt::format("blocks.{}", layer)) {}

  const std::string& name() const override { return name_; }
  int index() const override { return index_; }
  UnitMemory memory(const BatchShape& shape, DType compute) const override;
  Saved forward(const UnitRun& run, const Bundle& input, const Bundle& output, Region saved) const override;
  WeightWork backward_input(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                            Region work) const override;
  void backward_weight(const UnitRun& run, WeightWork work) const override;
  void backward(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                Region work) const override;

 private:
  BlockExtent extent(const UnitRun& run) const { return extent(run.batch.shape, run.backend.compute_type()); }
  BlockExtent extent(const BatchShape& shape, DType compute) const {
    return {spec_, part_, shape, compute, recompute_, attention_workspace_, adapted_, scratch_rows_};
  }
  BlockMemory carve(const UnitRun& run, Region saved) const;
  BlockMemory carve_split(const UnitRun& run, Region saved, Region work) const;
  void rebuild(const UnitRun& run, ConstView input, const BlockMemory& memory) const;
  // Heads are keyed by their places in the whole model.
  AttentionDropout attention_dropout(const UnitOps& ops) const {
    return {.mask = ops.dropped("attention.probabilities", spec_.dropout.attention),
            .first_head = part_.rank * spec_.heads};
  }
  std::int64_t attention_features() const { return spec_.heads * spec_.head_size; }

  void attention_forward(const UnitRun& run, const UnitOps& ops, const BlockTensors& t) const;
  // d_query_key: where gradients of normed queries and keys go that must not go to d_qkv; absent: they do.
  void attention_backward(const UnitRun& run, const UnitOps& ops, const BlockTensors& t, const BlockScratch& scratch,
                          ConstView d_attention, View d_qkv, View d_query_key) const;

  ModelSpec spec_;  // of this rank's part
  TensorPart part_;
  RecomputeKind recompute_;
  ScratchRows scratch_rows_;
  AttentionWorkspace attention_workspace_;
  std::vector<AdaptedLayer> adapted_;
  int index_;
  std::string name_;
};

ConstView document_start(const BatchContext& batch) {
  if (!batch.document_start) return {};
  return batch.document_start.reshape({batch.shape.samples, batch.shape.tokens});
}

// Which gradients of a norm behind a map a pass computes.
enum class Wanted { input, weight, both };

// Between a map back to C and the residual stream: perhaps a norm, and dropout.
struct Branch {
  std::string_view place;  // that keys the dropout
  std::string_view norm;
  View normed, rstd;  // absent without a norm
};

// The gradient of what the map gives, of that of the residual stream: itself, or `d_branch`, where something lies
// between them. A weight pass finds it there, and uses `scratch`.
View behind_branch(const UnitOps& ops, const ModelSpec& spec, const Branch& branch, const View& d_stream,
                   const View& d_branch, const View& scratch, Wanted wanted) {
  const DropoutMask dropped = ops.dropped(branch.place, spec.dropout.residual);
  if (!branch.normed && (!dropped || wanted == Wanted::weight)) return dropped ? d_branch : d_stream;
  View d_output = d_stream;
  if (dropped) {
    d_output = wanted == Wanted::weight ? scratch : d_branch;
    ops.drop_rows(dropped, d_stream, {}, d_output);
  }
  if (!branch.normed) return d_output;
  const NormTensors norm{.output = {}, .mean = {}, .rstd = branch.rstd};
  if (wanted != Wanted::input) ops.norm_backward_weight(branch.norm, d_output, branch.normed, norm);
  if (wanted != Wanted::weight) ops.norm_backward_input(branch.norm, d_output, branch.normed, norm, {}, d_branch);
  return d_branch;
}

Branch ffn_branch_of(const BlockTensors& t) {
  return {ffn_branch, "ffn_post_norm", t.ffn_output, t.ffn_post_rstd};
}
Branch attention_branch_of(const BlockTensors& t) {
  return {attention_branch, "attention_post_norm", t.attention_output, t.attention_post_rstd};
}

UnitMemory Block::memory(const BatchShape& shape, DType compute) const {
  const BlockExtent of_shape = extent(shape, compute);
  RegionAllocator saved = RegionAllocator::counting();
  RegionAllocator scratch = RegionAllocator::counting();
  carve_block_memory(saved, scratch, nullptr, of_shape);
  RegionAllocator saved_of_split = RegionAllocator::counting();
  RegionAllocator scratch_of_split = RegionAllocator::counting();
  RegionAllocator work = RegionAllocator::counting();
  carve_block_memory(saved_of_split, scratch_of_split, &work, of_shape);
  return {.saved = saved.used(), .work = work.used(), .scratch = scratch.used()};
}

BlockMemory Block::carve(const UnitRun& run, Region saved) const {
  RegionAllocator saved_allocator(saved);
  RegionAllocator scratch(run.scratch);
  return carve_block_memory(saved_allocator, scratch, nullptr, extent(run));
}

BlockMemory Block::carve_split(const UnitRun& run, Region saved, Region work) const {
  RegionAllocator saved_allocator(saved);
  RegionAllocator scratch(run.scratch);
  RegionAllocator work_allocator(work);
  return carve_block_memory(saved_allocator, scratch, &work_allocator, extent(run));
}

// What the forward did not keep, as it was.
void Block::rebuild(const UnitRun& run, ConstView input, const BlockMemory& memory) const {
  const UnitOps ops = UnitOps(run, spec_, part_, name_).with(memory.adapters).recomputing();
  const BlockTensors& t = memory.tensors;
  switch (recompute_) {
    case RecomputeKind::none:
      return;
    case RecomputeKind::selective:
      return block_rebuild_cheap(ops, spec_, input, run.batch.positions, t);
    case RecomputeKind::full:
      block_forward_qkv(ops, spec_, input, run.batch.positions, t, memory.scratch.unsharded);
      attention_forward(run, ops, t);
      block_forward_middle(ops, spec_, input, t, memory.scratch.unsharded);
      // What the adapters of the last map keep is of its product, which a norm behind it reads.
      if (spec_.post_norm) return block_forward_ffn_output(ops, t, memory.scratch.unsharded);
      return ops.adapter_hidden("ffn.down", t.activation);
  }
}

void Block::attention_forward(const UnitRun& run, const UnitOps& ops, const BlockTensors& t) const {
  const QkvHeads heads = split_qkv(t.qkv, t.query_key, spec_, run.batch.shape);
  ops.run(AttentionForward{.shape = attention_shape(spec_, run.batch.shape),
                           .query = {heads.query.values, heads.query.row_stride},
                           .key = {heads.key.values, heads.key.row_stride},
                           .value = {heads.value.values, heads.value.row_stride},
                           .document_start = document_start(run.batch),
                           .output = {t.attention, attention_features()},
                           .log_sum_exp = t.log_sum_exp,
                           .dropout = attention_dropout(ops)});
}

void Block::attention_backward(const UnitRun& run, const UnitOps& ops, const BlockTensors& t,
                               const BlockScratch& scratch, ConstView d_attention, View d_qkv, View d_query_key) const {
  const QkvHeads heads = split_qkv(t.qkv, t.query_key, spec_, run.batch.shape);
  const QkvHeads d_heads = split_qkv(d_qkv, d_query_key, spec_, run.batch.shape);
  ops.run(AttentionBackward{.shape = attention_shape(spec_, run.batch.shape),
                            .query = {heads.query.values, heads.query.row_stride},
                            .key = {heads.key.values, heads.key.row_stride},
                            .value = {heads.value.values, heads.value.row_stride},
                            .output = {t.attention, attention_features()},
                            .d_output = {d_attention, attention_features()},
                            .log_sum_exp = t.log_sum_exp,
                            .document_start = document_start(run.batch),
                            .d_query = d_heads.query,
                            .d_key = d_heads.key,
                            .d_value = d_heads.value,
                            .workspace = attention_workspace(extent(run), t, scratch),
                            .dropout = attention_dropout(ops)});
  rotate_query_key(ops, spec_, d_qkv, d_query_key, run.batch.positions, true);
}

Saved Block::forward(const UnitRun& run, const Bundle& input, const Bundle& output, Region saved) const {
  const BlockMemory memory = carve(run, saved);
  const UnitOps ops = UnitOps(run, spec_, part_, name_).with(memory.adapters);
  const BlockTensors& t = memory.tensors;
  const View unsharded = memory.scratch.unsharded;
  block_forward_qkv(ops, spec_, input.hidden, run.batch.positions, t, unsharded);
  attention_forward(run, ops, t);
  block_forward_middle(ops, spec_, input.hidden, t, unsharded);
  block_forward_output(ops, spec_, output.hidden, t, unsharded);
  return {this, saved, input};
}

// Each saved tensor is dead once its weight's gradient is done, and takes the next gradient of its size.
void Block::backward(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                     Region /*work*/) const {
  const std::int64_t rows = run.batch.shape.rows();
  const std::pair<Region, Bundle> held = saved.consume(this);
  const BlockMemory memory = carve(run, held.first);
  const UnitOps ops = UnitOps(run, spec_, part_, name_).with(memory.adapters);
  const TensorSums& sums = ops.sums();
  const BlockTensors& t = memory.tensors;
  const BlockScratch& scratch = memory.scratch;
  const View input = held.second.hidden;
  rebuild(run, input, memory);

  const View d_ffn_output =
      behind_branch(ops, spec_, ffn_branch_of(t), d_output.hidden, scratch.d_branch, {}, Wanted::both);
  const View d_output_unsharded = sums.unsharded(d_ffn_output, scratch.unsharded);
  ops.adapter_backward("ffn.down", d_output_unsharded);
  ops.row_backward_weight("ffn.down", t.activation, d_output_unsharded, d_ffn_output);
  const View d_activation = t.activation;
  ops.linear_backward_input("ffn.down", d_output_unsharded, d_activation);
  const View d_pre_activation = part(scratch.wide, 0, {rows, pre_activation_features(spec_)});
  ops.run(ActivationBackward{.type = activation_type(spec_),
                             .input = t.pre_activation,
                             .d_output = d_activation,
                             .d_input = d_pre_activation});
  ops.adapter_backward(ffn_input_layer(spec_), d_pre_activation);
  ops.column_backward_weight(ffn_input_layer(spec_), t.ffn_norm.output, d_pre_activation, scratch.unsharded);
  const View d_ffn_norm = t.ffn_norm.output;
  ops.column_backward_input(ffn_input_layer(spec_), d_pre_activation, d_ffn_norm, scratch.unsharded);
  ops.norm_backward_weight("ffn_norm", d_ffn_norm, t.middle, t.ffn_norm);
  const View d_middle = d_ffn_norm;
  ops.norm_backward_input("ffn_norm", d_ffn_norm, t.middle, t.ffn_norm, d_output.hidden, d_middle);

  const View d_attention_output =
      behind_branch(ops, spec_, attention_branch_of(t), d_middle, scratch.d_branch, {}, Wanted::both);
  const View d_middle_unsharded = sums.unsharded(d_attention_output, scratch.unsharded_in_wide);
  ops.adapter_backward("attention.output", d_middle_unsharded);
  ops.row_backward_weight("attention.output", t.attention, d_middle_unsharded, d_attention_output);
  View d_attention = scratch.d_attention;
  if (!d_attention) d_attention = part(sums.sequence() ? scratch.unsharded : t.middle, 0, t.attention.shape());
  ops.linear_backward_input("attention.output", d_middle_unsharded, d_attention);
  const View d_qkv = part(scratch.wide, 0, {rows, qkv_features(spec_)});
  attention_backward(run, ops, t, scratch, d_attention, d_qkv, {});
  norm_backward_query_key_weight(ops, spec_, t, {}, d_qkv);
  norm_backward_query_key(ops, spec_, t, {}, d_qkv);
  ops.adapter_backward("attention.qkv", d_qkv);
  ops.column_backward_weight("attention.qkv", t.attention_norm.output, d_qkv, scratch.unsharded);
  const View d_attention_norm = t.attention_norm.output;
  ops.column_backward_input("attention.qkv", d_qkv, d_attention_norm, scratch.unsharded);
  ops.norm_backward_weight("attention_norm", d_attention_norm, input, t.attention_norm);
  if (d_input.hidden)
    ops.norm_backward_input("attention_norm", d_attention_norm, input, t.attention_norm, d_middle, d_input.hidden);
}

// As backward(), but what the weight pass multiplies stays where it is: activations in Saved's region or, computed
// again, in work; output-gradients in work.
WeightWork Block::backward_input(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                                 Region work_region) const {
  const std::int64_t rows = run.batch.shape.rows();
  const std::pair<Region, Bundle> held = saved.consume(this);
  const BlockMemory memory = carve_split(run, held.first, work_region);
  const UnitOps ops = UnitOps(run, spec_, part_, name_).with(memory.adapters);
  const TensorSums& sums = ops.sums();
  const BlockTensors& t = memory.tensors;
  const BlockWork& work = memory.work;
  const BlockScratch& scratch = memory.scratch;
  const View input = held.second.hidden;
  rebuild(run, input, memory);

  ops.run(Copy{.input = d_output.hidden, .output = work.d_output});
  const View d_activation = part(scratch.wide, 0, {rows, spec_.ffn_hidden});
  const View d_ffn_output =
      behind_branch(ops, spec_, ffn_branch_of(t), work.d_output, work.d_ffn_output, {}, Wanted::input);
  const View d_output_unsharded = sums.unsharded(d_ffn_output, scratch.unsharded);
  ops.adapter_backward("ffn.down", d_output_unsharded);
  ops.linear_backward_input("ffn.down", d_output_unsharded, d_activation);
  ops.run(ActivationBackward{.type = activation_type(spec_),
                             .input = t.pre_activation,
                             .d_output = d_activation,
                             .d_input = work.d_pre_activation});
  ops.adapter_backward(ffn_input_layer(spec_), work.d_pre_activation);
  ops.column_backward_input(ffn_input_layer(spec_), work.d_pre_activation, work.d_ffn_norm, scratch.unsharded);
  ops.norm_backward_input("ffn_norm", work.d_ffn_norm, t.middle, t.ffn_norm, work.d_output, work.d_middle);

  View d_attention = scratch.d_attention;
  if (!d_attention) d_attention = part(sums.sequence() ? scratch.unsharded : scratch.wide, 0, t.attention.shape());
  const View d_attention_output =
      behind_branch(ops, spec_, attention_branch_of(t), work.d_middle, work.d_attention_output, {}, Wanted::input);
  const View d_middle_unsharded = sums.unsharded(d_attention_output, scratch.unsharded_in_wide);
  ops.adapter_backward("attention.output", d_middle_unsharded);
  ops.linear_backward_input("attention.output", d_middle_unsharded, d_attention);
  attention_backward(run, ops, t, scratch, d_attention, work.d_qkv, work.d_query_key);
  norm_backward_query_key(ops, spec_, t, work.d_query_key, work.d_qkv);
  ops.adapter_backward("attention.qkv", work.d_qkv);
  ops.column_backward_input("attention.qkv", work.d_qkv, work.d_attention_norm, scratch.unsharded);
  if (d_input.hidden)
    ops.norm_backward_input("attention_norm", work.d_attention_norm, input, t.attention_norm, work.d_middle,
                            d_input.hidden);
  return {this, work_region, held.first, held.second};
}

void Block::backward_weight(const UnitRun& run, WeightWork work) const {
  const Region saved = work.saved();
  const std::pair<Region, Bundle> held = work.consume(this);
  const BlockMemory memory = carve_split(run, saved, held.first);
  const UnitOps ops = UnitOps(run, spec_, part_, name_).with(memory.adapters);
  const TensorSums& sums = ops.sums();
  const BlockTensors& t = memory.tensors;  // those of them that it reads
  const BlockWork& gradients = memory.work;
  const View unsharded = memory.scratch.unsharded;

  const View d_ffn_output = behind_branch(ops, spec_, ffn_branch_of(t), gradients.d_output, gradients.d_ffn_output,
                                          memory.scratch.d_branch, Wanted::weight);
  ops.row_backward_weight("ffn.down", t.activation, sums.unsharded(d_ffn_output, unsharded), d_ffn_output);
  ops.column_backward_weight(ffn_input_layer(spec_), t.ffn_norm.output, gradients.d_pre_activation, unsharded);
  ops.norm_backward_weight("ffn_norm", gradients.d_ffn_norm, t.middle, t.ffn_norm);
  const View d_attention_output = behind_branch(ops, spec_, attention_branch_of(t), gradients.d_middle,
                                                gradients.d_attention_output, memory.scratch.d_branch, Wanted::weight);
  ops.row_backward_weight("attention.output", t.attention, sums.unsharded(d_attention_output, unsharded),
                          d_attention_output);
  ops.column_backward_weight("attention.qkv", t.attention_norm.output, gradients.d_qkv, unsharded);
  norm_backward_query_key_weight(ops, spec_, t, gradients.d_query_key, gradients.d_qkv);
  ops.norm_backward_weight("attention_norm", gradients.d_attention_norm, held.second.hidden, t.attention_norm);
}

}  // namespace

std::unique_ptr<Unit> make_block(const ModelSpec& spec, const TensorPart& part, std::int64_t layer,
                                 RecomputeKind recompute, const ScratchRows& scratch_rows,
                                 const AttentionWorkspace& attention_workspace) {
  return std::make_unique<Block>(spec, part, layer, recompute, scratch_rows, attention_workspace);
}

}  // namespace scaletrain
