#include "parallel/shard_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

constexpr std::int64_t aligned_elements = 16;  // 64 bytes of f32: one cache line

std::int64_t alignment_of(const FlatBuffer& flat) {
  return std::max(aligned_elements, flat.state_block);
}

std::string_view role_name(ParamRole role) {
  switch (role) {
    case ParamRole::trained:
      return "trained.data";
    case ParamRole::frozen:
      return "frozen";
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
  place_of_.assign(table.parameters().size(), -1);
  // A parameter is tied wherever its copies are: the layout of the owner must not depend on who holds them.
  std::vector<char> is_owner(table.parameters().size(), 0);
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.tied_to) is_owner[static_cast<std::size_t>(table.index_of(*parameter.tied_to))] = 1;
  }
  for (const int unit : units) {
    for (const Parameter& parameter : table.parameters_of(unit)) buffer_of(parameter);
  }
  for (int buffer = 0; buffer < narrow<int>(buffers_.size()); ++buffer) {
    for (const int unit : units) place_unit(table, unit, buffer, is_owner);
  }
  place_tied_copies(table);
}

// Finds or appends the buffer of a parameter.
int ShardLayout::buffer_of(const Parameter& parameter) {
  const std::int64_t block = parameter.role == ParamRole::trained ? parameter.state_block : 0;
  std::string name = fmt::format("{}.{}", role_name(parameter.role), to_text(parameter.dtype));
  if (parameter.absent_state >= 0) name += fmt::format(".without.{}", parameter.absent_state);
  if (block > 0) name += fmt::format(".in-{}", block);
  const auto found =
      std::find_if(buffers_.begin(), buffers_.end(), [&](const FlatBuffer& buffer) { return buffer.name == name; });
  if (found != buffers_.end()) return narrow<int>(found - buffers_.begin());
  buffers_.push_back({.name = std::move(name),
                      .role = parameter.role,
                      .dtype = parameter.dtype,
                      .absent_state = parameter.absent_state,
                      .state_block = block});
  return narrow<int>(buffers_.size()) - 1;
}

// Tied parameters come first, each a bucket of its own; the rest of the unit is one bucket.
void ShardLayout::place_unit(const ParamTable& table, int unit, int buffer, std::span<const char> is_owner) {
  const int first_parameter = table.units()[static_cast<std::size_t>(unit)].first_parameter;
  const auto is_tied = [&](const Parameter& parameter, int index) {
    return parameter.tied_to.has_value() || is_owner[static_cast<std::size_t>(index)] != 0;
  };
  int index = first_parameter - 1;
  for (const Parameter& parameter : table.parameters_of(unit)) {
    ++index;
    if (!is_tied(parameter, index) || buffer_of(parameter) != buffer) continue;
    SCALETRAIN_CHECK(parameter.fused.empty());
    const bool shares = parameter.tied_to && std::binary_search(held_units_.begin(), held_units_.end(),
                                                                table.find(*parameter.tied_to)->unit);
    if (shares) continue;
    std::int64_t end = buffers_[static_cast<std::size_t>(buffer)].num_elements;
    place_parameter(parameter, index, buffer, false, end);
    add_bucket(unit, buffer, true, end);
  }
  std::int64_t end = buffers_[static_cast<std::size_t>(buffer)].num_elements;
  const std::string* last_group = nullptr;
  index = first_parameter - 1;
  for (const Parameter& parameter : table.parameters_of(unit)) {
    ++index;
    if (is_tied(parameter, index) || buffer_of(parameter) != buffer) continue;
    place_parameter(parameter, index, buffer,
                    last_group != nullptr && !parameter.fused.empty() && *last_group == parameter.fused, end);
    last_group = &parameter.fused;
  }
  add_bucket(unit, buffer, false, end);
}

void ShardLayout::place_parameter(const Parameter& parameter, int index_in_table, int buffer, bool continues,
                                  std::int64_t& end) {
  if (!continues) end = round_up(end, alignment_of(buffers_[static_cast<std::size_t>(buffer)]));
  Box box = ParamTable::box_of(parameter, mesh_.degree(Axis::tensor), position_.tensor);
  const std::int64_t count = box.num_elements();
  place_of_[static_cast<std::size_t>(index_in_table)] = narrow<std::int64_t>(spans_.size());
  spans_.push_back(
      {.parameter = index_in_table, .buffer = buffer, .offset = end, .count = count, .box = std::move(box)});
  end = checked_add(end, count);
}

void ShardLayout::add_bucket(int unit, int buffer, bool tied, std::int64_t end) {
  FlatBuffer& flat = buffers_[static_cast<std::size_t>(buffer)];
  const std::int64_t first = flat.num_elements;
  if (end == first) return;
  const std::int64_t piece = round_up(ceil_div(end - first, mesh_.degree(Axis::data)), alignment_of(flat));
  const std::int64_t shard = checked_mul(piece, mesh_.copies());
  buckets_.push_back({.unit = unit,
                      .buffer = buffer,
                      .first = first,
                      .count = checked_mul(shard, mesh_.shards()),
                      .shard_elements = shard,
                      .piece_elements = piece,
                      .shard_first = flat.shard_elements,
                      .tied = tied});
  flat.num_elements = checked_add(first, buckets_.back().count);
  flat.shard_elements = checked_add(flat.shard_elements, shard);
}

