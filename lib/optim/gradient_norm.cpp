#include "optim/gradient_norm.h"

#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

std::vector<ParamRange> counted_ranges(const ParamStore& store) {
  const ShardLayout& layout = store.layout();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  std::vector<ParamRange> counted = layout.shard_ranges(layout.position().data);
  std::erase_if(counted, [&](const ParamRange& range) {
    const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
    return parameter.role != ParamRole::trained || parameter.tied_to ||
           !ParamTable::is_first_replica(parameter, tensor_degree, layout.position().tensor);
  });
  std::sort(counted.begin(), counted.end(),
            [](const ParamRange& a, const ParamRange& b) { return a.parameter < b.parameter; });
  return counted;
}

}  // namespace

GradientSquares::GradientSquares(Backend& backend, const ParamStore& store)
    : backend_(backend),
      store_(store),
      counted_(counted_ranges(store)),
      sums_(backend, counted_.size() * sizeof(double)) {}

void GradientSquares::issue(Stream& stream) {
  std::size_t offset = 0;
  for (const ParamRange& range : counted_) {
    backend_.run(stream, SumOfSquares{.values = store_.values(StateKind::gradient, range),
                                      .result = sums_.device(offset, DType::f64, {1})});
    offset += sizeof(double);
  }
  sums_.to_host(stream);
}

double GradientSquares::share() const {
  const auto count = narrow<std::int64_t>(counted_.size());
  double total = 0;
  for (std::int64_t index = 0; index < count; ++index) total += sums_.host(0, DType::f64, {count}).as<double>()[index];
  return total;
}

}  // namespace scaletrain
