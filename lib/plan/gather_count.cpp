#include "plan/gather_count.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "nn/transformer.h"

namespace scaletrain {

namespace {

// The store's staging: who is in it, and who has to leave. A unit is acquired by itself, and the next one prefetched
// while it is.
class Residency {
 public:
  Residency(const ShardLayout& layout, const StoreMemory& memory)
      : memory_(memory), staging_(static_cast<std::size_t>(memory.num_staging)), gathers_(memory.segments.size(), 0) {
    is_there_.assign(memory.segments.size(), false);
    for (const int unit : layout.units()) segments_[unit] = layout.segments_used_by(unit);
  }

  void prefetch(int unit) { make_resident(unit, false); }
  void acquire(int unit) {
    make_resident(unit, true);
    acquired_ = unit;
    for (Staging& staging : staging_) {
      if (staging.unit != unit) continue;
      staging.claimed = false;
      staging.last_use = ++clock_;
    }
  }
  void release() { acquired_ = no_unit; }
  std::vector<std::int64_t> take() { return std::move(gathers_); }

 private:
  static constexpr int no_unit = -1;
  struct Staging {
    int unit = no_unit;
    bool claimed = false;  // prefetched and not used since
    std::uint64_t last_use = 0;
  };

  bool is_shared(int segment) const { return memory_.segments[static_cast<std::size_t>(segment)].shared; }

  void make_resident(int unit, bool may_evict_claimed) {
    const std::vector<int>& used = segments_.at(unit);
    const bool needs_staging = std::any_of(used.begin(), used.end(), [&](int segment) { return !is_shared(segment); });
    const bool has_staging =
        std::any_of(staging_.begin(), staging_.end(), [&](const Staging& staging) { return staging.unit == unit; });
    if (needs_staging && !has_staging) {
      Staging* place = find_staging(may_evict_claimed);
      if (place == nullptr) return;
      *place = {.unit = unit, .claimed = true, .last_use = ++clock_};
      for (const int segment : used) {
        if (!is_shared(segment)) ++gathers_[static_cast<std::size_t>(segment)];
      }
    }
    for (const int segment : used) {
      const auto index = static_cast<std::size_t>(segment);
      if (!is_shared(segment) || is_there_[index]) continue;
      is_there_[index] = true;
      ++gathers_[index];
    }
  }

  // An empty one, else the least recently used, those that wait for their use last.
  Staging* find_staging(bool may_evict_claimed) {
    Staging* best = nullptr;
    for (Staging& staging : staging_) {
      if (staging.unit == no_unit) return &staging;
      if (staging.unit == acquired_ || (staging.claimed && !may_evict_claimed)) continue;
      const bool is_better = best == nullptr || (best->claimed && !staging.claimed) ||
                             (best->claimed == staging.claimed && staging.last_use < best->last_use);
      if (is_better) best = &staging;
    }
    return best;
  }

  const StoreMemory& memory_;
  std::map<int, std::vector<int>> segments_;  // by unit
  std::vector<Staging> staging_;
  std::vector<bool> is_there_;  // shared segments: once gathered they stay
  std::vector<std::int64_t> gathers_;
  int acquired_ = no_unit;
  std::uint64_t clock_ = 0;
};

// One pass over a chunk's units.
void pass(Residency& residency, const std::vector<int>& units, bool forward) {
  const auto at = [&](std::size_t i) { return units[forward ? i : units.size() - 1 - i]; };
  for (std::size_t i = 0; i < units.size(); ++i) {
    residency.acquire(at(i));
    if (i + 1 < units.size()) residency.prefetch(at(i + 1));
    residency.release();
  }
}

}  // namespace

std::vector<std::int64_t> count_gathers(const PhasePlan& plan, const ShardLayout& layout, const StoreMemory& memory,
                                        const std::vector<ScheduleStep>& steps) {
  Residency residency(layout, memory);
  std::vector<std::vector<int>> units;
  for (std::int64_t chunk = 0; chunk < plan.chunks; ++chunk)
    units.push_back(plan.units_of_chunk(layout.position().pipeline, chunk));
  const Transformer model(plan.model, plan.tensor_part(plan.mesh.rank_of(layout.position())));
  for (const ScheduleStep& step : steps) {
    for (std::size_t i = 0; i < step.size(); ++i) {
      const Instruction& instruction = step[i];
      const std::vector<int>& of_chunk = units[static_cast<std::size_t>(instruction.chunk)];
      if (of_chunk.empty()) continue;
      switch (instruction.op) {
        case Opcode::acquire:
          SCALETRAIN_CHECK_LT(i + 1, step.size());
          residency.prefetch(step[i + 1].op == Opcode::forward ? of_chunk.front() : of_chunk.back());
          break;
        case Opcode::forward:
          pass(residency, of_chunk, true);
          break;
        case Opcode::backward:
        case Opcode::backward_input:
          pass(residency, of_chunk, false);
          break;
        case Opcode::backward_weight:
          for (auto unit = of_chunk.rbegin(); unit != of_chunk.rend(); ++unit) {
            if (!model.units()[static_cast<std::size_t>(*unit)]->weight_phase_reads_weights()) continue;
            residency.acquire(*unit);
            residency.release();
          }
          break;
        default:
          break;
      }
    }
  }
  return residency.take();
}

}  // namespace scaletrain
