#include "optim/factored_moments.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "optim/update_spans.h"
#include "store/rank_groups.h"

namespace scaletrain {

namespace {

std::size_t sums_at(std::int64_t first) {
  return static_cast<std::size_t>(first) * sizeof(double);
}

std::int64_t end_of(std::span<const FactorPlace> places) {
  return places.empty() ? 0 : places.back().first + places.back().rows + places.back().columns;
}

}  // namespace

double FactoredMoments::weight_at(std::int64_t update, double exponent) {
  SCALETRAIN_CHECK_LE(1, update);
  return std::pow(static_cast<double>(update), -exponent);
}

// A data rank counts the piece of a tensor that the layout gives it whatever the ZeRO stage, as norms do.
std::vector<FactoredMoments::Part> FactoredMoments::parts_of(const ParamTable& table, const ShardLayout& layout) {
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  std::vector<Part> parts;
  std::int64_t end = 0;
  for (const ParamRange& range : layout.piece_ranges(layout.position().data)) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(range.parameter)];
    if (!parameter.has_factors || range.count == 0 ||
        !ParamTable::is_first_replica(parameter, tensor_degree, layout.position().tensor))
      continue;
    const ParamSpan* span = layout.find(range.parameter);
    SCALETRAIN_CHECK(span != nullptr);
    Part part{.range = range, .columns = span->box.extent[1], .first_sum = end};
    part.first_row = span->box.first[0] + range.first / part.columns;
    part.first_column = span->box.first[1];
    part.offset_in_row = range.first % part.columns;
    part.rows = ceil_div(part.offset_in_row + range.count, part.columns);
    end += part.rows + part.columns;
    parts.push_back(part);
  }
  return parts;
}

std::size_t FactoredMoments::sums_of(std::span<const Part> parts) {
  const std::int64_t sums = parts.empty() ? 0 : parts.back().first_sum + parts.back().rows + parts.back().columns;
  return static_cast<std::size_t>(sums) * sizeof(double);
}

FactoredMoments::FactoredMoments(Backend& backend, const ParamStore& store, double exponent)
    : backend_(backend),
      store_(store),
      exponent_(exponent),
      parts_(parts_of(store.table(), store.layout())),
      sums_(backend, sums_of(parts_)),
      inverse_(backend, static_cast<std::size_t>(end_of(store.factor_places())) * size_of(store.options().dtype)),
      factors_(backend.allocate_pinned(static_cast<std::size_t>(end_of(store.factor_places())) *
                                       size_of(store.options().dtype))),
      totals_(static_cast<std::size_t>(end_of(store.factor_places()))) {}

std::int64_t FactoredMoments::num_summed(const ParamTable& table, const ShardLayout& layout) {
  return end_of(factor_places(table, layout));
}

std::size_t FactoredMoments::bytes(const ParamTable& table, const ShardLayout& layout, DType masters) {
  return sums_of(parts_of(table, layout)) + static_cast<std::size_t>(num_summed(table, layout)) * size_of(masters);
}

std::size_t FactoredMoments::host_bytes(const ParamTable& table, const ShardLayout& layout, DType masters) {
  return static_cast<std::size_t>(num_summed(table, layout)) * (size_of(masters) + sizeof(double));
}

View FactoredMoments::factors_image() const {
  const View factors = store_.factors();
  return factors_.view(0, factors.dtype(), factors.shape());
}

void FactoredMoments::issue(Stream& stream) {
  if (totals_.empty()) return;
  for (const Part& part : parts_) {
    const HeldValues found = store_.find(StateKind::gradient, part.range);
    backend_.run(stream, MatrixSquares{
                             .values = found.buffer.rows(found.first, part.range.count),
                             .first_column = part.offset_in_row,
                             .rows = sums_.device(sums_at(part.first_sum), DType::f64, {part.rows}),
                             .columns = sums_.device(sums_at(part.first_sum + part.rows), DType::f64, {part.columns})});
  }
  if (!parts_.empty()) sums_.to_host(stream);
  backend_.copy(stream, store_.factors(), factors_image());
  is_issued_ = true;
}

