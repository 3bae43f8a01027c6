// AdamW (Loshchilov and Hutter 2019); with its moments in 8 bits where the store has them so (Dettmers et al. 2022).
#include "optim/optimizer_kinds.h"

namespace scaletrain {

namespace {

class AdamW final : public ElementwiseOptimizer {
 public:
  explicit AdamW(const OptimizerConfig& config) : ElementwiseOptimizer(config, {"exp_avg", "exp_avg_sq"}) {}

 private:
  void update(Backend& backend, Stream& stream, const Piece& piece) override {
    if (piece.range.state_block > 0) return update_blocks(backend, stream, piece);
    run_adamw(backend, stream, piece);
  }

  void update_blocks(Backend& backend, Stream& stream, const Piece& piece) {
    backend.run(stream, BlockAdamWStep{.param = piece.range.param,
                                       .first_codes = piece.range.states[0],
                                       .second_codes = piece.range.states[1],
                                       .first_scales = piece.range.scales[0],
                                       .second_scales = piece.range.scales[1],
                                       .gradient = piece.range.gradient,
                                       .spans = piece.spans,
                                       .block = piece.range.state_block,
                                       .beta1 = config().beta1,
                                       .beta2 = config().beta2,
                                       .epsilon = config().epsilon,
                                       .step = piece.step,
                                       .compute_weights = piece.range.compute});
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config) {
  return std::make_unique<AdamW>(config);
}

}  // namespace scaletrain
