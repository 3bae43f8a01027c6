// A connection between two processes of one host that read each other's memory: what one of them sends is copied once,
// by the other, straight from where it lies to where it is wanted (process_vm_readv, Linux's cross memory attach).
//
// A sender writes an offer, tag, address and size, into the memory that both share (link_segment.h), and rings. The
// receiver reads the bytes when it has both the offer and a receive that was posted for it, and marks the offer as
// taken, which completes the send. So the receiver needs nothing of the sender while it reads; a sender that gives a
// message up marks it as withdrawn, and what was read of it meanwhile is thrown away. Memory of a receive is written by
// its own process alone. A receiver that cannot read what is offered ends the link for both sides, and says why: the
// send would wait for ever.
//
// Who reads: whichever thread of the receiver is waiting for something on this link, or posts a receive for what has
// come; where there is none, the thread of LinkWatch, so that a send completes however busy the receiver is. Waits
// sleep on a futex in the shared memory. The TCP connection on which the two have met tells them, by its end, that the
// other one is gone, and carries a byte where no wait sleeps that would see an offer.
//
// LinkSide::most_offers messages may be on their way to a peer that has not posted receives for them; those behind wait
// for them to be received, whatever their tags.
//
// As transport.h says, and gloo_transport.h of waits: one that ends at its deadline leaves its message as it was; a
// peer that is gone ends the waits on it. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/numbers/strong.h"
#include "comm/memory/link_offer.h"
#include "comm/transport.h"

namespace scaletrain {

class LinkWatch;

// Pending messages keep it; after close() it needs the watch no more.
class MemoryLink : public std::enable_shared_from_this<MemoryLink> {
 public:
  MemoryLink(LinkPeer peer, Rank rank, FileDescriptor connection, LinkWatch& watch);
  ~MemoryLink() = default;
  MemoryLink(const MemoryLink&) = delete;
  MemoryLink& operator=(const MemoryLink&) = delete;

  std::unique_ptr<Transport::Pending> send(std::uint64_t tag, std::span<const std::byte> data);
  std::unique_ptr<Transport::Pending> receive(std::uint64_t tag, std::span<std::byte> data);
  // See Transport::stop().
  void stop() noexcept;
  // The end of the transport: stops, and tells the peer.
  void close() noexcept;

  // For the watch: the connection, and what is to be done when something has come on it or nudge() was asked for.
  int connection() const { return connection_.get(); }
  void attend();

 private:
  class Message;
  class Send;
  class Receive;
  struct Match {
    Receive* receive = nullptr;
    LinkOffer offer;
  };
  enum class Reading { done, withdrawn, failed };

  LinkSide& own() const { return peer_.segment.memory().sides[static_cast<std::size_t>(peer_.side)]; }
  LinkSide& other() const { return peer_.segment.memory().sides[static_cast<std::size_t>(1 - peer_.side)]; }
  std::uint32_t capacity() const { return peer_.segment.memory().capacity; }

  // Why the other side is lost.
  struct Loss {
    // unread: the other side could not read this one's memory.
    enum class Kind { closed, unreadable, unread, other_size };
    Kind kind = Kind::closed;
    int error = 0;           // errno
    std::uint64_t sent = 0;  // bytes
    std::uint64_t awaited = 0;
  };

  // With the lock held.
  bool offer(Send& send);
  void offer_backlog();
  void release(std::uint32_t entry);
  void release_taken();
  void read_offers();
  void match(Receive& receive, const LinkOffer& offer);
  void open(Receive& receive);
  void settle(const Match& match, Reading reading);

  void progress();
  bool is_offered(const LinkOffer& offer) const;
  Reading read(const Match& match);
  bool wait(Message& message, MonotonicTime deadline);
  void end(Send& send);
  void end(Receive& receive);

  // That something was written to the shared memory. A thread of the other side that sleeps wakes and looks, and one
  // that is about to sleep sees that the bell has rung. Where neither is, its watch is called by a byte on the
  // connection: always, never (sleepers), or if a receive is open that what was offered may be for (receivers): for
  // others the other side looks when it posts them.
  enum class Call { sleepers, receivers, always };
  void call_other(Call whom) noexcept;
  void wake_own() noexcept;
  bool sleep(std::uint32_t bell, MonotonicTime until) noexcept;
  void lose(const Loss& loss) noexcept;
  Loss end_of_other(int error) const noexcept;
  bool is_closed() const noexcept;
  void require_running() const;
  [[noreturn]] void throw_loss();

  LinkPeer peer_;
  Rank rank_;
  FileDescriptor connection_;
  LinkWatch& watch_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> is_lost_{false};

  std::mutex mutex_;  // for all that follows
  std::condition_variable read_;
  Loss loss_;
  std::vector<std::uint32_t> free_sends_;                 // entries of own().sends
  std::vector<Send*> senders_;                            // of each entry; null: it is free
  std::vector<std::uint32_t> uses_;                       // of each entry, the last one
  std::deque<Send*> backlog_;                             // without an entry, or room in the ring
  std::unordered_map<std::uint64_t, Receive*> receives_;  // posted, by tag
  std::unordered_map<std::uint64_t, LinkOffer> offers_;   // read and not matched, by tag
  std::deque<Match> matches_;                             // to be read
};

}  // namespace scaletrain
