#include "checkpoint/format/tiling.h"

#include <random>

#include "checkpoint_fixture.h"
#include "parallel/shard_layout.h"

using namespace scaletrain;

namespace {

std::string problem_of(const std::vector<Box>& boxes, const Shape& shape) {
  std::vector<const Box*> pointers;
  pointers.reserve(boxes.size());
  for (const Box& box : boxes) pointers.push_back(&box);
  return tiling_problem(pointers, shape);
}

// As a save cuts a tensor: among tensor ranks along one dim, then each part among data ranks, whose ranges begin and
// end within rows.
std::vector<Box> save_boxes(const Shape& shape, int dim, std::int64_t tensor, std::int64_t data) {
  std::vector<Box> boxes;
  for (std::int64_t t = 0; t < tensor; ++t) {
    Box part = whole_box(shape);
    const auto at = static_cast<std::size_t>(dim);
    part.first[at] = shape[dim] * t / tensor;
    part.extent[at] = shape[dim] * (t + 1) / tensor - part.first[at];
    const std::int64_t all = part.num_elements();
    for (std::int64_t d = 0; d < data; ++d)
      for (Box& box : boxes_of_range(part, all * d / data, all * (d + 1) / data - all * d / data))
        boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace

TEST_CASE("tiling_takes_what_a_save_of_tens_of_thousands_of_ranks_cuts_a_tensor_into") {
  for (const int dim : {0, 1}) {
    CAPTURE(dim);
    // The head of Llama 3.1 405B, by 8 tensor and 1,024 data ranks: a rank's range is three boxes.
    std::vector<Box> boxes = save_boxes({128256, 16384}, dim, 8, 1000);
    CHECK(boxes.size() > 16'384);
    std::shuffle(boxes.begin(), boxes.end(), std::mt19937(1));
    CHECK(problem_of(boxes, {128256, 16384}).empty());
    // Moved by one element, one of them overlaps its neighbour, and a hole is left.
    Box& moved = boxes[boxes.size() / 2];
    moved.first[1] += moved.first[1] > 0 ? -1 : 1;
    if (moved.first[1] + moved.extent[1] <= 16384) CHECK_FALSE(problem_of(boxes, {128256, 16384}).empty());
  }
  CHECK(problem_of(save_boxes({7, 5, 3}, 1, 2, 11), {7, 5, 3}).empty());
  CHECK(problem_of(save_boxes({1'000'003}, 0, 8, 4096), {1'000'003}).empty());
}

TEST_CASE("tiling_finds_every_overlap_of_few_boxes_however_they_are_cut") {
  // Around a middle: no straight cut divides these.
  const std::vector<Box> pinwheel = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  CHECK(problem_of(pinwheel, {3, 3}).empty());
  for (std::size_t changed = 0; changed < pinwheel.size(); ++changed) {
    std::vector<Box> boxes = pinwheel;
    boxes[changed] = {{0, 0}, boxes[changed].extent};
    if (boxes[changed] == pinwheel[changed]) continue;
    CHECK(contains(problem_of(boxes, {3, 3}), "overlap"));
  }
  CHECK(contains(problem_of({{{0, 0}, {2, 2}}}, {3, 3}), "hold 4 elements"));
}

TEST_CASE("tiling_refuses_many_boxes_that_no_save_cuts_so_without_comparing_them_all") {
  // A hundred thousand boxes of which each overlaps every other, with as many elements as the tensor.
  std::vector<Box> boxes(100'000, Box{{0, 0}, {1, 100'000}});
  CHECK(contains(problem_of(boxes, {100'000, 100'000}), "overlap"));
  // Bricks turned round each other, again and again.
  std::vector<Box> turned;
  const std::int64_t size = 120;
  for (std::int64_t row = 0; row < size; ++row) {
    for (std::int64_t column = 0; column < size; ++column) {
      const std::int64_t r = 3 * row;
      const std::int64_t c = 3 * column;
      for (const Box& box : {Box{{r, c}, {1, 2}}, Box{{r, c + 2}, {2, 1}}, Box{{r + 2, c + 1}, {1, 2}},
                             Box{{r + 1, c}, {2, 1}}, Box{{r + 1, c + 1}, {1, 1}}})
        turned.push_back(box);
    }
  }
  CHECK(problem_of(turned, {3 * size, 3 * size}).empty());  // straight cuts divide the squares
}
