// Views of tensors in somebody else's memory: a pointer, the memory space that it points into, an element type and a
// shape, contiguous and row-major. A view never owns and never allocates; it is passed by value. An empty view (no
// data) stands for an absent optional operand.
//
// data() is an address, for whoever can read that space: a kernel, a transfer. The host reads and writes through as()
// and bytes(), which refuse device memory.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"
#include "tensor/shape.h"
#include "tensor/space.h"

namespace scaletrain {

class View {
 public:
  View() = default;
  View(void* data, DType dtype, Shape shape, Space space = Space::host)
      : data_(data), dtype_(dtype), space_(space), shape_(shape) {}

  explicit operator bool() const { return data_ != nullptr; }
  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  Space space() const { return space_; }
  const Shape& shape() const { return shape_; }
  std::int64_t num_elements() const { return shape_.num_elements(); }
  std::size_t num_bytes() const { return static_cast<std::size_t>(num_elements()) * size_of(dtype_); }

  // The elements as T, which must be the view's own type, in memory that the host can reach.
  template <class T>
  T* as() const {
    SCALETRAIN_CHECK(dtype_of<T>() == dtype_ && is_host_accessible(space_));
    return static_cast<T*>(data_);
  }
  // The same as bytes, of any type.
  std::byte* bytes() const {
    SCALETRAIN_CHECK(is_host_accessible(space_));
    return static_cast<std::byte*>(data_);
  }
  // The same elements in another shape of equal size.
  View reshape(Shape shape) const {
    SCALETRAIN_CHECK_EQ(shape.num_elements(), num_elements());
    return {data_, dtype_, shape, space_};
  }
  // Rows [first, first + count) of the outermost dim.
  View rows(std::int64_t first, std::int64_t count) const;
  // Of the same elements in the same memory, whatever they are.
  bool operator==(const View&) const = default;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  Space space_ = Space::host;
  Shape shape_;
};

class ConstView {
 public:
  ConstView() = default;
  ConstView(const void* data, DType dtype, Shape shape, Space space = Space::host)
      : data_(data), dtype_(dtype), space_(space), shape_(shape) {}
  ConstView(const View& view)  // NOLINT: a view is a const view
      : ConstView(view.data(), view.dtype(), view.shape(), view.space()) {}

  explicit operator bool() const { return data_ != nullptr; }
  const void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  Space space() const { return space_; }
  const Shape& shape() const { return shape_; }
  std::int64_t num_elements() const { return shape_.num_elements(); }
  std::size_t num_bytes() const { return static_cast<std::size_t>(num_elements()) * size_of(dtype_); }

  template <class T>
  const T* as() const {
    SCALETRAIN_CHECK(dtype_of<T>() == dtype_ && is_host_accessible(space_));
    return static_cast<const T*>(data_);
  }
  const std::byte* bytes() const {
    SCALETRAIN_CHECK(is_host_accessible(space_));
    return static_cast<const std::byte*>(data_);
  }
  ConstView reshape(Shape shape) const {
    SCALETRAIN_CHECK_EQ(shape.num_elements(), num_elements());
    return {data_, dtype_, shape, space_};
  }
  ConstView rows(std::int64_t first, std::int64_t count) const;
  bool operator==(const ConstView&) const = default;

 private:
  const void* data_ = nullptr;
  DType dtype_ = DType::f32;
  Space space_ = Space::host;
  Shape shape_;
};

}  // namespace scaletrain
