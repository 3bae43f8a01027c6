// Communicators of ranks that each have a GPU of their own: values go from GPU to GPU (backend/device_network.h), and
// no host waits. A call is issued to a stream of its group, behind the stream that it follows; Ticket::before() makes a
// stream wait for that, and the host goes on.
//
// Every collective is made of messages between each two ranks, and sums of them in the order of the ranks: so results
// have the bits of the direct communicator's (comm/collective/direct_communicator.h) but for what a NaN carries. Sums
// go through memory of the device that a communicator has from its beginning, in stretches.
//
// An exchange has a queue of its own for each neighbour, direction and channel. Its sends are issued at once. A receive
// is issued when a stream is to wait for it: until then it would wait for what this rank has yet to send, and hold up
// whatever the driver does with the whole device. A peer may in turn wait for its send to be taken before it goes on,
// so receives are issued too when anything of this rank has been under way for `patience`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/numbers/strong.h"
#include "base/process/work_count.h"
#include "comm/collective/collective_status.h"
#include "comm/communicator.h"
#include "comm/transport.h"
#include "parallel/mesh/groups.h"

namespace scaletrain {

// Of the device's memory that a communicator of collectives holds: long enough that a stretch costs little beside its
// bytes, for some dozen ranks.
inline constexpr std::size_t device_stretch_bytes = std::size_t{16} << 20;

// What a rank says of itself to the members of a group before it is made.
struct DeviceClaim {
  std::string gpu{};       // DeviceFacts::id
  std::string network{};   // DeviceNetwork::name()
  std::string obstacle{};  // why this rank can be in none; empty: it can
};

// What all communicators of a rank share, and the thread that watches what they have under way.
class DeviceTransfers {
 public:
  struct Options {
    Backend& backend;  // outlives what is made
    DeviceNetworkOptions network{};
    bool has_own_gpu = true;  // false: another rank computes on it too
    // As DirectOptions has them. A call's time begins when the device has come to it, and anew when one before it has
    // ended.
    double deadline = 60.0;
    std::function<MonotonicTime()> vouched{};
    WorkCount* work = nullptr;
    CollectiveStatus* status = nullptr;
    double connect_seconds = 300.0;  // for the members of a group to come together
    double patience = 1.0;
  };
  explicit DeviceTransfers(Options options);
  // "NCCL 2.28.9"; empty where there is none.
  std::string network_name() const;

  // Which calls a group has.
  enum class Calls { collectives, chain_exchanges, ring_exchanges };
  struct Group {
    std::string name;         // for messages
    std::vector<Rank> ranks;  // of the world, in the order of the group
    // chain_exchanges: activations go to the member behind and gradients to the one before; ring_exchanges: from the
    // last to the first, too. Any other transfer is a bug.
    Calls calls = Calls::collectives;
  };
  // Why the members cannot have a communicator, the same text at all of them; empty: they can. By all members, which
  // find out through the transport. PeerError
  std::string obstacle(Transport& transport, const Group& group) const;
  // By all members, where there is no obstacle: connects them, and does not return before each has heard from each. The
  // transport is kept. PeerError; std::bad_alloc where the device lacks the memory. Calls and tickets of all of a
  // rank's communicators are by one thread.
  std::unique_ptr<Communicator> make(std::unique_ptr<Transport> transport, const Group& group);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // the communicators' too
};

// Which calls a group of this kind has. is_ring: the last stage sends to the first.
DeviceTransfers::Calls device_calls(GroupKind kind, bool is_ring);

// What NCCL takes of the device's memory for a group of the member at `place`, about (backend/nccl_memory.h), where
// each host has so many neighbouring ranks of the world.
std::size_t network_bytes(const DeviceTransfers::Group& group, int place, std::int64_t ranks_per_host);

}  // namespace scaletrain
