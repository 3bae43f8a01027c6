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
  // shards: how many replicas ZeRO divides state among, a divisor of data. Neighbours share one copy of it, and each of
  // the data / shards copies is whole (hybrid sharding of PyTorch's FSDP; hierarchical partitions of ZeRO++, Wang et
  // al. 2023). Without it: all replicas.
  Mesh(std::int64_t data, std::int64_t tensor, std::int64_t pipeline, std::int64_t shards);

  std::int64_t world() const;  // the product of the degrees
  std::int64_t degree(Axis axis) const;
  Rank rank_of(const MeshPosition& position) const;
  MeshPosition position_of(Rank rank) const;
  // The ranks that differ from `rank` on this axis only, in order of the axis; includes `rank`.
  std::vector<Rank> group(Axis axis, Rank rank) const;
  std::int64_t shards() const { return shards_; }
  std::int64_t copies() const { return data_ / shards_; }
  // Whether state is divided among some replicas, and held again by others.
  bool is_hierarchical() const { return shards_ > 1 && shards_ < data_; }
  // Which shard a replica holds, and of which copy.
  std::int64_t shard_of(std::int64_t data_rank) const { return data_rank % shards_; }
  std::int64_t copy_of(std::int64_t data_rank) const { return data_rank / shards_; }
  // "data 2 x tensor 4 x pipeline 2"; "data 8 (2 copies of 4 shards) x ..." where it is hierarchical.
  std::string text() const;
  bool operator==(const Mesh&) const = default;

 private:
  std::int64_t data_ = 1;
  std::int64_t shards_ = 1;
  std::int64_t tensor_ = 1;
  std::int64_t pipeline_ = 1;
};

}  // namespace scaletrain
