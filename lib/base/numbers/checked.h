// Arithmetic on sizes that cannot wrap unseen. Sizes come from files and configs; a product that wraps becomes a small
// allocation with a large index. What does not fit is a SizeError: a bug, unless whoever computes from what a user
// asked for catches it, or tests first with the try_ forms.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace scaletrain {

// A sum, product or conversion does not fit its type.
class SizeError : public BugError {
 public:
  using BugError::BugError;
};

namespace detail {
template <class A, class B>
[[noreturn]] void throw_size(int line, std::string_view what, const A& a, const B& b) {
  try {
    throw_bug_operands(__FILE__, line, what, a, b);
  } catch (const BugError& error) {
    throw SizeError(error.what());
  }
}
}  // namespace detail

template <std::integral T>
constexpr std::optional<T> try_add(T a, T b) {
  T out{};
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <std::integral T>
constexpr std::optional<T> try_mul(T a, T b) {
  T out{};
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <std::integral T>
T checked_add(T a, T b) {
  const auto out = try_add(a, b);
  if (!out) detail::throw_size(__LINE__, "a + b fits", a, b);
  return *out;
}

template <std::integral T>
T checked_mul(T a, T b) {
  const auto out = try_mul(a, b);
  if (!out) detail::throw_size(__LINE__, "a * b fits", a, b);
  return *out;
}

// a / b where b must divide a.
template <std::integral T>
T div_exact(T a, T b) {
  if (b == 0 || a % b != 0) detail::throw_bug_operands(__FILE__, __LINE__, "b divides a", a, b);
  return a / b;
}

template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

template <std::integral T>
T round_up(T a, T multiple) {
  return checked_mul(ceil_div(a, multiple), multiple);
}

// A cast that must not change the value.
template <std::integral To, std::integral From>
To narrow(From value) {
  if (!std::in_range<To>(value)) detail::throw_size(__LINE__, "value fits its new type", value, "");
  return static_cast<To>(value);
}

}  // namespace scaletrain
