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

GradientSquares::GradientSquares(Backend& backend, const ParamStore& store, int results)
    : GradientSquares(backend, store, counted_ranges(store), results) {}

GradientSquares::GradientSquares(Backend& backend, const ParamStore& store, const std::vector<ParamRange>& ranges,
                                 int results)
    : backend_(backend),
      table_order_(ranges.size()),
      sums_(backend, static_cast<std::size_t>(results) * ranges.size() * sizeof(double)) {
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

View GradientSquares::sums_of(int result) const {
  const std::size_t count = table_order_.size();
  return sums_.device(static_cast<std::size_t>(result) * count * sizeof(double), DType::f64,
                      {narrow<std::int64_t>(count)});
}

void GradientSquares::issue(Stream& stream, int result) {
  const View sums = sums_of(result);
  for (const Counted& counted : counted_)
    backend_.run(stream, SumsOfSquares{.values = counted.gradients,
                                       .spans = counted.spans,
                                       .results = sums.rows(narrow<std::int64_t>(counted.first_sum),
                                                            narrow<std::int64_t>(counted.spans.size()))});
  sums_.to_host(stream, sums);
}

double GradientSquares::share(int result) const {
  const std::size_t count = table_order_.size();
  const double* const sums =
      sums_.host(static_cast<std::size_t>(result) * count * sizeof(double), DType::f64, {narrow<std::int64_t>(count)})
          .as<double>();
  double total = 0;
  for (const std::size_t index : table_order_) total += sums[index];
  return total;
}

}  // namespace scaletrain
