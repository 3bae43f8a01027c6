#include "tensor/view.h"

namespace scaletrain {

namespace {

// The shape of `count` rows and the offset in bytes of the first.
std::pair<Shape, std::size_t> row_range(const Shape& shape, DType dtype, std::int64_t first, std::int64_t count) {
  SCALETRAIN_CHECK(shape.num_dims() >= 1 && first >= 0 && count >= 0);
  SCALETRAIN_CHECK_LE(first + count, shape[0]);
  Shape part;
  part.append(count);
  std::int64_t row_elements = 1;
  for (int dim = 1; dim < shape.num_dims(); ++dim) {
    part.append(shape[dim]);
    row_elements *= shape[dim];
  }
  return {part, static_cast<std::size_t>(first * row_elements) * size_of(dtype)};
}

}  // namespace

std::string_view to_text(Space space) {
  switch (space) {
    case Space::host:
      return "host";
    case Space::pinned:
      return "pinned";
    case Space::device:
      return "device";
  }
  SCALETRAIN_CHECK(false);
}

View View::rows(std::int64_t first, std::int64_t count) const {
  const auto range = row_range(shape_, dtype_, first, count);
  return {static_cast<std::byte*>(data_) + range.second, dtype_, range.first, space_};
}

ConstView ConstView::rows(std::int64_t first, std::int64_t count) const {
  const auto range = row_range(shape_, dtype_, first, count);
  return {static_cast<const std::byte*>(data_) + range.second, dtype_, range.first, space_};
}

}  // namespace scaletrain
