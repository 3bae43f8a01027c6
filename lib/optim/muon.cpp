// Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"), with the decay and the scale of
// steps of Liu et al. 2025 ("Muon is scalable for LLM training"): the matrices of blocks step along their momentum,
// made orthogonal; embeddings, head, norms and biases are AdamW's. Each stored tensor is a matrix of its own.
//
// The direction of a matrix is written in the gradient's place, normed there to length 1, made orthogonal by who
// updates elements of it (whole_matrices.h), put back, and SGD follows it.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "optim/optimizer_kinds.h"
#include "optim/tensor_norms.h"
#include "optim/whole_matrices.h"

namespace scaletrain {

namespace {

// Below it a direction is rounding: as in the authors' code.
constexpr double smallest_norm = 1e-7;

double length_of_step(StepScale scale, const Shape& shape) {
  const auto rows = static_cast<double>(shape[0]);
  const auto columns = static_cast<double>(shape[1]);
  switch (scale) {
    case StepScale::original:
      return std::sqrt(std::max(1.0, rows / columns));
    case StepScale::match_rms_adamw:
      return 0.2 * std::sqrt(std::max(rows, columns));
  }
  SCALETRAIN_CHECK(false);
}

bool is_left_to_adamw(const Parameter& parameter) {
  return !is_orthogonalised(parameter);
}

class Muon final : public RangeOptimizer {
 public:
  explicit Muon(const OptimizerConfig& config) : RangeOptimizer(config, {"exp_avg", "exp_avg_sq"}) {}

  int absent_state(const Parameter& parameter) const override { return is_orthogonalised(parameter) ? 1 : -1; }
  std::int64_t num_summed(const ParamTable& table) const override { return TensorNorms::num_summed(table); }
  std::vector<GroupCall> calls(const ParamTable& table, const ShardLayout& layout,
                               const ParamStore::Options& options) const override {
    return WholeMatrices(table, layout, options).calls();
  }
  std::size_t workspace_bytes(const ParamTable& table, const ShardLayout& layout,
                              const ParamStore::Options& options) const override {
    return WholeMatrices(table, layout, options).bytes();
  }
  std::string workspace_name() const override { return "whole matrices of the update"; }
  double product_flops(const ParamTable& table, const ShardLayout& layout,
                       const ParamStore::Options& options) const override {
    const WholeMatrices matrices(table, layout, options);
    double flops = 0;
    for (const MatrixBucket& bucket : matrices.buckets())
      for (const LocalMatrix& matrix : bucket.matrices) {
        const Shape& shape = table.parameters()[static_cast<std::size_t>(matrix.parameter)].shape;
        if (matrix.is_updated) flops += NewtonSchulz::flops(shape[0], shape[1]);
      }
    return flops;
  }
  void prepare(Backend& backend, const ParamStore& store) override {
    RangeOptimizer::prepare(backend, store);
    if (norms_) return;
    norms_.emplace(backend, store, is_orthogonalised, MeasuredNorms::gradients);
    matrices_.emplace(backend, store);
  }

 private:
  void update_all(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) override {
    update_by_adamw(backend, stream, store);
    make_directions(backend, stream, store);
    norms_->measure(stream);
    scale_gradients(backend, stream, store, is_orthogonalised,
                    [this](int parameter) { return 1.0 / std::max(norms_->of_gradient(parameter), smallest_norm); });
    matrices_->orthogonalise(
        stream, [this](int buffer, std::int64_t first, std::int64_t count) { return place_of(buffer, first, count); });
    scale_gradients(backend, stream, store, is_orthogonalised, [&](int parameter) {
      return length_of_step(config().step_scale, store.table().parameters()[static_cast<std::size_t>(parameter)].shape);
    });
    set_scalars(stream, store, {.learning_rate = step.learning_rate, .skip = step.skip});
    const Pass pass{.weight_decay = config().weight_decay, .is_chosen = is_orthogonalised};
    for_pieces(stream, store, pass, [&](const Piece& piece) { follow_direction(backend, stream, piece); });
  }

  void update_by_adamw(Backend& backend, Stream& stream, ParamStore& store) {
    const std::vector<double> factors(store.table().parameters().size(), config().adamw_rate);
    const Pass pass{
        .weight_decay = config().weight_decay, .factors = factors, .is_chosen = is_left_to_adamw, .is_last = false};
    for_pieces(stream, store, pass, [&](const Piece& piece) { run_adamw(backend, stream, piece); });
  }

  void make_directions(Backend& backend, Stream& stream, ParamStore& store) {
    ranges_.clear();
    store.update_ranges(
        stream, [&](const OptimizerRange& range) { ranges_.push_back(range); }, false);
    for_pieces(stream, store, {.is_chosen = is_orthogonalised, .is_last = false}, [&](const Piece& piece) {
      backend.run(stream, MomentumDirection{.gradient = piece.range.gradient,
                                            .momentum = piece.range.states[0],
                                            .spans = piece.spans,
                                            .beta = config().momentum,
                                            .nesterov = config().nesterov,
                                            .step = piece.step});
    });
  }

  View place_of(int buffer, std::int64_t first, std::int64_t count) const {
    const auto found = std::find_if(ranges_.begin(), ranges_.end(), [&](const OptimizerRange& range) {
      return range.buffer == buffer && range.first <= first &&
             first + count <= range.first + range.gradient.num_elements();
    });
    SCALETRAIN_CHECK(found != ranges_.end());
    return found->gradient.rows(first - found->first, count);
  }

  std::optional<TensorNorms> norms_;
  std::optional<MatrixWork> matrices_;
  std::vector<OptimizerRange> ranges_;  // of the step at hand
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerConfig& config) {
  return std::make_unique<Muon>(config);
}

}  // namespace scaletrain
