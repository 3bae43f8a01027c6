// What a rank sends in one step, from the plan's own parts: the schedule says how often a unit is passed, the units
// what they exchange, the layout's segments what is reduced and gathered.
#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "comm/direct_communicator.h"
#include "parallel/store_memory.h"
#include "plan/gather_count.h"
#include "plan/run_plan.h"

namespace scaletrain {

namespace {

// Adds up calls by group and purpose.
class Volumes {
 public:
  // A sum of which this rank sums up `own` elements out of what it gets from every other rank of the group.
  void add_sum(GroupKind kind, DType dtype, std::int64_t size, std::int64_t own) {
    const auto received = static_cast<std::size_t>(checked_mul(own, size - 1)) * size_of(dtype);
    std::size_t& most = staging_[kind];
    most = std::max(most, std::min(received, direct_staging_bytes(narrow<int>(size))));
  }
  std::size_t staging() const {
    std::size_t bytes = 0;
    for (const auto& entry : staging_) bytes += entry.second;
    return bytes;
  }

  void add(GroupKind kind, const std::string& purpose, DType dtype, std::int64_t calls, std::int64_t sent_per_call) {
    if (calls == 0) return;
    const std::int64_t elements = checked_mul(calls, sent_per_call);
    const std::uint64_t bytes = static_cast<std::uint64_t>(elements) * size_of(dtype);
    for (CommunicationVolume& volume : volumes_) {
      if (volume.kind != kind || volume.purpose != purpose) continue;
      volume.calls += calls;
      volume.elements += elements;
      volume.bytes += bytes;
      return;
    }
    volumes_.push_back({kind, purpose, calls, elements, bytes});
  }
  std::vector<CommunicationVolume> take() {
    std::stable_sort(volumes_.begin(), volumes_.end(), [](const auto& a, const auto& b) { return a.kind < b.kind; });
    return std::move(volumes_);
  }

