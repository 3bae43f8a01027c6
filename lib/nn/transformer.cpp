#include "nn/transformer.h"

#include <cstdint>

#include "base/error.h"
#include "nn/tensor_sums.h"
#include "nn/units.h"

namespace scaletrain {

namespace {

// Tells a pass the compute type, and is asked for nothing else.
class DeclaringBackend : public Backend {
 public:
  explicit DeclaringBackend(DType compute) : compute_(compute) {}
  DType compute_type() const override { return compute_; }
  std::string description() const override { return "declares calls"; }
  int num_threads() const override { return 0; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  Space space() const override { return Space::device; }
  Buffer allocate(std::size_t bytes) override { return Buffer(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return Buffer(bytes); }
  std::size_t workspace_bytes() const override { return 0; }
  std::size_t packed_bytes(const Shape& /*weight*/) const override { return 0; }
  std::unique_ptr<PackedWeight> pack(Stream& /*stream*/, ConstView /*values*/, Region /*memory*/) override {
    return nullptr;
  }

 private:
  void launch(Stream& /*stream*/, const Operation& /*op*/) override { refuse(); }
  void transfer(Stream& /*stream*/, const ConstView& /*from*/, const View& /*to*/) override { refuse(); }
  static void refuse() {
    SCALETRAIN_CHECK(false && "a pass that declares its calls computes nothing: its operations go through UnitOps");
  }

  DType compute_;
};

// Memory that a declaring pass cuts up and never touches: room for every region, and no place that the host may read.
Region untouched_region() {
  alignas(buffer_alignment) static std::byte place[buffer_alignment];
  return {place, SIZE_MAX / 2, Space::device};
}

}  // namespace

Transformer::Transformer(const ModelSpec& spec, const TensorPart& part, RecomputeKind recompute,
                         const ScratchRows& scratch_rows, const AttentionWorkspace& attention_workspace)
    : spec_(spec), part_(part) {
  units_.push_back(make_embedding(spec, part));
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    units_.push_back(make_block(spec, part, layer, recompute, scratch_rows, attention_workspace));
  units_.push_back(make_head(spec, part, recompute, scratch_rows));
}

std::vector<BundleEntry> Transformer::boundary(const BatchShape& shape, DType compute) const {
  return {{"hidden", compute, Shape{own_rows(part_, shape.rows()), spec_.hidden}}};
}

std::vector<GroupCall> Transformer::calls(int unit, Opcode pass, const BatchShape& shape, DType compute, Mode mode,
                                          EvaluatedLosses losses) const {
  std::vector<GroupCall> declared;
  DeclaringBackend backend(compute);
  HostStream stream;
  const Region region = untouched_region();
  const ConstView of_tokens(region.data, DType::i32, {shape.rows()}, region.space);
  BatchContext batch;
  batch.shape = shape;
  batch.mode = mode;
  batch.ids = of_tokens;
  batch.targets = of_tokens;
  batch.positions = of_tokens;
  batch.loss_gradient = 1.0;
  batch.loss_sum = View(region.data, DType::f64, {1}, region.space);
  if (losses == EvaluatedLosses::by_sample)
    batch.sample_losses = View(region.data, DType::f64, {shape.samples}, region.space);
  const UnitWeights weights;
  const UnitGradients gradients;
  const UnitRun run{.backend = backend,
                    .stream = stream,
                    .batch = batch,
                    .weights = weights,
                    .gradients = &gradients,
                    .scratch = region,
                    .declared = &declared};
  const BundleEntry entry = boundary(shape, compute).front();
  const Bundle bundle{View(region.data, entry.dtype, entry.shape, region.space)};
  const Unit& of = *units_[static_cast<std::size_t>(unit)];
  switch (pass) {
    case Opcode::forward:
      of.forward(run, bundle, bundle, region);
      break;
    case Opcode::backward:
      of.backward(run, Saved(&of, region, bundle), bundle, bundle, region);
      break;
    case Opcode::backward_input:
      of.backward_input(run, Saved(&of, region, bundle), bundle, bundle, region);
      break;
    case Opcode::backward_weight:
      of.backward_weight(run, WeightWork(&of, region, region, bundle));
      break;
    default:
      SCALETRAIN_CHECK(false && "a unit has no such pass");
  }
  return declared;
}

}  // namespace scaletrain
