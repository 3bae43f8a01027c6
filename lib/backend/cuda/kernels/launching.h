// What the host's side of kernels shares: where operands lie, and how many blocks they take.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/elements.h"
#include "base/error.h"
#include "base/numbers/checked.h"
#include "tensor/view.h"

namespace scaletrain::cuda {

template <class S>
constexpr DType dtype_of_element();
template <>
constexpr DType dtype_of_element<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of_element<__nv_bfloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of_element<__half>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of_element<std::uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of_element<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of_element<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of_element<std::int64_t>() {
  return DType::i64;
}

// An operand's address; null where it is absent.
template <class S>
S* address(const View& view) {
  SCALETRAIN_CHECK(!view || view.dtype() == dtype_of_element<S>());
  return static_cast<S*>(view.data());
}
template <class S>
const S* address(const ConstView& view) {
  SCALETRAIN_CHECK(!view || view.dtype() == dtype_of_element<S>());
  return static_cast<const S*>(view.data());
}

// Whether packs can be read at all of these addresses (null counts as one) and at whole multiples of `stride` elements.
template <class S, class... Addresses>
bool fits_packs(std::int64_t stride, Addresses... addresses) {
  return stride % pack_elements<S> == 0 && ((reinterpret_cast<std::uintptr_t>(addresses) % pack_bytes == 0) && ...);
}

constexpr unsigned threads_of_block = 256;

// Of `work` pieces, one a thread (or as many as are given to a thread or a block).
inline dim3 blocks_for(std::int64_t work, std::int64_t of_a_block = threads_of_block) {
  return dim3(static_cast<unsigned>(narrow<int>((work + of_a_block - 1) / of_a_block)));
}

// body(the number of elements of a pack, as a constant): the whole pack where it fits, else 1.
template <class S, class Body>
void with_width(bool fits, Body&& body) {
  if (fits)
    body(std::integral_constant<int, pack_elements<S>>());
  else
    body(std::integral_constant<int, 1>());
}

}  // namespace scaletrain::cuda

// compute() of an operation for every compute type, in the source that defines it.
#define SCALETRAIN_FOR_COMPUTE_TYPES(Descriptor)                         \
  template void compute<float>(const Issue&, const Descriptor&);         \
  template void compute<__nv_bfloat16>(const Issue&, const Descriptor&); \
  template void compute<__half>(const Issue&, const Descriptor&);
