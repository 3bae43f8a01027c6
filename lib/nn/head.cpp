// Final norm, logits and loss: the last unit. Logits exist for one chunk of rows at a time: a chunk's logits become
// their own gradient in place, are multiplied into both gradients, and are gone.
//
// Tensor parallel: a rank has the logits of its part of the vocabulary. The ranks tell each other three numbers per row
// (SoftmaxStatistics), which is all that loss and gradient need of the other parts; every rank adds the same loss.
//
// Recomputation, of either kind, keeps nothing: the backward begins with the norm, and the forward of training is left
// with nothing to do.
#include <algorithm>

#include "base/numbers/checked.h"
#include "nn/transformer.h"
#include "nn/unit_ops.h"
#include "nn/units.h"

namespace scaletrain {

std::int64_t head_chunk_rows(std::int64_t rows, std::int64_t vocab, std::int64_t block_scratch,
                             const ScratchRows& scratch_rows) {
  constexpr std::int64_t tile = 16;   // rows that matrix kernels like to see together
  constexpr std::int64_t panel = 64;  // of rows, which kernels fill up: whole ones where there are some
  const std::int64_t fitting =
      std::max(scratch_rows.budget, std::min(block_scratch, scratch_rows.enough * vocab)) / vocab;
  const std::int64_t limit =
      fitting >= 3 * panel ? (fitting + panel / 2) / panel * panel : std::max(tile, fitting / tile * tile);
  if (rows <= limit) return std::max<std::int64_t>(rows, 1);
  // Chunks of about the same size; never beyond the limit, itself a multiple.
  return round_up(ceil_div(rows, ceil_div(rows, limit)), limit % panel == 0 ? panel : tile);
}

namespace {

class Head : public Unit {
 public:
  Head(const ModelSpec& spec, const TensorPart& tensor_part, RecomputeKind recompute, const ScratchRows& scratch_rows)
      : spec_(spec),
        part_(tensor_part),
        scratch_rows_(scratch_rows),
        recomputes_(recompute != RecomputeKind::none),
        local_vocab_(local_spec(spec, tensor_part).vocab),
        first_class_(first_vocab_row(spec, tensor_part)),
        index_(narrow<int>(spec.layers + 1)) {}

  const std::string& name() const override { return name_; }
  int index() const override { return index_; }
  bool weight_pass_reads_weights() const override { return true; }
  UnitMemory memory(const BatchShape& shape, DType compute) const override;
  Saved forward(const UnitRun& run, const Bundle& input, const Bundle& output, Region saved) const override;
  WeightWork backward_input(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                            Region work) const override;
  void backward_weight(const UnitRun& run, WeightWork work) const override;
  void backward(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                Region work) const override;

