// Internal to the backend: the checks of descriptors that no device makes itself.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

// The checks of one descriptor: every failure is a BugError that names the operation and the operand.
class Checker {
 public:
  Checker(std::string_view operation, const Backend& backend)
      : operation_(operation),
        compute_(backend.compute_type()),
        space_(backend.space()),
        row_alignment_(backend.row_alignment()) {}

  DType compute() const { return compute_; }
  // Statistics, gradients of parameters and optimizer state: f32 or better under every compute type.
  DType master() const { return accumulator_type(compute_); }

  [[noreturn]] void fail(std::string_view operand, const std::string& problem) const {
    detail::throw_bug(__FILE__, __LINE__, std::string(operation_) + "." + std::string(operand) + ": " + problem, {});
  }

  void require(std::string_view operand, bool condition, std::string_view expected) const {
    if (!condition) fail(operand, "expected " + std::string(expected));
  }

  // An operand of no elements needs no memory. Any other lies where kernels read and write.
  void present(std::string_view operand, const ConstView& view) const {
    if (view.num_elements() == 0) return;
    if (!view) fail(operand, "is required and absent");
    if (view.space() != space_)
      fail(operand, "is in " + std::string(to_text(view.space())) + " memory, expected " +
                        std::string(to_text(space_)) + " memory");
  }

  void dtype(std::string_view operand, const ConstView& view, DType expected) const {
    if (view.dtype() != expected)
      fail(operand, "is " + std::string(to_text(view.dtype())) + ", expected " + std::string(to_text(expected)));
  }

  void dims(std::string_view operand, const ConstView& view, int expected) const {
    if (view.shape().num_dims() != expected)
      fail(operand, "has shape " + to_text(view.shape()) + ", expected " + std::to_string(expected) + " dims");
  }

  // A required operand of a known shape.
  void operand(std::string_view name, const ConstView& view, DType type, const Shape& shape) const {
    present(name, view);
    dtype(name, view, type);
    if (!(view.shape() == shape)) fail(name, "has shape " + to_text(view.shape()) + ", expected " + to_text(shape));
  }

  void optional(std::string_view name, const ConstView& view, DType type, const Shape& shape) const {
    if (view) operand(name, view, type, shape);
  }

  // A required matrix whose extents the others are compared with.
  void matrix(std::string_view name, const ConstView& view, DType type) const {
    present(name, view);
    dtype(name, view, type);
    dims(name, view, 2);
  }

  // Whether a matrix has so many columns, but for what its rows may be padded by.
  bool has_columns(const ConstView& matrix, std::int64_t columns) const {
    return matrix.shape()[1] >= columns && matrix.shape()[1] <= round_up(columns, row_alignment_);
  }

  // Contiguous operands that must not share memory.
  void disjoint(std::string_view name, const ConstView& output, std::initializer_list<ConstView> inputs) const {
    const auto* first = static_cast<const std::byte*>(output.data());
    if (first == nullptr) return;
    const auto* last = first + output.num_bytes();
    for (const ConstView& input : inputs) {
      const auto* other = static_cast<const std::byte*>(input.data());
      if (other == nullptr) continue;
      if (other < last && first < other + input.num_bytes()) fail(name, "overlaps an input");
    }
  }

  // The same, except that the output may be the very memory of `allowed`.
  void disjoint_or_same(std::string_view name, const ConstView& output, const ConstView& allowed) const {
    if (allowed.data() != output.data()) disjoint(name, output, {allowed});
  }

 private:
  std::string_view operation_;
  DType compute_;
  Space space_;
  std::int64_t row_alignment_;
};

// Of a buffer of `count` elements.
template <class Span>
void check_spans(const Checker& check, std::span<const Span> spans, std::int64_t count) {
  std::int64_t end = 0;
  for (const Span& span : spans) {
    check.require("spans", span.first >= end && span.count >= 0, "ascending spans that do not overlap");
    check.require("spans", span.count <= count && span.first <= count - span.count, "spans inside the buffer");
    end = span.first + span.count;
  }
}

}  // namespace scaletrain
