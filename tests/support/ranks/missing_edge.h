// Transfers of one kind that lack an edge: the streams of work and the transfer run beside each other where one should
// wait for the other, as if the code that asks for such transfers had left it out. Late streams show that; here the
// transfer is made so early, or so late, that they show it each time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "comm/collective/tracing.h"
#include "comm/communicator.h"
#include "parallel/mesh/groups.h"
#include "support/ranks/host_stream.h"

namespace scaletrain {

// A group's calls of one kind; of exchanges those in one channel. Numbers that the host sums (f64) are none of them.
struct TransferKind {
  GroupKind group = GroupKind::data;
  CollectiveKind call = CollectiveKind::all_reduce;
  Transfer::Channel channel = Transfer::Channel::activations;
};

// start: behind what the stream was given before. end: before what it is given later.
enum class Edge { start, end };

struct MissingEdge {
  TransferKind of{};
  Edge edge = Edge::start;
  bool is_missing = true;  // false: as early or as late as the edge lets it be, which changes no number
};

// One rank's. At the start: the transfer waits for nothing, and the host waits until it has been made (but for a
// message to receive, which may have been asked for long before the peer can send it). At the end: the transfer begins
// when the rank's next call of another kind, or ticket of one, finds that the stream has run all that it had. Used by
// the rank's thread alone; must outlive its groups.
class MissingEdges {
 public:
  explicit MissingEdges(const MissingEdge& missing) : missing_(missing) {}

  const MissingEdge& missing() const { return missing_; }
  std::uint64_t count() const { return count_; }

  template <class Call>
  Ticket at_start(Stream& stream, bool is_receive, const Call& call) {
    ++count_;
    Ticket ticket = call(missing_.is_missing ? host_stream() : stream);
    if (!is_receive) ticket.wait();
    return ticket;
  }
  template <class Call>
  Ticket at_end(Stream& stream, const Call& call) {
    ++count_;
    const auto held = std::make_shared<HeldTransfer>(stream);
    held->ticket = call(held->stream);
    waiting_.push_back(held);
    begun_.push_back(held);
    return Ticket(std::make_unique<HeldTicket>(*this, held));
  }
  // Begins what is held.
  void begin() {
    for (const auto& held : std::exchange(waiting_, {})) held->stream.begin();
  }
  // The rank has failed: nothing is to wait for what is held.
  void give_up() noexcept {
    for (const auto& held : waiting_) held->stream.give_up();
  }
  // Waits for all transfers: while their memory is still there.
  void finish() {
    begin();
    for (const auto& held : std::exchange(begun_, {})) held->ticket.wait();
  }

 private:
  // Keeps what it is given until begin() is called, and then runs it behind all that the other stream has by then.
  class HeldStream final : public Stream {
   public:
    explicit HeldStream(Stream& behind) : behind_(behind), begun_(std::make_shared<Begun>()) {}
    void synchronize() override { begun_->wait(); }
    void call(std::function<void()> function) override { functions_.push_back(std::move(function)); }
    Event record() override { return Event(begun_); }
    void begin() {
      behind_.record().wait();
      for (const auto& function : std::exchange(functions_, {})) function();
      begun_->set();
    }
    void give_up() noexcept { begun_->set(); }

   private:
    class Begun final : public Event::State {
     public:
      bool is_done() override {
        const std::lock_guard lock(mutex_);
        return is_set_;
      }
      void wait() override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_set_; });
      }
      void set() {
        {
          const std::lock_guard lock(mutex_);
          is_set_ = true;
        }
        changed_.notify_all();
      }

