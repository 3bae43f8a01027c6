// Where each parameter of one rank lives in the flat buffers that ZeRO partitions.
//
// One flat buffer per (role, reduction group, dtype, optimizer states that there are, block of states in 8 bits): all
// parameters of it one after the other, units in order, each parameter's local box flattened, parameters of a fused
// group without gaps, every unit and every fused group aligned to 16 elements (64 bytes), or to a block. Shards are
// too, so that a block of a parameter is one of the buffer, which no rank has a part of. Decay and padding are
// attributes of spans.
//
// A buffer is divided into buckets, and each bucket on its own into equal, aligned shards, one per data rank, padded
// where it does not divide: so a unit can be gathered, and its gradient reduced, by itself. A unit is one bucket; a
// tensor that is tied (owner or copy) is a bucket of its own, before the rest of its unit, so that its shards lie
// alike on both stages that hold it. A rank's shards of all buckets, one after the other, are its shard of the buffer:
// `shard` offsets count in it.
//
// On a hierarchical mesh there are fewer shards than data ranks, and a shard is held by as many ranks as there are
// copies. It consists of equal, aligned pieces, one for each of them: what only one rank counts or saves goes by
// pieces. Elsewhere a piece is a shard.
//
// Every parameter that does not continue a fused group starts aligned. A tied parameter whose owner is held by the same
// rank has no place of its own: find() gives the owner's. On another stage it is a copy with a place of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/param_table.h"

namespace scaletrain {

// ZeRO as a policy: what is divided among the data ranks. Stage 0: nothing; 1: optimizer; 2: + gradients; 3: +
// parameters.
struct ZeroPolicy {
  bool shard_optimizer = false;
  bool shard_gradients = false;
  bool shard_parameters = false;
  static ZeroPolicy of_stage(std::int64_t stage);
  bool operator==(const ZeroPolicy&) const = default;
};

// One parameter's place: elements [offset, offset + box.num_elements()) of flat buffer `buffer`.
struct ParamSpan {
  int parameter = 0;  // index into ParamTable::parameters()
  int buffer = 0;
  std::int64_t offset = 0;
  std::int64_t count = 0;
  Box box;  // the rank's part of the global tensor
};

struct FlatBuffer {
  // "trained.data.F32", with ".without.1" where they lack a state, with ".in-256" of blocks; roles without a gradient
  // have no reduction group: "frozen.BF16"
  std::string name;
  ParamRole role = ParamRole::trained;
  DType dtype = DType::f32;
  int absent_state = -1;          // as its parameters'
  std::int64_t num_elements = 0;  // padded to shards * shard_elements
  std::int64_t shard_elements = 0;
  std::int64_t state_block = 0;  // of its parameters (Parameter::state_block)
};

// A part of a buffer that is divided by itself: shard s is elements [first + s * shard_elements, first + (s + 1) *
// shard_elements).
struct Bucket {
  int unit = 0;
  int buffer = 0;
  std::int64_t first = 0;           // in the flat buffer
  std::int64_t count = 0;           // Mesh::shards() * shard_elements: with padding
  std::int64_t shard_elements = 0;  // Mesh::copies() * piece_elements
  std::int64_t piece_elements = 0;  // a multiple of 16, and of a block
  std::int64_t shard_first = 0;     // where a rank's shard of the bucket lies in its shard of the buffer
  bool tied = false;                // holds one tensor, which is tied: the embedding, or another stage's copy of it
};

// A contiguous part of one parameter's local box in row-major order.
struct ParamRange {
  int parameter = 0;  // index into ParamTable::parameters()
  int buffer = 0;
  std::int64_t first = 0;  // within the parameter's local box, flattened
  std::int64_t count = 0;
  std::int64_t flat_offset = 0;   // in the flat buffer
  std::int64_t shard_offset = 0;  // in the owner's shard of the buffer; for ranges of a shard
};

class ShardLayout {
 public:
  // The layout of one rank that holds `units` of the table (indices, ascending).
  ShardLayout(const ParamTable& table, std::span<const int> units, const Mesh& mesh, const MeshPosition& position);
  ShardLayout() = default;

  std::span<const FlatBuffer> buffers() const { return buffers_; }
  std::span<const ParamSpan> spans() const { return spans_; }  // by buffer, then by offset
  // The place of a parameter (index in the table), or null if this rank does not hold it.
  const ParamSpan* find(int parameter) const;
  std::span<const int> units() const { return held_units_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshPosition& position() const { return position_; }
  // In order of (buffer, first).
  std::span<const Bucket> buckets() const { return buckets_; }
  // Indices into buckets() of what a unit's parameters lie in; with the bucket of a tied tensor's owner, if a parameter
  // of the unit is a copy that shares the owner's place.
  std::vector<int> buckets_used_by(int unit) const;
  // The index of the bucket that an element of a buffer lies in.
  int bucket_at(int buffer, std::int64_t offset) const;
  // The parts of parameters in a data rank's shard, in the order of the shard: the optimizer's division of the model.
  std::vector<ParamRange> shard_ranges(std::int64_t data_rank) const;
  // Those in its piece of the shard, which are nobody else's: the norm's and the checkpoint's, under every policy.
  std::vector<ParamRange> piece_ranges(std::int64_t data_rank) const;
  // Every parameter as one range: what a rank holds under a policy that does not shard.
  std::vector<ParamRange> unsharded_ranges() const;
  // Elements of the tensors that this rank holds, without padding.
  std::int64_t num_elements(ParamRole role) const;

 private:
  int buffer_of(const Parameter& parameter);
  void place_unit(const ParamTable& table, int unit, int buffer, std::span<const char> is_owner);
  // Places the parameter at `end` of the buffer, or behind it where it must start aligned, and moves `end` behind it.
  void place_parameter(const Parameter& parameter, int index_in_table, int buffer, bool continues, std::int64_t& end);
  // Everything from the buffer's last bucket to `end`, padded so that it divides.
  void add_bucket(int unit, int buffer, bool tied, std::int64_t end);
  void place_tied_copies(const ParamTable& table);
  // part_of(bucket): where in the rank's shard of it the wanted elements begin, and how many they are.
  template <class PartOf>
  std::vector<ParamRange> ranges_of(std::int64_t data_rank, PartOf part_of) const;

  Mesh mesh_;
  MeshPosition position_;
  std::vector<int> held_units_;
  std::vector<FlatBuffer> buffers_;
  std::vector<Bucket> buckets_;
  std::vector<ParamSpan> spans_;
  std::vector<ParamSpan> tied_;              // parameters that share their owner's place
  std::vector<std::pair<int, int>> shared_;  // (unit of a parameter in tied_, bucket of its owner)
  std::vector<std::int64_t> place_of_;       // index into spans_; -1: not held; -2 - k: tied_[k]
};

// A flat range of a row-major tensor box as boxes of the global tensor: at most 2d-1 of them. What a rank saves under a
// sharded policy.
std::vector<Box> boxes_of_range(const Box& box, std::int64_t first, std::int64_t count);

}  // namespace scaletrain
