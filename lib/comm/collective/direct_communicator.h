// The collectives, by direct exchange between all ranks of a group: each rank sends piece r to rank r, which sums what
// it gets in the order of the ranks. Volume is that of a ring, 2·S·(N-1)/N per rank for an all-reduce of S bytes, in
// two exchanges instead of 2(N-1); and since every element is summed once, by one rank, in rank order, the result has
// the same bits on all ranks, whatever arrives first, and reduce-scatter, all-reduce and any division into buckets
// agree to the bit. Large pieces travel in stretches, so that staging memory stays bounded. The buffers are in memory
// that the host can reach: anything else is a bug.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/numbers/strong.h"
#include "base/process/work_count.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace scaletrain {

struct DirectOptions {
  std::string group_name;   // for messages: "data", "tensor" ...
  std::vector<Rank> ranks;  // of the world, in the order of the group: for messages
  // Seconds a call may wait for its peers, since the last of their messages or the last word of `vouched`, whichever is
  // later; then PeerError naming the group, the collective, its sequence number and the ranks (of the world) from which
  // nothing came.
  double deadline = 60.0;
  // queue: calls run one after the other on a thread of the communicator, beside the caller's compute.
  // caller: a call runs in its stream's turn, which on the host's own streams is by the caller, before it returns: no
  // thread changes, for small transfers that are waited for at once. All calls by one stream.
  // exchange() is posted in its stream's turn in both and needs neither.
  enum class Mode { queue, caller };
  Mode mode = Mode::queue;
  // When somebody who sees all ranks, and ends them if they hang, last let them go on. While they are looked after, a
  // wait lasts as long as it takes. Asked by any thread that waits; empty: nobody looks after them.
  std::function<MonotonicTime()> vouched{};
  // Counts messages that have come or gone. Null: nobody watches. Must outlive the communicator and its tickets.
  WorkCount* work = nullptr;
};

// Bytes that a communicator of `size` ranks holds for a reduce-scatter whose own piece has so many elements, and for an
// all-reduce by rank `rank` of all.
// The memory is kept and serves every call: a communicator holds the most that one of its calls has needed.
std::size_t direct_reduce_scatter_staging(DType dtype, std::int64_t own_elements, int size);
std::size_t direct_all_reduce_staging(DType dtype, std::int64_t elements, int size, int rank);

// Elements that rank `rank` of `size` sends for an all-reduce of so many.
std::int64_t direct_all_reduce_sent(DType dtype, std::int64_t elements, int size, int rank);

// ReduceOps and types as communicator.h says; floating types, i64, and any type for gathers and exchanges. Calls
// by one thread, tickets too; exchanges may be called by another one, and their tickets by a third. A failure is final:
// every later call and every call still queued fails with the first error. Destroying it waits for no peer: queued
// calls are given up.
std::unique_ptr<Communicator> make_direct_communicator(std::unique_ptr<Transport> transport, DirectOptions options);

}  // namespace scaletrain
