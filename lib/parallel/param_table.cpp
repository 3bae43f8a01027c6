#include "parallel/param_table.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

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
  units_.push_back({.name = std::move(name), .first_row = narrow<int>(rows_.size()), .num_rows = 0});
}

void ParamTable::add(ParamRow row) {
  SCALETRAIN_CHECK(!units_.empty() && !row.name.empty());
  const auto place = std::lower_bound(by_name_.begin(), by_name_.end(), std::string_view(row.name), NameLess{});
  const bool is_new = place == by_name_.end() || place->first != row.name;
  SCALETRAIN_CHECK(is_new);
  if (row.split.kind != Split::Kind::replicated) {
    SCALETRAIN_CHECK(!row.sequence_partial);
    SCALETRAIN_CHECK(row.split.dim >= 0 && row.split.dim < row.shape.num_dims());
    SCALETRAIN_CHECK(row.split.kind == Split::Kind::cut || row.split.pieces > 0);
  }
  if (row.tied_to) {
    const ParamRow* owner = find(*row.tied_to);
    SCALETRAIN_CHECK(owner != nullptr && !owner->tied_to);
    SCALETRAIN_CHECK_EQ(owner->shape, row.shape);
    SCALETRAIN_CHECK(owner->split == row.split && owner->role == row.role && owner->dtype == row.dtype);
  }
  if (!row.fused.empty()) {
    SCALETRAIN_CHECK(!row.tied_to);
    const auto unit_rows = std::span<const ParamRow>(rows_).subspan(static_cast<std::size_t>(units_.back().first_row));
    const bool begun = std::any_of(unit_rows.begin(), unit_rows.end(),
                                   [&](const ParamRow& other) { return other.fused == row.fused; });
    if (begun) {
      const ParamRow& last = unit_rows.back();
      SCALETRAIN_CHECK_EQ(last.fused, row.fused);
      SCALETRAIN_CHECK(last.role == row.role && last.dtype == row.dtype);
      SCALETRAIN_CHECK_EQ(last.shape.num_dims(), row.shape.num_dims());
    }
  }
  row.unit = narrow<int>(units_.size()) - 1;
  by_name_.insert(place, {row.name, narrow<int>(rows_.size())});
  rows_.push_back(std::move(row));
  ++units_.back().num_rows;
}

std::span<const ParamRow> ParamTable::rows_of(int unit) const {
  SCALETRAIN_CHECK(unit >= 0 && static_cast<std::size_t>(unit) < units_.size());
  const ParamUnit& place = units_[static_cast<std::size_t>(unit)];
  return std::span<const ParamRow>(rows_).subspan(static_cast<std::size_t>(place.first_row),
                                                  static_cast<std::size_t>(place.num_rows));
}

int ParamTable::index_of(std::string_view name) const {
  const auto place = std::lower_bound(by_name_.begin(), by_name_.end(), name, NameLess{});
  return place == by_name_.end() || place->first != name ? -1 : place->second;
}

const ParamRow* ParamTable::find(std::string_view name) const {
  const int index = index_of(name);
  return index < 0 ? nullptr : &rows_[static_cast<std::size_t>(index)];
}

std::int64_t ParamTable::num_parameters() const {
  std::int64_t count = 0;
  for (const ParamRow& row : rows_) {
    if (!row.tied_to) count = checked_add(count, row.shape.num_elements());
  }
  return count;
}

Box ParamTable::box_of(const ParamRow& row, std::int64_t tensor_degree, std::int64_t tensor_rank) {
  SCALETRAIN_CHECK(tensor_rank >= 0);
  SCALETRAIN_CHECK_LT(tensor_rank, tensor_degree);
  Box box;
  box.first.assign(static_cast<std::size_t>(row.shape.num_dims()), 0);
  box.extent.assign(row.shape.begin(), row.shape.end());
  if (row.split.kind == Split::Kind::replicated) return box;
  const Range held = held_range(row.split, row.shape[row.split.dim], tensor_degree, tensor_rank);
  const auto dim = static_cast<std::size_t>(row.split.dim);
  box.first[dim] = held.first;
  box.extent[dim] = held.count;
  return box;
}

std::int64_t ParamTable::num_holders(const ParamRow& row, std::int64_t tensor_degree) {
  switch (row.split.kind) {
    case Split::Kind::replicated:
      return tensor_degree;
    case Split::Kind::cut:
      return 1;
    case Split::Kind::grouped:
      return row.split.pieces < tensor_degree ? div_exact(tensor_degree, row.split.pieces) : 1;
  }
  SCALETRAIN_CHECK(false);
}

bool ParamTable::is_first_holder(const ParamRow& row, std::int64_t tensor_degree, std::int64_t tensor_rank) {
  return tensor_rank % num_holders(row, tensor_degree) == 0;
}

}  // namespace scaletrain
