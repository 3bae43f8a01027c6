#include "plan/communication/gather_count.h"

#include <compare>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "nn/transformer.h"
#include "store/residency.h"

namespace scaletrain {

namespace {

// Work of one kind on one chunk, with the unit that the executor prefetches while it runs the last one; -1: none.
struct Work {
  Opcode op = Opcode::forward;
  std::int64_t chunk = 0;
  int next_unit = -1;
  bool is_bracketed = false;  // an acquire comes before it
  auto operator<=>(const Work&) const = default;
};

// Makes the store's calls of a step as the executor makes them. What is in staging repeats itself, so that few states
// occur however many micro-batches there are, and what a piece of work does to each is found out once.
class GatherCount {
 public:
  GatherCount(const PhasePlan& plan, const ShardLayout& layout, const StoreMemory& memory)
      : model_(plan.model, plan.tensor_part(plan.mesh.rank_of(layout.position()))),
        num_buckets_(memory.buckets.size()),
        residency_(memory) {
    for (std::int64_t chunk = 0; chunk < plan.chunks; ++chunk)
      units_.push_back(plan.units_of_chunk(layout.position().pipeline, chunk));
    for (const int unit : layout.units()) buckets_[unit] = layout.buckets_used_by(unit);
  }

  const std::vector<std::vector<int>>& units_by_chunk() const { return units_; }

  void run(const Work& work) {
    const auto [entry, is_new] = changes_.try_emplace({residency_, work});
    Change& change = entry->second;
    if (is_new) {
      change.gathers.assign(num_buckets_, 0);
      counted_ = &change.gathers;
      execute(work);
      change.after.emplace(residency_);
    }
    ++change.times;
    residency_ = *change.after;
  }

  std::vector<std::int64_t> total() const {
    std::vector<std::int64_t> sum(num_buckets_, 0);
    for (const auto& entry : changes_) {
      for (std::size_t i = 0; i < num_buckets_; ++i) sum[i] += entry.second.times * entry.second.gathers[i];
    }
    return sum;
  }

 private:
  struct Change {
    std::optional<Residency> after;
    std::vector<std::int64_t> gathers;  // by bucket
    std::int64_t times = 0;
  };

  void bring(int unit, Residency::Purpose purpose) {
    for (const int bucket : residency_.bring(unit, buckets_.at(unit), purpose).gathers)
      ++(*counted_)[static_cast<std::size_t>(bucket)];
  }
  void use(int unit, int prefetched) {
    bring(unit, Residency::Purpose::acquire);
    residency_.acquire(unit);
    if (prefetched >= 0) bring(prefetched, Residency::Purpose::prefetch);
    residency_.release(unit);
  }

  void execute(const Work& work) {
    const std::vector<int>& units = units_[static_cast<std::size_t>(work.chunk)];
    const std::size_t count = units.size();
    if (work.op == Opcode::backward_weight) {
      for (std::size_t i = count; i-- > 0;) {
        if (model_.units()[static_cast<std::size_t>(units[i])]->weight_pass_reads_weights()) use(units[i], -1);
      }
      return;
    }
    const bool forward = work.op == Opcode::forward;
    const auto at = [&](std::size_t i) { return units[forward ? i : count - 1 - i]; };
    if (work.is_bracketed && count > 0) bring(at(0), Residency::Purpose::prefetch);
    for (std::size_t i = 0; i < count; ++i) use(at(i), i + 1 < count ? at(i + 1) : work.next_unit);
  }

  Transformer model_;
  std::size_t num_buckets_;
  Residency residency_;
  std::vector<std::vector<int>> units_;      // by chunk
  std::map<int, std::vector<int>> buckets_;  // by unit
  std::map<std::pair<Residency, Work>, Change> changes_;
  std::vector<std::int64_t>* counted_ = nullptr;
};

bool uses_weights(Opcode op) {
  return op == Opcode::forward || op == Opcode::backward || op == Opcode::backward_input ||
         op == Opcode::backward_weight;
}

}  // namespace

int first_unit_used(const std::vector<std::vector<int>>& units_by_chunk, const Instruction& instruction) {
  const std::vector<int>& units = units_by_chunk[static_cast<std::size_t>(instruction.chunk)];
  if (units.empty()) return -1;
  if (instruction.op == Opcode::forward) return units.front();
  return instruction.op == Opcode::backward || instruction.op == Opcode::backward_input ? units.back() : -1;
}

std::vector<int> units_behind(const std::vector<std::vector<int>>& units_by_chunk,
                              const std::vector<ScheduleStep>& steps) {
  std::vector<int> units(steps.size(), -1);
  for (std::size_t i = steps.size(); i-- > 1;) {
    units[i - 1] = units[i];
    for (std::size_t k = steps[i].size(); k-- > 0;) {
      const Instruction& instruction = steps[i][k];
      if (instruction.op == Opcode::optimizer_step) units[i - 1] = -1;
      if (const int unit = first_unit_used(units_by_chunk, instruction); unit >= 0) units[i - 1] = unit;
    }
  }
  return units;
}

std::vector<std::int64_t> count_gathers(const PhasePlan& plan, const ShardLayout& layout, const StoreMemory& memory,
                                        const std::vector<ScheduleStep>& steps) {
  GatherCount count(plan, layout, memory);
  const std::vector<int> behind = units_behind(count.units_by_chunk(), steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (std::size_t k = 0; k < steps[i].size(); ++k) {
      const Instruction& instruction = steps[i][k];
      if (!uses_weights(instruction.op)) continue;
      const bool is_bracketed = k > 0 && steps[i][k - 1].op == Opcode::acquire;
      count.run({instruction.op, instruction.chunk, behind[i], is_bracketed});
    }
  }
  return count.total();
}

}  // namespace scaletrain
