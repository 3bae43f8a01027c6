// SGD, with momentum and Nesterov's too, as PyTorch has them (dampening 0): the decay is part of the gradient.
#include "optim/optimizer_kinds.h"

namespace scaletrain {

namespace {

MomentumForm form_of(const OptimizerConfig& config) {
  if (config.momentum == 0) return MomentumForm::none;
  return config.nesterov ? MomentumForm::nesterov : MomentumForm::classical;
}

class Sgd final : public ElementwiseOptimizer {
 public:
  explicit Sgd(const OptimizerConfig& config)
      : ElementwiseOptimizer(config, form_of(config) == MomentumForm::none
                                         ? std::vector<std::string>{}
                                         : std::vector<std::string>{"momentum_buffer"}) {}

 private:
  void update(Backend& backend, Stream& stream, const Piece& piece) override {
    const MomentumForm form = form_of(config());
    backend.run(stream, SgdStep{.param = piece.range.param,
                                .gradient = piece.range.gradient,
                                .spans = piece.spans,
                                .step = piece.step,
                                .compute_weights = piece.range.compute,
                                .form = form,
                                .momentum_buffer = form == MomentumForm::none ? View() : piece.range.states[0],
                                .momentum = config().momentum});
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config) {
  return std::make_unique<Sgd>(config);
}

}  // namespace scaletrain
