// Adafactor (Shazeer and Stern 2018, algorithm 4 without a first moment), as PyTorch's: matrices keep second moments by
// rows and columns (factored_moments.h), vectors whole ones. What is divided by their roots is clipped by its root mean
// square, tensor by tensor, and steps in proportion to the tensor's own. The rate is the schedule's alone: the paper's
// falls as 1/sqrt(t), which is inverse_sqrt. Decay is decoupled.
//
// The direction is written in the gradient's place, measured there together with the weights, scaled, and SGD follows
// it.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "optim/factored_moments.h"
#include "optim/optimizer_kinds.h"
#include "optim/tensor_norms.h"

namespace scaletrain {

namespace {

bool is_factored(const Parameter& parameter) {
  return parameter.shape.num_dims() == 2;
}

double root_mean_square(double norm, const Parameter& parameter) {
  return norm / std::sqrt(static_cast<double>(parameter.shape.num_elements()));
}

class Adafactor final : public RangeOptimizer {
 public:
  explicit Adafactor(const OptimizerConfig& config) : RangeOptimizer(config, {"variance"}) {}

  int absent_state(const Parameter& parameter) const override { return is_factored(parameter) ? 0 : -1; }
  bool keeps_factors() const override { return true; }
  std::int64_t num_summed_over_stage(const ParamTable& table, const ShardLayout& layout) const override {
    return FactoredMoments::num_summed(table, layout);
  }
  std::int64_t num_summed(const ParamTable& table) const override { return TensorNorms::num_summed(table); }
  std::size_t workspace_bytes(const ParamTable& table, const ShardLayout& layout,
                              const ParamStore::Options& options) const override {
    return FactoredMoments::bytes(table, layout, options.dtype);
  }
  std::string workspace_name() const override { return "sums of the update"; }
  std::size_t host_bytes(const ParamTable& table, const ShardLayout& layout,
                         const ParamStore::Options& options) const override {
    return FactoredMoments::host_bytes(table, layout, options.dtype);
  }
  void prepare(Backend& backend, const ParamStore& store) override {
    RangeOptimizer::prepare(backend, store);
    if (norms_) return;
    for (const Parameter& parameter : store.table().parameters())
      if (parameter.role == ParamRole::trained) SCALETRAIN_CHECK_EQ(parameter.has_factors, is_factored(parameter));
    norms_.emplace(backend, store);
    moments_.emplace(backend, store, config().beta2_exponent);
  }
  void issue_sums(Stream& stream) override { moments_->issue(stream); }

 private:
  void update_all(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) override {
    moments_->update(stream, step);
    for (const std::int64_t joins_after : joined(store)) make_directions(backend, stream, store, joins_after);
    norms_->measure(stream);
    scale_gradients(backend, stream, store, {}, [&](int index) {
      const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(index)];
      const double weights = root_mean_square(norms_->of_weights(index), parameter);
      const double direction = root_mean_square(norms_->of_gradient(index), parameter);
      return std::max(weights, config().smallest_scale) / std::max(1.0, direction / config().clip_threshold);
    });
    set_scalars(stream, store, {.learning_rate = step.learning_rate, .skip = step.skip});
    for_pieces(stream, store, {.weight_decay = config().weight_decay},
               [&](const Piece& piece) { follow_direction(backend, stream, piece); });
  }

  void make_directions(Backend& backend, Stream& stream, ParamStore& store, std::int64_t joins_after) {
    const auto chosen = [joins_after](bool factored) {
      return [=](const Parameter& parameter) {
        return parameter.joins_after == joins_after && is_factored(parameter) == factored;
      };
    };
    for_pieces(stream, store, {.is_chosen = chosen(true), .is_last = false},
               [&](const Piece& piece) { moments_->make_directions(stream, piece.range, joins_after, piece.step); });
    const double weight = FactoredMoments::weight_at(store.updates() + 1 - joins_after, config().beta2_exponent);
    for_pieces(stream, store, {.is_chosen = chosen(false), .is_last = false}, [&](const Piece& piece) {
      backend.run(stream, RmsDirection{.gradient = piece.range.gradient,
                                       .second_moment = piece.range.states[0],
                                       .spans = piece.spans,
                                       .weight = weight,
                                       .smallest = FactoredMoments::smallest_root,
                                       .step = piece.step});
    });
  }

  std::optional<TensorNorms> norms_;
  std::optional<FactoredMoments> moments_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config) {
  return std::make_unique<Adafactor>(config);
}

}  // namespace scaletrain
