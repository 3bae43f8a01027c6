// One pre-norm transformer block. With x the input and m = x + attention(norm(x)) the output is m + ffn(norm(m));
// backward, the residual path's gradient is the addend of each norm's input gradient, so it costs no pass of its own.
//
// Tensor parallel: qkv and the ffn's input map are column-parallel, the maps back to C row-parallel. With sequence
// shards everything with C columns is the rank's own rows; gathered rows live in scratch, and what the forward gathered
// the backward gathers again.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/numbers/checked.h"
#include "nn/block_tensors.h"
#include "nn/units.h"

namespace scaletrain {

namespace {

class Block : public Unit {
 public:
  Block(const ModelSpec& spec, const TensorPart& tensor_part, std::int64_t layer)
      : spec_(local_spec(spec, tensor_part)),
        part_(tensor_part),
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
  BlockExtent extent(const UnitRun& run) const { return {spec_, part_, run.batch.shape, run.backend.compute_type()}; }
  BlockScratch carve_scratch(const UnitRun& run) const {
    RegionAllocator region(run.scratch);
    return carve_block_scratch(region, extent(run));
  }
  std::int64_t attention_features() const { return spec_.heads * spec_.head_size; }

  AttentionShape attention_shape(const BatchShape& shape) const {
    return {.batch = shape.samples,
            .num_queries = shape.tokens,
            .num_keys = shape.tokens,
            .heads = spec_.heads,
            .kv_heads = spec_.kv_heads,
            .head_size = spec_.head_size,
            .scale = 1.0 / std::sqrt(static_cast<double>(spec_.head_size))};
  }

  void attention_forward(const UnitRun& run, const UnitOps& ops, const BlockTensors& t) const;
  void attention_backward(const UnitRun& run, const UnitOps& ops, const BlockTensors& t, const BlockScratch& scratch,
                          ConstView d_attention, View d_qkv) const;

