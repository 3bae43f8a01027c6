#include "plan/communication/collective_order.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/collective/direct_communicator.h"
#include "nn/transformer.h"
#include "plan/communication/gather_count.h"
#include "store/residency.h"
#include "store/store_memory.h"

namespace scaletrain {

namespace {

// Calls of one rank, as its communicators would be asked for them.
class Calls {
 public:
  Calls(const PhasePlan& plan, Rank rank, const std::function<void(const PlannedCall&)>& visit) : visit_(visit) {
    const GroupFacts facts = plan.group_facts();
    for (const GroupKind kind :
         {GroupKind::tensor, GroupKind::replication, GroupKind::data, GroupKind::pipeline, GroupKind::tied}) {
      if (const auto spec = group_of(plan.mesh, kind, rank, facts))
        members_[kind] = {narrow<int>(spec->members.size()), spec->index};
    }
  }

  bool has(GroupKind group) const { return members_.contains(group); }

  void all_reduce(GroupKind group, std::string_view purpose, DType dtype, std::int64_t elements) const {
    const Member& member = members_.at(group);
    const std::int64_t sent = direct_all_reduce_sent(dtype, elements, member.size, member.index);
    visit_({group, CollectiveKind::all_reduce, purpose, dtype, elements, sent});
  }
  // own: this rank's shard of the result.
  void reduce_scatter(GroupKind group, std::string_view purpose, DType dtype, std::int64_t elements,
                      std::int64_t own) const {
    visit_({group, CollectiveKind::reduce_scatter, purpose, dtype, elements, elements - own});
  }
  void all_gather(GroupKind group, std::string_view purpose, DType dtype, std::int64_t elements,
                  std::int64_t own) const {
    visit_({group, CollectiveKind::all_gather, purpose, dtype, elements, own * (members_.at(group).size - 1)});
  }
  void exchange(Transfer::Channel channel, DType dtype, std::int64_t elements, Transfer::Direction direction,
                int peer) const {
    const bool sends = direction == Transfer::Direction::send;
    const char* const purpose = channel == Transfer::Channel::activations ? "activations" : "activation gradients";
    visit_({GroupKind::pipeline, CollectiveKind::exchange, purpose, dtype, elements, sends ? elements : 0, direction,
            peer, channel});
  }

 private:
  struct Member {
    int size = 1;
    int index = 0;
  };

  const std::function<void(const PlannedCall&)>& visit_;
  std::map<GroupKind, Member> members_;
};

// What units ask of the tensor group in each pass (block.cpp, embedding.cpp, head.cpp), for activations [N,C].
class UnitCalls {
 public:
  UnitCalls(const PhasePlan& plan, Rank rank, const Calls& calls)
      : plan_(plan), part_(plan.tensor_part(rank)), calls_(calls), rows_(plan.micro_batch.rows()), own_rows_(rows_) {
    if (divided()) own_rows_ = sequence_shards(rows_, part_.degree)[static_cast<std::size_t>(part_.rank)];
  }

  std::int64_t bundle() const { return checked_mul(own_rows_, plan_.model.hidden); }

  void run(int unit, Opcode op) const {
    if (part_.degree == 1) return;
    if (unit == 0) return embedding(op);
    if (unit > plan_.model.layers) return head(op);
    block(op);
  }

 private:
  bool divided() const { return part_.sequence && part_.degree > 1; }
  std::int64_t unsharded() const { return checked_mul(rows_, plan_.model.hidden); }

  // All rows of what this rank has its own rows of; nothing where they are unsharded as they are.
  void gather() const {
    if (divided()) calls_.all_gather(GroupKind::tensor, "activations", plan_.compute, unsharded(), bundle());
  }
  void sum() const {
    if (divided()) {
      calls_.reduce_scatter(GroupKind::tensor, "activations", plan_.compute, unsharded(), bundle());
    } else {
      calls_.all_reduce(GroupKind::tensor, "activations", plan_.compute, unsharded());
    }
  }
  // Three numbers per row, for a chunk of rows at a time.
  void exchange_softmax_statistics() const {
    const std::int64_t chunk = head_chunk_rows(rows_, ceil_div(plan_.model.vocab, part_.degree));
    for (std::int64_t first = 0; first < rows_; first += chunk) {
      const std::int64_t own = 3 * std::min(chunk, rows_ - first);
      calls_.all_gather(GroupKind::tensor, "softmax statistics", plan_.masters(), own * part_.degree, own);
    }
  }

