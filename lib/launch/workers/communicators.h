// The communicators of a rank that is a process of its own: collectives by direct exchange over the transports of
// process_network.h. Of what lies in a device's memory from device to device (store/device_communicator.h), where all
// members of a group can, else through the host's (store/staged_communicator.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/numbers/strong.h"
#include "base/process/work_count.h"
#include "comm/collective/collective_status.h"
#include "comm/process/process_network.h"
#include "comm/rendezvous/key_value_store.h"
#include "config/config.h"
#include "store/rank_groups.h"

namespace scaletrain {

// Of ranks that compute in a device's memory: how they exchange what lies there.
struct DeviceExchange {
  RankTransport transport = RankTransport::automatic;
  std::string interface {};  // by name; empty: whichever is found
  bool has_own_gpu = false;  // no other rank computes on it
  bool is_ring = false;      // the last stage sends to the first: one rank has several chunks of the model
  // Hears by what it goes from GPU to GPU ("NCCL 2.28.9"), or why it goes through the host's memory instead.
  std::function<void(const std::string& network)> is_direct{};
  std::function<void(const std::string& obstacle)> is_staged{};
};

struct ProcessCommunication {
  ProcessNetwork& network;
  KeyValueStore& store;
  Rank self{0};
  Backend& backend;        // in whose memory the groups but control ones transfer
  double deadline = 60.0;  // see DirectOptions, and collective_deadline()
  std::function<MonotonicTime()> vouched{};
  WorkCount* work = nullptr;
  CollectiveStatus* status = nullptr;  // told of every call; null: nobody is
  double connect_seconds = 300.0;      // for the members of a group to come together: the slowest one's start-up
  DeviceExchange devices{};
};

// Whether what such a group transfers lies in the memory of a device, of ranks that compute in such.
bool is_staged(GroupKind kind, const GroupFacts& facts);
// Whether calls of such a group run on a thread of its own. Those whose results are waited for at once run on the
// caller's, but where they are staged.
bool has_queue(GroupKind kind, const GroupFacts& facts);

// Network, store, backend, count and status outlive the factory and what it makes. With transport nccl the factory
// throws a UserError where a group cannot exchange so.
CommunicatorFactory process_communicators(const ProcessCommunication& communication);

// That what ranks on GPUs tell each other takes a detour: why, and what to do.
std::string staging_notice(const std::string& obstacle);
// That ranks of this host talk by TCP though they could read each other's memory, if the system let them: why, and what
// to do. Empty where nothing is in the way.
std::string connection_notice(const ProcessNetwork::Reach& reach);

// Seconds for which a collective waits for peers of whom nobody says that they get further: a heartbeat for each piece
// of work that they may have to do first, `longest_wait` in all (plan/longest_wait.h), and ten at least. That nobody
// gets further is found after one heartbeat by who watches all ranks (hang_judge.h); this is for ranks whose agent does
// not answer any more.
double collective_deadline(double heartbeat, std::int64_t longest_wait);

}  // namespace scaletrain
