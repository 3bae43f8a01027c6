// LAMB (You et al. 2020, algorithm 2, φ(z) = z): the direction of AdamW with its decay, as long as the tensor's
// weights. What does not decay (biases, norms) takes the direction as it is, as in the authors' code
// (`exclude_from_layer_ adaptation` is there what is excluded from decay).
//
// The direction is written in the gradient's place, its norm is measured there, and SGD follows it.
#include "base/numbers/checked.h"
#include "optim/optimizer_kinds.h"
#include "optim/tensor_norms.h"

namespace scaletrain {

namespace {

class Lamb final : public RangeOptimizer {
 public:
  explicit Lamb(const OptimizerConfig& config) : RangeOptimizer(config, {"exp_avg", "exp_avg_sq"}) {}

  std::int64_t num_summed(const ParamTable& table) const override { return TensorNorms::num_summed(table); }
  void prepare(Backend& backend, const ParamStore& store) override {
    RangeOptimizer::prepare(backend, store);
    if (!norms_) norms_.emplace(backend, store, decays);
  }

 private:
  void update_all(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) override {
    for_pieces(stream, store, {.weight_decay = config().weight_decay, .is_last = false}, [&](const Piece& piece) {
      backend.run(stream, AdamDirection{.param = piece.range.param,
                                        .gradient = piece.range.gradient,
                                        .first_moment = piece.range.states[0],
                                        .second_moment = piece.range.states[1],
                                        .spans = piece.spans,
                                        .beta1 = config().beta1,
                                        .beta2 = config().beta2,
                                        .epsilon = config().epsilon,
                                        .step = piece.step});
    });
    norms_->measure(stream);
    set_scalars(stream, store, {.learning_rate = step.learning_rate, .skip = step.skip});
    const std::vector<double> ratios = trust_ratios(store.table());
    for_pieces(stream, store, {.factors = ratios},
               [&](const Piece& piece) { follow_direction(backend, stream, piece); });
  }

  std::vector<double> trust_ratios(const ParamTable& table) const {
    std::vector<double> ratios(table.parameters().size(), 1.0);
    for (std::size_t index = 0; index < ratios.size(); ++index) {
      const double weights = norms_->of_weights(narrow<int>(index));
      const double direction = norms_->of_gradient(narrow<int>(index));
      if (weights > 0 && direction > 0) ratios[index] = weights / direction;
    }
    return ratios;
  }

  std::optional<TensorNorms> norms_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerConfig& config) {
  return std::make_unique<Lamb>(config);
}

}  // namespace scaletrain
