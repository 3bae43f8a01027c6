#include "plan/communication/step_calls.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/collective/direct_communicator.h"
#include "nn/transformer.h"
#include "optim/gradient_noise.h"
#include "optim/optimizer.h"
#include "plan/communication/transfer.h"
#include "plan/longest_wait.h"
#include "store/store_calls.h"

namespace scaletrain {

namespace {

// Gives calls what depends on the group alone, and leaves out those on groups that the rank is not in.
class GroupSizes {
 public:
  GroupSizes(const PhasePlan& plan, Rank rank) {
    const GroupFacts facts = plan.group_facts();
    for (const GroupKind kind : group_kinds) {
      if (const auto spec = group_of(plan.mesh, kind, rank, facts))
        members_[kind] = {narrow<int>(spec->members.size()), spec->index};
    }
  }

  std::vector<PlannedCall> planned(const std::vector<GroupCall>& declared) const {
    std::vector<PlannedCall> calls;
    for (const GroupCall& call : declared) {
      const auto member = members_.find(call.group);
      if (member == members_.end()) continue;
      const Member& in = member->second;
      calls.push_back({call, sent(call, in), in.size, in.index});
    }
    return calls;
  }

 private:
  struct Member {
    int size = 1;
    int index = 0;
  };

  static std::int64_t sent(const GroupCall& call, const Member& member) {
    switch (call.kind) {
      case CollectiveKind::all_reduce:
        return direct_all_reduce_sent(call.dtype, call.elements, member.size, member.index);
      case CollectiveKind::reduce_scatter:
        return call.elements - call.own;
      case CollectiveKind::all_gather:
        return checked_mul<std::int64_t>(call.own, member.size - 1);
      case CollectiveKind::exchange:
        return call.direction == Transfer::Direction::send ? call.elements : 0;
      case CollectiveKind::all_to_all:
        break;
    }
    SCALETRAIN_CHECK(false && "no unit and no store declares such a call");
  }

  std::map<GroupKind, Member> members_;
};

// Of a step: the gradients of the first half of a batch are kept where the others are used.
enum class StepPart { whole, first_half, second_half };

// All of an instruction that its calls depend on. Which micro-batch it is, is not among it.
struct WorkKind {
  Mode mode = Mode::train;
  Opcode op = Opcode::forward;
  std::int64_t chunk = 0;
  std::int64_t peer = -1;
  int next_unit = -1;
  bool is_last = false;
  int first_trained = 0;
  StepPart part = StepPart::whole;
  EvaluatedLosses losses = EvaluatedLosses::of_all;
  auto operator<=>(const WorkKind&) const = default;
};

WorkKind kind_of(const ExecutedInstruction& executed, Mode mode, StepPart part, EvaluatedLosses losses) {
  const Instruction& instruction = executed.instruction;
  return {mode,
          instruction.op,
          instruction.chunk,
          instruction.peer ? instruction.peer->value() : -1,
          executed.next_unit,
          executed.is_last,
          executed.first_trained,
          part,
          losses};
}

// Makes the calls of steps, evaluations and loads as they are made (train/step/stage_executor.cpp, step_runner.cpp).
class StepWalk {
 public:
  StepWalk(const PhasePlan& plan, Rank rank)
      : plan_(plan),
        sizes_(plan, rank),
        layout_(plan.layout(rank)),
        store_(plan.table, layout_, plan.store_options()),
        model_(plan.transformer(rank)),
        stage_sums_(make_optimizer(plan.optimizer)->num_summed_over_stage(plan.table, layout_)),
        update_calls_(make_optimizer(plan.optimizer)->calls(plan.table, layout_, plan.store_options())),
        units_(plan.units_by_chunk(layout_.position().pipeline)) {
    number_of({store_.state(), {}});
  }