  // The lookups are summed; the table's gradient needs all rows.
  void embedding(Opcode op) const {
    if (op == Opcode::forward) return sum();
    if (op != Opcode::backward_input) gather();
  }

  // Attention, then ffn, and backward the other way round: of each the column-parallel map's input is gathered and its
  // gradient summed, the row-parallel map's output summed and its gradient gathered. What multiplies a weight's
  // gradient is gathered once more.
  void block(Opcode op) const {
    for (int half = 0; half < 2; ++half) {
      switch (op) {
        case Opcode::forward:
        case Opcode::backward_input:
          gather();
          sum();
          break;
        case Opcode::backward:
          gather();
          gather();
          sum();
          break;
        case Opcode::backward_weight:
          gather();
          gather();
          break;
        default:
          SCALETRAIN_CHECK(false && "a unit has no such pass");
      }
    }
  }

  void head(Opcode op) const {
    if (op == Opcode::forward) return;  // training computes the logits in the backward
    gather();
    exchange_softmax_statistics();
    if (op != Opcode::backward_weight) sum();
  }

  const PhasePlan& plan_;
  TensorPart part_;
  const Calls& calls_;
  std::int64_t rows_;
  std::int64_t own_rows_;
};

// What the parameter store asks for: gathers of weights by the residency, reductions by bucket (store_gradients.h).
class StoreCalls {
 public:
  StoreCalls(const PhasePlan& plan, const ShardLayout& layout, const Calls& calls)
      : calls_(calls), memory_(plan_store_memory(plan.table, layout, options_of(plan))), residency_(memory_) {
    open_users_.assign(memory_.buckets.size(), 0);
    for (const int unit : layout.units()) {
      const auto& entry = units_.emplace(unit, place_unit(plan.table, layout, memory_, options_of(plan), unit));
      const UnitPlace& place = entry.first->second;
      for (const int index : place.buckets) {
        ++open_users_[static_cast<std::size_t>(index)];
        if (bucket(index).trained && is_staged(index)) staged_units_[unit] = true;
      }
    }
  }

  void bring(int unit, Residency::Purpose purpose) {
    if (unit < 0) return;
    for (const int index : residency_.bring(unit, units_.at(unit).buckets, purpose).gathers) gather(index);
  }
  void acquire(int unit) {
    bring(unit, Residency::Purpose::acquire);
    residency_.acquire(unit);
  }
  void release(int unit) { residency_.release(unit); }

  void release_gradients(int unit, bool last) {
    const UnitPlace& place = units_.at(unit);
    if (staged_units_[unit]) {
      sum_over_tensor_ranks(place);
      for (const int index : place.buckets)
        if (bucket(index).trained && is_staged(index)) reduce(index);
    }
    if (last) close(unit);
  }

