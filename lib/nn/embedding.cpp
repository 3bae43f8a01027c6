// Token and position embedding: unit 0. Nothing is saved; its output's gradient is all that the weights' gradients
// need. Tensor parallel: each rank looks up the ids of its part of the vocabulary, and the lookups are summed. Every
// rank computes the whole gradient of the position table.
#include "nn/unit_ops.h"
#include "nn/units.h"

namespace scaletrain {

namespace {

class Embedding : public Unit {
 public:
  Embedding(const ModelSpec& spec, const TensorPart& part)
      : spec_(spec), part_(part), first_id_(first_vocab_row(spec, part)) {}

  const std::string& name() const override { return name_; }
  int index() const override { return 0; }

  UnitMemory memory(const BatchShape& shape, DType compute) const override {
    RegionAllocator work = RegionAllocator::counting();
    carve_work(work, shape, compute);
    RegionAllocator scratch = RegionAllocator::counting();
    carve_unsharded(scratch, shape, compute);
    return {.saved = 0, .work = work.used(), .scratch = scratch.used()};
  }

  Saved forward(const UnitRun& run, const Bundle& input, const Bundle& output, Region saved) const override {
    const UnitOps ops(run, spec_, part_, name_);
    const TensorSums& sums = ops.sums();
    const View partial = sums.partial(output.hidden, unsharded(run));
    ops.run(EmbeddingForward{
        .table = run.weights.find("token.weight").values,
        .position_table = sums.adds_shared_values() ? run.weights.find("position.weight").values : ConstView(),
        .ids = run.batch.ids,
        .positions = run.batch.positions,
        .output = partial,
        .first_id = first_id_,
        .vocabulary = spec_.vocab});
    sums.sum(partial, output.hidden);
    scale(run, ops, output.hidden, output.hidden);
    drop(ops, output.hidden);
    return {this, saved, input};
  }

  WeightWork backward_input(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& /*d_input*/,
                            Region work) const override {
    const std::pair<Region, Bundle> held = saved.consume(this);
    RegionAllocator region(work);
    UnitOps(run, spec_, part_, name_)
        .run(Copy{.input = d_output.hidden, .output = carve_work(region, run.batch.shape, run.backend.compute_type())});
    return {this, work, held.first, held.second};
  }

  void backward_weight(const UnitRun& run, WeightWork work) const override {
    RegionAllocator region(work.consume(this).first);
    add_gradients(run, carve_work(region, run.batch.shape, run.backend.compute_type()));
  }

  void backward(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& /*d_input*/,
                Region /*work*/) const override {
    saved.consume(this);
    add_gradients(run, d_output.hidden);
  }

 private:
  View carve_work(RegionAllocator& region, const BatchShape& shape, DType compute) const {
    return region.allocate(compute, {own_rows(part_, shape.rows()), spec_.hidden});
  }

  // Scratch for all rows [N,C], which only sequence shards need.
  View carve_unsharded(RegionAllocator& region, const BatchShape& shape, DType compute) const {
    return divides_rows(part_) ? region.allocate(compute, {shape.rows(), spec_.hidden}) : View();
  }
  View unsharded(const UnitRun& run) const {
    RegionAllocator region(run.scratch);
    return carve_unsharded(region, run.batch.shape, run.backend.compute_type());
  }

  // Token embeddings have no positions added to them where they are scaled.
  void scale(const UnitRun& run, const UnitOps& ops, ConstView input, View output) const {
    if (spec_.scale_embeddings)
      ops.run(Scale{.input = input, .output = output, .factor = embedding_scale(spec_, run.backend.compute_type())});
  }

  // Its own backward.
  void drop(const UnitOps& ops, View values) const {
    if (const DropoutMask mask = ops.dropped("output", spec_.dropout.embedding))
      ops.drop_rows(mask, values, {}, values);
  }

  // Overwrites d_output, which nothing reads after this.
  void add_gradients(const UnitRun& run, View d_output) const {
    const UnitOps ops(run, spec_, part_, name_);
    SCALETRAIN_CHECK(run.gradients != nullptr);
    drop(ops, d_output);
    scale(run, ops, d_output, d_output);
    const View of_rows = ops.sums().unsharded(d_output, unsharded(run));
    const View d_table = run.gradients->find("token.weight");
    const View d_position_table = run.gradients->find("position.weight");
    if (d_table) {
      ops.run(EmbeddingBackward{.d_output = of_rows,
                                .ids = run.batch.ids,
                                .positions = run.batch.positions,
                                .d_table = d_table,
                                .d_position_table = d_position_table,
                                .first_id = first_id_,
                                .vocabulary = spec_.vocab});
    } else if (d_position_table) {  // the tokens' is frozen
      ops.run(EmbeddingBackward{.d_output = of_rows,
                                .ids = run.batch.positions,
                                .positions = {},
                                .d_table = d_position_table,
                                .d_position_table = {}});
    }
  }

  ModelSpec spec_;
  TensorPart part_;
  std::int64_t first_id_;
  std::string name_ = "embedding";
};

}  // namespace

std::unique_ptr<Unit> make_embedding(const ModelSpec& spec, const TensorPart& part) {
  return std::make_unique<Embedding>(spec, part);
}

}  // namespace scaletrain
