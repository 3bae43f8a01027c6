// What a rank sends in one step, from the plan's own parts: the schedule says how often a unit is passed, the units
// what they exchange, the layout's buckets what is reduced and gathered.
#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/collective/direct_communicator.h"
#include "plan/communication/gather_count.h"
#include "plan/run_plan.h"
#include "store/store_memory.h"

namespace scaletrain {

namespace {

// Adds up calls by group, collective and purpose, and what sums leave staged with each group's communicator.
class Volumes {
 public:
  void add_reduce_scatter(GroupKind kind, const std::string& purpose, DType dtype, std::int64_t calls,
                          std::int64_t whole, std::int64_t own, std::int64_t size) {
    if (calls == 0) return;
    hold(kind, direct_reduce_scatter_staging(dtype, own, narrow<int>(size)));
    add(kind, CollectiveKind::reduce_scatter, purpose, dtype, calls, whole - own);
  }
  void add_all_reduce(GroupKind kind, const std::string& purpose, DType dtype, std::int64_t calls, std::int64_t whole,
                      std::int64_t size, std::int64_t rank) {
    if (calls == 0) return;
    hold(kind, direct_all_reduce_staging(dtype, whole, narrow<int>(size), narrow<int>(rank)));
    add(kind, CollectiveKind::all_reduce, purpose, dtype, calls,
        direct_all_reduce_sent(dtype, whole, narrow<int>(size), narrow<int>(rank)));
  }
  std::size_t staging() const {
    std::size_t bytes = 0;
    for (const auto& entry : staging_) bytes += entry.second;
    return bytes;
  }

  void add(GroupKind kind, CollectiveKind collective, const std::string& purpose, DType dtype, std::int64_t calls,
           std::int64_t sent_per_call) {
    if (calls == 0) return;
    const std::int64_t elements = checked_mul(calls, sent_per_call);
    const std::uint64_t bytes = static_cast<std::uint64_t>(elements) * size_of(dtype);
    for (CommunicationVolume& volume : volumes_) {
      if (volume.kind != kind || volume.collective != collective || volume.purpose != purpose) continue;
      volume.calls += calls;
      volume.elements += elements;
      volume.bytes += bytes;
      return;
    }
    volumes_.push_back({kind, collective, purpose, calls, elements, bytes});
  }
  std::vector<CommunicationVolume> take() {
    std::stable_sort(volumes_.begin(), volumes_.end(), [](const auto& a, const auto& b) { return a.kind < b.kind; });
    return std::move(volumes_);
  }

 private:
  void hold(GroupKind kind, std::size_t bytes) { staging_[kind] = std::max(staging_[kind], bytes); }