 private:
  std::vector<CommunicationVolume> volumes_;
  std::map<GroupKind, std::size_t> staging_;  // at most, by group
};

// How often a chunk's units run each phase in one step.
struct PhaseCounts {
  std::int64_t forward = 0;
  std::int64_t backward = 0;  // both parts at once
  std::int64_t backward_input = 0;
  std::int64_t backward_weight = 0;
  std::int64_t sent_activations = 0;
  std::int64_t sent_gradients = 0;
  // Each adds to every unit's gradient once.
  std::int64_t contributions() const { return backward + backward_weight; }
};

std::vector<PhaseCounts> count_phases(const std::vector<ScheduleStep>& steps, std::int64_t chunks) {
  std::vector<PhaseCounts> counts(static_cast<std::size_t>(chunks));
  for (const ScheduleStep& step : steps) {
    for (const Instruction& instruction : step) {
      PhaseCounts& of = counts[static_cast<std::size_t>(instruction.chunk)];
      switch (instruction.op) {
        case Opcode::forward:
          ++of.forward;
          break;
        case Opcode::backward:
          ++of.backward;
          break;
        case Opcode::backward_input:
          ++of.backward_input;
          break;
        case Opcode::backward_weight:
          ++of.backward_weight;
          break;
        case Opcode::send_activation:
          ++of.sent_activations;
          break;
        case Opcode::send_gradient:
          ++of.sent_gradients;
          break;
        default:
          break;
      }
    }
  }
  return counts;
}

// What goes over a tensor group for activations [N,C]: `sums` leave the whole of a sum on every rank or, with sequence
// shards, each rank's rows; `gathers` of all rows happen with sequence shards only.
struct ActivationCalls {
  std::int64_t sums = 0;
  std::int64_t gathers = 0;
};

enum class UnitKind { embedding, block, head };

UnitKind kind_of(int unit, const ModelSpec& model) {
  if (unit == 0) return UnitKind::embedding;
  return unit > model.layers ? UnitKind::head : UnitKind::block;
}

ActivationCalls activation_calls(UnitKind kind, const PhaseCounts& counts) {
  switch (kind) {
    case UnitKind::embedding:
      // The lookups are summed; the table's gradient needs all rows.
      return {.sums = counts.forward, .gathers = counts.contributions()};
    case UnitKind::block:
      // Forward: inputs of two column-parallel maps, outputs of two row-parallel ones. Backward: the input-gradients of
      // the former, the output-gradients of the latter, and once more the former's inputs for their weights' gradients.
      return {
          .sums = 2 * (counts.forward + counts.backward + counts.backward_input),
          .gathers = 2 * counts.forward + 4 * counts.backward + 2 * counts.backward_input + 4 * counts.backward_weight};
    case UnitKind::head:
      return {.sums = counts.backward + counts.backward_input,
              .gathers = counts.backward + counts.backward_input + counts.backward_weight};
  }
  SCALETRAIN_CHECK(false);
}

void add_tensor_activations(Volumes& volumes, const PhasePlan& plan, const TensorPart& part,
                            const std::vector<int>& units, const PhaseCounts& counts) {
  const std::int64_t rows = plan.micro_batch.rows();
  const std::int64_t whole = checked_mul(rows, plan.model.hidden);
  const int size = narrow<int>(part.degree);
  const int rank = narrow<int>(part.rank);
  std::int64_t own = whole;
  if (part.sequence) {
    const std::vector<std::int64_t> shards = sequence_shards(rows, part.degree);
    own = shards[static_cast<std::size_t>(part.rank)] * plan.model.hidden;
  }
  for (const int unit : units) {
    const UnitKind kind = kind_of(unit, plan.model);
    const ActivationCalls calls = activation_calls(kind, counts);
    volumes.add_sum(GroupKind::tensor, plan.compute, part.degree, part.sequence ? own : ceil_div(whole, part.degree));
    if (part.sequence) {
      volumes.add(GroupKind::tensor, "activations", plan.compute, calls.sums, whole - own);
      volumes.add(GroupKind::tensor, "activations", plan.compute, calls.gathers, own * (part.degree - 1));
    } else {
      volumes.add(GroupKind::tensor, "activations", plan.compute, calls.sums,
                  direct_all_reduce_sent(plan.compute, whole, size, rank));
    }
    if (kind != UnitKind::head) continue;
    // Three numbers per row, for a chunk of rows at a time.
    const std::int64_t passes = counts.backward + counts.backward_input + counts.backward_weight;
    const std::int64_t chunk = head_chunk_rows(rows, ceil_div(plan.model.vocab, part.degree));
    for (std::int64_t first = 0; first < rows; first += chunk)
      volumes.add(GroupKind::tensor, "loss statistics", plan.masters(), passes,
                  3 * std::min(chunk, rows - first) * (part.degree - 1));
  }
}

void add_pipeline(Volumes& volumes, const PhasePlan& plan, const TensorPart& part, const PhaseCounts& counts) {
  std::int64_t rows = plan.micro_batch.rows();
  if (part.sequence) rows = sequence_shards(rows, part.degree)[static_cast<std::size_t>(part.rank)];
  const std::int64_t bundle = checked_mul(rows, plan.model.hidden);
  volumes.add(GroupKind::pipeline, "activations", plan.compute, counts.sent_activations, bundle);
  volumes.add(GroupKind::pipeline, "gradients", plan.compute, counts.sent_gradients, bundle);
}

// What the parameter store sends. One step's worth: `contributions` by unit, `gathers` by segment.
class StoreVolumes {
 public:
  StoreVolumes(Volumes& volumes, const PhasePlan& plan, const ShardLayout& layout)
      : volumes_(volumes),
        plan_(plan),
        layout_(layout),
        options_(plan.store_options(plan.masters())),
        memory_(plan_store_memory(plan.table, layout, options_)) {}

  void add_gradients(const std::map<int, std::int64_t>& contributions) {
    const MeshPosition& position = layout_.position();
    for (const SegmentPlace& place : memory_.segments) {
      if (!place.trained || memory_.data_degree == 1) continue;
      const bool is_staged = memory_.zero.shard_gradients && !place.shared;
      const std::int64_t calls = is_staged ? contributions.at(place.segment.unit) : 1;
      const std::int64_t sent = memory_.zero.shard_optimizer
                                    ? place.segment.count - place.segment.piece
                                    : all_reduced(place, place.segment.count, Axis::data, position.data);
      volumes_.add(GroupKind::data, "gradients", place.dtype, calls, sent);
      volumes_.add_sum(GroupKind::data, place.dtype, memory_.data_degree, place.segment.piece);
    }
    for (const auto& [unit, count] : contributions) {
      const UnitPlace place = place_unit(plan_.table, layout_, memory_, options_, unit);
      const bool is_staged = memory_.zero.shard_gradients;
      const std::int64_t holders = std::max<std::int64_t>(1, plan_.mesh.degree(Axis::tensor) / plan_.model.kv_heads);
      add_sums(GroupKind::tensor, place.tensor_sums, is_staged ? count : 1, plan_.mesh.degree(Axis::tensor),
               position.tensor);
      add_sums(GroupKind::holders, place.holder_sums, is_staged ? count : 1, holders, position.tensor % holders);
    }
  }