 private:
  struct Scratch {
    View logits;          // [chunk rows, V of this rank, padded]
    View capped;          // the same behind the cap of logits, where there is one
    View loss_sum;        // [1] f64: where the weight pass's recomputation puts a loss that was counted before
    View own_statistics;  // [chunk rows, 3] of a tensor group of several ranks
    View statistics;      // [t, chunk rows, 3]
    View unsharded;       // [N,C] with sequence shards: the norm's gathered rows
  };
  Scratch carve_scratch(RegionAllocator& region, const BatchShape& shape, DType compute) const {
    Scratch scratch;
    // The same chunks on every rank, whatever its part of the vocabulary.
    const std::int64_t chunk = head_chunk_rows(shape.rows(), ceil_div(spec_.vocab, part_.degree),
                                               shape.rows() * (spec_.ffn_hidden / part_.degree), scratch_rows_);
    scratch.logits = region.allocate(compute, {chunk, round_up(local_vocab_, scratch_rows_.alignment)});
    if (spec_.logit_softcap > 0) scratch.capped = region.allocate(compute, scratch.logits.shape());
    scratch.loss_sum = region.allocate(DType::f64, {1});
    if (part_.degree > 1) {
      scratch.own_statistics = region.allocate(accumulator_type(compute), {chunk, 3});
      scratch.statistics = region.allocate(accumulator_type(compute), {part_.degree, chunk, 3});
    }
    if (divides_rows(part_)) scratch.unsharded = region.allocate(compute, {shape.rows(), spec_.hidden});
    return scratch;
  }
  // All that one pass uses. The norm is kept, or computed again in scratch; where the backward is split, in `work`.
  struct Memory {
    NormTensors norm;
    View d_norm;  // [n,C], of the split backward's passes alone
    Scratch scratch;
  };
  // work: null for the forward and for the backward that is not split.
  Memory carve(RegionAllocator& saved, RegionAllocator& scratch, RegionAllocator* work, const BatchShape& shape,
               DType compute) const {
    const std::int64_t own = own_rows(part_, shape.rows());
    Memory memory;
    RegionAllocator& rebuilt = work != nullptr ? *work : scratch;
    memory.norm = carve_norm(recomputes_ ? rebuilt : saved, spec_, own, compute);
    if (work != nullptr) memory.d_norm = work->allocate(compute, {own, spec_.hidden});
    memory.scratch = carve_scratch(scratch, shape, compute);
    return memory;
  }
  Memory carve(const UnitRun& run, Region saved) const {
    RegionAllocator saved_allocator(saved);
    RegionAllocator scratch(run.scratch);
    return carve(saved_allocator, scratch, nullptr, run.batch.shape, run.backend.compute_type());
  }
  Memory carve_split(const UnitRun& run, Region saved, Region work) const {
    RegionAllocator saved_allocator(saved);
    RegionAllocator scratch(run.scratch);
    RegionAllocator work_allocator(work);
    return carve(saved_allocator, scratch, &work_allocator, run.batch.shape, run.backend.compute_type());
  }

  Weight weight(const UnitRun& run) const { return run.weights.find("weight"); }
  View d_weight(const UnitRun& run) const {
    SCALETRAIN_CHECK(run.gradients != nullptr);
    return run.gradients->find("weight");
  }

  // As cross_entropy, of the logits behind their cap where there is one.
  void loss(const UnitOps& ops, const Scratch& scratch, const View& logits, ConstView targets, double d_scale,
            View loss_sum) const {
    if (!scratch.capped) return cross_entropy(ops, scratch, logits, targets, d_scale, loss_sum);
    const View capped = scratch.capped.rows(0, logits.shape()[0]);
    ops.run(SoftCap{.input = logits, .output = capped, .cap = spec_.logit_softcap});
    cross_entropy(ops, scratch, capped, targets, d_scale, loss_sum);
    if (d_scale != 0.0)
      ops.run(SoftCapBackward{.input = logits, .d_output = capped, .d_input = logits, .cap = spec_.logit_softcap});
  }

  // The sum of the losses of logits' rows is added to loss_sum; with a scale the logits become their own gradient.
  void cross_entropy(const UnitOps& ops, const Scratch& scratch, const View& logits, ConstView targets, double d_scale,
                     View loss_sum) const {
    if (!ops.sums().parallel()) {
      ops.run(CrossEntropy{.logits = logits,
                           .targets = targets,
                           .d_scale = d_scale,
                           .loss_sum = loss_sum,
                           .num_classes = local_vocab_,
                           .shape = spec_.loss});
      return;
    }
    const std::int64_t rows = logits.shape()[0];
    const View own = part(scratch.own_statistics, 0, {rows, 3});
    const View all = part(scratch.statistics, 0, {part_.degree, rows, 3});
    ops.run(SoftmaxStatistics{.logits = logits,
                              .targets = targets,
                              .first_class = first_class_,
                              .vocabulary = spec_.vocab,
                              .statistics = own,
                              .num_classes = local_vocab_});
    ops.sums().gather_equal(own, all);
    ops.run(CrossEntropyParts{.logits = logits,
                              .targets = targets,
                              .first_class = first_class_,
                              .vocabulary = spec_.vocab,
                              .statistics = all,
                              .d_scale = d_scale,
                              .loss_sum = loss_sum,
                              .num_classes = local_vocab_,
                              .shape = spec_.loss});
  }

