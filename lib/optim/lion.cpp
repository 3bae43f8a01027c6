// Lion (Chen et al. 2023).
#include "optim/optimizer_kinds.h"

namespace scaletrain {

namespace {

class Lion final : public ElementwiseOptimizer {
 public:
  explicit Lion(const OptimizerConfig& config) : ElementwiseOptimizer(config, {"exp_avg"}) {}

 private:
  void update(Backend& backend, Stream& stream, const Piece& piece) override {
    backend.run(stream, LionStep{.param = piece.range.param,
                                 .momentum = piece.range.states[0],
                                 .gradient = piece.range.gradient,
                                 .spans = piece.spans,
                                 .beta1 = config().beta1,
                                 .beta2 = config().beta2,
                                 .step = piece.step,
                                 .compute_weights = piece.range.compute});
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config) {
  return std::make_unique<Lion>(config);
}

}  // namespace scaletrain