void ShardLayout::place_tied_copies(const ParamTable& table) {
  for (const int unit : held_units_) {
    int index = table.units()[static_cast<std::size_t>(unit)].first_parameter;
    for (const Parameter& parameter : table.parameters_of(unit)) {
      std::int64_t& place = place_of_[static_cast<std::size_t>(index)];
      if (parameter.tied_to && place == -1) {
        const auto owner = static_cast<std::size_t>(table.index_of(*parameter.tied_to));
        SCALETRAIN_CHECK(place_of_[owner] >= 0);
        ParamSpan shared = spans_[static_cast<std::size_t>(place_of_[owner])];
        shared.parameter = index;
        place = -2 - narrow<std::int64_t>(tied_.size());
        if (shared.count > 0) shared_.emplace_back(unit, bucket_at(shared.buffer, shared.offset));
        tied_.push_back(std::move(shared));
      }
      ++index;
    }
  }
}

int ShardLayout::bucket_at(int buffer, std::int64_t offset) const {
  const auto behind = std::upper_bound(buckets_.begin(), buckets_.end(), std::pair(buffer, offset),
                                       [](const std::pair<int, std::int64_t>& place, const Bucket& bucket) {
                                         return place.first < bucket.buffer ||
                                                (place.first == bucket.buffer && place.second < bucket.first);
                                       });
  SCALETRAIN_CHECK(behind != buckets_.begin());
  const Bucket& found = *std::prev(behind);
  SCALETRAIN_CHECK(found.buffer == buffer && offset < found.first + found.count);
  return narrow<int>(behind - buckets_.begin()) - 1;
}

std::vector<int> ShardLayout::buckets_used_by(int unit) const {
  std::vector<int> used;
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    if (buckets_[index].unit == unit) used.push_back(narrow<int>(index));
  }
  for (const auto& [user, bucket] : shared_) {
    if (user == unit && std::find(used.begin(), used.end(), bucket) == used.end()) used.push_back(bucket);
  }
  return used;
}

template <class PartOf>
std::vector<ParamRange> ShardLayout::ranges_of(std::int64_t data_rank, PartOf part_of) const {
  SCALETRAIN_CHECK(data_rank >= 0);
  SCALETRAIN_CHECK_LT(data_rank, mesh_.degree(Axis::data));
  std::vector<ParamRange> ranges;
  for (const ParamSpan& span : spans_) {
    if (span.count == 0) continue;
    const Bucket& bucket = buckets_[static_cast<std::size_t>(bucket_at(span.buffer, span.offset))];
    const std::int64_t shard_begin = bucket.first + mesh_.shard_of(data_rank) * bucket.shard_elements;
    const auto [own_offset, own_count] = part_of(bucket);
    const std::int64_t first = std::max(span.offset, shard_begin + own_offset);
    const std::int64_t end = std::min(span.offset + span.count, shard_begin + own_offset + own_count);
    if (first >= end) continue;
    ranges.push_back({.parameter = span.parameter,
                      .buffer = span.buffer,
                      .first = first - span.offset,
                      .count = end - first,
                      .flat_offset = first,
                      .shard_offset = bucket.shard_first + first - shard_begin});
  }
  return ranges;
}

std::vector<ParamRange> ShardLayout::shard_ranges(std::int64_t data_rank) const {
  return ranges_of(data_rank, [](const Bucket& bucket) { return std::pair(std::int64_t{0}, bucket.shard_elements); });
}

std::vector<ParamRange> ShardLayout::piece_ranges(std::int64_t data_rank) const {
  return ranges_of(data_rank, [&](const Bucket& bucket) {
    return std::pair(mesh_.copy_of(data_rank) * bucket.piece_elements, bucket.piece_elements);
  });
}

std::vector<ParamRange> ShardLayout::unsharded_ranges() const {
  std::vector<ParamRange> ranges;
  for (const ParamSpan& span : spans_) {
    if (span.count == 0) continue;
    ranges.push_back({.parameter = span.parameter,
                      .buffer = span.buffer,
                      .first = 0,
                      .count = span.count,
                      .flat_offset = span.offset,
                      .shard_offset = 0});
  }
  return ranges;
}

const ParamSpan* ShardLayout::find(int parameter) const {
  SCALETRAIN_CHECK(parameter >= 0 && static_cast<std::size_t>(parameter) < place_of_.size());
  const std::int64_t place = place_of_[static_cast<std::size_t>(parameter)];
  if (place == -1) return nullptr;
  return place >= 0 ? &spans_[static_cast<std::size_t>(place)] : &tied_[static_cast<std::size_t>(-2 - place)];
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
