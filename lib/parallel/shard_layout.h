// Where each parameter of one rank lives in the flat buffers that ZeRO partitions.
//
// One flat buffer per (role, reduction group, dtype): all parameters of it one after the other, units in order, each
// row's local box flattened, rows of a fused group without gaps, every unit and every fused group aligned to 16
// elements (64 bytes). Decay and padding are attributes of spans.
//
// A buffer is divided into segments, and each segment on its own into equal, aligned pieces, one per data rank, padded
// where it does not divide: so a unit can be gathered, and its gradient reduced, by itself. A unit is one segment; a
// tensor that is tied (owner or copy) is a segment of its own, before the rest of its unit, so that its pieces lie
// alike on both stages that hold it. A rank's pieces, one after the other, are its shard: `shard` offsets count in it.
//
// Every row that does not continue a fused group starts aligned. A tied row whose owner is held by the same rank has no
// place of its own: find() gives the owner's. On another stage it is a copy with a place of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/operations.h"
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

// One row's place: elements [offset, offset + box.num_elements()) of flat buffer `buffer`.
struct ParamSpan {
  int row = 0;  // index into ParamTable::rows()
  int buffer = 0;
  std::int64_t offset = 0;
  std::int64_t count = 0;
  Box box;  // the rank's part of the global tensor
};

struct FlatBuffer {
  std::string name;  // "trained.data.F32"; roles without a gradient have no reduction group: "frozen.BF16"
  ParamRole role = ParamRole::trained;
  DType dtype = DType::f32;
  std::int64_t num_elements = 0;  // padded to shards * shard_elements
  std::int64_t shard_elements = 0;
};

// A part of a buffer that is divided among the data ranks by itself: rank r owns elements
// [first + r * piece, first + (r + 1) * piece).
struct Segment {
  int unit = 0;
  int buffer = 0;
  std::int64_t first = 0;        // in the flat buffer
  std::int64_t count = 0;        // data degree * piece: with padding
  std::int64_t piece = 0;        // elements per data rank, a multiple of 16
  std::int64_t shard_first = 0;  // where a rank's piece lies in its shard of the buffer
  bool tied = false;             // holds one tensor, which is tied: the embedding, or another stage's copy of it
};

// A contiguous part of one row's local box in row-major order.
struct RowRange {
  int row = 0;  // index into ParamTable::rows()
  int buffer = 0;
  std::int64_t first = 0;  // within the row's local box, flattened
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
  // The spans of one unit in one buffer: a contiguous part of spans().
  std::span<const ParamSpan> spans_of(int unit, int buffer = 0) const;
  // The place of a row (index in the table), or null if this rank does not hold it.
  const ParamSpan* find(int row) const;
  std::span<const int> units() const { return held_units_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshPosition& position() const { return position_; }
  // In order of (buffer, first).
  std::span<const Segment> segments() const { return segments_; }
  // Indices into segments() of what a unit's rows lie in; with the segment of a tied tensor's owner, if a row of the
  // unit is a copy that shares the owner's place.
  std::vector<int> segments_used_by(int unit) const;
  // The index of the segment that an element of a buffer lies in.
  int segment_at(int buffer, std::int64_t offset) const;
  // The parts of rows that a data rank owns, in the order of its shard: the optimizer's, the norm's and the
  // checkpoint's division of the model, under every policy.
  std::vector<RowRange> shard_ranges(std::int64_t data_rank) const;
  // Every row as one range: what a rank holds under a policy that does not shard.
  std::vector<RowRange> whole_ranges() const;
  // Decay spans of buffer b within [first, first + count), offsets relative to `first`.
  std::vector<DecaySpan> decay_spans(int buffer, std::int64_t first, std::int64_t count, double weight_decay,
                                     const ParamTable& table) const;
  // Elements of the tensors that this rank holds, without padding.
  std::int64_t num_elements(ParamRole role) const;

 private:
  struct UnitSpans {
    int unit;
    int buffer;
    std::size_t first;
    std::size_t count;
  };
  int buffer_of(const ParamRow& row);
  void place_unit(const ParamTable& table, int unit, int buffer, std::span<const char> is_owner);
  // Places the row at `end` of the buffer, or behind it where it must start aligned, and moves `end` behind it.
  void place_row(const ParamRow& row, int row_index, int buffer, bool continues, std::int64_t& end);
  // Everything from the buffer's last segment to `end`, padded so that it divides.
  void add_segment(int unit, int buffer, bool tied, std::int64_t end);
  void place_tied_copies(const ParamTable& table);

  Mesh mesh_;
  MeshPosition position_;
  std::vector<int> held_units_;
  std::vector<FlatBuffer> buffers_;
  std::vector<Segment> segments_;
  std::vector<ParamSpan> spans_;
  std::vector<UnitSpans> units_;
  std::vector<ParamSpan> tied_;              // rows that share their owner's place
  std::vector<std::pair<int, int>> shared_;  // (unit of a row in tied_, segment of its owner)
  std::vector<std::int64_t> place_of_row_;   // index into spans_; -1: not held; -2 - k: tied_[k]
};

// A flat range of a row-major tensor box as boxes of the global tensor: at most 2d-1 of them. What a rank saves under a
// sharded policy.
std::vector<Box> boxes_of_range(const Box& box, std::int64_t first, std::int64_t count);

}  // namespace scaletrain