  // Units that no micro-batch passed are closed here.
  void finish_gradients(const std::vector<int>& units) {
    for (const int unit : units) close(unit);
    if (memory_.data_degree > 1) return;
    UnitPlace together;
    const auto append = [](std::vector<SumPlace>& to, const std::vector<SumPlace>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (const int unit : units) {
      append(together.tensor_sums, units_.at(unit).tensor_sums);
      append(together.replication_sums, units_.at(unit).replication_sums);
    }
    sum_over_tensor_ranks(together);
  }

  void reduce_tied() {
    if (!calls_.has(GroupKind::tied)) return;
    for (const auto& entry : units_) {
      const std::vector<int>& used = entry.second.buckets;
      if (std::any_of(used.begin(), used.end(), [&](int index) { return is_tied(index); })) close(entry.first);
    }
    for (int index = 0; index < num_buckets(); ++index) {
      if (!is_tied(index)) continue;
      const Bucket& own = bucket(index).bucket;
      calls_.all_reduce(GroupKind::tied, "gradients", bucket(index).dtype,
                        memory_.zero.shard_optimizer ? own.shard_elements : own.count);
    }
  }

  // The optimizer has changed its shards of weights that ranks hold unsharded.
  void updated() const {
    if (!memory_.zero.shard_optimizer || memory_.zero.shard_parameters) return;
    for (int index = 0; index < num_buckets(); ++index)
      if (bucket(index).trained) gather(index);
  }

 private:
  static ParamStore::Options options_of(const PhasePlan& plan) { return plan.store_options(); }

  int num_buckets() const { return narrow<int>(memory_.buckets.size()); }
  const BucketPlace& bucket(int index) const { return memory_.buckets[static_cast<std::size_t>(index)]; }
  bool is_staged(int index) const { return memory_.zero.shard_gradients && !bucket(index).shared; }
  bool is_tied(int index) const { return bucket(index).bucket.tied && bucket(index).trained; }

  void gather(int index) const {
    const BucketPlace& place = bucket(index);
    calls_.all_gather(GroupKind::data, "weights", place.compute, place.bucket.count, place.bucket.shard_elements);
  }
  void reduce(int index) const {
    if (memory_.data_degree == 1) return;
    const BucketPlace& place = bucket(index);
    if (memory_.zero.shard_optimizer) {
      calls_.reduce_scatter(GroupKind::data, "gradients", place.dtype, place.bucket.count, place.bucket.shard_elements);
    } else {
      calls_.all_reduce(GroupKind::data, "gradients", place.dtype, place.bucket.count);
    }
  }

  void close(int unit) {
    if (std::exchange(closed_[unit], true)) return;
    const UnitPlace& place = units_.at(unit);
    if (!memory_.zero.shard_gradients && memory_.data_degree > 1) sum_over_tensor_ranks(place);
    for (const int index : place.buckets) {
      const bool is_last = --open_users_[static_cast<std::size_t>(index)] == 0;
      if (is_last && bucket(index).trained && !is_staged(index)) reduce(index);
    }
  }

  void sum_over_tensor_ranks(const UnitPlace& place) const {
    sum(GroupKind::tensor, place.tensor_sums);
    sum(GroupKind::replication, place.replication_sums);
  }
  // Short stretches together, before the long ones.
  void sum(GroupKind group, const std::vector<SumPlace>& sums) const {
    if (sums.empty() || !calls_.has(group)) return;
    const DType dtype = bucket(sums.front().bucket).dtype;
    std::int64_t together = 0;
    for (const SumPlace& place : sums) together += place.coalesced() ? place.count : 0;
    if (together > 0) calls_.all_reduce(group, "gradients", dtype, together);
    for (const SumPlace& place : sums)
      if (!place.coalesced()) calls_.all_reduce(group, "gradients", dtype, place.count);
  }

  const Calls& calls_;
  StoreMemory memory_;
  Residency residency_;
  std::map<int, UnitPlace> units_;
  std::map<int, bool> staged_units_;  // whose gradients are reduced at every release
  std::map<int, bool> closed_;
  std::vector<int> open_users_;  // by bucket: units that have not had their last release
};

// Walks the steps as the executor does.
class StepWalk {
 public:
  StepWalk(const PhasePlan& plan, Rank rank, const std::function<void(const PlannedCall&)>& visit)
      : plan_(plan),
        calls_(plan, rank, visit),
        unit_calls_(plan, rank, calls_),
        layout_(plan.layout(rank)),
        store_(plan, layout_, calls_),
        model_(plan.model, plan.tensor_part(rank)) {
    for (std::int64_t chunk = 0; chunk < plan.chunks; ++chunk)
      units_.push_back(plan.units_of_chunk(layout_.position().pipeline, chunk));
    const std::vector<ScheduleStep> steps = plan.schedule(rank);
    const ScheduleDepth depth = schedule_depth(steps);
    steps_ = order_of_execution(steps, {depth.inputs, depth.gradients_received});
    contributions_left_.assign(units_.size(), 0);
    for (const ScheduleStep& step : steps_) {
      for (const Instruction& instruction : step) {
        if (instruction.op == Opcode::backward || instruction.op == Opcode::backward_weight)
          ++contributions_left_[static_cast<std::size_t>(instruction.chunk)];
      }
    }
  }

  void run() {
    const std::vector<int> behind = units_behind(units_, steps_);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const ScheduleStep& step = steps_[i];
      for (std::size_t k = 0; k < step.size(); ++k) {
        if (step[k].op == Opcode::acquire && k + 1 < step.size())
          store_.bring(first_unit_used(units_, step[k + 1]), Residency::Purpose::prefetch);
        execute(step[k], behind[i]);
      }
    }
    finish_reductions();
  }

