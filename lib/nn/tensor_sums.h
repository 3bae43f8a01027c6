// What the ranks of a tensor group tell each other inside a unit. A row-parallel map, the vocabulary-parallel lookup
// and the input gradients of column-parallel maps leave each rank with a partial sum; the sum goes to every rank
// (Shoeybi et al. 2019) or, with sequence shards, each rank's rows of it go to that rank, and column-parallel maps
// gather the rows first (Korthikanti et al. 2022). Internal to nn.
//
// N rows of the micro-batch, n of them this rank's own: with sequence shards its part, else all. With a tensor degree
// of one nothing happens: rows are unsharded as they are, and a partial sum is the sum.
//
// Every call of a unit goes through here. Made to declare, it writes each down where it would have made it.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "nn/model_spec.h"
#include "store/group_call.h"

namespace scaletrain {

// n: the rows between the parallel parts that a tensor rank holds.
std::int64_t own_rows(const TensorPart& part, std::int64_t rows);
// Which of all rows is the first of them.
std::int64_t first_own_row(const TensorPart& part, std::int64_t rows);
// Whether activations between the parallel parts are divided.
bool divides_rows(const TensorPart& part);

class TensorSums {
 public:
  TensorSums() = default;  // a tensor degree of one
  // None is owned. tensor: null for a degree of one. stream: whose work the sums stand between. declared: where calls
  // are written down instead, or null.
  TensorSums(Communicator* tensor, Stream& stream, const TensorPart& part, std::vector<GroupCall>* declared = nullptr);

  // The same, whose activations are declared as recomputed ones.
  TensorSums recomputing() const {
    TensorSums sums = *this;
    sums.of_activations_ = CallPurpose::recomputed_activations;
    return sums;
  }

  bool declares() const { return declared_ != nullptr; }
  bool parallel() const { return part_.degree > 1; }
  bool sequence() const { return divides_rows(part_); }
  // Whether this rank's partial sum holds what the sum must hold once: a bias, a position embedding.
  bool adds_shared_values() const { return part_.rank == 0; }

  // All rows [N,C] of which `own` are this rank's [n,C]: `own` itself, or with sequence shards gathered into `place`
  // [N,C], which else may be absent.
  View unsharded(View own, View place) const;
  // Where this rank's partial sum is to be computed, whose own rows belong in `own`: `own`, or with sequence shards
  // `place` [N,C].
  View partial(View own, View place) const { return sequence() ? place : own; }
  // Sums the partial sums over the ranks into `own`. `partial` is what partial() gave.
  void sum(View partial, View own) const;
  // all [t, ...] = the ranks' `own` [...] one after the other.
  void gather_equal(ConstView own, View all) const;

 private:
  std::vector<std::int64_t> element_counts(const Shape& unsharded) const;
  bool is_declared(CollectiveKind kind, CallPurpose purpose, const View& whole, std::int64_t own) const;

  Communicator* tensor_ = nullptr;
  Stream* stream_ = nullptr;
  TensorPart part_;
  std::vector<GroupCall>* declared_ = nullptr;
  CallPurpose of_activations_ = CallPurpose::activations;
};

}  // namespace scaletrain
