// Collectives and point-to-point transfers among the ranks of one group.
//
// Each call takes the stream whose issued work it follows and returns a Ticket: a transfer under way. It reads and
// writes the buffers named by the call when all that was issued to the stream before has run; ticket.before(stream)
// orders what is issued to a stream later behind the transfer. Neither blocks the host, but where a stream's operations
// run when they are issued (HostStream), and before() where a device's memory is transferred through the host's
// (store/staged_communicator.h). ticket.wait() blocks and is for tests and shutdown. The buffers must stay
// valid until the ticket has completed; the ticket owns whatever staging memory the transfer needs. All ranks of a
// group issue the same calls in the same order (one in-order queue per group). A peer that fails, or a deadline that
// passes, is a PeerError naming group, collective, sequence number and missing ranks.
//
// A group of one is a communicator like any other: its reductions and gathers copy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/numbers/strong.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace scaletrain {

enum class ReduceOp { sum, max };

// Work under way. Move-only; the destructor waits for nothing and reports nothing.
class Ticket {
 public:
  class State {
   public:
    virtual ~State() = default;
    // What the stream runs of it later must not need this object.
    virtual void before(Stream& stream) = 0;
    virtual void wait() = 0;
  };

  Ticket() = default;  // already complete
  explicit Ticket(std::unique_ptr<State> state) : state_(std::move(state)) {}

  void before(Stream& stream) {
    if (state_) state_->before(stream);
  }
  void wait() {
    if (state_) state_->wait();
  }

 private:
  std::unique_ptr<State> state_;
};

// One transfer of a batched point-to-point call; peer is the index in the group. Between two ranks there is an in-order
// queue for each direction and channel: the n-th send in it meets the peer's n-th receive, and no queue holds up
// another. So a transport that has nothing but ordered queues can carry whatever stands in the same order on both ends.
struct Transfer {
  enum class Direction { send, receive };
  enum class Channel { activations, gradients };  // what the stages of a pipeline say to each other
  static constexpr int num_channels = 2;

  Direction direction = Direction::send;
  int peer = 0;
  View data;
  Channel channel = Channel::activations;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual const std::string& group_name() const = 0;  // "data", "tensor", "pipeline" ...
  virtual int size() const = 0;
  virtual int rank_in_group() const = 0;

  // In place over data (floating types, i64). Halves are summed in f32 and rounded once. A maximum with a NaN is NaN.
  virtual Ticket all_reduce(Stream& stream, View data, ReduceOp op) = 0;
  // Rank r of the group receives the sum of piece r; pieces lie one after the other in `input` with these element
  // counts. `output` may be this rank's own piece of `input` (in place); otherwise they do not overlap.
  virtual Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) = 0;
  // Piece r of `output` is rank r's input, which may be that very piece (in place); otherwise they do not overlap.
  virtual Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) = 0;
  // Piece p of `input` goes to rank p; what comes from rank p is piece p of `output`. They do not overlap.
  virtual Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                            std::span<const std::int64_t> receive_counts) = 0;
  // Posted together, as soon as the stream comes to them, beside the collectives: neither order nor direction can
  // deadlock. In each channel the n-th send to a peer meets that peer's n-th receive from this rank.
  virtual Ticket exchange(Stream& stream, std::span<const Transfer> transfers) = 0;
  // Ends what is under way and every later call with a PeerError, on this rank at once: for a rank that has failed, so
  // that nothing it still waits for holds it up. The memory of calls under way may go when their tickets have been
  // waited for. Any thread; may be called twice.
  virtual void abort() noexcept = 0;
};

// A group of one rank.
std::unique_ptr<Communicator> make_single_communicator(std::string group_name);

}  // namespace scaletrain
