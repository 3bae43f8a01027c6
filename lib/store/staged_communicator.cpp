#include "store/staged_communicator.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/collective/call_queue.h"
#include "comm/first_error.h"

namespace scaletrain {

namespace {

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

// Elements [first, first + count) of a view that is taken as flat.
template <class AnyView>
AnyView part_of(const AnyView& view, std::int64_t first, std::int64_t count) {
  SCALETRAIN_CHECK_LE(first + count, view.num_elements());
  const ConstView flat(view);
  const auto* const begin = static_cast<const std::byte*>(flat.data());
  const std::byte* const place = begin + static_cast<std::size_t>(first) * size_of(flat.dtype());
  if constexpr (std::is_same_v<AnyView, View>)
    return {const_cast<std::byte*>(place), flat.dtype(), {count}, flat.space()};
  else
    return {place, flat.dtype(), {count}, flat.space()};
}

// Pinned memory of transfers, kept for those behind them. By one thread.
class PinnedMemory {
 public:
  explicit PinnedMemory(Backend& backend) : backend_(backend) {}

  // The host may wait for a copy of the device's, which waits for nobody in turn.
  Buffer take(std::size_t bytes) {
    auto best = kept_.end();
    std::size_t being_copied = 0;
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
      if (kept->memory.size() < bytes) continue;
      if (!kept->unused.is_done()) {
        ++being_copied;
      } else if (best == kept_.end() || kept->memory.size() < best->memory.size()) {
        best = kept;
      }
    }
    if (best == kept_.end() && being_copied < staged_copies_ahead) return backend_.allocate_pinned(bytes);
    if (best == kept_.end()) {
      best =
          std::find_if(kept_.begin(), kept_.end(), [bytes](const Kept& kept) { return kept.memory.size() >= bytes; });
      best->unused.wait();
    }
    Buffer memory = std::move(best->memory);
    kept_.erase(best);
    return memory;
  }
  // unused: nothing reads it any more.
  void give_back(Buffer memory, Event unused) { kept_.push_back({std::move(memory), std::move(unused)}); }
  // A transfer may still be under way in it.
  void abandon(Buffer memory) { abandoned_.push_back(std::move(memory)); }

 private:
  struct Kept {
    Buffer memory;
    Event unused;
  };
  Backend& backend_;
  std::vector<Kept> kept_;
  std::vector<Buffer> abandoned_;
};

// Collectives on the host's memory, stretch by stretch. Each returns when it is done.
class Collectives {
 public:
  Collectives(Communicator& host, Backend& backend) : host_(host), backend_(backend), copies_(backend.make_stream()) {}

  void all_reduce(const View& data, ReduceOp op) {
    const std::int64_t longest = elements_of_stretch(data.dtype());
    for (std::int64_t first = 0; first < data.num_elements(); first += longest) {
      const View there = part_of(data, first, std::min(longest, data.num_elements() - first));
      const View here = memory_.view(0, data.dtype(), there.shape());
      copy(there, here);
      arrive();
      host_.all_reduce(now_, here, op).wait();
      copy(here, there);
      arrive();
    }
  }

  void reduce_scatter(const ConstView& input, const std::vector<std::int64_t>& counts, const View& output) {
    for_each_stretch(input.dtype(), counts, [&](const Stretch& stretch) {
      const View here = memory_.view(0, input.dtype(), {stretch.total});
      for (std::size_t rank = 0; rank < counts.size(); ++rank)
        copy(part_of(input, stretch.there[rank], stretch.counts[rank]),
             part_of(here, stretch.here[rank], stretch.counts[rank]));
      arrive();
      const View own = part_of(here, stretch.here[own_rank()], stretch.counts[own_rank()]);
      host_.reduce_scatter(now_, here, stretch.counts, own).wait();
      copy(own, own_part(output, stretch));
      arrive();
    });
  }

  void all_gather(const ConstView& input, const std::vector<std::int64_t>& counts, const View& output) {
    for_each_stretch(input.dtype(), counts, [&](const Stretch& stretch) {
      const View here = memory_.view(0, input.dtype(), {stretch.total});
      const View own = part_of(here, stretch.here[own_rank()], stretch.counts[own_rank()]);
      const ConstView given = own_part(input, stretch);
      copy(given, own);
      arrive();
      host_.all_gather(now_, own, stretch.counts, here).wait();
      for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        const View there = part_of(output, stretch.there[rank], stretch.counts[rank]);
        const bool is_in_place = rank == own_rank() && there.data() == given.data();
        if (!is_in_place) copy(part_of(here, stretch.here[rank], stretch.counts[rank]), there);
      }
      arrive();
    });
  }

