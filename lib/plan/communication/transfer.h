// What a transfer instruction asks of the pipeline group: of the executor, which makes the call, and of the plan, which
// foretells it.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/communicator.h"
#include "parallel/schedule/schedule.h"

namespace scaletrain {

// peer: the physical stage on the other side, which is the peer's index in the group.
inline Transfer transfer_of(Opcode op, std::int64_t peer, const View& data) {
  SCALETRAIN_CHECK(is_transfer(op));
  return {.direction = is_send(op) ? Transfer::Direction::send : Transfer::Direction::receive,
          .peer = narrow<int>(peer),
          .data = data,
          .channel = is_activation(op) ? Transfer::Channel::activations : Transfer::Channel::gradients};
}

}  // namespace scaletrain
