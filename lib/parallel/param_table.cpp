#include "parallel/param_table.h"

#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// The part of `extent` indices that a rank holds, when they fall into `pieces` that must stay whole.
Range held_range(const Split& split, std::int64_t extent, std::int64_t degree, std::int64_t rank) {
  const std::int64_t pieces = split.pieces == 0 ? extent : split.pieces;
  if (pieces == 0) return {};
  const std::int64_t piece = div_exact(extent, pieces);
  if (split.kind == Split::Kind::grouped && pieces < degree) {
    return {rank / div_exact(degree, pieces) * piece, piece};
  }
  if (split.kind == Split::Kind::grouped) div_exact(pieces, degree);
  const std::int64_t per_rank = ceil_div(pieces, degree);
  const std::int64_t first = std::min(rank * per_rank, pieces);
  const std::int64_t last = std::min((rank + 1) * per_rank, pieces);
  return {first * piece, (last - first) * piece};
}

bool has_rows_divided(const Parameter& parameter) {
  return parameter.split.kind != Split::Kind::replicated && parameter.split.dim == 1;
}

struct NameLess {
  bool operator()(const std::pair<std::string, int>& entry, std::string_view name) const { return entry.first < name; }
};

}  // namespace

std::int64_t Box::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t length : extent) count = checked_mul(count, length);
  return count;
}

void ParamTable::begin_unit(std::string name) {
  SCALETRAIN_CHECK(!name.empty());
  units_.push_back({.name = std::move(name), .first_parameter = narrow<int>(parameters_.size()), .num_parameters = 0});
}

void ParamTable::add(Parameter parameter) {
  SCALETRAIN_CHECK(!units_.empty() && !parameter.name.empty());
  const auto place = std::lower_bound(by_name_.begin(), by_name_.end(), std::string_view(parameter.name), NameLess{});
  const bool is_new = place == by_name_.end() || place->first != parameter.name;
  SCALETRAIN_CHECK(is_new);
  if (parameter.split.kind != Split::Kind::replicated) {
    SCALETRAIN_CHECK(!parameter.sequence_partial);
    SCALETRAIN_CHECK(parameter.split.dim >= 0 && parameter.split.dim < parameter.shape.num_dims());
    SCALETRAIN_CHECK(parameter.split.kind == Split::Kind::cut || parameter.split.pieces > 0);
  }
  if (parameter.tied_to) {
    const Parameter* owner = find(*parameter.tied_to);
    SCALETRAIN_CHECK(owner != nullptr && !owner->tied_to);
    SCALETRAIN_CHECK_EQ(owner->shape, parameter.shape);
    SCALETRAIN_CHECK(owner->split == parameter.split && owner->role == parameter.role &&
                     owner->dtype == parameter.dtype);
  }
  if (!parameter.fused.empty()) {
    SCALETRAIN_CHECK(!parameter.tied_to);
    const auto of_unit =
        std::span<const Parameter>(parameters_).subspan(static_cast<std::size_t>(units_.back().first_parameter));
    const bool begun = std::any_of(of_unit.begin(), of_unit.end(),
                                   [&](const Parameter& other) { return other.fused == parameter.fused; });
    if (begun) {
      const Parameter& last = of_unit.back();
      SCALETRAIN_CHECK_EQ(last.fused, parameter.fused);
      SCALETRAIN_CHECK(last.role == parameter.role && last.dtype == parameter.dtype);
      SCALETRAIN_CHECK_EQ(last.shape.num_dims(), parameter.shape.num_dims());
    }
  }
  parameter.unit = narrow<int>(units_.size()) - 1;
  by_name_.insert(place, {parameter.name, narrow<int>(parameters_.size())});
  parameters_.push_back(std::move(parameter));
  ++units_.back().num_parameters;
}

void ParamTable::freeze(const std::function<bool(const Parameter&)>& is_chosen) {
  const Parameter* before = nullptr;
  for (Parameter& parameter : parameters_) {
    if (is_chosen(parameter)) parameter.role = ParamRole::frozen;
    if (parameter.tied_to) SCALETRAIN_CHECK(find(*parameter.tied_to)->role == parameter.role);
    const bool is_continued = before != nullptr && !parameter.fused.empty() && before->unit == parameter.unit &&
                              before->fused == parameter.fused;
    SCALETRAIN_CHECK(!is_continued || before->role == parameter.role);
    before = &parameter;
  }
}

void ParamTable::hold_frozen_in(DType dtype) {
  for (Parameter& parameter : parameters_)
    if (parameter.role == ParamRole::frozen) parameter.dtype = dtype;
}

void ParamTable::join_after(const std::function<std::int64_t(const Parameter&)>& updates_of) {
  const Parameter* before = nullptr;
  for (Parameter& parameter : parameters_) {
    if (parameter.role == ParamRole::trained)
      parameter.joins_after = parameter.tied_to ? find(*parameter.tied_to)->joins_after : updates_of(parameter);
    const bool is_continued = before != nullptr && !parameter.fused.empty() && before->unit == parameter.unit &&
                              before->fused == parameter.fused;
    SCALETRAIN_CHECK(!is_continued || before->joins_after == parameter.joins_after);
    before = &parameter;
  }
}