     private:
      std::mutex mutex_;
      std::condition_variable changed_;
      bool is_set_ = false;
    };

    Stream& behind_;
    std::shared_ptr<Begun> begun_;
    std::vector<std::function<void()>> functions_;
  };

  struct HeldTransfer {
    explicit HeldTransfer(Stream& behind) : stream(behind) {}
    HeldStream stream;
    Ticket ticket;
  };

  class HeldTicket final : public Ticket::State {
   public:
    HeldTicket(MissingEdges& edges, std::shared_ptr<HeldTransfer> held) : edges_(edges), held_(std::move(held)) {}
    void before(Stream& stream) override {
      if (edges_.missing().is_missing) return;
      edges_.begin();
      held_->ticket.before(stream);
    }
    void wait() override {
      edges_.begin();
      held_->ticket.wait();
    }

   private:
    MissingEdges& edges_;
    std::shared_ptr<HeldTransfer> held_;
  };

  MissingEdge missing_;
  std::uint64_t count_ = 0;  // of the transfers of that kind
  std::vector<std::shared_ptr<HeldTransfer>> waiting_;
  std::vector<std::shared_ptr<HeldTransfer>> begun_;
};

class MissingEdgeCommunicator final : public Communicator {
 public:
  MissingEdgeCommunicator(std::unique_ptr<Communicator> inner, GroupKind group, MissingEdges& edges)
      : inner_(std::move(inner)), group_(group), edges_(edges) {}

  const std::string& group_name() const override { return inner_->group_name(); }
  int size() const override { return inner_->size(); }
  int rank_in_group() const override { return inner_->rank_in_group(); }

  Ticket all_reduce(Stream& stream, View data, ReduceOp op) override {
    return make({.call = CollectiveKind::all_reduce, .dtype = data.dtype()}, stream,
                [&](Stream& used) { return inner_->all_reduce(used, data, op); });
  }
  Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    return make({.call = CollectiveKind::reduce_scatter, .dtype = input.dtype()}, stream,
                [&](Stream& used) { return inner_->reduce_scatter(used, input, counts, output); });
  }
  Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    return make({.call = CollectiveKind::all_gather, .dtype = input.dtype()}, stream,
                [&](Stream& used) { return inner_->all_gather(used, input, counts, output); });
  }
  Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    return make({.call = CollectiveKind::all_to_all, .dtype = input.dtype()}, stream,
                [&](Stream& used) { return inner_->all_to_all(used, input, send_counts, output, receive_counts); });
  }
  Ticket exchange(Stream& stream, std::span<const Transfer> transfers) override {
    const Transfer& first = transfers.front();
    return make({.call = CollectiveKind::exchange,
                 .dtype = first.data.dtype(),
                 .channel = first.channel,
                 .is_receive = first.direction == Transfer::Direction::receive},
                stream, [&](Stream& used) { return inner_->exchange(used, transfers); });
  }
  void abort() noexcept override {
    inner_->abort();
    edges_.give_up();
  }

 private:
  // Another kind's, which brings the held ones to their beginning.
  class OtherTicket final : public Ticket::State {
   public:
    OtherTicket(MissingEdges& edges, Ticket inner) : edges_(edges), inner_(std::move(inner)) {}
    void before(Stream& stream) override {
      edges_.begin();
      inner_.before(stream);
    }
    void wait() override { inner_.wait(); }

   private:
    MissingEdges& edges_;
    Ticket inner_;
  };

  struct Asked {
    CollectiveKind call = CollectiveKind::all_reduce;
    DType dtype = DType::f32;
    Transfer::Channel channel = Transfer::Channel::activations;
    bool is_receive = false;
  };

  template <class Call>
  Ticket make(const Asked& asked, Stream& stream, const Call& issue) {
    const TransferKind& kind = edges_.missing().of;
    const bool is_meant =
        group_ == kind.group && asked.call == kind.call && asked.channel == kind.channel && asked.dtype != DType::f64;
    if (is_meant) {
      if (edges_.missing().edge == Edge::end) return edges_.at_end(stream, issue);
      return edges_.at_start(stream, asked.is_receive, issue);
    }
    edges_.begin();
    return Ticket(std::make_unique<OtherTicket>(edges_, issue(stream)));
  }

  std::unique_ptr<Communicator> inner_;
  GroupKind group_;
  MissingEdges& edges_;
};

}  // namespace scaletrain
