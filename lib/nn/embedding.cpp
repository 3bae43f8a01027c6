// Token and position embedding: unit 0. Nothing is saved; its output's gradient is all that the weights' gradients
// need.
#include "nn/unit_ops.h"
#include "nn/units.h"

namespace scaletrain {

namespace {

class Embedding : public Unit {
 public:
  explicit Embedding(const ModelSpec& spec) : spec_(spec) {}

  const std::string& name() const override { return name_; }
  int index() const override { return 0; }

  UnitMemory memory(const BatchShape& shape, DType compute) const override {
    RegionAllocator work = RegionAllocator::counting();
    carve_work(work, shape, compute);
    return {.saved = 0, .work = work.used(), .scratch = 0};
  }

  Saved forward(const UnitRun& run, const Bundle& input, const Bundle& output, Region saved) const override {
    run.backend.run(run.stream, EmbeddingForward{.table = run.weights.find("token.weight").values,
                                                 .position_table = run.weights.find("position.weight").values,
                                                 .ids = run.batch.ids,
                                                 .positions = run.batch.positions,
                                                 .output = output.hidden});
    return {this, saved, input};
  }

  WeightWork backward_input(const UnitRun& run, Saved saved, const Bundle& d_output, const Bundle& /*d_input*/,
                            Region work) const override {
    const std::pair<Region, Bundle> held = saved.consume(this);
    RegionAllocator region(work);
    run.backend.run(run.stream, Copy{.input = d_output.hidden,
                                     .output = carve_work(region, run.batch.shape, run.backend.compute_type())});
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
    return region.allocate(compute, {shape.rows(), spec_.hidden});
  }

  void add_gradients(const UnitRun& run, ConstView d_output) const {
    SCALETRAIN_CHECK(run.gradients != nullptr);
    run.backend.run(run.stream, EmbeddingBackward{.d_output = d_output,
                                                  .ids = run.batch.ids,
                                                  .positions = run.batch.positions,
                                                  .d_table = run.gradients->find("token.weight"),
                                                  .d_position_table = run.gradients->find("position.weight")});
  }

  ModelSpec spec_;
  std::string name_ = "embedding";
};

}  // namespace

std::unique_ptr<Unit> make_embedding(const ModelSpec& spec) {
  return std::make_unique<Embedding>(spec);
}

}  // namespace scaletrain
