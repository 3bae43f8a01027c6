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
  for (const int unit : units) {
    for (const ParamRow& row : table.rows_of(unit)) buffer_of(row);
  }
  for (int buffer = 0; buffer < narrow<int>(buffers_.size()); ++buffer) {
    for (const int unit : units) place_unit(table, unit, buffer);
    FlatBuffer& flat = buffers_[static_cast<std::size_t>(buffer)];
    const std::int64_t shards = mesh.degree(Axis::data);
    flat.shard_elements = round_up(ceil_div(flat.num_elements, shards), aligned_elements);
    flat.num_elements = checked_mul(flat.shard_elements, shards);
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

void ShardLayout::place_unit(const ParamTable& table, int unit, int buffer) {
  const std::size_t first_span = spans_.size();
  std::int64_t& end = buffers_[static_cast<std::size_t>(buffer)].num_elements;
  const int first_row = table.units()[static_cast<std::size_t>(unit)].first_row;
  const std::string* last_group = nullptr;
  int index = first_row;
  for (const ParamRow& row : table.rows_of(unit)) {
    const int row_index = index++;
    if (buffer_of(row) != buffer) continue;
    if (row.tied_to) {
      const ParamRow* owner = table.find(*row.tied_to);
      if (std::binary_search(held_units_.begin(), held_units_.end(), owner->unit)) continue;
    }
    const bool continues = last_group != nullptr && !row.fused.empty() && *last_group == row.fused;
    if (!continues) end = round_up(end, aligned_elements);
    last_group = &row.fused;
    Box box = ParamTable::box_of(row, mesh_.degree(Axis::tensor), position_.tensor);
    const std::int64_t count = box.num_elements();
    place_of_row_[static_cast<std::size_t>(row_index)] = narrow<std::int64_t>(spans_.size());
    spans_.push_back({.row = row_index, .buffer = buffer, .offset = end, .count = count, .box = std::move(box)});
    end = checked_add(end, count);
  }
  if (spans_.size() != first_span) units_.push_back({unit, buffer, first_span, spans_.size() - first_span});
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
        tied_.push_back(std::move(shared));
      }
      ++index;
    }
  }
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

std::int64_t ShardLayout::shard_first(int buffer, std::int64_t data_rank) const {
  SCALETRAIN_CHECK(buffer >= 0 && static_cast<std::size_t>(buffer) < buffers_.size());
  SCALETRAIN_CHECK(data_rank >= 0 && data_rank < mesh_.degree(Axis::data));
  return data_rank * buffers_[static_cast<std::size_t>(buffer)].shard_elements;
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
