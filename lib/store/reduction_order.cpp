#include "store/reduction_order.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

std::int64_t coalesced_elements(std::span<const SumPlace> sums) {
  std::int64_t together = 0;
  for (const SumPlace& sum : sums) together += sum.coalesced() ? sum.count : 0;
  return together;
}

ReductionOrder::ReductionOrder(const StoreMemory& memory, std::span<const UnitPlace> units)
    : memory_(&memory), units_(units), closed_(units.size(), 0), summed_(units.size(), 0) {}

std::size_t ReductionOrder::index_of(int unit) const {
  const auto found =
      std::find_if(units_.begin(), units_.end(), [unit](const UnitPlace& at) { return at.unit == unit; });
  SCALETRAIN_CHECK(found != units_.end());
  return static_cast<std::size_t>(found - units_.begin());
}

bool ReductionOrder::needs_staging(int unit) const {
  const std::vector<int>& used = units_[index_of(unit)].buckets;
  return std::any_of(used.begin(), used.end(), [&](int bucket) { return place(bucket).trained && is_staged(bucket); });
}

bool ReductionOrder::is_open(int bucket) const {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const std::vector<int>& used = units_[i].buckets;
    if (closed_[i] == 0 && std::find(used.begin(), used.end(), bucket) != used.end()) return true;
  }
  return false;
}

std::vector<Reduction> ReductionOrder::release(int unit, bool last) {
  const std::size_t index = index_of(unit);
  std::vector<Reduction> due;
  if (needs_staging(unit)) {
    sum_over_tensor_ranks({&index, 1}, due);
    for (const int bucket : units_[index].buckets) {
      if (place(bucket).trained && is_staged(bucket)) due.push_back({GroupKind::data, bucket, {}});
    }
  }
  if (last) close(index, due);
  return due;
}

// Nothing more comes from this unit: buckets that wait for no other one are reduced.
void ReductionOrder::close(std::size_t unit, std::vector<Reduction>& due) {
  SCALETRAIN_CHECK(closed_[unit] == 0);
  closed_[unit] = 1;
  if (memory_->data_degree == 1) return;
  // Reductions over replicas start with the sums over tensor ranks; without replicas those can wait for finish().
  if (!memory_->zero.shard_gradients) sum_over_tensor_ranks({&unit, 1}, due);
  std::vector<int> complete;
  for (const int bucket : units_[unit].buckets) {
    if (!place(bucket).trained || is_open(bucket)) continue;
    if (!is_staged(bucket)) due.push_back({GroupKind::data, bucket, {}});
    complete.push_back(bucket);
  }
  sum_over_copies(due);
  if (memory_->sums_over_copies) in_one_copy_ = std::move(complete);
}

void ReductionOrder::sum_over_copies(std::vector<Reduction>& due) {
  for (const int bucket : std::exchange(in_one_copy_, {})) due.push_back({GroupKind::copies, bucket, {}});
}

std::vector<Reduction> ReductionOrder::finish(std::span<const int> units) {
  std::vector<Reduction> due;
  if (!memory_->gradients) return due;
  std::vector<std::size_t> together;
  for (const int unit : units) {
    const std::size_t index = index_of(unit);
    if (closed_[index] == 0) close(index, due);
    if (memory_->data_degree == 1 && std::exchange(summed_[index], char{1}) == 0) together.push_back(index);
  }
  sum_over_copies(due);
  sum_over_tensor_ranks(together, due);
  return due;
}

std::vector<Reduction> ReductionOrder::reduce_tied() {
  std::vector<Reduction> due;
  if (!memory_->gradients) return due;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const std::vector<int>& used = units_[i].buckets;
    const bool holds_tied = std::any_of(used.begin(), used.end(), [&](int bucket) { return is_tied(bucket); });
    if (holds_tied && closed_[i] == 0) close(i, due);
  }
  sum_over_copies(due);
  for (int bucket = 0; bucket < narrow<int>(memory_->buckets.size()); ++bucket) {
    if (is_tied(bucket)) due.push_back({GroupKind::tied, bucket, {}});
  }
  return due;
}

void ReductionOrder::reset() {
  std::fill(closed_.begin(), closed_.end(), char{0});
  std::fill(summed_.begin(), summed_.end(), char{0});
  in_one_copy_.clear();
}

void ReductionOrder::sum_over_tensor_ranks(std::span<const std::size_t> units, std::vector<Reduction>& due) const {
  Reduction tensor{GroupKind::tensor, -1, {}};
  Reduction replication{GroupKind::replication, -1, {}};
  const auto append = [](std::vector<SumPlace>& to, const std::vector<SumPlace>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const std::size_t unit : units) {
    append(tensor.sums, units_[unit].tensor_sums);
    append(replication.sums, units_[unit].replication_sums);
  }
  for (Reduction* reduction : {&tensor, &replication}) {
    if (!reduction->sums.empty()) due.push_back(std::move(*reduction));
  }
}

}  // namespace scaletrain
