#include "parallel/shard_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace scaletrain {

namespace {

constexpr std::int64_t aligned_elements = 16;  // 64 bytes of f32: one cache line

std::string_view role_name(ParamRole role) {
  switch (role) {
    case ParamRole::trained:
      return "trained.data";
    case ParamRole::frozen:
      return "frozen";
    case ParamRole::state:
      return "state";
  }
  SCALETRAIN_CHECK(false);
}

void append_boxes(const Box& box, std::size_t dim, std::vector<std::int64_t>& index, std::int64_t first,
                  std::int64_t count, std::vector<Box>& boxes) {
  if (count == 0) return;
  const std::size_t num_dims = box.extent.size();
  Box piece = box;
  for (std::size_t outer = 0; outer < dim; ++outer) {
    piece.first[outer] = box.first[outer] + index[outer];
    piece.extent[outer] = 1;
  }
  if (dim == num_dims) {
    boxes.push_back(std::move(piece));
    return;
  }
  std::int64_t inner = 1;
  for (std::size_t below = dim + 1; below < num_dims; ++below) inner *= box.extent[below];
  const std::int64_t first_row = first / inner;
  const std::int64_t last_row = (first + count) / inner;  // exclusive, of whole rows
  const std::int64_t head = first % inner;
  const std::int64_t tail = (first + count) % inner;
  if (head != 0 && first_row == last_row) {
    index[dim] = first_row;
    append_boxes(box, dim + 1, index, head, count, boxes);
    return;
  }
  std::int64_t whole_first = first_row;
  if (head != 0) {
    index[dim] = first_row;
    append_boxes(box, dim + 1, index, head, inner - head, boxes);
    ++whole_first;
  }
  if (whole_first < last_row) {
    piece.first[dim] = box.first[dim] + whole_first;
    piece.extent[dim] = last_row - whole_first;
    boxes.push_back(std::move(piece));
  }
  if (tail != 0) {
    index[dim] = last_row;
    append_boxes(box, dim + 1, index, 0, tail, boxes);
  }
}

}  // namespace

ZeroPolicy ZeroPolicy::of_stage(std::int64_t stage) {
  SCALETRAIN_CHECK(stage >= 0 && stage <= 3);
  return {.shard_optimizer = stage >= 1, .shard_gradients = stage >= 2, .shard_parameters = stage >= 3};
}

ShardLayout::ShardLayout(const ParamTable& table, std::span<const int> units, const Mesh& mesh,
                         const MeshPosition& position)
    : mesh_(mesh), position_(position), held_units_(units.begin(), units.end()) {
  const bool ascending = std::adjacent_find(units.begin(), units.end(), std::greater_equal<>()) == units.end();
  SCALETRAIN_CHECK(ascending);
  place_of_row_.assign(table.rows().size(), -1);
  // A row is tied wherever its copies are: the layout of the owner must not depend on who holds them.
  std::vector<char> is_owner(table.rows().size(), 0);
  for (const ParamRow& row : table.rows()) {
    if (row.tied_to) is_owner[static_cast<std::size_t>(table.index_of(*row.tied_to))] = 1;
  }
  for (const int unit : units) {
    for (const ParamRow& row : table.rows_of(unit)) buffer_of(row);
  }
  for (int buffer = 0; buffer < narrow<int>(buffers_.size()); ++buffer) {
    for (const int unit : units) place_unit(table, unit, buffer, is_owner);
  }
  place_tied_copies(table);
}

// Finds or appends the buffer of a row.
int ShardLayout::buffer_of(const ParamRow& row) {
  const std::string name = fmt::format("{}.{}", role_name(row.role), to_text(row.dtype));
  const auto found =
      std::find_if(buffers_.begin(), buffers_.end(), [&](const FlatBuffer& buffer) { return buffer.name == name; });
  if (found != buffers_.end()) return narrow<int>(found - buffers_.begin());
  buffers_.push_back({.name = name, .role = row.role, .dtype = row.dtype});
  return narrow<int>(buffers_.size()) - 1;
}

