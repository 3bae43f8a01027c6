// Internal to optim: second moments of matrices, of which Adafactor keeps a mean for each row and each column (Shazeer
// and Stern 2018): r and c of a matrix G, from the squares of all of it, whichever rank holds them. Their update is the
// host's: the few sums of each matrix come from the device, are added up over the ranks of the stage, and what kernels
// multiply by goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/mirrored_buffer.h"
#include "store/param_store.h"

namespace scaletrain {

class FactoredMoments {
 public:
  // Both must outlive it. exponent: an update's t-th (of the parameter) keeps 1 - t^-exponent of the means.
  FactoredMoments(Backend& backend, const ParamStore& store, double exponent);

  // Numbers that update() sums over the ranks of the stage, and memory of the device, of a rank of this layout.
  static std::int64_t num_summed(const ParamTable& table, const ShardLayout& layout);
  static std::size_t bytes(const ParamTable& table, const ShardLayout& layout, DType masters);
  // And of the host, but for images of what is on the device.
  static std::size_t host_bytes(const ParamTable& table, const ShardLayout& layout, DType masters);

  // The weight of the new square at the t-th update, from 1 on.
  static double weight_at(std::int64_t update, double exponent);
  // The least root of a second moment, so that a gradient that was always 0 gives 0: of the paper's ε1, 1e-30.
  static constexpr double smallest_root = 1e-15;

  // From the gradients, which are complete: issues the sums of their squares and the way of these and of the store's
  // factors to the host.
  void issue(Stream& stream);
  // Sums over the ranks what was issued since the update before, for which the caller has waited; where nothing was,
  // issues it and waits for the stream. Then renews the store's factors of what has joined, unless the step is skipped.
  // All ranks of the stage call it.
  void update(Stream& stream, const StepScalars& step);
  // Issues the division of the gradients of a range by the roots of their moments: of the matrices that joined after so
  // many updates. step: the scalars in memory of the device.
  void make_directions(Stream& stream, const OptimizerRange& range, std::int64_t joins_after, ConstView step) const;

 private:
  // What this rank counts of a matrix, with the place of its sums: rows that it touches, then the columns it holds.
  struct Part {
    ParamRange range;
    std::int64_t first_row = 0, first_column = 0;  // of the whole matrix, that the sums begin with
    std::int64_t offset_in_row = 0;                // of the first element, in the columns that it holds
    std::int64_t rows = 0, columns = 0;
    std::int64_t first_sum = 0;
  };
  static std::vector<Part> parts_of(const ParamTable& table, const ShardLayout& layout);
  static std::size_t sums_of(std::span<const Part> parts);

  View factors_image() const;
  template <class T>
  void renew(const FactorPlace& place, const StepScalars& step);

  Backend& backend_;
  const ParamStore& store_;
  double exponent_;
  std::vector<Part> parts_;
  MirroredBuffer sums_;         // f64
  MirroredBuffer inverse_;      // as the store's factors lie, in their type: what a gradient is multiplied by
  Buffer factors_;              // of the host: an image of the store's
  std::vector<double> totals_;  // as the store's factors lie
  bool is_issued_ = false;
};

}  // namespace scaletrain
