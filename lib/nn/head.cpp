// Final norm, logits and loss: the last unit. Logits exist for one chunk of rows at a time: a chunk's logits become
// their own gradient in place, are multiplied into both gradients, and are gone.
#include <algorithm>
#include <optional>

#include "base/checked.h"
#include "nn/transformer.h"
#include "nn/unit_ops.h"
#include "nn/units.h"

namespace scaletrain {

std::int64_t head_chunk_rows(std::int64_t rows, std::int64_t vocab) {
  constexpr std::int64_t budget = (32 << 20) / 4;  // elements: 32 MiB of f32
  constexpr std::int64_t tile = 16;                // rows that matrix kernels like to see together
  const std::int64_t limit = std::max(tile, budget / vocab / tile * tile);
  if (rows <= limit) return std::max<std::int64_t>(rows, 1);
  const std::int64_t chunks = ceil_div(rows, limit);
  return round_up(ceil_div(rows, chunks),
                  tile);  // chunks of about the same size; never beyond the limit, itself a multiple
}

namespace {

class Head : public Unit {
 public:
  explicit Head(const ModelSpec& spec) : spec_(spec), index_(narrow<int>(spec.layers + 1)) {}

  const std::string& name() const override { return name_; }
  int index() const override { return index_; }
  bool uses_tied_embedding() const override { return spec_.tie_embeddings; }
  UnitMemory memory(const BatchShape& shape, DType compute) const override;
  Saved forward(const UnitRun& run, const Bundle& input, const Bundle& output, Region saved) const override;
  WeightWork backward_input(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                            Region work) const override;
  void backward_weight(const UnitRun& run, WeightWork work) const override;
  void backward(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& d_input,
                Region work) const override;

 private:
  struct Scratch {
    View logits;    // [chunk rows, V]
    View loss_sum;  // [1] f64: where the weight phase's recomputation puts a loss that was counted before
  };
  Scratch carve_scratch(RegionAllocator& region, const BatchShape& shape, DType compute) const {
    Scratch scratch;
    scratch.logits = region.allocate(compute, {head_chunk_rows(shape.rows(), spec_.vocab), spec_.vocab});
    scratch.loss_sum = region.allocate(DType::f64, {1});
    return scratch;
  }
  View carve_work(RegionAllocator& region, const BatchShape& shape, DType compute) const {
    return region.allocate(compute, {shape.rows(), spec_.hidden});
  }

  Weight weight(const UnitRun& run) const {
    if (!spec_.tie_embeddings) return run.weights.find("weight");
    SCALETRAIN_CHECK(run.tied_weights != nullptr);
    return run.tied_weights->find("token.weight");
  }
  View d_weight(const UnitRun& run) const {
    const UnitGradients* gradients = spec_.tie_embeddings ? run.tied_gradients : run.gradients;
    SCALETRAIN_CHECK(gradients != nullptr);
    return gradients->find(spec_.tie_embeddings ? "token.weight" : "weight");
  }

  // For each chunk: logits of the norm's rows, the loss added to *loss_sum and, with a scale, the logits' gradient in
  // place; then use(norm rows, logits, first row).
  template <class Use>
  void for_each_chunk(const UnitRun& run, const View& norm_output, double d_scale, double* loss_sum, Use use) const {
    RegionAllocator region(run.scratch);
    const Scratch scratch = carve_scratch(region, run.batch.shape, run.backend.compute_type());
    if (loss_sum == nullptr) loss_sum = scratch.loss_sum.as<double>();
    const std::int64_t rows = norm_output.shape()[0];
    const std::int64_t chunk = scratch.logits.shape()[0];
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t count = std::min(chunk, rows - first);
      const View normed = norm_output.rows(first, count);
      const View logits = scratch.logits.rows(0, count);
      run.backend.run(
          run.stream,
          LinearForward{.weight = weight(run), .bias = {}, .input = normed, .addend = {}, .output = logits});
      run.backend.run(run.stream, CrossEntropy{.logits = logits,
                                               .targets = run.batch.targets.rows(first, count),
                                               .d_scale = d_scale,
                                               .loss_sum = loss_sum});
      use(normed, logits, first);
    }
  }

  NormTensors norm_tensors(const UnitRun& run, Region saved) const {
    RegionAllocator region(saved);
    return carve_norm(region, spec_, run.batch.shape.rows(), run.backend.compute_type());
  }

