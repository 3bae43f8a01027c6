// Internal to the parameter store: what it allocates, and where buckets, matrices and sums lie in it. Pure arithmetic
// on the table, the layout and the options, so that the memory plan and the store cannot differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/param_store.h"

namespace scaletrain {

// A bucket of the layout as the store sees it.
struct BucketPlace {
  Bucket bucket;
  DType dtype = DType::f32;         // of masters and gradients
  DType compute = DType::f32;       // of what layers read
  DType reduce = DType::f32;        // that gradients travel in between replicas
  bool trained = false;             // has a gradient
  bool shared = false;              // several units of this rank use it: its staging is its own
  std::size_t weight_offset = 0;    // in the staging buffer of its unit, or of the shared buckets
  std::size_t gradient_offset = 0;  // the same for gradients
  std::size_t bytes_of(DType type) const { return static_cast<std::size_t>(bucket.count) * size_of(type); }
};

// One matrix (or vector) as layers see it: a parameter, or a fused group of parameters stacked along dim 0.
struct MatrixPlace {
  std::string name;
  int bucket = -1;          // -1: no elements on this rank
  std::int64_t offset = 0;  // in the bucket
  Shape shape;
  DType dtype = DType::f32;    // of masters and gradients
  DType compute = DType::f32;  // of what layers read
  bool trained = false;
  std::int64_t joins_after = 0;  // updates
  bool lookup_only = false;
};

// A stretch of a unit's gradient that tensor ranks have computed parts of.
struct SumPlace {
  int bucket = 0;
  std::int64_t offset = 0;  // in the bucket
  std::int64_t count = 0;
  // Short stretches are summed together through a copy, long ones where they lie.
  bool coalesced() const;
};

struct UnitPlace {
  int unit = 0;
  std::vector<int> buckets;                // all that its parameters lie in
  std::vector<MatrixPlace> matrices;       // in table order
  std::vector<SumPlace> tensor_sums;       // over groups->tensor
  std::vector<SumPlace> replication_sums;  // over groups->replication
};

// Of a state over a part of a buffer.
struct StateBytes {
  std::size_t values = 0;  // or codes
  std::size_t scales = 0;
  std::size_t total() const { return values + scales; }
};

struct StoreMemory {
  ZeroPolicy zero;  // what is divided in fact: nothing where there is one data rank
  std::int64_t data_degree = 1;
  std::int64_t shards = 1;  // Mesh::shards()
  std::int64_t shard = 0;   // this rank's
  GroupKind shard_group = GroupKind::data;
  // Several ranks hold each shard: what has been summed within a copy is summed over them.
  bool sums_over_copies = false;
  bool gradients = false;
  bool second_gradients = false;           // those that the optimizer reads
  std::size_t num_states = 0;              // optimizer state per element, at most
  std::vector<DType> dtypes;               // by buffer: of masters, gradients and states
  std::vector<DType> compute;              // by buffer: of what layers read
  std::vector<char> trained;               // by buffer: has gradients and states
  std::vector<int> absent;                 // by buffer: a state that it has not; -1: it has all
  std::vector<std::int64_t> state_blocks;  // by buffer: of states in 8 bits; 0: none are
  std::vector<std::string> state_names;    // by state
  std::vector<BucketPlace> buckets;
  int num_staging = 0;               // staging buffers of units, for weights and for gradients
  std::size_t weight_staging = 0;    // bytes of each
  std::size_t gradient_staging = 0;  // bytes of each
  std::size_t shared_weights = 0;    // bytes of the staging of shared buckets
  std::size_t shared_gradients = 0;
  int num_reduce_staging = 0;      // copies of gradients that travel in a type of their own
  std::size_t reduce_staging = 0;  // bytes of each
  // Bytes of the copy of coalesced sums: of one unit, or of all where there are no replicas.
  std::size_t sum_staging = 0;
  // Masters and optimizer state of what is trained lie in the host's memory, and pass through staging in the device's,
  // so many elements at once.
  bool offload = false;
  std::int64_t staged_elements = 0;
  int num_state_staging = 0;
  std::size_t state_staging = 0;  // bytes of each

  bool has_state(int buffer, std::size_t state) const {
    const auto index = static_cast<std::size_t>(buffer);
    return trained[index] != 0 && static_cast<int>(state) != absent[index];
  }
  // Whether a buffer's compute weights are others than its masters (those of frozen parameters, which no update needs
  // in another form or place, never are), and whether a rank has its shard of the masters only.
  bool has_own_masters(int buffer) const {
    const auto index = static_cast<std::size_t>(buffer);
    return (offload && trained[index] != 0) || dtypes[index] != compute[index];
  }
  bool shards_masters(int buffer) const {
    return has_own_masters(buffer) ? zero.shard_optimizer : zero.shard_parameters;
  }
  bool is_in_blocks(std::size_t buffer, std::size_t state) const {
    return scaletrain::is_in_blocks(state_blocks[buffer], state_names[state]);
  }
  DType state_dtype(std::size_t buffer, std::size_t state) const {
    return is_in_blocks(buffer, state) ? DType::u8 : dtypes[buffer];
  }
  StateBytes state_bytes(std::size_t buffer, std::size_t state, std::int64_t elements) const;
};

std::size_t factor_bytes(std::span<const FactorPlace> places, DType dtype);

// Where the packed form of a matrix lies in memory of its own. Units that share a tied tensor share its form.
struct PackedPlace {
  int bucket = 0;
  std::int64_t offset = 0;  // of the matrix in the bucket
  std::size_t first = 0;    // byte in the memory of all forms
  std::size_t bytes = 0;
};

Shape shape_of(const Box& box);

StoreMemory plan_store_memory(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options);
UnitPlace place_unit(const ParamTable& table, const ShardLayout& layout, const StoreMemory& memory,
                     const ParamStore::Options& options, int unit);

// Of the matrices of these units; none where parameters are sharded: a form would have to be made at every use.
std::vector<PackedPlace> place_packed(const StoreMemory& memory, std::span<const UnitPlace> units,
                                      const std::function<std::size_t(const Shape&)>& packed_bytes);

}  // namespace scaletrain
