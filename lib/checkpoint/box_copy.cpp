#include "checkpoint/box_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace scaletrain {

namespace {

std::vector<std::int64_t> strides_of(const Box& box) {
  std::vector<std::int64_t> strides(box.extent.size(), 1);
  for (std::size_t dim = box.extent.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * box.extent[dim];
  return strides;
}

std::int64_t element_of(const Box& box, const std::vector<std::int64_t>& strides, const Box& part) {
  std::int64_t element = 0;
  for (std::size_t dim = 0; dim < strides.size(); ++dim) element += (part.first[dim] - box.first[dim]) * strides[dim];
  return element;
}

}  // namespace

Box whole_box(const Shape& shape) {
  return {.first = std::vector<std::int64_t>(static_cast<std::size_t>(shape.num_dims()), 0),
          .extent = std::vector<std::int64_t>(shape.begin(), shape.end())};
}

Shape shape_of_box(const Box& box) {
  Shape shape;
  for (const std::int64_t extent : box.extent) shape.append(extent);
  return shape;
}

std::string to_text(const Box& box) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < box.first.size(); ++dim) {
    // Unsigned: a message about a hostile box must not overflow over it.
    const std::uint64_t end = static_cast<std::uint64_t>(box.first[dim]) + static_cast<std::uint64_t>(box.extent[dim]);
    text += fmt::format("{}{}:{}", dim == 0 ? "" : ", ", box.first[dim], end);
  }
  return text + "]";
}

bool meet(const Box& a, const Box& b) {
  for (std::size_t dim = 0; dim < a.first.size(); ++dim) {
    if (std::max(a.first[dim], b.first[dim]) >= std::min(a.first[dim] + a.extent[dim], b.first[dim] + b.extent[dim]))
      return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  SCALETRAIN_CHECK_EQ(a.first.size(), b.first.size());
  Box out = a;
  for (std::size_t dim = 0; dim < a.first.size(); ++dim) {
    const std::int64_t first = std::max(a.first[dim], b.first[dim]);
    const std::int64_t end = std::min(a.first[dim] + a.extent[dim], b.first[dim] + b.extent[dim]);
    if (first >= end) return std::nullopt;
    out.first[dim] = first;
    out.extent[dim] = end - first;
  }
  return out;
}

void for_each_run(const Box& source, const Box& target, const Box& part, const RunVisitor& visit) {
  const std::size_t num_dims = part.extent.size();
  SCALETRAIN_CHECK(source.extent.size() == num_dims && target.extent.size() == num_dims);
  if (part.num_elements() == 0) return;
  // Trailing dims that are whole in both boxes are part of one stretch, and so is the dim before them.
  std::size_t outer = num_dims;
  std::int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= part.extent[outer];
    if (part.extent[outer] != source.extent[outer] || part.extent[outer] != target.extent[outer]) break;
  }
  const auto source_strides = strides_of(source);
  const auto target_strides = strides_of(target);
  const std::int64_t source_first = element_of(source, source_strides, part);
  const std::int64_t target_first = element_of(target, target_strides, part);
  std::vector<std::int64_t> index(outer, 0);
  for (;;) {
    std::int64_t from = source_first;
    std::int64_t to = target_first;
    for (std::size_t dim = 0; dim < outer; ++dim) {
      from += index[dim] * source_strides[dim];
      to += index[dim] * target_strides[dim];
    }
    visit(from, to, run);
    std::size_t dim = outer;
    while (dim > 0 && ++index[dim - 1] == part.extent[dim - 1]) index[--dim] = 0;
    if (dim == 0) return;
  }
}

}  // namespace scaletrain