  // In one: no rank knows what the others send to each other, and so how many stretches there would be.
  void all_to_all(const ConstView& input, const std::vector<std::int64_t>& send_counts, const View& output,
                  const std::vector<std::int64_t>& receive_counts) {
    const Buffer sent = backend_.allocate_pinned(input.num_bytes());
    const Buffer received = backend_.allocate_pinned(output.num_bytes());
    const View from = sent.view(0, input.dtype(), {input.num_elements()});
    const View to = received.view(0, output.dtype(), {output.num_elements()});
    copy(part_of(input, 0, input.num_elements()), from);
    arrive();
    host_.all_to_all(now_, from, send_counts, to, receive_counts).wait();
    copy(to, part_of(output, 0, output.num_elements()));
    arrive();
  }

 private:
  // A part of every rank's piece: from `first` on in each.
  struct Stretch {
    std::int64_t first = 0;
    std::int64_t total = 0;
    std::vector<std::int64_t> counts{};
    std::vector<std::int64_t> there{};  // where each begins among all pieces
    std::vector<std::int64_t> here{};   // and among the parts
  };

  // Of this rank's piece.
  template <class AnyView>
  AnyView own_part(const AnyView& piece, const Stretch& stretch) const {
    return part_of(piece, std::min(stretch.first, piece.num_elements()), stretch.counts[own_rank()]);
  }
  std::size_t own_rank() const { return at(host_.rank_in_group()); }

  // Has the memory made.
  std::int64_t elements_of_stretch(DType dtype) {
    if (memory_.size() == 0) memory_ = backend_.allocate_pinned(staged_stretch_bytes);
    return static_cast<std::int64_t>(staged_stretch_bytes / size_of(dtype));
  }

  template <class Visit>
  void for_each_stretch(DType dtype, const std::vector<std::int64_t>& counts, Visit visit) {
    const std::int64_t most = std::max<std::int64_t>(1, elements_of_stretch(dtype) / std::ssize(counts));
    const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
    for (std::int64_t first = 0; first < longest; first += most) {
      Stretch stretch{.first = first};
      std::int64_t offset = 0;
      for (const std::int64_t count : counts) {
        const std::int64_t part = std::clamp<std::int64_t>(count - first, 0, most);
        stretch.counts.push_back(part);
        stretch.there.push_back(offset + std::min(first, count));
        stretch.here.push_back(stretch.total);
        stretch.total += part;
        offset = checked_add(offset, count);
      }
      visit(stretch);
    }
  }

  void copy(const ConstView& from, const View& to) { backend_.copy(*copies_, from, to); }
  void arrive() { copies_->synchronize(); }

  Communicator& host_;
  Backend& backend_;
  std::unique_ptr<Stream> copies_;
  HostStream now_;
  Buffer memory_;
};

// What exchanges share.
struct Exchanges {
  Exchanges(std::unique_ptr<Communicator> its_host, Backend& its_backend)
      : backend(its_backend),
        pinned(its_backend),
        outgoing(its_backend.make_stream()),
        incoming(its_backend.make_stream()),
        host(std::move(its_host)) {}

  Backend& backend;
  PinnedMemory pinned;  // by the thread that calls
  // Copies before a transfer, by the queue's thread, and those behind one that nobody orders a stream behind.
  std::unique_ptr<Stream> outgoing;
  std::unique_ptr<Stream> incoming;
  std::unique_ptr<Communicator> host;  // ended before the memory that it transfers
};

class StagedExchange {
 public:
  StagedExchange(std::shared_ptr<Exchanges> shared, std::span<const Transfer> transfers) : shared_(std::move(shared)) {
    for (const Transfer& transfer : transfers) {
      Buffer memory = shared_->pinned.take(transfer.data.num_bytes());
      Transfer here = transfer;
      here.data = memory.view(0, transfer.data.dtype(), transfer.data.shape());
      staged_.push_back(here);
      moves_.push_back({.transfer = transfer, .memory = std::move(memory)});
    }
  }
  StagedExchange(const StagedExchange&) = delete;
  StagedExchange& operator=(const StagedExchange&) = delete;

  // By the queue's thread, when the stream has come to the call.
  void post() {
    for (std::size_t i = 0; i < moves_.size(); ++i)
      if (is_send(moves_[i])) shared_->backend.copy(*shared_->outgoing, moves_[i].transfer.data, staged_[i].data);
    shared_->outgoing->synchronize();
    transfer_ = shared_->host->exchange(now_, staged_);
  }

  // Behind the posting. Returns when the transfers are done; what has come is in its place in the stream's order.
  void arrive(Stream& stream) {
    if (has_arrived_) return stream.after(arrived_);
    transfer_.wait();
    for (std::size_t i = 0; i < moves_.size(); ++i)
      if (!is_send(moves_[i])) shared_->backend.copy(stream, staged_[i].data, moves_[i].transfer.data);
    arrived_ = stream.record();
    has_arrived_ = true;
    for (Move& move : moves_) shared_->pinned.give_back(std::move(move.memory), is_send(move) ? Event() : arrived_);
  }
  void wait() {
    arrive(*shared_->incoming);
    arrived_.wait();
  }
  // Nobody will ask for it.
  void leave() {
    if (has_arrived_) return;
    for (Move& move : moves_) shared_->pinned.abandon(std::move(move.memory));
  }

