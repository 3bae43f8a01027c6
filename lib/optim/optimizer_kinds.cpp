#include "optim/optimizer_kinds.h"

#include <cstring>

#include "base/error.h"

namespace scaletrain {

namespace {
constexpr std::size_t most_set = 2;
}  // namespace

void RangeOptimizer::prepare(Backend& backend, const ParamStore&) {
  if (!scalars_) scalars_.emplace(backend, most_set * sizeof(StepScalars));
}

void RangeOptimizer::step(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) {
  SCALETRAIN_CHECK(store.options().state_names == state_names_);
  spans_.clear();
  prepare(backend, store);
  num_set_ = 0;
  set_scalars(stream, step);
  update_all(backend, stream, store, step);
  store.updated(stream);
}

void RangeOptimizer::set_scalars(Stream& stream, const StepScalars& step) {
  SCALETRAIN_CHECK_LT(num_set_, most_set);
  const std::size_t place = num_set_++ * sizeof(StepScalars);
  std::memcpy(scalars_->host(place, DType::f64, {num_step_scalars}).as<double>(), &step, sizeof(step));
  scalars_->to_device(stream, scalars_->device(place, DType::f64, {num_step_scalars}));
}

void RangeOptimizer::for_pieces(Stream& stream, ParamStore& store, double weight_decay, std::span<const double> factors,
                                const Update& update) {
  const ConstView scalars = scalars_->device((num_set_ - 1) * sizeof(StepScalars), DType::f64, {num_step_scalars});
  store.update_ranges(stream, [&](const OptimizerRange& range) {
    spans_.push_back(update_spans(store.layout(), store.table(),
                                  {.buffer = range.buffer, .first = range.first, .count = range.param.num_elements()},
                                  weight_decay, factors));
    update({range, spans_.back(), scalars});
  });
}

void ElementwiseOptimizer::update_all(Backend& backend, Stream& stream, ParamStore& store, const StepScalars&) {
  for_pieces(stream, store, config().weight_decay, {}, [&](const Piece& piece) { update(backend, stream, piece); });
}

}  // namespace scaletrain
