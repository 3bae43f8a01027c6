// The ticket of a transfer that a stream makes in its turn.
#pragma once

#include "comm/communicator.h"

namespace scaletrain {

// Complete when the event is done.
Ticket ticket_of(Event event);

}  // namespace scaletrain
