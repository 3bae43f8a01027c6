// Who is who: the bijection between ranks and positions on named axes. Pure arithmetic; nothing is stored per rank.
//
// Rank order: tensor fastest, then data, then pipeline, so that the ranks of a tensor group are neighbours and share a
// host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/numbers/strong.h"

namespace scaletrain {

enum class Axis { tensor, data, pipeline };
std::string_view to_text(Axis axis);

// A rank's position: one index per axis.
struct MeshPosition {
  std::int64_t tensor = 0;
  std::int64_t data = 0;
  std::int64_t pipeline = 0;
  bool operator==(const MeshPosition&) const = default;
};

class Mesh {
 public:
  Mesh() = default;                                                     // one rank
  Mesh(std::int64_t data, std::int64_t tensor, std::int64_t pipeline);  // each >= 1

  std::int64_t world() const;  // the product of the degrees
  std::int64_t degree(Axis axis) const;
  Rank rank_of(const MeshPosition& position) const;
  MeshPosition position_of(Rank rank) const;
  // The ranks that differ from `rank` on this axis only, in order of the axis; includes `rank`.
  std::vector<Rank> group(Axis axis, Rank rank) const;
  // "data 2 x tensor 4 x pipeline 2"
  std::string text() const;
  bool operator==(const Mesh&) const = default;

 private:
  std::int64_t data_ = 1;
  std::int64_t tensor_ = 1;
  std::int64_t pipeline_ = 1;
};

}  // namespace scaletrain