  // The losses of each sample's rows to a number of its own: chunks end where samples do.
  void sum_samples(const UnitRun& run, const UnitOps& ops, const Scratch& scratch, const View& norm_rows) const {
    const BatchContext& batch = run.batch;
    SCALETRAIN_CHECK_EQ(batch.sample_losses.num_elements(), batch.shape.samples);
    const std::int64_t tokens = batch.shape.tokens;
    const std::int64_t chunk = scratch.logits.shape()[0];
    for (std::int64_t first = 0; first < batch.shape.rows();) {
      const std::int64_t count = std::min(chunk, tokens - first % tokens);
      const View logits = scratch.logits.rows(0, count);
      ops.run(LinearForward{
          .weight = weight(run), .bias = {}, .input = norm_rows.rows(first, count), .addend = {}, .output = logits});
      loss(ops, scratch, logits, batch.targets.rows(first, count), 0.0, batch.sample_losses.rows(first / tokens, 1));
      first += count;
    }
  }

  // For each chunk of all rows of the norm's output: logits, the loss added to loss_sum and, with a scale, the logits'
  // gradient in place; then use(norm rows, logits, first row).
  template <class Use>
  void for_each_chunk(const UnitRun& run, const UnitOps& ops, const Scratch& scratch, const View& norm_rows,
                      double d_scale, View loss_sum, Use use) const {
    const std::int64_t rows = norm_rows.shape()[0];
    const std::int64_t chunk = scratch.logits.shape()[0];
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t count = std::min(chunk, rows - first);
      const View normed = norm_rows.rows(first, count);
      const View logits = scratch.logits.rows(0, count);
      ops.run(LinearForward{.weight = weight(run), .bias = {}, .input = normed, .addend = {}, .output = logits});
      loss(ops, scratch, logits, run.batch.targets.rows(first, count), d_scale, loss_sum);
      use(normed, logits, first);
    }
  }