 private:
  void execute(const Instruction& instruction, int unit_behind) {
    switch (instruction.op) {
      case Opcode::forward:
      case Opcode::backward:
      case Opcode::backward_input:
        return work(instruction, unit_behind);
      case Opcode::backward_weight:
        return weight_work(instruction);
      case Opcode::send_activation:
      case Opcode::receive_activation:
      case Opcode::send_gradient:
      case Opcode::receive_gradient:
        return transfer(instruction);
      case Opcode::acquire:
      case Opcode::release:
        return;
      case Opcode::reduce_gradients:
        chunks_to_reduce_.push_back(instruction.chunk);
        return;
      case Opcode::reduce_tied:
        return store_.reduce_tied();
      case Opcode::optimizer_step:
        finish_reductions();
        decide();
        return store_.updated();
      case Opcode::recompute:
        break;
    }
    SCALETRAIN_CHECK(false && "recomputation is never scheduled");
  }

  bool takes_last_contribution(std::int64_t chunk) {
    return --contributions_left_[static_cast<std::size_t>(chunk)] == 0;
  }

  void work(const Instruction& instruction, int unit_behind) {
    const Opcode op = instruction.op;
    const bool is_last = op == Opcode::backward && takes_last_contribution(instruction.chunk);
    const std::vector<int>& units = units_[static_cast<std::size_t>(instruction.chunk)];
    const auto at = [&](std::size_t i) { return op == Opcode::forward ? units[i] : units[units.size() - 1 - i]; };
    for (std::size_t i = 0; i < units.size(); ++i) {
      store_.acquire(at(i));
      store_.bring(i + 1 < units.size() ? at(i + 1) : unit_behind, Residency::Purpose::prefetch);
      unit_calls_.run(at(i), op);
      if (op == Opcode::backward) store_.release_gradients(at(i), is_last);
      store_.release(at(i));
    }
  }

  void weight_work(const Instruction& instruction) {
    const bool is_last = takes_last_contribution(instruction.chunk);
    const std::vector<int>& units = units_[static_cast<std::size_t>(instruction.chunk)];
    for (std::size_t i = units.size(); i-- > 0;) {
      const bool reads_weights = model_.units()[static_cast<std::size_t>(units[i])]->weight_pass_reads_weights();
      if (reads_weights) store_.acquire(units[i]);
      unit_calls_.run(units[i], instruction.op);
      store_.release_gradients(units[i], is_last);
      if (reads_weights) store_.release(units[i]);
    }
  }

  void transfer(const Instruction& instruction) const {
    const Opcode op = instruction.op;
    const bool sends = op == Opcode::send_activation || op == Opcode::send_gradient;
    const bool forward = op == Opcode::send_activation || op == Opcode::receive_activation;
    calls_.exchange(forward ? Transfer::Channel::activations : Transfer::Channel::gradients, plan_.compute,
                    unit_calls_.bundle(), sends ? Transfer::Direction::send : Transfer::Direction::receive,
                    narrow<int>(instruction.peer.value().value()));
  }

  void finish_reductions() {
    for (const std::int64_t chunk : chunks_to_reduce_) store_.finish_gradients(units_[static_cast<std::size_t>(chunk)]);
    chunks_to_reduce_.clear();
  }

  // The few numbers that all ranks sum, axis by axis as sum_over_world goes.
  void decide() const {
    for (const GroupKind group : {GroupKind::tensor, GroupKind::data, GroupKind::pipeline})
      if (calls_.has(group)) calls_.all_reduce(group, "loss, norm, votes", DType::f64, numbers_per_step);
  }

  const PhasePlan& plan_;
  Calls calls_;
  UnitCalls unit_calls_;
  ShardLayout layout_;
  StoreCalls store_;
  Transformer model_;
  std::vector<std::vector<int>> units_;  // by chunk
  std::vector<ScheduleStep> steps_;
  std::vector<std::int64_t> contributions_left_;  // by chunk
  std::vector<std::int64_t> chunks_to_reduce_;
};

}  // namespace

std::string to_text(const PlannedCall& call) {
  std::string text(to_text(call.group));
  if (call.kind == CollectiveKind::exchange) {
    text += call.direction == Transfer::Direction::send ? " send " : " receive ";
    text += std::to_string(call.peer);
  } else {
    text += " " + std::string(to_text(call.kind));
  }
  text += " " + std::to_string(call.elements) + " " + std::string(to_text(call.dtype));
  return text + " " + std::string(call.purpose);
}

void visit_calls(const PhasePlan& plan, Rank rank, const std::function<void(const PlannedCall&)>& visit) {
  StepWalk(plan, rank, visit).run();
}

std::vector<PlannedCall> collective_order(const PhasePlan& plan, Rank rank) {
  std::vector<PlannedCall> order;
  visit_calls(plan, rank, [&order](const PlannedCall& call) { order.push_back(call); });
  return order;
}

}  // namespace scaletrain
