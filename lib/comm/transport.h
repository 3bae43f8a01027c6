// Moves bytes between the ranks of one group: what the collectives of direct_communicator.h are built on, so that the
// algorithms exist once. in_process/, memory/ and gloo/ implement it; process/ chooses between
// the last two for each peer.
//
// send and receive post and return at once; memory must stay valid until wait() has returned. A message is matched by
// (sender, receiver, tag); a tag is used once per direction and pair in the life of the transport, and sizes on both
// sides are equal. A send may complete only when its receive is posted: nothing is buffered. Posting is thread-safe.
// Errors name ranks of the world, not the group: the communicator that waits says which it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/clock.h"

namespace scaletrain {

class Transport {
 public:
  // One posted send or receive. Destroying it before it has completed gives it up; the memory is not touched
  // afterwards.
  class Pending {
   public:
    virtual ~Pending() = default;
    // True once complete, false when the deadline has passed first: then it is still posted, and may be waited for
    // again. PeerError if the peer is gone. By one thread.
    virtual bool wait_until(MonotonicTime deadline) = 0;
  };

  virtual ~Transport() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  // peer: index in the group, not this rank.
  virtual std::unique_ptr<Pending> send(int peer, std::uint64_t tag, std::span<const std::byte> data) = 0;
  virtual std::unique_ptr<Pending> receive(int peer, std::uint64_t tag, std::span<std::byte> data) = 0;
  // Ends what is pending on this side, and every later wait, with a PeerError: for shutdown while another thread waits.
  // Any thread; may be called twice.
  virtual void stop() noexcept = 0;
};

}  // namespace scaletrain
