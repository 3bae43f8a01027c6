#include "optim/weight_average.h"

#include "base/error.h"
#include "optim/optimizer.h"

namespace scaletrain {

namespace {

const View& average_of(const OptimizerRange& range) {
  SCALETRAIN_CHECK(!range.states.empty());
  return range.states.back();
}

void check_has_average(const ParamStore& store) {
  const std::vector<std::string>& names = store.options().state_names;
  SCALETRAIN_CHECK(!names.empty() && names.back() == WeightAverage::state_name);
}

}  // namespace

void WeightAverage::begin(Backend& backend, Stream& stream, ParamStore& store, std::int64_t number) const {
  SCALETRAIN_CHECK_LE(1, number);
  check_has_average(store);
  // The states begin as zeros, to which the first update adds all of the weights.
  const double decay = number == 1 ? 0.0 : config_.decay;
  store.follow_updates([&backend, &stream, decay](const OptimizerRange& range) {
    backend.run(stream, AverageStep{.average = average_of(range), .param = range.param, .decay = decay});
  });
}

void WeightAverage::swap(Backend& backend, Stream& stream, ParamStore& store) {
  check_has_average(store);
  store.update_ranges(stream, [&](const OptimizerRange& range) {
    backend.run(stream, Swap{.a = range.param, .b = average_of(range)});
    if (range.compute) backend.run(stream, Copy{.input = range.param, .output = range.compute});
  });
  store.updated(stream);
}

std::vector<std::string> training_states(const TrainConfig& config) {
  const auto optimizer = make_optimizer(config.optimizer);
  std::vector<std::string> names(optimizer->state_names().begin(), optimizer->state_names().end());
  if (config.ema) names.emplace_back(WeightAverage::state_name);
  return names;
}

}  // namespace scaletrain
