// Internal to the parameter store: what it allocates, and where segments, matrices and sums lie in it. Pure arithmetic
// on the table, the layout and the options, so that the memory plan and the store cannot differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/param_store.h"

namespace scaletrain {

// A segment of the layout as the store sees it.
struct SegmentPlace {
  Segment segment;
  DType dtype = DType::f32;
  bool trained = false;             // has a gradient
  bool shared = false;              // several units of this rank use it: its staging is its own
  std::size_t weight_offset = 0;    // in the staging buffer of its unit, or of the shared segments
  std::size_t gradient_offset = 0;  // the same for gradients
  std::size_t bytes() const { return static_cast<std::size_t>(segment.count) * size_of(dtype); }
};

// One matrix (or vector) as layers see it: a row, or a fused group of rows stacked along dim 0.
struct MatrixPlace {
  std::string name;
  int segment = -1;         // -1: no elements on this rank
  std::int64_t offset = 0;  // in the segment
  Shape shape;
  DType dtype = DType::f32;
  bool trained = false;
  bool lookup_only = false;
};

// A stretch of a unit's gradient that tensor ranks have computed parts of.
struct SumPlace {
  int segment = 0;
  std::int64_t offset = 0;  // in the segment
  std::int64_t count = 0;
  // Short stretches are summed together through a copy, long ones where they lie.
  bool coalesced() const;
};

struct UnitPlace {
  int unit = 0;
  std::vector<int> segments;          // all that its rows lie in
  std::vector<MatrixPlace> matrices;  // in table order
  std::vector<SumPlace> tensor_sums;  // over groups->tensor
  std::vector<SumPlace> holder_sums;  // over groups->holders
};

struct StoreMemory {
  ZeroPolicy zero;  // what is divided in fact: nothing where there is one data rank
  std::int64_t data_degree = 1;
  std::int64_t data_rank = 0;
  bool gradients = false;
  std::size_t num_slots = 0;  // optimizer state per element
  std::vector<DType> dtypes;  // by buffer
  std::vector<SegmentPlace> segments;
  int num_staging = 0;               // staging buffers of units, for weights and for gradients
  std::size_t weight_staging = 0;    // bytes of each
  std::size_t gradient_staging = 0;  // bytes of each
  std::size_t shared_weights = 0;    // bytes of the staging of shared segments
  std::size_t shared_gradients = 0;
  // Bytes of the copy of coalesced sums: of one unit, or of all where there are no replicas.
  std::size_t sum_staging = 0;
};

StoreMemory plan_store_memory(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options);
UnitPlace place_unit(const ParamTable& table, const ShardLayout& layout, const StoreMemory& memory,
                     const ParamStore::Options& options, int unit);

}  // namespace scaletrain
