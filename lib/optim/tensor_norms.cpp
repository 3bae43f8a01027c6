#include "optim/tensor_norms.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "store/rank_groups.h"

namespace scaletrain {

namespace {

// By flat buffer, ascending in it.
std::vector<ParamRange> measured_ranges(const ParamStore& store, const ParameterChoice& is_measured) {
  const ShardLayout& layout = store.layout();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  std::vector<ParamRange> ranges = layout.piece_ranges(layout.position().data);
  std::erase_if(ranges, [&](const ParamRange& range) {
    const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
    return parameter.role != ParamRole::trained || (is_measured && !is_measured(parameter)) || parameter.tied_to ||
           !ParamTable::is_first_replica(parameter, tensor_degree, layout.position().tensor);
  });
  return ranges;
}

}  // namespace

TensorNorms::TensorNorms(Backend& backend, const ParamStore& store, const ParameterChoice& is_measured,
                         MeasuredNorms norms)
    : backend_(backend),
      store_(store),
      sums_(backend,
            (norms == MeasuredNorms::gradients ? 1 : 2) * measured_ranges(store, is_measured).size() * sizeof(double)),
      totals_(static_cast<std::size_t>(num_summed(store.table()))) {
  const std::vector<ParamRange> ranges = measured_ranges(store, is_measured);
  if (norms == MeasuredNorms::weights_and_gradients) count(StateKind::master, ranges);
  count(StateKind::gradient, ranges);
}

void TensorNorms::count(StateKind kind, const std::vector<ParamRange>& ranges) {
  const std::size_t first_total = kind == StateKind::master ? 0 : store_.table().parameters().size();
  for (std::size_t index = 0; index < ranges.size(); ++index) {
    const ParamRange& range = ranges[index];
    const HeldValues found = store_.find(kind, range);
    if (index == 0 || range.buffer != ranges[index - 1].buffer)
      counted_.push_back({.values = found.buffer, .spans = {}, .first_sum = sum_of_.size()});
    counted_.back().spans.push_back({.first = found.first, .count = range.count});
    sum_of_.push_back(first_total + static_cast<std::size_t>(range.parameter));
  }
}

std::int64_t TensorNorms::num_summed(const ParamTable& table) {
  return 2 * narrow<std::int64_t>(table.parameters().size());
}

void TensorNorms::issue(Stream& stream) {
  for (const Counted& counted : counted_)
    backend_.run(stream, SumsOfSquares{.values = counted.values,
                                       .spans = counted.spans,
                                       .results = sums_.device(counted.first_sum * sizeof(double), DType::f64,
                                                               {narrow<std::int64_t>(counted.spans.size())})});
  sums_.to_host(stream);
  is_issued_ = true;
}

void TensorNorms::measure(Stream& stream) {
  if (!is_issued_) {
    issue(stream);
    stream.synchronize();
  }
  is_issued_ = false;
  std::fill(totals_.begin(), totals_.end(), 0.0);
  if (!sum_of_.empty()) {
    const double* const sums = sums_.host(0, DType::f64, {narrow<std::int64_t>(sum_of_.size())}).as<double>();
    for (std::size_t index = 0; index < sum_of_.size(); ++index) totals_[sum_of_[index]] += sums[index];
  }
  const RankGroups* const groups = store_.options().groups;
  if (groups != nullptr) sum_over_world(*groups, totals_);
}

double TensorNorms::of_weights(int parameter) const {
  const ParamTable& table = store_.table();
  const auto& owner = table.parameters()[static_cast<std::size_t>(parameter)].tied_to;
  return std::sqrt(totals_[static_cast<std::size_t>(owner ? table.index_of(*owner) : parameter)]);
}

double TensorNorms::of_gradient(int parameter) const {
  const ParamTable& table = store_.table();
  const auto& owner = table.parameters()[static_cast<std::size_t>(parameter)].tied_to;
  const int index = owner ? table.index_of(*owner) : parameter;
  return std::sqrt(totals_[table.parameters().size() + static_cast<std::size_t>(index)]);
}

}  // namespace scaletrain
