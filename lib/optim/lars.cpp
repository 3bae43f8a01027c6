// LARS (You et al. 2017, algorithm 1): SGD with momentum whose rate is, for each tensor, the trust coefficient times
// the norm of its weights over that of its gradient and decay: η·‖w‖ / (‖g‖ + decay·‖w‖). The rate is inside the
// momentum. What does not decay (biases, norms) has the rate as it is, as in the authors' code for TPUs
// (`skip_list`).
#include "base/numbers/checked.h"
#include "optim/optimizer_kinds.h"
#include "optim/tensor_norms.h"

namespace scaletrain {

namespace {

bool remembers(const OptimizerConfig& config) {
  return config.momentum > 0;
}

class Lars final : public RangeOptimizer {
 public:
  explicit Lars(const OptimizerConfig& config)
      : RangeOptimizer(config,
                       remembers(config) ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{}) {}

  std::int64_t num_summed(const ParamTable& table) const override { return TensorNorms::num_summed(table); }
  void prepare(Backend& backend, const ParamStore& store) override {
    RangeOptimizer::prepare(backend, store);
    if (!norms_) norms_.emplace(backend, store, decays);
  }
  void issue_sums(Stream& stream) override { norms_->issue(stream); }

 private:
  void update_all(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) override {
    norms_->measure(stream);
    const std::vector<double> ratios = trust_ratios(store.table(), step.gradient_scale);
    for_pieces(stream, store, {.weight_decay = config().weight_decay, .factors = ratios}, [&](const Piece& piece) {
      backend.run(stream, SgdStep{.param = piece.range.param,
                                  .gradient = piece.range.gradient,
                                  .spans = piece.spans,
                                  .step = piece.step,
                                  .compute_weights = piece.range.compute,
                                  .form = remembers(config()) ? MomentumForm::scaled : MomentumForm::none,
                                  .momentum_buffer = remembers(config()) ? piece.range.states[0] : View(),
                                  .momentum = config().momentum});
    });
  }

  std::vector<double> trust_ratios(const ParamTable& table, double gradient_scale) const {
    std::vector<double> ratios(table.parameters().size(), 1.0);
    for (std::size_t index = 0; index < ratios.size(); ++index) {
      const double weights = norms_->of_weights(narrow<int>(index));
      const double gradient = norms_->of_gradient(narrow<int>(index)) * gradient_scale;
      const double decay = config().weight_decay * table.parameters()[index].decay_factor;
      if (weights > 0 && gradient > 0)
        ratios[index] = config().trust_coefficient * weights / (gradient + decay * weights);
    }
    return ratios;
  }

  std::optional<TensorNorms> norms_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(const OptimizerConfig& config) {
  return std::make_unique<Lars>(config);
}

}  // namespace scaletrain