  ModelSpec spec_;  // of the whole model
  TensorPart part_;
  ScratchRows scratch_rows_;
  bool recomputes_;
  std::int64_t local_vocab_;
  std::int64_t first_class_;
  int index_;
  std::string name_ = "head";
};

// The scale that CrossEntropy takes for "no gradient" cannot be asked for as a gradient's.
double gradient_scale(const BatchContext& batch) {
  SCALETRAIN_CHECK(batch.mode == Mode::train && batch.loss_gradient != 0.0);
  return batch.loss_gradient;
}

UnitMemory Head::memory(const BatchShape& shape, DType compute) const {
  RegionAllocator saved = RegionAllocator::counting();
  RegionAllocator scratch = RegionAllocator::counting();
  carve(saved, scratch, nullptr, shape, compute);
  RegionAllocator saved_of_split = RegionAllocator::counting();
  RegionAllocator scratch_of_split = RegionAllocator::counting();
  RegionAllocator work = RegionAllocator::counting();
  carve(saved_of_split, scratch_of_split, &work, shape, compute);
  return {.saved = saved.used(), .work = work.used(), .scratch = scratch.used()};
}

Saved Head::forward(const UnitRun& run, const Bundle& input, const Bundle& /*output*/, Region saved) const {
  const UnitOps ops(run, spec_, part_, name_);
  const Memory memory = carve(run, saved);
  const NormTensors& norm = memory.norm;
  if (run.batch.mode == Mode::evaluate || !recomputes_) ops.norm_forward("norm", input.hidden, norm);
  if (run.batch.mode == Mode::evaluate) {
    const Scratch& scratch = memory.scratch;
    const View rows = ops.sums().unsharded(norm.output, scratch.unsharded);
    if (run.batch.sample_losses) {
      sum_samples(run, ops, scratch, rows);
    } else {
      SCALETRAIN_CHECK(static_cast<bool>(run.batch.loss_sum));
      for_each_chunk(run, ops, scratch, rows, 0.0, run.batch.loss_sum, [](const View&, const View&, std::int64_t) {});
    }
  }
  return {this, saved, input};
}

void Head::backward(const UnitRun& run, Saved saved, const Bundle& /*d_output*/, const Bundle& d_input,
                    Region /*work*/) const {
  const UnitOps ops(run, spec_, part_, name_);
  const std::pair<Region, Bundle> held = saved.consume(this);
  const Memory memory = carve(run, held.first);
  const NormTensors& norm = memory.norm;
  const Scratch& scratch = memory.scratch;
  if (recomputes_) ops.norm_forward("norm", held.second.hidden, norm);
  SCALETRAIN_CHECK(static_cast<bool>(run.batch.loss_sum));
  const View rows = ops.sums().unsharded(norm.output, scratch.unsharded);
  for_each_chunk(run, ops, scratch, rows, gradient_scale(run.batch), run.batch.loss_sum,
                 [&](const View& normed, const View& d_logits, std::int64_t /*first*/) {
                   ops.linear_backward_weight(normed, d_logits, d_weight(run), {});
                   // The rows' norm is not needed again: its gradient takes its place.
                   ops.run(LinearBackwardInput{.weight = weight(run), .d_output = d_logits, .d_input = normed});
                 });
  const View d_norm = norm.output;
  ops.sums().sum(rows, d_norm);
  ops.norm_backward_weight("norm", d_norm, held.second.hidden, norm);
  if (d_input.hidden) ops.norm_backward_input("norm", d_norm, held.second.hidden, norm, {}, d_input.hidden);
}

WeightWork Head::backward_input(const UnitRun& run, Saved saved, const Bundle& /*d_output*/, const Bundle& d_input,
                                Region work) const {
  const UnitOps ops(run, spec_, part_, name_);
  const TensorSums& sums = ops.sums();
  const std::pair<Region, Bundle> held = saved.consume(this);
  const Memory memory = carve_split(run, held.first, work);
  const NormTensors& norm = memory.norm;
  const View d_norm = memory.d_norm;
  const Scratch& scratch = memory.scratch;
  if (recomputes_) ops.norm_forward("norm", held.second.hidden, norm);
  SCALETRAIN_CHECK(static_cast<bool>(run.batch.loss_sum));
  const View rows = sums.unsharded(norm.output, scratch.unsharded);
  const View partial = sums.partial(d_norm, rows);  // gathered rows are a copy, whose place their gradient may take
  for_each_chunk(run, ops, scratch, rows, gradient_scale(run.batch), run.batch.loss_sum,
                 [&](const View& normed, const View& d_logits, std::int64_t first) {
                   ops.run(LinearBackwardInput{
                       .weight = weight(run), .d_output = d_logits, .d_input = partial.rows(first, normed.shape()[0])});
                 });
  sums.sum(partial, d_norm);
  if (d_input.hidden) ops.norm_backward_input("norm", d_norm, held.second.hidden, norm, {}, d_input.hidden);
  return {this, work, held.first, held.second};
}

void Head::backward_weight(const UnitRun& run, WeightWork work) const {
  const UnitOps ops(run, spec_, part_, name_);
  const Region saved = work.saved();
  const std::pair<Region, Bundle> held = work.consume(this);
  const Memory memory = carve_split(run, saved, held.first);
  const NormTensors& norm = memory.norm;
  const Scratch& scratch = memory.scratch;
  for_each_chunk(run, ops, scratch, ops.sums().unsharded(norm.output, scratch.unsharded), gradient_scale(run.batch),
                 scratch.loss_sum, [&](const View& normed, const View& d_logits, std::int64_t /*first*/) {
                   ops.linear_backward_weight(normed, d_logits, d_weight(run), {});
                 });
  ops.norm_backward_weight("norm", memory.d_norm, held.second.hidden, norm);
}

}  // namespace

std::unique_ptr<Unit> make_head(const ModelSpec& spec, const TensorPart& part, RecomputeKind recompute,
                                const ScratchRows& scratch_rows) {
  return std::make_unique<Head>(spec, part, recompute, scratch_rows);
}

}  // namespace scaletrain