  ModelSpec spec_;  // of this rank's part
  TensorPart part_;
  int index_;
  std::string name_;
};

ConstView document_start(const BatchContext& batch) {
  if (!batch.document_start) return {};
  return batch.document_start.reshape({batch.shape.samples, batch.shape.tokens});
}

UnitMemory Block::memory(const BatchShape& shape, DType compute) const {
  const BlockExtent extent{spec_, part_, shape, compute};
  RegionAllocator saved = RegionAllocator::counting();
  const BlockTensors t = carve_block(saved, extent);
  RegionAllocator work = RegionAllocator::counting();
  carve_block_work(work, extent, t);
  RegionAllocator scratch = RegionAllocator::counting();
  carve_block_scratch(scratch, extent);
  // Selective keeps what products and attention computed: norms and the activation are computed again.
  std::size_t selective = 0;
  for (const View& view : {t.attention_norm.output, t.ffn_norm.output, t.activation})
    selective += align_up(static_cast<std::size_t>(view.num_elements()) * size_of(compute));
  return {.saved = saved.used(),
          .work = work.used(),
          .scratch = scratch.used(),
          .recomputed_selective = selective,
          .recomputed_full = saved.used()};
}

void Block::attention_forward(const UnitRun& run, const UnitOps& ops, const BlockTensors& t) const {
  const QkvHeads heads = split_qkv(t.qkv, spec_, run.batch.shape);
  ops.run(AttentionForward{.shape = attention_shape(run.batch.shape),
                           .query = {heads.query.values, heads.query.row_stride},
                           .key = {heads.key.values, heads.key.row_stride},
                           .value = {heads.value.values, heads.value.row_stride},
                           .document_start = document_start(run.batch),
                           .output = {t.attention, attention_features()},
                           .log_sum_exp = t.log_sum_exp});
}

void Block::attention_backward(const UnitRun& run, const UnitOps& ops, const BlockTensors& t,
                               const BlockScratch& scratch, ConstView d_attention, View d_qkv) const {
  const QkvHeads heads = split_qkv(t.qkv, spec_, run.batch.shape);
  const QkvHeads d_heads = split_qkv(d_qkv, spec_, run.batch.shape);
  ops.run(AttentionBackward{.shape = attention_shape(run.batch.shape),
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
                            .d_query_sums = query_gradient_sums(extent(run), t, scratch)});
  rotate_query_key(ops, spec_, d_qkv, run.batch.positions, true);
}

Saved Block::forward(const UnitRun& run, const Bundle& input, const Bundle& output, Region saved) const {
  const UnitOps ops(run, spec_, part_);
  RegionAllocator region(saved);
  const BlockTensors t = carve_block(region, extent(run));
  const View unsharded = ops.sums().sequence() ? carve_scratch(run).unsharded : View();
  block_forward_qkv(ops, spec_, input.hidden, run.batch.positions, t, unsharded);
  attention_forward(run, ops, t);
  block_forward_rest(ops, spec_, input.hidden, output.hidden, t, unsharded);
  return {this, saved, input};
}

// Each saved tensor is dead once its weight's gradient is done, and takes the next gradient of its size.
void Block::backward(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                     Region /*work*/) const {
  const UnitOps ops(run, spec_, part_);
  const TensorSums& sums = ops.sums();
  const std::int64_t rows = run.batch.shape.rows();
  const std::pair<Region, Bundle> held = saved.consume(this);
  RegionAllocator region(held.first);
  const BlockTensors t = carve_block(region, extent(run));
  const BlockScratch scratch = carve_scratch(run);
  const View input = held.second.hidden;

  const View d_output_unsharded = sums.unsharded(d_output.hidden, scratch.unsharded);
  ops.row_backward_weight("ffn.down", t.activation, d_output_unsharded, d_output.hidden);
  const View d_activation = t.activation;
  ops.linear_backward_input("ffn.down", d_output_unsharded, d_activation);
  const View d_pre_activation = part(scratch.wide, 0, {rows, pre_activation_features(spec_)});
  ops.run(ActivationBackward{.type = activation_type(spec_),
                             .input = t.pre_activation,
                             .d_output = d_activation,
                             .d_input = d_pre_activation});
  ops.column_backward_weight(ffn_input_layer(spec_), t.ffn_norm.output, d_pre_activation, scratch.unsharded);
  const View d_ffn_norm = t.ffn_norm.output;
  ops.column_backward_input(ffn_input_layer(spec_), d_pre_activation, d_ffn_norm, scratch.unsharded);
  ops.norm_backward_weight("ffn_norm", d_ffn_norm, t.middle, t.ffn_norm);
  const View d_middle = d_ffn_norm;
  ops.norm_backward_input("ffn_norm", d_ffn_norm, t.middle, t.ffn_norm, d_output.hidden, d_middle);

  const View d_middle_unsharded = sums.unsharded(d_middle, scratch.unsharded_in_wide);
  ops.row_backward_weight("attention.output", t.attention, d_middle_unsharded, d_middle);
  const View d_attention = part(sums.sequence() ? scratch.unsharded : t.middle, 0, t.attention.shape());
  ops.linear_backward_input("attention.output", d_middle_unsharded, d_attention);
  const View d_qkv = part(scratch.wide, 0, {rows, qkv_features(spec_)});
  attention_backward(run, ops, t, scratch, d_attention, d_qkv);
  ops.column_backward_weight("attention.qkv", t.attention_norm.output, d_qkv, scratch.unsharded);
  const View d_attention_norm = t.attention_norm.output;
  ops.column_backward_input("attention.qkv", d_qkv, d_attention_norm, scratch.unsharded);
  ops.norm_backward_weight("attention_norm", d_attention_norm, input, t.attention_norm);
  ops.norm_backward_input("attention_norm", d_attention_norm, input, t.attention_norm, d_middle, d_input.hidden);
}

// As backward(), but what the weight pass multiplies stays where it is: activations in Saved's region,
// output-gradients in work.
WeightWork Block::backward_input(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                                 Region work_region) const {
  const UnitOps ops(run, spec_, part_);
  const TensorSums& sums = ops.sums();
  const std::int64_t rows = run.batch.shape.rows();
  const std::pair<Region, Bundle> held = saved.consume(this);
  RegionAllocator saved_allocator(held.first);
  RegionAllocator work_allocator(work_region);
  const BlockTensors t = carve_block(saved_allocator, extent(run));
  const BlockWork work = carve_block_work(work_allocator, extent(run), t);
  const BlockScratch scratch = carve_scratch(run);
  const View input = held.second.hidden;

  ops.run(Copy{.input = d_output.hidden, .output = work.d_output});
  const View d_activation = part(scratch.wide, 0, {rows, spec_.ffn_hidden});
  ops.linear_backward_input("ffn.down", sums.unsharded(work.d_output, scratch.unsharded), d_activation);
  ops.run(ActivationBackward{.type = activation_type(spec_),
                             .input = t.pre_activation,
                             .d_output = d_activation,
                             .d_input = work.d_pre_activation});
  ops.column_backward_input(ffn_input_layer(spec_), work.d_pre_activation, work.d_ffn_norm, scratch.unsharded);
  ops.norm_backward_input("ffn_norm", work.d_ffn_norm, t.middle, t.ffn_norm, work.d_output, work.d_middle);

  const View d_attention = part(sums.sequence() ? scratch.unsharded : scratch.wide, 0, t.attention.shape());
  ops.linear_backward_input("attention.output", sums.unsharded(work.d_middle, scratch.unsharded_in_wide), d_attention);
  attention_backward(run, ops, t, scratch, d_attention, work.d_qkv);
  ops.column_backward_input("attention.qkv", work.d_qkv, work.d_attention_norm, scratch.unsharded);
  ops.norm_backward_input("attention_norm", work.d_attention_norm, input, t.attention_norm, work.d_middle,
                          d_input.hidden);
  return {this, work_region, held.first, held.second};
}

void Block::backward_weight(const UnitRun& run, WeightWork work) const {
  const UnitOps ops(run, spec_, part_);
  const TensorSums& sums = ops.sums();
  RegionAllocator saved_allocator(work.saved());
  const std::pair<Region, Bundle> held = work.consume(this);
  RegionAllocator work_allocator(held.first);
  const BlockTensors t = carve_block(saved_allocator, extent(run));
  const BlockWork gradients = carve_block_work(work_allocator, extent(run), t);
  const View unsharded = sums.sequence() ? carve_scratch(run).unsharded : View();

  ops.row_backward_weight("ffn.down", t.activation, sums.unsharded(gradients.d_output, unsharded), gradients.d_output);
  ops.column_backward_weight(ffn_input_layer(spec_), t.ffn_norm.output, gradients.d_pre_activation, unsharded);
  ops.norm_backward_weight("ffn_norm", gradients.d_ffn_norm, t.middle, t.ffn_norm);
  ops.row_backward_weight("attention.output", t.attention, sums.unsharded(gradients.d_middle, unsharded),
                          gradients.d_middle);
  ops.column_backward_weight("attention.qkv", t.attention_norm.output, gradients.d_qkv, unsharded);
  ops.norm_backward_weight("attention_norm", gradients.d_attention_norm, held.second.hidden, t.attention_norm);
}

}  // namespace

std::unique_ptr<Unit> make_block(const ModelSpec& spec, const TensorPart& part, std::int64_t layer) {
  return std::make_unique<Block>(spec, part, layer);
}

}  // namespace scaletrain