 private:
  struct Move {
    Transfer transfer;
    Buffer memory;
  };
  static bool is_send(const Move& move) { return move.transfer.direction == Transfer::Direction::send; }

  std::shared_ptr<Exchanges> shared_;
  std::vector<Move> moves_;
  std::vector<Transfer> staged_;
  HostStream now_;
  Ticket transfer_;
  bool has_arrived_ = false;
  Event arrived_;
};

class ExchangeTicket final : public Ticket::State {
 public:
  ExchangeTicket(std::shared_ptr<StagedExchange> exchange, Ticket posting)
      : exchange_(std::move(exchange)), posting_(std::move(posting)) {}
  ~ExchangeTicket() override { exchange_->leave(); }
  ExchangeTicket(const ExchangeTicket&) = delete;
  ExchangeTicket& operator=(const ExchangeTicket&) = delete;

  void before(Stream& stream) override {
    posting_.wait();
    exchange_->arrive(stream);
  }
  void wait() override {
    posting_.wait();
    exchange_->wait();
  }

 private:
  std::shared_ptr<StagedExchange> exchange_;
  Ticket posting_;
};

// Results are in their place when the call has run.
class CollectiveTicket final : public Ticket::State {
 public:
  explicit CollectiveTicket(Ticket call) : call_(std::move(call)) {}

  void before(Stream& /*stream*/) override { call_.wait(); }
  void wait() override { call_.wait(); }

 private:
  Ticket call_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, Backend& backend)
      : exchanges_(std::make_shared<Exchanges>(std::move(host), backend)),
        collectives_(*exchanges_->host, backend),
        calls_(errors_),
        postings_(errors_) {
    for (CallQueue* const queue : {&calls_, &postings_}) queue->interrupt_with([this] { abort(); });
  }

  const std::string& group_name() const override { return host().group_name(); }
  int size() const override { return host().size(); }
  int rank_in_group() const override { return host().rank_in_group(); }

  Ticket all_reduce(Stream& stream, View data, ReduceOp op) override {
    return issue(stream, [this, data, op] { collectives_.all_reduce(data, op); });
  }
  Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_pieces(counts, input, output);
    return issue(stream, [this, input, counts = copy_of(counts), output] {
      collectives_.reduce_scatter(input, counts, output);
    });
  }
  Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_pieces(counts, output, input);
    return issue(stream,
                 [this, input, counts = copy_of(counts), output] { collectives_.all_gather(input, counts, output); });
  }
  Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    SCALETRAIN_CHECK(input.dtype() == output.dtype());
    return issue(stream,
                 [this, input, send_counts = copy_of(send_counts), output, receive_counts = copy_of(receive_counts)] {
                   collectives_.all_to_all(input, send_counts, output, receive_counts);
                 });
  }
  Ticket exchange(Stream& stream, std::span<const Transfer> transfers) override {
    errors_->throw_if_any();
    const auto exchange = std::make_shared<StagedExchange>(exchanges_, transfers);
    return Ticket(
        std::make_unique<ExchangeTicket>(exchange, postings_.add(stream.record(), [exchange] { exchange->post(); })));
  }
  void abort() noexcept override { host().abort(); }

 private:
  Communicator& host() const { return *exchanges_->host; }

  static std::vector<std::int64_t> copy_of(std::span<const std::int64_t> counts) {
    return {counts.begin(), counts.end()};
  }
  // One piece of each rank among `all`, and this rank's.
  void check_pieces(std::span<const std::int64_t> counts, const ConstView& all, const ConstView& own) const {
    SCALETRAIN_CHECK(all.dtype() == own.dtype());
    SCALETRAIN_CHECK_EQ(counts.size(), at(size()));
    SCALETRAIN_CHECK_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), all.num_elements());
    SCALETRAIN_CHECK_EQ(counts[at(rank_in_group())], own.num_elements());
  }
  template <class Call>
  Ticket issue(Stream& stream, Call call) {
    errors_->throw_if_any();
    return Ticket(std::make_unique<CollectiveTicket>(calls_.add(stream.record(), std::move(call))));
  }

  std::shared_ptr<FirstError> errors_ = std::make_shared<FirstError>();
  std::shared_ptr<Exchanges> exchanges_;
  Collectives collectives_;
  CallQueue calls_;  // destroyed first: their threads use the rest
  CallQueue postings_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, Backend& backend) {
  return std::make_unique<StagedCommunicator>(std::move(host), backend);
}

}  // namespace scaletrain