  ModelSpec spec_;
  int index_;
  std::string name_ = "head";
};

// The scale that CrossEntropy takes for "no gradient" cannot be asked for as a gradient's.
double gradient_scale(const BatchContext& batch) {
  SCALETRAIN_CHECK(batch.phase == Phase::train && batch.loss_gradient != 0.0);
  return batch.loss_gradient;
}

UnitMemory Head::memory(const BatchShape& shape, DType compute) const {
  RegionAllocator saved = RegionAllocator::counting();
  carve_norm(saved, spec_, shape.rows(), compute);
  RegionAllocator work = RegionAllocator::counting();
  carve_work(work, shape, compute);
  RegionAllocator scratch = RegionAllocator::counting();
  carve_scratch(scratch, shape, compute);
  return {.saved = saved.used(), .work = work.used(), .scratch = scratch.used()};
}

Saved Head::forward(const UnitRun& run, const Bundle& input, const Bundle& /*output*/, Region saved) const {
  const NormTensors norm = norm_tensors(run, saved);
  UnitOps(run, spec_).norm_forward("norm", input.hidden, norm);
  if (run.batch.phase == Phase::evaluate) {
    SCALETRAIN_CHECK(run.batch.loss_sum != nullptr);
    for_each_chunk(run, norm.output, 0.0, run.batch.loss_sum, [](const View&, const View&, std::int64_t) {});
  }
  return {this, saved, input};
}

void Head::backward(const UnitRun& run, Saved saved, const Bundle& /*d_output*/, const Bundle& d_input,
                    Region /*work*/) const {
  const UnitOps ops(run, spec_);
  const std::pair<Region, Bundle> held = saved.consume(this);
  const NormTensors norm = norm_tensors(run, held.first);
  SCALETRAIN_CHECK(run.batch.loss_sum != nullptr);
  for_each_chunk(
      run, norm.output, gradient_scale(run.batch), run.batch.loss_sum,
      [&](const View& normed, const View& d_logits, std::int64_t /*first*/) {
        ops.run(LinearBackwardWeight{.input = normed, .d_output = d_logits, .d_weight = d_weight(run), .d_bias = {}});
        // The rows' norm is not needed again: its gradient takes its place.
        ops.run(LinearBackwardInput{.weight = weight(run), .d_output = d_logits, .d_input = normed});
      });
  const View d_norm = norm.output;
  ops.norm_backward_weight("norm", d_norm, held.second.hidden, norm);
  ops.norm_backward_input("norm", d_norm, held.second.hidden, norm, {}, d_input.hidden);
}

WeightWork Head::backward_input(const UnitRun& run, Saved saved, const Bundle& /*d_output*/, const Bundle& d_input,
                                Region work) const {
  const UnitOps ops(run, spec_);
  const std::pair<Region, Bundle> held = saved.consume(this);
  const NormTensors norm = norm_tensors(run, held.first);
  RegionAllocator region(work);
  const View d_norm = carve_work(region, run.batch.shape, run.backend.compute_type());
  SCALETRAIN_CHECK(run.batch.loss_sum != nullptr);
  for_each_chunk(run, norm.output, gradient_scale(run.batch), run.batch.loss_sum,
                 [&](const View& normed, const View& d_logits, std::int64_t first) {
                   ops.run(LinearBackwardInput{
                       .weight = weight(run), .d_output = d_logits, .d_input = d_norm.rows(first, normed.shape()[0])});
                 });
  ops.norm_backward_input("norm", d_norm, held.second.hidden, norm, {}, d_input.hidden);
  return {this, work, held.first, held.second};
}

void Head::backward_weight(const UnitRun& run, WeightWork work) const {
  const UnitOps ops(run, spec_);
  const NormTensors norm = norm_tensors(run, work.saved());
  const std::pair<Region, Bundle> held = work.consume(this);
  RegionAllocator region(held.first);
  const View d_norm = carve_work(region, run.batch.shape, run.backend.compute_type());
  for_each_chunk(
      run, norm.output, gradient_scale(run.batch), nullptr,
      [&](const View& normed, const View& d_logits, std::int64_t /*first*/) {
        ops.run(LinearBackwardWeight{.input = normed, .d_output = d_logits, .d_weight = d_weight(run), .d_bias = {}});
      });
  ops.norm_backward_weight("norm", d_norm, held.second.hidden, norm);
}

}  // namespace

std::unique_ptr<Unit> make_head(const ModelSpec& spec) {
  return std::make_unique<Head>(spec);
}

}  // namespace scaletrain
