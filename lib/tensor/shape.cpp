#include "tensor/shape.h"

#include "base/numbers/checked.h"

namespace scaletrain {

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  for (const std::int64_t extent : dims) append(extent);
}

void Shape::append(std::int64_t extent) {
  SCALETRAIN_CHECK_LT(num_dims_, max_dims);
  SCALETRAIN_CHECK_LE(0, extent);
  dims_[static_cast<std::size_t>(num_dims_++)] = extent;
  num_elements_ = checked_mul(num_elements_, extent);
}

std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (int dim = 0; dim < shape.num_dims(); ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string(shape[dim]);
  }
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << to_text(shape);
}

}  // namespace scaletrain