  void begin_step() {
    return_to(now_);
    store_.zero_gradients();
    explored_ = now_ = number_of({store_.state(), chunks_to_reduce_});
  }
  void run(const ExecutionOrder& order, Mode mode, StepPart part = StepPart::whole,
           EvaluatedLosses losses = EvaluatedLosses::of_all) {
    for (const ExecutedInstruction& executed : order) {
      const Opcode op = executed.instruction.op;
      if (op != Opcode::release) step(kind_of(executed, mode, part, losses));
    }
  }
  void load() {
    return_to(now_);
    declared_.clear();
    store_.values_changed(declared_);
    append(declared_);
    explored_ = now_ = number_of({store_.state(), chunks_to_reduce_});
  }
  void sum_over_world(std::int64_t numbers) { append(world_sum_calls(plan_.group_facts(), numbers)); }
  // All so far. Nothing follows.
  StepCalls take() { return std::move(calls_); }

 private:
  // As a piece of its own.
  void append(const std::vector<GroupCall>& declared) {
    std::vector<PlannedCall> calls = sizes_.planned(declared);
    if (calls.empty()) return;
    calls_.order.push_back(narrow<int>(calls_.pieces.size()));
    calls_.pieces.push_back({std::move(calls), 1});
  }

  struct State {
    StoreCalls::State store;
    std::vector<std::int64_t> chunks_to_reduce;
    auto operator<=>(const State&) const = default;
  };
  struct Change {
    int piece = -1;  // -1: no calls
    int after = 0;
  };

  void step(const WorkKind& work) {
    const auto [entry, is_new] = changes_.try_emplace({now_, work});
    Change& change = entry->second;
    if (is_new) change = explore(work);
    if (change.piece >= 0) {
      ++calls_.pieces[static_cast<std::size_t>(change.piece)].times;
      calls_.order.push_back(change.piece);
    }
    now_ = change.after;
  }

  Change explore(const WorkKind& work) {
    return_to(now_);
    declared_.clear();
    execute(work);
    Change change;
    std::vector<PlannedCall> calls = sizes_.planned(declared_);
    if (!calls.empty()) {
      change.piece = narrow<int>(calls_.pieces.size());
      calls_.pieces.push_back({std::move(calls), 0});
    }
    change.after = number_of({store_.state(), chunks_to_reduce_});
    explored_ = change.after;
    return change;
  }
  void return_to(int number) {
    if (explored_ == number) return;
    const State& state = *states_[static_cast<std::size_t>(number)];
    store_.set_state(state.store);
    chunks_to_reduce_ = state.chunks_to_reduce;
    explored_ = number;
  }
  int number_of(const State& state) {
    const auto [entry, is_new] = numbers_.try_emplace(state, narrow<int>(states_.size()));
    if (is_new) states_.push_back(&entry->first);
    return entry->second;
  }

  void execute(const WorkKind& work) {
    switch (work.op) {
      case Opcode::forward:
      case Opcode::backward:
      case Opcode::backward_input:
      case Opcode::backward_weight:
        return pass_units(work);
      case Opcode::send_activation:
      case Opcode::receive_activation:
      case Opcode::send_gradient:
      case Opcode::receive_gradient:
        return transfer(work);
      case Opcode::acquire:
        if (work.next_unit >= 0) store_.prefetch(work.next_unit, declared_);
        return;
      case Opcode::release:
        return;
      case Opcode::reduce_gradients:
        chunks_to_reduce_.push_back(work.chunk);
        return;
      case Opcode::reduce_tied:
        return store_.reduce_tied(declared_);
      case Opcode::optimizer_step:
        for (const std::int64_t chunk : chunks_to_reduce_) store_.finish_gradients(units_of(chunk), declared_);
        chunks_to_reduce_.clear();
        if (work.part == StepPart::first_half) return;
        declare(world_sum_calls(plan_.group_facts(),
                                numbers_per_step + (work.part == StepPart::second_half ? numbers_per_halves : 0)));
        if (stage_sums_ > 0) declare(stage_sum_calls(plan_.group_facts(), stage_sums_));
        if (plan_.numbers_per_update > 0) declare(world_sum_calls(plan_.group_facts(), plan_.numbers_per_update));
        declare(update_calls_);
        return store_.updated(declared_);
    }
    SCALETRAIN_CHECK(false && "no instruction");
  }