  void add_tied() {
    const std::int64_t stages = plan_.mesh.degree(Axis::pipeline);
    const std::int64_t stage = layout_.position().pipeline;
    if (!plan_.model.tie_embeddings || stages == 1 || (stage != 0 && stage != stages - 1)) return;
    for (const SegmentPlace& place : memory_.segments) {
      if (!place.segment.tied || !place.trained) continue;
      const std::int64_t count = memory_.zero.shard_optimizer ? place.segment.piece : place.segment.count;
      volumes_.add_sum(GroupKind::tied, place.dtype, 2, ceil_div<std::int64_t>(count, 2));
      volumes_.add(GroupKind::tied, "gradients", place.dtype, 1,
                   direct_all_reduce_sent(place.dtype, count, 2, stage == 0 ? 0 : 1));
    }
  }

  void add_gathers(const std::vector<ScheduleStep>& steps) {
    std::vector<std::int64_t> gathers(memory_.segments.size(), 0);
    if (memory_.zero.shard_parameters) {
      gathers = count_gathers(plan_, layout_, memory_, steps);
    } else if (memory_.zero.shard_optimizer) {
      for (std::size_t index = 0; index < gathers.size(); ++index) gathers[index] = memory_.segments[index].trained;
    }
    for (std::size_t index = 0; index < gathers.size(); ++index) {
      const SegmentPlace& place = memory_.segments[index];
      volumes_.add(GroupKind::data, "weights", place.dtype, gathers[index],
                   place.segment.piece * (memory_.data_degree - 1));
    }
  }

 private:
  std::int64_t all_reduced(const SegmentPlace& place, std::int64_t count, Axis axis, std::int64_t rank) const {
    return direct_all_reduce_sent(place.dtype, count, narrow<int>(plan_.mesh.degree(axis)), narrow<int>(rank));
  }

  // Short stretches are summed together.
  void add_sums(GroupKind kind, const std::vector<SumPlace>& sums, std::int64_t times, std::int64_t size,
                std::int64_t rank) {
    std::int64_t together = 0;
    DType dtype = DType::f32;
    const auto add = [&](std::int64_t count) {
      volumes_.add_sum(kind, dtype, size, ceil_div(count, size));
      volumes_.add(kind, "gradients", dtype, times,
                   direct_all_reduce_sent(dtype, count, narrow<int>(size), narrow<int>(rank)));
    };
    for (const SumPlace& sum : sums) {
      dtype = memory_.segments[static_cast<std::size_t>(sum.segment)].dtype;
      if (sum.coalesced()) {
        together += sum.count;
      } else {
        add(sum.count);
      }
    }
    if (together > 0) add(together);
  }

  Volumes& volumes_;
  const PhasePlan& plan_;
  const ShardLayout& layout_;
  ParamStore::Options options_;
  StoreMemory memory_;
};

Volumes volumes_of(const PhasePlan& plan, Rank rank) {
  const MeshPosition position = plan.mesh.position_of(rank);
  const TensorPart part = plan.tensor_part(rank);
  const std::vector<ScheduleStep> steps = plan.schedule(rank);
  const std::vector<PhaseCounts> counts = count_phases(steps, plan.chunks);
  Volumes volumes;
  std::map<int, std::int64_t> contributions;
  for (std::int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
    const PhaseCounts& of = counts[static_cast<std::size_t>(chunk)];
    const std::vector<int> units = plan.units_of_chunk(position.pipeline, chunk);
    for (const int unit : units) contributions[unit] = of.contributions();
    if (part.degree > 1) add_tensor_activations(volumes, plan, part, units, of);
    add_pipeline(volumes, plan, part, of);
  }
  const ShardLayout shard = plan.layout(rank);
  StoreVolumes store(volumes, plan, shard);
  store.add_gradients(contributions);
  store.add_tied();
  store.add_gathers(steps);
  return volumes;
}

}  // namespace

std::vector<CommunicationVolume> PhasePlan::communication(Rank rank) const {
  return volumes_of(*this, rank).take();
}

std::size_t PhasePlan::communication_staging(Rank rank) const {
  return volumes_of(*this, rank).staging();
}

}  // namespace scaletrain
