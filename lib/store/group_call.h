// A call that a rank makes on one of its groups, as whoever makes it declares it without making it: a unit what its
// passes tell the tensor group (Transformer::calls), the store what it gathers and reduces (store_calls.h), the sum of
// a few numbers over all ranks (rank_groups.h). The plan's order and volumes are made of these declarations.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/collective/tracing.h"
#include "comm/communicator.h"
#include "parallel/mesh/groups.h"

namespace scaletrain {

// What a call is for, in the order in which check lists a group's traffic.
enum class CallPurpose {
  gradients,
  weights,
  activations,
  recomputed_activations,
  activation_gradients,
  softmax_statistics,
  directions,  // of an optimizer that needs whole matrices
  squares,     // of gradients by rows and columns, of one that keeps factored moments
  decisions
};
std::string_view to_text(CallPurpose purpose);

struct GroupCall {
  GroupKind group = GroupKind::tensor;
  CollectiveKind kind = CollectiveKind::all_reduce;
  CallPurpose purpose = CallPurpose::gradients;
  DType dtype = DType::f32;
  std::int64_t elements = 0;  // of the whole operand: all pieces
  std::int64_t own = 0;       // this rank's piece of a reduce-scatter or an all-gather
  // An exchange is one message: its direction, its peer as an index in the group, that is its stage, and its channel.
  Transfer::Direction direction = Transfer::Direction::send;
  int peer = -1;
  Transfer::Channel channel = Transfer::Channel::activations;
  bool operator==(const GroupCall&) const = default;
};

}  // namespace scaletrain
