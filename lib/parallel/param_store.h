// The parameters of one rank: master weights, gradients, optimizer slots in flat buffers, and the handles layers see.
//
// acquire(unit) and release(unit) bracket every use, at every ZeRO stage. Layers never see flat buffers: they get a
// UnitWeights with one Weight per row of the unit, or one per fused group (a matrix over the group's rows), in table
// order. Compute forms are cached per version and dropped when the optimizer (or a gather) changes the values. Not
// thread-safe: one executor uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "parallel/param_table.h"
#include "parallel/shard_layout.h"

namespace scaletrain {

// Handles of one acquired unit. Valid until release.
class UnitWeights {
 public:
  // The weight, or fused matrix, of this name: the row's name without the unit's prefix ("attention.query.weight"), or
  // the fused group's name ("attention.qkv.weight"). Absent rows (no bias) give an empty Weight.
  Weight find(std::string_view local_name) const;

 private:
  friend class ParamStore;
  struct Entry {
    std::string name;
    Weight weight;
  };
  std::vector<Entry> entries_;
};

// Gradient accumulators of one unit, by the same names.
class UnitGradients {
 public:
  View find(std::string_view local_name) const;

 private:
  friend class ParamStore;
  struct Entry {
    std::string name;
    View gradient;
  };
  std::vector<Entry> entries_;
};

// A stretch of a flat buffer with everything that lives over it. Pointers into the store's buffers.
struct OptimizerRange {
  int buffer = 0;
  std::int64_t first = 0;
  View param;  // master weights
  View gradient;
  std::vector<View> slots;  // in the order of the names given to the constructor
};

class ParamStore {
 public:
  struct Options {
    std::vector<std::string>
        slot_names;  // per-element optimizer state, e.g. {"exp_avg", "exp_avg_sq"}; none for inference
    bool gradients = true;
    DType dtype = DType::f32;  // of masters, gradients and slots; f64 with the f64 reference
  };

  // The table and layout must outlive the store. Allocates from the backend; zero-filled.
  ParamStore(Backend& backend, const ParamTable& table, const ShardLayout& layout, Options options);
  ~ParamStore();
  ParamStore(ParamStore&&) noexcept;
  ParamStore& operator=(ParamStore&&) noexcept;

  // Nesting is counted; acquiring while acquired is free.
  const UnitWeights& acquire(Stream& stream, int unit);
  void release(int unit);
  const UnitGradients& gradients(int unit) const;

  void zero_gradients(Stream& stream);
  // Everything the optimizer of this rank updates.
  std::span<OptimizerRange> optimizer_ranges();
  // After an update or a load: cached compute forms are stale.
  void values_changed();

  // The local box of a row (masters), its gradient, and slot s, for initialisation, checkpoints and tests. Empty where
  // not held.
  View master(std::string_view row_name) const;
  View gradient(std::string_view row_name) const;
  View slot(std::string_view row_name, std::size_t slot) const;

  const ParamTable& table() const;
  const ShardLayout& layout() const;
  const Options& options() const;
  std::uint64_t bytes() const;         // flat buffers
  std::uint64_t packed_bytes() const;  // cached compute forms now

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
