// The extent of a tensor in up to four dims, row-major (the last dim is contiguous). A value; no allocation.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>

#include "base/error.h"

namespace scaletrain {

class Shape {
 public:
  static constexpr int max_dims = 4;

  Shape() = default;
  // Every extent must be >= 0 and the product must fit 63 bits: anything else is a bug of the caller.
  Shape(std::initializer_list<std::int64_t> dims);

  int num_dims() const { return num_dims_; }
  std::int64_t operator[](int dim) const {
    SCALETRAIN_CHECK(dim >= 0 && dim < num_dims_);
    return dims_[static_cast<std::size_t>(dim)];
  }
  std::int64_t num_elements() const { return num_elements_; }  // 1 for no dims
  void append(std::int64_t extent);
  bool operator==(const Shape& other) const = default;
  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + num_dims_; }

 private:
  std::array<std::int64_t, max_dims> dims_{};
  int num_dims_ = 0;
  std::int64_t num_elements_ = 1;
};

std::string to_text(const Shape& shape);  // "[768, 2304]"
std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace scaletrain
