// What a rank asks of its groups in one optimizer step, call by call, in the order in which it issues them: the plan's
// one total order over all groups. All ranks of a group issue the group's collectives in the same order, and the orders
// of all ranks together have no cycle.
//
// Derived from the plan alone, by the same order of instructions (order_of_execution) and the same policies (residency,
// places in the store) that the executor and the store go by. communication() gives the sums of this list without
// making it, so that it costs little for any number of micro-batches; tests hold both against each other, and both
// against what ranks really issue.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/collective/tracing.h"
#include "plan/run_plan.h"

namespace scaletrain {

struct PlannedCall {
  GroupKind group = GroupKind::tensor;
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::string_view purpose;  // as in CommunicationVolume
  DType dtype = DType::f32;
  std::int64_t elements = 0;  // of the whole operand: all shards
  std::int64_t sent = 0;      // elements that this rank sends
  // An exchange is one message: its direction, its peer as an index in the group, that is its stage, and its channel.
  Transfer::Direction direction = Transfer::Direction::send;
  int peer = -1;
  Transfer::Channel channel = Transfer::Channel::activations;
  bool operator==(const PlannedCall&) const = default;
};

// "data reduce_scatter 512 F32 gradients", "pipeline send 1 384 F32 activations".
std::string to_text(const PlannedCall& call);

// For a step that begins right behind an update, as every step does, and that is not skipped. Takes memory for the
// rank's schedule only.
void visit_calls(const PhasePlan& plan, Rank rank, const std::function<void(const PlannedCall&)>& visit);
std::vector<PlannedCall> collective_order(const PhasePlan& plan, Rank rank);

}  // namespace scaletrain