// Tied rows come first, each a segment of its own; the rest of the unit is one segment.
void ShardLayout::place_unit(const ParamTable& table, int unit, int buffer, std::span<const char> is_owner) {
  const std::size_t first_span = spans_.size();
  const int first_row = table.units()[static_cast<std::size_t>(unit)].first_row;
  const auto is_tied = [&](const ParamRow& row, int index) {
    return row.tied_to.has_value() || is_owner[static_cast<std::size_t>(index)] != 0;
  };
  int index = first_row - 1;
  for (const ParamRow& row : table.rows_of(unit)) {
    ++index;
    if (!is_tied(row, index) || buffer_of(row) != buffer) continue;
    SCALETRAIN_CHECK(row.fused.empty());
    const bool shares =
        row.tied_to && std::binary_search(held_units_.begin(), held_units_.end(), table.find(*row.tied_to)->unit);
    if (shares) continue;
    std::int64_t end = buffers_[static_cast<std::size_t>(buffer)].num_elements;
    place_row(row, index, buffer, false, end);
    add_segment(unit, buffer, true, end);
  }
  std::int64_t end = buffers_[static_cast<std::size_t>(buffer)].num_elements;
  const std::string* last_group = nullptr;
  index = first_row - 1;
  for (const ParamRow& row : table.rows_of(unit)) {
    ++index;
    if (is_tied(row, index) || buffer_of(row) != buffer) continue;
    place_row(row, index, buffer, last_group != nullptr && !row.fused.empty() && *last_group == row.fused, end);
    last_group = &row.fused;
  }
  add_segment(unit, buffer, false, end);
  if (spans_.size() != first_span) units_.push_back({unit, buffer, first_span, spans_.size() - first_span});
}

void ShardLayout::place_row(const ParamRow& row, int row_index, int buffer, bool continues, std::int64_t& end) {
  if (!continues) end = round_up(end, aligned_elements);
  Box box = ParamTable::box_of(row, mesh_.degree(Axis::tensor), position_.tensor);
  const std::int64_t count = box.num_elements();
  place_of_row_[static_cast<std::size_t>(row_index)] = narrow<std::int64_t>(spans_.size());
  spans_.push_back({.row = row_index, .buffer = buffer, .offset = end, .count = count, .box = std::move(box)});
  end = checked_add(end, count);
}

void ShardLayout::add_segment(int unit, int buffer, bool tied, std::int64_t end) {
  FlatBuffer& flat = buffers_[static_cast<std::size_t>(buffer)];
  const std::int64_t first = flat.num_elements;
  if (end == first) return;
  const std::int64_t shards = mesh_.degree(Axis::data);
  const std::int64_t piece = round_up(ceil_div(end - first, shards), aligned_elements);
  segments_.push_back({.unit = unit,
                       .buffer = buffer,
                       .first = first,
                       .count = checked_mul(piece, shards),
                       .piece = piece,
                       .shard_first = flat.shard_elements,
                       .tied = tied});
  flat.num_elements = checked_add(first, segments_.back().count);
  flat.shard_elements = checked_add(flat.shard_elements, piece);
}

void ShardLayout::place_tied_copies(const ParamTable& table) {
  for (const int unit : held_units_) {
    int index = table.units()[static_cast<std::size_t>(unit)].first_row;
    for (const ParamRow& row : table.rows_of(unit)) {
      std::int64_t& place = place_of_row_[static_cast<std::size_t>(index)];
      if (row.tied_to && place == -1) {
        const auto owner = static_cast<std::size_t>(table.index_of(*row.tied_to));
        SCALETRAIN_CHECK(place_of_row_[owner] >= 0);
        ParamSpan shared = spans_[static_cast<std::size_t>(place_of_row_[owner])];
        shared.row = index;
        place = -2 - narrow<std::int64_t>(tied_.size());
        if (shared.count > 0) shared_.emplace_back(unit, segment_at(shared.buffer, shared.offset));
        tied_.push_back(std::move(shared));
      }
      ++index;
    }
  }
}

int ShardLayout::segment_at(int buffer, std::int64_t offset) const {
  const auto behind = std::upper_bound(segments_.begin(), segments_.end(), std::pair(buffer, offset),
                                       [](const std::pair<int, std::int64_t>& place, const Segment& segment) {
                                         return place.first < segment.buffer ||
                                                (place.first == segment.buffer && place.second < segment.first);
                                       });
  SCALETRAIN_CHECK(behind != segments_.begin());
  const Segment& found = *std::prev(behind);
  SCALETRAIN_CHECK(found.buffer == buffer && offset < found.first + found.count);
  return narrow<int>(behind - segments_.begin()) - 1;
}

