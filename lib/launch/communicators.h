// The communicators of a rank that is a process of its own: collectives by direct exchange over Gloo's transport.
#pragma once

#include "base/strong.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/key_value_store.h"
#include "launch/collective_status.h"
#include "parallel/groups.h"

namespace scaletrain {

struct ProcessCommunication {
  GlooDevice& device;
  KeyValueStore& store;
  Rank self{0};
  double deadline = 60.0;              // seconds that a collective waits for its peers
  CollectiveStatus* status = nullptr;  // told of every call; null: nobody is
  double connect_seconds = 300.0;      // for the members of a group to come together: the slowest one's start-up
};

// Device, store and status outlive the factory and what it makes. Tensor groups and holders, whose results are waited
// for at once, run on the caller's thread, the others on a queue of their own.
CommunicatorFactory process_communicators(const ProcessCommunication& communication);

}  // namespace scaletrain
