// AdEMAMix (Pagliardini et al. 2024). slow_mean.h has its schedules.
#include "optim/optimizer_kinds.h"

namespace scaletrain {

namespace {

class Ademamix final : public ElementwiseOptimizer {
 public:
  explicit Ademamix(const OptimizerConfig& config)
      : ElementwiseOptimizer(config, {"exp_avg", "exp_avg_slow", "exp_avg_sq"}) {}

 private:
  void update(Backend& backend, Stream& stream, const Piece& piece) override {
    backend.run(stream, AdemamixStep{.param = piece.range.param,
                                     .first_moment = piece.range.states[0],
                                     .slow_moment = piece.range.states[1],
                                     .second_moment = piece.range.states[2],
                                     .gradient = piece.range.gradient,
                                     .spans = piece.spans,
                                     .beta1 = config().beta1,
                                     .beta2 = config().beta2,
                                     .epsilon = config().epsilon,
                                     .step = piece.step,
                                     .compute_weights = piece.range.compute});
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_ademamix(const OptimizerConfig& config) {
  return std::make_unique<Ademamix>(config);
}

}  // namespace scaletrain
