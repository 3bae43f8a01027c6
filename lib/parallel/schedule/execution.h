// How a rank carries a schedule out: the buffers that takes, the receives that are posted ahead, and with each
// instruction what the executor, and the plan that foretells its calls, must know of those behind it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace scaletrain {

// What a stage holds at once, at its peaks: results of forward instructions, results of backward_input that await their
// weight part, and both together (a buffer is in use from forward to the last part of the backward).
struct ScheduleDepth {
  std::int64_t saved = 0;
  std::int64_t weight_work = 0;
  std::int64_t in_flight = 0;
  std::vector<std::int64_t> in_flight_of_chunk;  // each chunk's own peak
  // Buffers: as many as are in use at once if every receive is posted at its own place, and one more, so that one can
  // be posted ahead. Gradients sent: so that one can be computed while the one before is on its way.
  std::int64_t inputs = 0;
  std::int64_t gradients_received = 0;
  std::int64_t gradients_sent = 0;
};
ScheduleDepth schedule_depth(std::span<const ScheduleStep> steps);

// Buffers for what is received.
struct ReceiveBuffers {
  std::int64_t inputs = 0;
  std::int64_t gradients = 0;
};

// The steps as an executor carries them out: receives posted ahead. Right behind each step of transfers (and at the
// very beginning) come the receives of the next one, in their order, as far as buffers are free then; so a message can
// arrive while the work between the two steps runs. Sends keep their places, and the receives from one peer their
// order. Posting a receive earlier blocks nothing: what simulate() proves of `steps` holds.
std::vector<ScheduleStep> order_of_execution(std::span<const ScheduleStep> steps, const ReceiveBuffers& buffers);

// An instruction in its place.
struct ExecutedInstruction {
  Instruction instruction;
  // Whose weights are to be brought along, as they are used next. With an acquire: the first unit of the work it
  // brackets. With a forward or the input part of a backward: the first one used by what comes behind its step, before
  // the weights change. -1: none's.
  int next_unit = -1;
  // backward, backward_weight: nothing adds to the chunk's gradients later in the step.
  bool is_last = false;
  // backward and its parts: the units before this one have nothing to train, and no turn (turns_of).
  int first_trained = 0;
};
using ExecutionOrder = std::vector<ExecutedInstruction>;
using UnitsByChunk = std::vector<std::vector<int>>;  // of one stage, in order

// The steps as they are. An executor wants them as order_of_execution gives them; for what is only counted, where
// receives stand makes no difference.
// first_trained: what every backward is told.
ExecutionOrder execution_order(std::span<const ScheduleStep> steps, const UnitsByChunk& units, int first_trained = 0);

// One unit's turn in a piece of work.
struct UnitTurn {
  std::size_t index = 0;  // in its chunk
  int unit = 0;
  int next_unit = -1;  // whose weights are brought meanwhile; -1: none's
};
// The units of the chunk in the order in which forward, backward, backward_input or backward_weight goes through them.
// next_unit: the instruction's. first_trained: the first unit of the model with something to train; a backward does
// not go through those before it.
std::vector<UnitTurn> turns_of(Opcode work, std::span<const int> units, int next_unit, int first_trained = 0);

}  // namespace scaletrain