  void pass_units(const WorkKind& work) {
    const bool adds_gradients = work.op == Opcode::backward || work.op == Opcode::backward_weight;
    for (const UnitTurn& turn : turns_of(work.op, units_of(work.chunk), work.next_unit, work.first_trained)) {
      const Unit& unit = *model_.units()[static_cast<std::size_t>(turn.unit)];
      const bool reads_weights = work.op != Opcode::backward_weight || unit.weight_pass_reads_weights();
      if (reads_weights) store_.acquire(turn.unit, declared_);
      if (turn.next_unit >= 0) store_.prefetch(turn.next_unit, declared_);
      declare(calls_of_pass(turn.unit, work));
      if (adds_gradients) store_.release_gradients(turn.unit, work.is_last, declared_);
      if (reads_weights) store_.release(turn.unit);
    }
  }

  void transfer(const WorkKind& work) {
    const Transfer call = transfer_of(work.op, work.peer, {});
    const BundleEntry bundle = model_.boundary(plan_.micro_batch, plan_.compute).front();
    const bool is_activation = call.channel == Transfer::Channel::activations;
    declared_.push_back({.group = GroupKind::pipeline,
                         .kind = CollectiveKind::exchange,
                         .purpose = is_activation ? CallPurpose::activations : CallPurpose::activation_gradients,
                         .dtype = bundle.dtype,
                         .elements = bundle.shape.num_elements(),
                         .direction = call.direction,
                         .peer = call.peer,
                         .channel = call.channel});
  }

  const std::vector<GroupCall>& calls_of_pass(int unit, const WorkKind& work) {
    const auto [entry, is_new] = passes_.try_emplace({unit, work.op, work.mode, work.losses});
    if (is_new) entry->second = model_.calls(unit, work.op, plan_.micro_batch, plan_.compute, work.mode, work.losses);
    return entry->second;
  }
  void declare(const std::vector<GroupCall>& calls) { declared_.insert(declared_.end(), calls.begin(), calls.end()); }
  const std::vector<int>& units_of(std::int64_t chunk) const { return units_[static_cast<std::size_t>(chunk)]; }

