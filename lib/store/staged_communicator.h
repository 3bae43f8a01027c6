// A communicator of ranks that compute in a device's memory, by one that reaches only the host's: what a call sends is
// copied out to pinned memory, and what it brings is copied back. So Gloo and the memory of a host serve GPUs too, also
// several ranks that share one.
//
// The device never waits for the host. A call's copies and its transfer are made by a thread of the communicator when
// the work that they follow has run; Ticket::before() returns when the transfer is done, as it does on the host's own
// streams. A stream that waited for a peer instead would hold up whatever the driver does with the whole device:
// loading a kernel at its first launch, giving memory back; and the peer may wait for what this rank issues then.
//
// Collectives of any size, but all_to_all, go through one piece of pinned memory, in stretches: an element is summed by
// itself, in the order of the ranks, so bits do not depend on where the stretches end. Transfers of an exchange have as
// much as they carry, each, which is kept and serves those behind it.
#pragma once

#include <cstddef>
#include <memory>

#include "backend/backend.h"
#include "comm/communicator.h"

namespace scaletrain {

// Of the pinned memory of collectives: long enough that its copies cost little beside the transfer of its bytes.
inline constexpr std::size_t staged_stretch_bytes = std::size_t{8} << 20;

// Of the pinned memory of exchanges: pieces whose values a stream may still have to copy while others are in use.
inline constexpr std::size_t staged_copies_ahead = Transfer::num_channels;

// host: runs a collective before its call returns, where the stream is the host's (DirectOptions::Mode::caller).
// Its collectives are called by one thread and its exchanges by another. The backend must outlive the result; its
// copies are made beside what others have it do. Calls by one thread, tickets too.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, Backend& backend);

}  // namespace scaletrain
