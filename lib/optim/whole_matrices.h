// Internal to optim: the matrices that Muon orthogonalises, each stored tensor its own, and how a rank that holds parts
// of them comes to whole ones. What it has in the gradients' place, in the compute type, is gathered by buckets over
// the replicas that share the optimizer's work, and then, of each matrix that tensor ranks divide, over those. Which
// ranks need a matrix follows from the layouts alone, so that all of a group make the same calls.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "optim/newton_schulz.h"
#include "parallel/param_table.h"
#include "parallel/shard_layout.h"
#include "store/group_call.h"
#include "store/param_store.h"

namespace scaletrain {

// Trained, and a linear map of a block.
bool is_orthogonalised(const Parameter& parameter);

// One of them as a rank has it.
struct LocalMatrix {
  int parameter = 0;
  Box box{};                // the rank's part of the matrix
  std::int64_t offset = 0;  // in the flat buffer
  // Whether the rank updates elements of it, and whether one of its tensor group does.
  bool is_updated = false;
  bool is_needed = false;
  int cut = 0;               // the dim that tensor ranks divide
  std::vector<Box> parts{};  // by tensor rank, of one that only repeats another's nothing; empty: the box is all of it
};

// Those of a unit in one flat buffer, in the order of the table.
struct MatrixBucket {
  int buffer = 0;
  std::optional<Bucket> bucket;  // nothing: the rank has no element of them
  bool is_gathered = false;      // over the replicas
  std::vector<LocalMatrix> matrices;
};

class WholeMatrices {
 public:
  WholeMatrices(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options);

  std::span<const MatrixBucket> buckets() const { return buckets_; }
  // Of the matrices that this rank may need whole.
  const NewtonSchulzExtent& extent() const { return extent_; }
  std::int64_t longest_bucket() const { return longest_bucket_; }  // elements, of those that are gathered
  std::size_t bytes() const;                                       // that making them takes
  std::vector<GroupCall> calls() const;                            // in their order

 private:
  friend class MatrixWork;
  LocalMatrix local_matrix(const ParamTable& table, const ShardLayout& layout,
                           std::span<const ShardLayout> tensor_group, int parameter, bool is_sharded);

  DType compute_ = DType::f32;
  GroupKind shard_group_ = GroupKind::data;
  std::int64_t shard_ = 0;
  std::size_t tensor_rank_ = 0;
  std::vector<MatrixBucket> buckets_;
  NewtonSchulzExtent extent_;
  std::int64_t longest_bucket_ = 0;
};

// Makes them whole, orthogonalises them and puts back what is the rank's.
class MatrixWork {
 public:
  // Both must outlive it.
  MatrixWork(Backend& backend, const ParamStore& store);

  // The gradients' place of the flat buffer's elements [first, first + count), which the rank updates.
  using Find = std::function<View(int buffer, std::int64_t first, std::int64_t count)>;
  // Of all matrices, whose norms are at most 1. Issues to the stream; all ranks make the same calls.
  void orthogonalise(Stream& stream, const Find& find) const;

 private:
  View gathered(Stream& stream, const MatrixBucket& bucket, const Find& find) const;
  void make_whole(Stream& stream, const LocalMatrix& matrix, const View& own) const;
  void put_back(Stream& stream, const MatrixBucket& bucket, const LocalMatrix& matrix, const View& whole,
                const Find& find) const;
  Communicator& group(GroupKind kind) const;

  Backend& backend_;
  const ParamStore& store_;
  WholeMatrices matrices_;
  NewtonSchulz iterations_;
  Buffer bucket_;  // the gathered one
};

}  // namespace scaletrain