std::vector<int> ShardLayout::segments_used_by(int unit) const {
  std::vector<int> used;
  for (std::size_t index = 0; index < segments_.size(); ++index) {
    if (segments_[index].unit == unit) used.push_back(narrow<int>(index));
  }
  for (const auto& [user, segment] : shared_) {
    if (user == unit && std::find(used.begin(), used.end(), segment) == used.end()) used.push_back(segment);
  }
  return used;
}

std::vector<RowRange> ShardLayout::shard_ranges(std::int64_t data_rank) const {
  SCALETRAIN_CHECK(data_rank >= 0);
  SCALETRAIN_CHECK_LT(data_rank, mesh_.degree(Axis::data));
  std::vector<RowRange> ranges;
  for (const ParamSpan& span : spans_) {
    if (span.count == 0) continue;
    const Segment& segment = segments_[static_cast<std::size_t>(segment_at(span.buffer, span.offset))];
    const std::int64_t piece_first = segment.first + data_rank * segment.piece;
    const std::int64_t first = std::max(span.offset, piece_first);
    const std::int64_t end = std::min(span.offset + span.count, piece_first + segment.piece);
    if (first >= end) continue;
    ranges.push_back({.row = span.row,
                      .buffer = span.buffer,
                      .first = first - span.offset,
                      .count = end - first,
                      .flat_offset = first,
                      .shard_offset = segment.shard_first + first - piece_first});
  }
  return ranges;
}

std::vector<RowRange> ShardLayout::whole_ranges() const {
  std::vector<RowRange> ranges;
  for (const ParamSpan& span : spans_) {
    if (span.count == 0) continue;
    ranges.push_back({.row = span.row,
                      .buffer = span.buffer,
                      .first = 0,
                      .count = span.count,
                      .flat_offset = span.offset,
                      .shard_offset = 0});
  }
  return ranges;
}

std::span<const ParamSpan> ShardLayout::spans_of(int unit, int buffer) const {
  for (const UnitSpans& place : units_) {
    if (place.unit == unit && place.buffer == buffer)
      return std::span<const ParamSpan>(spans_).subspan(place.first, place.count);
  }
  return {};
}

const ParamSpan* ShardLayout::find(int row) const {
  SCALETRAIN_CHECK(row >= 0 && static_cast<std::size_t>(row) < place_of_row_.size());
  const std::int64_t place = place_of_row_[static_cast<std::size_t>(row)];
  if (place == -1) return nullptr;
  return place >= 0 ? &spans_[static_cast<std::size_t>(place)] : &tied_[static_cast<std::size_t>(-2 - place)];
}

std::vector<DecaySpan> ShardLayout::decay_spans(int buffer, std::int64_t first, std::int64_t count, double weight_decay,
                                                const ParamTable& table) const {
  std::vector<DecaySpan> out;
  for (const ParamSpan& span : spans_) {
    if (span.buffer != buffer) continue;
    const std::int64_t begin = std::max(span.offset, first);
    const std::int64_t end = std::min(span.offset + span.count, first + count);
    if (begin >= end) continue;
    const double decay = table.rows()[static_cast<std::size_t>(span.row)].decays ? weight_decay : 0.0;
    if (!out.empty() && out.back().weight_decay == decay && out.back().first + out.back().count == begin - first) {
      out.back().count += end - begin;
    } else {
      out.push_back({.first = begin - first, .count = end - begin, .weight_decay = decay});
    }
  }
  return out;
}

std::int64_t ShardLayout::num_elements(ParamRole role) const {
  std::int64_t count = 0;
  for (const ParamSpan& span : spans_) {
    if (buffers_[static_cast<std::size_t>(span.buffer)].role == role) count += span.count;
  }
  return count;
}

std::vector<Box> boxes_of_range(const Box& box, std::int64_t first, std::int64_t count) {
  SCALETRAIN_CHECK(first >= 0 && count >= 0);
  SCALETRAIN_CHECK_LE(first + count, box.num_elements());
  std::vector<Box> boxes;
  std::vector<std::int64_t> index(box.extent.size(), 0);
  append_boxes(box, 0, index, first, count, boxes);
  return boxes;
}

}  // namespace scaletrain