void ParamTable::hold_states_in_blocks() {
  constexpr std::int64_t most = 256;
  constexpr std::int64_t least = 16;
  constexpr std::int64_t parts_of_row = 8;
  for (Parameter& parameter : parameters_) {
    if (parameter.role != ParamRole::trained || parameter.shape.num_dims() != 2) continue;
    std::int64_t together = parameter.shape[1];
    if (has_rows_divided(parameter)) together = together % parts_of_row == 0 ? together / parts_of_row : 0;
    std::int64_t block = most;
    while (block >= least && (together == 0 || together % block != 0)) block /= 2;
    parameter.state_block = block >= least ? block : 0;
  }
}

const Parameter* ParamTable::cut_by(std::int64_t tensor_degree) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.state_block == 0 || !has_rows_divided(parameter)) continue;
    for (std::int64_t rank = 0; rank < tensor_degree; ++rank) {
      const Box box = box_of(parameter, tensor_degree, rank);
      if (box.first[1] % parameter.state_block != 0 || box.extent[1] % parameter.state_block != 0) return &parameter;
    }
  }
  return nullptr;
}

int ParamTable::first_trained_unit(std::int64_t updates) const {
  for (const Parameter& parameter : parameters_)
    if (parameter.role == ParamRole::trained && parameter.joins_after <= updates) return parameter.unit;
  return narrow<int>(units_.size());
}

void ParamTable::scale_learning_rates(const std::function<double(const Parameter&)>& factor_of) {
  for (Parameter& parameter : parameters_)
    parameter.rate_factor = parameter.tied_to ? find(*parameter.tied_to)->rate_factor : factor_of(parameter);
}

void ParamTable::scale_weight_decays(const std::function<double(const Parameter&)>& factor_of) {
  for (Parameter& parameter : parameters_) {
    const double factor = factor_of(parameter.tied_to ? *find(*parameter.tied_to) : parameter);
    parameter.decays = factor > 0;
    parameter.decay_factor = factor > 0 ? factor : 1.0;
  }
}

void ParamTable::leave_out_states(const std::function<int(const Parameter&)>& absent_of, bool with_factors) {
  const Parameter* before = nullptr;
  for (Parameter& parameter : parameters_) {
    if (parameter.role == ParamRole::trained)
      parameter.absent_state = parameter.tied_to ? find(*parameter.tied_to)->absent_state : absent_of(parameter);
    parameter.has_factors = with_factors && parameter.role == ParamRole::trained && parameter.absent_state >= 0;
    SCALETRAIN_CHECK(!parameter.has_factors || parameter.shape.num_dims() == 2);
    const bool is_continued = before != nullptr && !parameter.fused.empty() && before->unit == parameter.unit &&
                              before->fused == parameter.fused;
    SCALETRAIN_CHECK(!is_continued || before->absent_state == parameter.absent_state);
    before = &parameter;
  }
}

std::span<const Parameter> ParamTable::parameters_of(int unit) const {
  SCALETRAIN_CHECK(unit >= 0 && static_cast<std::size_t>(unit) < units_.size());
  const ParamUnit& place = units_[static_cast<std::size_t>(unit)];
  return std::span<const Parameter>(parameters_)
      .subspan(static_cast<std::size_t>(place.first_parameter), static_cast<std::size_t>(place.num_parameters));
}

int ParamTable::index_of(std::string_view name) const {
  const auto place = std::lower_bound(by_name_.begin(), by_name_.end(), name, NameLess{});
  return place == by_name_.end() || place->first != name ? -1 : place->second;
}

const Parameter* ParamTable::find(std::string_view name) const {
  const int index = index_of(name);
  return index < 0 ? nullptr : &parameters_[static_cast<std::size_t>(index)];
}

std::int64_t ParamTable::num_parameters() const {
  return checked_add(num_parameters(ParamRole::trained), num_parameters(ParamRole::frozen));
}

std::int64_t ParamTable::num_parameters(ParamRole role) const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.tied_to && parameter.role == role) count = checked_add(count, parameter.shape.num_elements());
  }
  return count;
}

Box ParamTable::box_of(const Parameter& parameter, std::int64_t tensor_degree, std::int64_t tensor_rank) {
  SCALETRAIN_CHECK(tensor_rank >= 0);
  SCALETRAIN_CHECK_LT(tensor_rank, tensor_degree);
  Box box;
  box.first.assign(static_cast<std::size_t>(parameter.shape.num_dims()), 0);
  box.extent.assign(parameter.shape.begin(), parameter.shape.end());
  if (parameter.split.kind == Split::Kind::replicated) return box;
  const Range held = held_range(parameter.split, parameter.shape[parameter.split.dim], tensor_degree, tensor_rank);
  const auto dim = static_cast<std::size_t>(parameter.split.dim);
  box.first[dim] = held.first;
  box.extent[dim] = held.count;
  return box;
}

std::int64_t ParamTable::replication_degree(const Parameter& parameter, std::int64_t tensor_degree) {
  switch (parameter.split.kind) {
    case Split::Kind::replicated:
      return tensor_degree;
    case Split::Kind::cut:
      return 1;
    case Split::Kind::grouped:
      return parameter.split.pieces < tensor_degree ? div_exact(tensor_degree, parameter.split.pieces) : 1;
  }
  SCALETRAIN_CHECK(false);
}

bool ParamTable::is_first_replica(const Parameter& parameter, std::int64_t tensor_degree, std::int64_t tensor_rank) {
  return tensor_rank % replication_degree(parameter, tensor_degree) == 0;
}

}  // namespace scaletrain