  std::vector<CommunicationVolume> volumes_;
  std::map<GroupKind, std::size_t> staging_;
};

// How often a chunk's units run each pass in one step.
struct PassCounts {
  std::int64_t forward = 0;
  std::int64_t backward = 0;  // both parts at once
  std::int64_t backward_input = 0;
  std::int64_t backward_weight = 0;
  std::int64_t sent_activations = 0;
  std::int64_t sent_gradients = 0;
  // Each adds to every unit's gradient once.
  std::int64_t contributions() const { return backward + backward_weight; }
};

std::vector<PassCounts> count_passes(const std::vector<ScheduleStep>& steps, std::int64_t chunks) {
  std::vector<PassCounts> counts(static_cast<std::size_t>(chunks));
  for (const ScheduleStep& step : steps) {
    for (const Instruction& instruction : step) {
      PassCounts& of = counts[static_cast<std::size_t>(instruction.chunk)];
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

ActivationCalls activation_calls(UnitKind kind, const PassCounts& counts) {
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
                            const std::vector<int>& units, const PassCounts& counts) {
  const std::int64_t rows = plan.micro_batch.rows();
  const std::int64_t whole = checked_mul(rows, plan.model.hidden);
  std::int64_t own = whole;
  if (part.sequence) {
    const std::vector<std::int64_t> shards = sequence_shards(rows, part.degree);
    own = shards[static_cast<std::size_t>(part.rank)] * plan.model.hidden;
  }
  for (const int unit : units) {
    const UnitKind kind = kind_of(unit, plan.model);
    const ActivationCalls calls = activation_calls(kind, counts);
    if (part.sequence) {
      volumes.add_reduce_scatter(GroupKind::tensor, "activations", plan.compute, calls.sums, whole, own, part.degree);
      volumes.add(GroupKind::tensor, CollectiveKind::all_gather, "activations", plan.compute, calls.gathers,
                  own * (part.degree - 1));
    } else {
      volumes.add_all_reduce(GroupKind::tensor, "activations", plan.compute, calls.sums, whole, part.degree, part.rank);
    }
    if (kind != UnitKind::head) continue;
    // Three numbers per row, for a chunk of rows at a time.
    const std::int64_t passes = counts.backward + counts.backward_input + counts.backward_weight;
    const std::int64_t chunk = head_chunk_rows(rows, ceil_div(plan.model.vocab, part.degree));
    for (std::int64_t first = 0; first < rows; first += chunk)
      volumes.add(GroupKind::tensor, CollectiveKind::all_gather, "softmax statistics", plan.masters(), passes,
                  3 * std::min(chunk, rows - first) * (part.degree - 1));
  }
}

void add_pipeline(Volumes& volumes, const PhasePlan& plan, const TensorPart& part, const PassCounts& counts) {
  std::int64_t rows = plan.micro_batch.rows();
  if (part.sequence) rows = sequence_shards(rows, part.degree)[static_cast<std::size_t>(part.rank)];
  const std::int64_t bundle = checked_mul(rows, plan.model.hidden);
  volumes.add(GroupKind::pipeline, CollectiveKind::exchange, "activations", plan.compute, counts.sent_activations,
              bundle);
  volumes.add(GroupKind::pipeline, CollectiveKind::exchange, "activation gradients", plan.compute,
              counts.sent_gradients, bundle);
}

// What the parameter store sends. One step's worth: `contributions` by unit, `gathers` by bucket.
class StoreVolumes {
 public:
  StoreVolumes(Volumes& volumes, const PhasePlan& plan, const ShardLayout& layout)
      : volumes_(volumes),
        plan_(plan),
        layout_(layout),
        options_(plan.store_options()),
        memory_(plan_store_memory(plan.table, layout, options_)) {}

  void add_gradients(const std::map<int, std::int64_t>& contributions) {
    const MeshPosition& position = layout_.position();
    for (const BucketPlace& place : memory_.buckets) {
      if (!place.trained || memory_.data_degree == 1) continue;
      const bool is_staged = memory_.zero.shard_gradients && !place.shared;
      const std::int64_t calls = is_staged ? contributions.at(place.bucket.unit) : 1;
      if (memory_.zero.shard_optimizer) {
        volumes_.add_reduce_scatter(GroupKind::data, "gradients", place.dtype, calls, place.bucket.count,
                                    place.bucket.shard_elements, memory_.data_degree);
      } else {
        volumes_.add_all_reduce(GroupKind::data, "gradients", place.dtype, calls, place.bucket.count,
                                memory_.data_degree, position.data);
      }
    }
  }

  // Over tensor ranks, of the units of one chunk: unit by unit before their sums over replicas, else all at once.
  void add_tensor_gradients(const std::vector<int>& units, std::int64_t contributions) {
    UnitPlace together;
    for (const int unit : units) {
      const UnitPlace place = place_unit(plan_.table, layout_, memory_, options_, unit);
      if (memory_.data_degree > 1) {
        add_tensor_sums(place, memory_.zero.shard_gradients ? contributions : 1);
        continue;
      }
      const auto append = [](std::vector<SumPlace>& to, const std::vector<SumPlace>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(together.tensor_sums, place.tensor_sums);
      append(together.replication_sums, place.replication_sums);
    }
    add_tensor_sums(together, 1);
  }

  void add_tied() {
    const std::int64_t stages = plan_.mesh.degree(Axis::pipeline);
    const std::int64_t stage = layout_.position().pipeline;
    if (!plan_.model.tie_embeddings || stages == 1 || (stage != 0 && stage != stages - 1)) return;
    for (const BucketPlace& place : memory_.buckets) {
      if (!place.bucket.tied || !place.trained) continue;
      const std::int64_t count = memory_.zero.shard_optimizer ? place.bucket.shard_elements : place.bucket.count;
      volumes_.add_all_reduce(GroupKind::tied, "gradients", place.dtype, 1, count, 2, stage == 0 ? 0 : 1);
    }
  }

  void add_gathers(const std::vector<ScheduleStep>& steps) {
    std::vector<std::int64_t> gathers(memory_.buckets.size(), 0);
    if (memory_.zero.shard_parameters) {
      gathers = count_gathers(plan_, layout_, memory_, steps);
    } else if (memory_.zero.shard_optimizer) {
      for (std::size_t index = 0; index < gathers.size(); ++index) gathers[index] = memory_.buckets[index].trained;
    }
    for (std::size_t index = 0; index < gathers.size(); ++index) {
      const BucketPlace& place = memory_.buckets[index];
      volumes_.add(GroupKind::data, CollectiveKind::all_gather, "weights", place.compute, gathers[index],
                   place.bucket.shard_elements * (memory_.data_degree - 1));
    }
  }

 private:
  void add_tensor_sums(const UnitPlace& place, std::int64_t times) {
    const std::int64_t degree = plan_.mesh.degree(Axis::tensor);
    const std::int64_t replication = std::max<std::int64_t>(1, degree / plan_.model.kv_heads);
    const std::int64_t rank = layout_.position().tensor;
    add_sums(GroupKind::tensor, place.tensor_sums, times, degree, rank);
    add_sums(GroupKind::replication, place.replication_sums, times, replication, rank % replication);
  }

  // Short stretches are summed together.
  void add_sums(GroupKind kind, const std::vector<SumPlace>& sums, std::int64_t times, std::int64_t size,
                std::int64_t rank) {
    std::int64_t together = 0;
    DType dtype = DType::f32;
    const auto add = [&](std::int64_t count) {
      volumes_.add_all_reduce(kind, "gradients", dtype, times, count, size, rank);
    };
    for (const SumPlace& sum : sums) {
      dtype = memory_.buckets[static_cast<std::size_t>(sum.bucket)].dtype;
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

// The few numbers that all ranks sum, axis by axis as sum_over_world goes.
void add_decisions(Volumes& volumes, const PhasePlan& plan, const MeshPosition& position) {
  const auto add = [&](GroupKind kind, Axis axis, std::int64_t rank) {
    const std::int64_t size = plan.mesh.degree(axis);
    if (size > 1) volumes.add_all_reduce(kind, "loss, norm, votes", DType::f64, 1, numbers_per_step, size, rank);
  };
  add(GroupKind::tensor, Axis::tensor, position.tensor);
  add(GroupKind::data, Axis::data, position.data);
  add(GroupKind::pipeline, Axis::pipeline, position.pipeline);
}

Volumes volumes_of(const PhasePlan& plan, Rank rank, const std::vector<ScheduleStep>& steps) {
  const MeshPosition position = plan.mesh.position_of(rank);
  const TensorPart part = plan.tensor_part(rank);
  const std::vector<PassCounts> counts = count_passes(steps, plan.chunks);
  Volumes volumes;
  const ShardLayout shard = plan.layout(rank);
  StoreVolumes store(volumes, plan, shard);
  std::map<int, std::int64_t> contributions;
  for (std::int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
    const PassCounts& of = counts[static_cast<std::size_t>(chunk)];
    const std::vector<int> units = plan.units_of_chunk(position.pipeline, chunk);
    for (const int unit : units) contributions[unit] = of.contributions();
    store.add_tensor_gradients(units, of.contributions());
    if (part.degree > 1) add_tensor_activations(volumes, plan, part, units, of);
    add_pipeline(volumes, plan, part, of);
  }
  store.add_gradients(contributions);
  store.add_tied();
  store.add_gathers(steps);
  add_decisions(volumes, plan, position);
  return volumes;
}

}  // namespace

std::vector<CommunicationVolume> PhasePlan::communication(Rank rank) const {
  return communication(rank, schedule(rank));
}

std::vector<CommunicationVolume> PhasePlan::communication(Rank rank, const std::vector<ScheduleStep>& steps) const {
  return volumes_of(*this, rank, steps).take();
}

std::size_t PhasePlan::communication_staging(Rank rank) const {
  return communication_staging(rank, schedule(rank));
}

std::size_t PhasePlan::communication_staging(Rank rank, const std::vector<ScheduleStep>& steps) const {
  return volumes_of(*this, rank, steps).staging();
}

}  // namespace scaletrain
