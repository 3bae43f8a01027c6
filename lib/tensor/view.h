// Views of tensors in somebody else's memory: a pointer, an element type and a shape, contiguous and row-major. A view
// never owns and never allocates; it is passed by value. An empty view (no data) stands for an absent optional operand.
#pragma once

#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace scaletrain {

class View {
 public:
  View() = default;
  View(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}

  explicit operator bool() const { return data_ != nullptr; }
  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t num_elements() const { return shape_.num_elements(); }
  std::size_t num_bytes() const { return static_cast<std::size_t>(num_elements()) * size_of(dtype_); }

  // The elements as T, which must be the view's own type.
  template <class T>
  T* as() const {
    SCALETRAIN_CHECK(dtype_of<T>() == dtype_);
    return static_cast<T*>(data_);
  }
  // The same elements in another shape of equal size.
  View reshape(Shape shape) const {
    SCALETRAIN_CHECK_EQ(shape.num_elements(), num_elements());
    return {data_, dtype_, shape};
  }
  // Rows [first, first + count) of the outermost dim.
  View rows(std::int64_t first, std::int64_t count) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  Shape shape_;
};

class ConstView {
 public:
  ConstView() = default;
  ConstView(const void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}
  ConstView(const View& view) : ConstView(view.data(), view.dtype(), view.shape()) {}  // NOLINT: a view is a const view

  explicit operator bool() const { return data_ != nullptr; }
  const void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t num_elements() const { return shape_.num_elements(); }
  std::size_t num_bytes() const { return static_cast<std::size_t>(num_elements()) * size_of(dtype_); }

  template <class T>
  const T* as() const {
    SCALETRAIN_CHECK(dtype_of<T>() == dtype_);
    return static_cast<const T*>(data_);
  }
  ConstView reshape(Shape shape) const {
    SCALETRAIN_CHECK_EQ(shape.num_elements(), num_elements());
    return {data_, dtype_, shape};
  }
  ConstView rows(std::int64_t first, std::int64_t count) const;

 private:
  const void* data_ = nullptr;
  DType dtype_ = DType::f32;
  Shape shape_;
};

}  // namespace scaletrain
