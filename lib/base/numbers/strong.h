// Integers that must not be swapped: Rank is not Stage. Explicit in, .value() out, compared and hashed like integers.
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>

namespace scaletrain {

template <class Tag, class T = std::int64_t>
class Strong {
 public:
  constexpr Strong() = default;
  constexpr explicit Strong(T value) : value_(value) {}
  constexpr T value() const { return value_; }
  constexpr auto operator<=>(const Strong&) const = default;  // NOLINT(modernize-use-nullptr): the checker's error
  friend std::ostream& operator<<(std::ostream& out, Strong s) { return out << s.value_; }

 private:
  T value_{};
};

using Rank = Strong<struct RankTag>;              // a process of the world
using Stage = Strong<struct StageTag>;            // a pipeline stage (a chunk of the model), in order of the layers
using MicroBatch = Strong<struct MicroBatchTag>;  // index within one optimizer step and replica
using Step = Strong<struct StepTag>;              // optimizer steps completed

}  // namespace scaletrain
