#include "optim/optimizer_kinds.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "optim/step_scalars.h"

namespace scaletrain {

namespace {
constexpr std::size_t most_set = 2;

std::vector<std::int64_t> joinings_of(const ParamTable& table) {
  std::set<std::int64_t> found;
  for (const Parameter& parameter : table.parameters())
    if (parameter.role == ParamRole::trained) found.insert(parameter.joins_after);
  return {found.begin(), found.end()};
}

}  // namespace

void RangeOptimizer::prepare(Backend& backend, const ParamStore& store) {
  if (scalars_) return;
  joinings_ = joinings_of(store.table());
  scalars_.emplace(backend, most_set * std::max<std::size_t>(1, joinings_.size()) * sizeof(StepScalars));
}

void RangeOptimizer::step(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) {
  const std::vector<std::string>& held = store.options().state_names;  // others may follow (weight_average.h)
  SCALETRAIN_CHECK(held.size() >= state_names_.size());
  SCALETRAIN_CHECK(std::equal(state_names_.begin(), state_names_.end(), held.begin()));
  spans_.clear();
  prepare(backend, store);
  num_set_ = 0;
  set_scalars(stream, store, step);
  update_all(backend, stream, store, step);
  store.updated(stream);
}

void RangeOptimizer::set_scalars(Stream& stream, const ParamStore& store, const StepScalars& step) {
  SCALETRAIN_CHECK_LT(num_set_, most_set);
  const std::size_t first = num_set_++ * joinings_.size();
  for (std::size_t i = 0; i < joinings_.size(); ++i) {
    StepScalars of_joined = step;
    if (joinings_[i] > 0 && joinings_[i] <= store.updates())
      set_bias_corrections(of_joined, config_.beta1, config_.beta2, store.updates() + 1 - joinings_[i]);
    const std::size_t place = (first + i) * sizeof(StepScalars);
    std::memcpy(scalars_->host(place, DType::f64, {num_step_scalars}).as<double>(), &of_joined, sizeof(of_joined));
    scalars_->to_device(stream, scalars_->device(place, DType::f64, {num_step_scalars}));
  }
}

void RangeOptimizer::for_pieces(Stream& stream, ParamStore& store, const Pass& pass, const Update& update) {
  const std::size_t first = (num_set_ - 1) * joinings_.size();
  store.update_ranges(
      stream,
      [&](const OptimizerRange& range) {
        for (std::size_t i = 0; i < joinings_.size(); ++i) {
          if (joinings_[i] > store.updates()) continue;
          spans_.push_back(update_spans(store.layout(), store.table(), place_of(range), pass.weight_decay, pass.factors,
                                        joinings_[i], pass.is_chosen));
          if ((joinings_.size() > 1 || pass.is_chosen) && spans_.back().empty()) continue;
          update({range, spans_.back(),
                  scalars_->device((first + i) * sizeof(StepScalars), DType::f64, {num_step_scalars})});
        }
      },
      pass.is_last);
}

void RangeOptimizer::follow_direction(Backend& backend, Stream& stream, const Piece& piece) {
  backend.run(stream, SgdStep{.param = piece.range.param,
                              .gradient = piece.range.gradient,
                              .spans = piece.spans,
                              .step = piece.step,
                              .compute_weights = piece.range.compute});
}

void RangeOptimizer::run_adamw(Backend& backend, Stream& stream, const Piece& piece) const {
  backend.run(stream, AdamWStep{.param = piece.range.param,
                                .first_moment = piece.range.states[0],
                                .second_moment = piece.range.states[1],
                                .gradient = piece.range.gradient,
                                .spans = piece.spans,
                                .beta1 = config_.beta1,
                                .beta2 = config_.beta2,
                                .epsilon = config_.epsilon,
                                .step = piece.step,
                                .compute_weights = piece.range.compute});
}

void RangeOptimizer::scale_gradients(Backend& backend, Stream& stream, ParamStore& store,
                                     const ParameterChoice& is_chosen,
                                     const std::function<double(int parameter)>& factor_of) {
  const auto scale = [&](const OptimizerRange& range) {
    std::vector<UpdateSpan>& spans = spans_.emplace_back();
    for (const SpanPart& part : parts_in(store.layout(), store.table(), place_of(range))) {
      if (is_chosen && !is_chosen(part.parameter)) continue;
      spans.push_back({.first = part.first, .count = part.count, .rate_factor = factor_of(part.span.parameter)});
    }
    if (!spans.empty()) backend.run(stream, ScaleSpans{.values = range.gradient, .spans = spans});
  };
  store.update_ranges(stream, scale, false);
}

std::vector<std::int64_t> RangeOptimizer::joined(const ParamStore& store) const {
  std::vector<std::int64_t> joined;
  for (const std::int64_t updates : joinings_)
    if (updates <= store.updates()) joined.push_back(updates);
  return joined;
}

void ElementwiseOptimizer::update_all(Backend& backend, Stream& stream, ParamStore& store, const StepScalars&) {
  for_pieces(stream, store, {.weight_decay = config().weight_decay},
             [&](const Piece& piece) { update(backend, stream, piece); });
}

}  // namespace scaletrain
