// The communicators of a rank that is a process of its own: collectives by direct exchange over Gloo's transport.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/numbers/strong.h"
#include "base/process/work_count.h"
#include "comm/collective/collective_status.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/rendezvous/key_value_store.h"
#include "store/rank_groups.h"

namespace scaletrain {

struct ProcessCommunication {
  GlooDevice& device;
  KeyValueStore& store;
  Rank self{0};
  double deadline = 60.0;  // see DirectOptions, and collective_deadline()
  std::function<MonotonicTime()> vouched{};
  WorkCount* work = nullptr;
  CollectiveStatus* status = nullptr;  // told of every call; null: nobody is
  double connect_seconds = 300.0;      // for the members of a group to come together: the slowest one's start-up
};

// Whether calls of such a group run on a thread of its own. Those whose results are waited for at once run on the
// caller's.
bool has_queue(GroupKind kind);

// Device, store, count and status outlive the factory and what it makes.
CommunicatorFactory process_communicators(const ProcessCommunication& communication);

// Seconds for which a collective waits for peers of whom nobody says that they get further: a heartbeat for each piece
// of work that they may have to do first, `longest_wait` in all (plan/longest_wait.h), and ten at least. That nobody
// gets further is found after one heartbeat by who watches all ranks (hang_judge.h); this is for ranks whose agent does
// not answer any more.
double collective_deadline(double heartbeat, std::int64_t longest_wait);

}  // namespace scaletrain