  const PhasePlan& plan_;
  GroupSizes sizes_;
  ShardLayout layout_;
  StoreCalls store_;
  Transformer model_;
  std::int64_t stage_sums_;              // numbers that the optimizer sums over the stage
  std::vector<GroupCall> update_calls_;  // of the optimizer
  UnitsByChunk units_;
  std::map<std::tuple<int, Opcode, Mode, EvaluatedLosses>, std::vector<GroupCall>> passes_;
  std::map<State, int> numbers_;      // in the order in which they are found
  std::vector<const State*> states_;  // by number
  std::map<std::pair<int, WorkKind>, Change> changes_;
  int now_ = 0;       // number of the state that the walk is in
  int explored_ = 0;  // of that of store_ and chunks_to_reduce_
  std::vector<std::int64_t> chunks_to_reduce_;
  std::vector<GroupCall> declared_;  // of the work under way
  StepCalls calls_;
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
  return text + " " + std::string(to_text(call.purpose));
}

StepCalls calls_of_step(const PhasePlan& plan, Rank rank, const ExecutionOrder& order) {
  StepWalk walk(plan, rank);
  walk.run(order, Mode::train);
  return walk.take();
}

namespace {

// In the memory that a step has.
ExecutionOrder order_of(const PhasePlan& plan, Rank rank, std::span<const ScheduleStep> steps, int first_trained) {
  const ScheduleDepth depth = schedule_depth(plan.schedule(rank));
  return execution_order(order_of_execution(steps, {depth.inputs, depth.gradients_received}),
                         plan.units_by_chunk(plan.mesh.position_of(rank).pipeline), first_trained);
}

ExecutionOrder order_of_step(const PhasePlan& plan, Rank rank, int first_trained) {
  return order_of(plan, rank, plan.schedule(rank, plan.num_micro_batches, first_trained), first_trained);
}

void walk_halves(StepWalk& walk, const PhasePlan& plan, Rank rank, int first_trained) {
  StepPart part = StepPart::first_half;
  for (const std::int64_t samples : halves_of(plan.global_batch)) {
    const auto steps = plan.schedule(rank, plan.micro_batches_of(samples), first_trained);
    walk.begin_step();
    walk.run(order_of(plan, rank, steps, first_trained), Mode::train, part);
    part = StepPart::second_half;
  }
}

// In parts, of a set, whose few numbers are summed at the end, or by sample: then the losses of each part's samples, of
// all replicas, behind it (StepRunner::evaluate and evaluate_samples).
void walk_evaluation(StepWalk& walk, const PhasePlan& plan, Rank rank, const RankWork& work) {
  const bool by_sample = work.kind == RankWork::Kind::evaluation_by_sample;
  const std::int64_t longest = longest_evaluation_part(plan);
  for (std::int64_t first = 0; first < work.evaluated; first += longest) {
    if (work.may_be_given_up) walk.sum_over_world(1);
    const std::int64_t count = std::min(longest, work.evaluated - first);
    const auto steps = make_evaluation_schedule(plan.mesh.degree(Axis::pipeline), count, plan.chunks,
                                                Stage(plan.mesh.position_of(rank).pipeline));
    walk.run(order_of(plan, rank, steps, 0), Mode::evaluate, StepPart::whole,
             by_sample ? EvaluatedLosses::by_sample : EvaluatedLosses::of_all);
    if (by_sample) walk.sum_over_world(count * plan.mesh.degree(Axis::data) * plan.micro_batch.samples);
  }
  if (!by_sample) walk.sum_over_world(numbers_per_evaluation);
}

}  // namespace

StepCalls calls_of_step(const PhasePlan& plan, Rank rank) {
  return calls_of_step(plan, rank, order_of_step(plan, rank, plan.table.first_trained_unit()));
}

void visit_calls(const StepCalls& calls, const std::function<void(const PlannedCall&)>& visit) {
  for (const int piece : calls.order)
    for (const PlannedCall& call : calls.pieces[static_cast<std::size_t>(piece)].calls) visit(call);
}

std::vector<PlannedCall> collective_order(const PhasePlan& plan, Rank rank) {
  return collective_order(plan, rank, std::array{RankWork()});
}

std::vector<PlannedCall> collective_order(const PhasePlan& plan, Rank rank, std::span<const RankWork> work) {
  StepWalk walk(plan, rank);
  std::map<int, ExecutionOrder> steps;  // by the first unit that trains
  for (const RankWork& part : work) {
    switch (part.kind) {
      case RankWork::Kind::step: {
        const int first_trained = plan.table.first_trained_unit(part.updates);
        if (part.in_halves) {
          walk_halves(walk, plan, rank, first_trained);
          break;
        }
        const auto [step, is_new] = steps.try_emplace(first_trained);
        if (is_new) step->second = order_of_step(plan, rank, first_trained);
        walk.begin_step();
        walk.run(step->second, Mode::train);
        break;
      }
      case RankWork::Kind::evaluation:
      case RankWork::Kind::evaluation_by_sample:
        walk_evaluation(walk, plan, rank, part);
        break;
      case RankWork::Kind::load:
        walk.load();
        break;
    }
  }
  std::vector<PlannedCall> calls;
  visit_calls(walk.take(), [&calls](const PlannedCall& call) { calls.push_back(call); });
  return calls;
}

}  // namespace scaletrain