void FactoredMoments::update(Stream& stream, const StepScalars& step) {
  if (totals_.empty()) return;
  if (!is_issued_) {
    issue(stream);
    stream.synchronize();
  }
  is_issued_ = false;
  std::fill(totals_.begin(), totals_.end(), 0.0);
  for (const Part& part : parts_) {
    const FactorPlace& place = store_.factor_place(part.range.parameter);
    const double* sums = sums_.host(sums_at(part.first_sum), DType::f64, {part.rows + part.columns}).as<double>();
    double* rows = totals_.data() + place.first + part.first_row;
    for (std::int64_t i = 0; i < part.rows; ++i) rows[i] += sums[i];
    double* columns = totals_.data() + place.first + place.rows + part.first_column;
    for (std::int64_t i = 0; i < part.columns; ++i) columns[i] += sums[part.rows + i];
  }
  if (store_.options().groups != nullptr) sum_over_stage(*store_.options().groups, totals_);
  const View factors = store_.factors();
  for (const FactorPlace& place : store_.factor_places())
    factors.dtype() == DType::f64 ? renew<double>(place, step) : renew<float>(place, step);
  backend_.copy(stream, factors_image(), factors);
  inverse_.to_device(stream);
}

// The moment of an element is r·c / mean(r): the inverse root is a product of a row's and a column's.
template <class T>
void FactoredMoments::renew(const FactorPlace& place, const StepScalars& step) {
  const Parameter& parameter = store_.table().parameters()[static_cast<std::size_t>(place.parameter)];
  if (step.skip != 0 || parameter.joins_after > store_.updates()) return;
  const double weight = weight_at(store_.updates() + 1 - parameter.joins_after, exponent_);
  const double scale = step.gradient_scale * step.gradient_scale;
  const std::int64_t count = place.rows + place.columns;
  const auto whole = static_cast<std::int64_t>(totals_.size());
  T* const factors = factors_.view(0, store_.options().dtype, {whole}).template as<T>() + place.first;
  T* const inverse = inverse_.host(0, store_.options().dtype, {whole}).template as<T>() + place.first;
  const double* const totals = totals_.data() + place.first;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto summed = static_cast<double>(i < place.rows ? place.columns : place.rows);
    factors[i] = static_cast<T>((1.0 - weight) * static_cast<double>(factors[i]) + weight * totals[i] * scale / summed);
  }
  double mean = 0;
  for (std::int64_t i = 0; i < place.rows; ++i) mean += static_cast<double>(factors[i]);
  mean = mean > 0 ? mean / static_cast<double>(place.rows) : 1.0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double root = std::sqrt(static_cast<double>(factors[i]) / (i < place.rows ? mean : 1.0));
    // Of a row or column that no gradient ever reached: large, and no infinity, which times 0 would be no number.
    inverse[i] = static_cast<T>(1.0 / std::max(root, 1e-30));
  }
}

void FactoredMoments::make_directions(Stream& stream, const OptimizerRange& range, std::int64_t joins_after,
                                      ConstView step) const {
  const DType dtype = store_.options().dtype;
  const auto view = [&](std::int64_t first, std::int64_t count) {
    return inverse_.device(static_cast<std::size_t>(first) * size_of(dtype), dtype, {count});
  };
  for (const SpanPart& part : parts_in(store_.layout(), store_.table(), place_of(range))) {
    if (!part.parameter.has_factors || part.parameter.joins_after != joins_after) continue;
    const ParamSpan& span = part.span;
    const FactorPlace& place = store_.factor_place(span.parameter);
    const std::int64_t columns = span.box.extent[1];
    const std::int64_t element = range.first + part.first - span.offset;
    const std::int64_t rows = ceil_div(element % columns + part.count, columns);
    backend_.run(stream, FactoredDirection{.gradient = range.gradient.rows(part.first, part.count),
                                           .first_column = element % columns,
                                           .rows = view(place.first + span.box.first[0] + element / columns, rows),
                                           .columns = view(place.first + place.rows + span.box.first[1], columns),
                                           .largest = 1.0 / smallest_root,
                                           .step = step});
  }
}

}  // namespace scaletrain
