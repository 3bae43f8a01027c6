#include "checkpoint/format/tiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/numbers/checked.h"
#include "checkpoint/box_copy.h"

namespace scaletrain {

namespace {

// Boxes that no straight cut divides are compared pair by pair, up to so many.
constexpr std::size_t most_pairwise = 512;
// Of cuts within cuts. Those of a save are at most twice as deep as the tensor has dims.
constexpr int most_levels = 16;

using Boxes = std::span<const Box*>;

std::string overlap_among(Boxes boxes) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size(); ++j) {
      if (meet(*boxes[i], *boxes[j]))
        return fmt::format("the pieces {} and {} overlap", to_text(*boxes[i]), to_text(*boxes[j]));
    }
  }
  return {};
}

// Sorts the boxes along a dim and returns where each group begins that a cut divides from the ones before.
std::vector<std::size_t> groups_along(std::size_t dim, Boxes boxes) {
  std::sort(boxes.begin(), boxes.end(), [dim](const Box* a, const Box* b) { return a->first[dim] < b->first[dim]; });
  std::vector<std::size_t> starts;
  std::int64_t end = std::numeric_limits<std::int64_t>::min();
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i]->first[dim] >= end) starts.push_back(i);
    end = std::max(end, boxes[i]->first[dim] + boxes[i]->extent[dim]);
  }
  return starts;
}

std::string overlap_in(Boxes boxes, int level) {
  if (boxes.size() < 2) return {};
  if (level > most_levels && boxes.size() > most_pairwise)
    return fmt::format("{} of its pieces are cut in a way that no save makes", boxes.size());
  for (std::size_t dim = 0; level <= most_levels && dim < boxes.front()->first.size(); ++dim) {
    std::vector<std::size_t> starts = groups_along(dim, boxes);
    if (starts.size() < 2) continue;
    starts.push_back(boxes.size());
    for (std::size_t group = 0; group + 1 < starts.size(); ++group) {
      std::string problem = overlap_in(boxes.subspan(starts[group], starts[group + 1] - starts[group]), level + 1);
      if (!problem.empty()) return problem;
    }
    return {};
  }
  if (boxes.size() <= most_pairwise) return overlap_among(boxes);
  return fmt::format("{} of its pieces overlap, or are cut in a way that no save makes", boxes.size());
}

}  // namespace

std::string tiling_problem(std::span<const Box* const> boxes, const Shape& shape) {
  std::int64_t covered = 0;
  std::vector<const Box*> filled;
  for (const Box* box : boxes) {
    covered = try_add(covered, box->num_elements()).value_or(std::numeric_limits<std::int64_t>::max());
    if (box->num_elements() > 0) filled.push_back(box);
  }
  if (covered != shape.num_elements())
    return fmt::format("its pieces hold {} elements, the shape {} has {}", covered, to_text(shape),
                       shape.num_elements());
  return overlap_in(filled, 0);
}

}  // namespace scaletrain
