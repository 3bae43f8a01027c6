#include "optim/gradient_norm.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

// By flat buffer, ascending in it.
std::vector<ParamRange> counted_ranges(const ParamStore& store) {
  const ShardLayout& layout = store.layout();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  std::vector<ParamRange> counted = layout.piece_ranges(layout.position().data);
  std::erase_if(counted, [&](const ParamRange& range) {
    const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
    return parameter.role != ParamRole::trained || parameter.tied_to ||
           !ParamTable::is_first_replica(parameter, tensor_degree, layout.position().tensor);
  });
  return counted;
}

}  // namespace

GradientSquares::GradientSquares(Backend& backend, const ParamStore& store)
    : GradientSquares(backend, store, counted_ranges(store)) {}

GradientSquares::GradientSquares(Backend& backend, const ParamStore& store, const std::vector<ParamRange>& ranges)
    : backend_(backend), table_order_(ranges.size()), sums_(backend, ranges.size() * sizeof(double)) {
  for (std::size_t index = 0; index < ranges.size(); ++index) {
    const ParamRange& range = ranges[index];
    const HeldValues found = store.find(StateKind::gradient, range);
    if (index == 0 || range.buffer != ranges[index - 1].buffer)
      counted_.push_back({.gradients = found.buffer, .spans = {}, .first_sum = index});
    counted_.back().spans.push_back({.first = found.first, .count = range.count});
  }
  std::iota(table_order_.begin(), table_order_.end(), std::size_t{0});
  std::sort(table_order_.begin(), table_order_.end(),
            [&](std::size_t a, std::size_t b) { return ranges[a].parameter < ranges[b].parameter; });
}

void GradientSquares::issue(Stream& stream) {
  for (const Counted& counted : counted_)
    backend_.run(stream, SumsOfSquares{.values = counted.gradients,
                                       .spans = counted.spans,
                                       .results = sums_.device(counted.first_sum * sizeof(double), DType::f64,
                                                               {narrow<std::int64_t>(counted.spans.size())})});
  sums_.to_host(stream);
}

double GradientSquares::share() const {
  const double* const sums = sums_.host(0, DType::f64, {narrow<std::int64_t>(table_order_.size())}).as<double>();
  double total = 0;
  for (const std::size_t index : table_order_) total += sums[index];
  return total;
}

}  // namespace scaletrain
