#include "comm/collective/direct_communicator.h"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/collective/call_queue.h"
#include "comm/collective/direct_engine.h"
#include "comm/collective/event_ticket.h"
#include "comm/collective/ordered_reduction.h"

namespace scaletrain {

namespace direct {

namespace {

constexpr std::size_t kibi = 1024;
constexpr std::size_t mebi = kibi * kibi;
// One stretch is summed while the next arrives, hence two of each peer. Large enough that a message costs little beside
// its bytes, small enough to stay in a second- or third-level cache between arriving and being summed.
constexpr std::size_t longest_stretch = mebi;
constexpr std::size_t shortest_stretch = 64 * kibi;
constexpr std::size_t staging_aim = 32 * mebi;
// Below this an all-reduce is one exchange of everything: half the waits, and the bytes cost less than a wait.
constexpr std::size_t small_all_reduce = 8 * kibi;

// The same on all ranks of a group, for both sides of a message must agree on it.
std::size_t stretch_bytes(int size) {
  const auto peers = static_cast<std::size_t>(std::max(1, size - 1));
  return std::clamp(staging_aim / (2 * peers) / 64 * 64, shortest_stretch, longest_stretch);
}

bool is_small(DType dtype, std::int64_t elements) {
  return static_cast<std::size_t>(elements) * size_of(dtype) <= small_all_reduce;
}

// Equal pieces, the last ones shorter or empty.
std::vector<std::int64_t> equal_pieces(std::int64_t elements, int size) {
  const std::int64_t piece = ceil_div<std::int64_t>(elements, size);
  std::vector<std::int64_t> counts;
  counts.reserve(at(size));
  for (int rank = 0; rank < size; ++rank) counts.push_back(std::clamp<std::int64_t>(elements - rank * piece, 0, piece));
  return counts;
}

// Where each piece begins; one more entry for the end.
std::vector<std::int64_t> offsets_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t count : counts) {
    SCALETRAIN_CHECK_LE(std::int64_t{0}, count);
    offsets.push_back(checked_add(offsets.back(), count));
  }
  return offsets;
}

// Reduce-scatter, and with `whole` an all-reduce: every stretch goes out to all ranks as soon as it is summed.
struct Reduction {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  const std::byte* input = nullptr;
  std::vector<std::int64_t> counts{};
  std::byte* output = nullptr;  // this rank's piece
  std::byte* whole = nullptr;   // all pieces, then the same memory as the input
};

class RunningReduction {
 public:
  RunningReduction(Engine& engine, const Reduction& call, std::uint64_t sequence)
      : engine_(engine),
        call_(call),
        sequence_(sequence),
        width_(size_of(call.dtype)),
        stretch_(static_cast<std::int64_t>(stretch_bytes(engine.size()) / width_)),
        offsets_(offsets_of(call.counts)),
        own_(call.counts[at(engine.rank())]) {
    staged_bytes_ = static_cast<std::size_t>(std::min(own_, stretch_)) * width_;
    staging_ = engine.staging(direct_reduce_scatter_staging(call.dtype, own_, engine.size()));
  }

  void run() {
    const std::int64_t stretches = ceil_div(own_, stretch_);
    for (std::int64_t index = 0; index < std::min<std::int64_t>(2, stretches); ++index) receive_stretch(index);
    if (call_.whole != nullptr) receive_results();
    send_operands();
    for (std::int64_t index = 0; index < stretches; ++index) {
      engine_.wait_all(arriving_[index % 2]);
      sum_stretch(index);
      if (index + 2 < stretches) receive_stretch(index + 2);
      if (call_.whole != nullptr) send_result(index);
    }
    engine_.wait_all(results_);
    engine_.wait_all(sends_);
  }

 private:
  std::int64_t length(std::int64_t index, std::int64_t count) const {
    return std::clamp<std::int64_t>(count - index * stretch_, 0, stretch_);
  }
  std::size_t bytes(std::int64_t elements) const { return static_cast<std::size_t>(elements) * width_; }
  // Where a stretch of a piece lies among all pieces.
  std::size_t place(int piece, std::int64_t index) const { return bytes(offsets_[at(piece)] + index * stretch_); }
  std::byte* staged(std::int64_t index, int peer) const {
    const auto slot = static_cast<std::size_t>(index % 2) * at(engine_.size() - 1);
    return staging_ + (slot + at(peer < engine_.rank() ? peer : peer - 1)) * staged_bytes_;
  }

  void receive_stretch(std::int64_t index) {
    const std::size_t size = bytes(length(index, own_));
    engine_.for_each_peer([&](int peer) {
      engine_.receive(arriving_[index % 2], peer, tag(Content::operand, index), {staged(index, peer), size});
    });
  }
  void send_operands() {
    const std::int64_t longest = *std::max_element(call_.counts.begin(), call_.counts.end());
    for (std::int64_t index = 0; index < ceil_div(longest, stretch_); ++index) {
      engine_.for_each_peer([&](int peer) {
        const std::size_t size = bytes(length(index, call_.counts[at(peer)]));
        engine_.send(sends_, peer, tag(Content::operand, index), {call_.input + place(peer, index), size});
      });
    }
  }
  // These land where the operands for the same peer lie: it sends a stretch only after it has received that operand.
  void receive_results() {
    engine_.for_each_peer([&](int peer) {
      const std::int64_t count = call_.counts[at(peer)];
      for (std::int64_t index = 0; index < ceil_div(count, stretch_); ++index) {
        engine_.receive(results_, peer, tag(Content::result, index),
                        {call_.whole + place(peer, index), bytes(length(index, count))});
      }
    });
  }
  void sum_stretch(std::int64_t index) {
    std::vector<const std::byte*> operands;
    operands.reserve(at(engine_.size()));
    for (int rank = 0; rank < engine_.size(); ++rank) {
      operands.push_back(rank == engine_.rank() ? call_.input + place(rank, index) : staged(index, rank));
    }
    reduce_in_order(call_.dtype, call_.op, operands, call_.output + bytes(index * stretch_), length(index, own_));
  }
  void send_result(std::int64_t index) {
    const std::span<const std::byte> data(call_.output + bytes(index * stretch_), bytes(length(index, own_)));
    engine_.for_each_peer([&](int peer) { engine_.send(sends_, peer, tag(Content::result, index), data); });
  }
  std::uint64_t tag(Content content, std::int64_t index) const {
    return collective_tag(sequence_, content, static_cast<std::uint64_t>(index));
  }

  Engine& engine_;
  const Reduction& call_;
  std::uint64_t sequence_;
  std::size_t width_;
  std::int64_t stretch_;  // elements
  std::vector<std::int64_t> offsets_;
  std::int64_t own_;  // elements of this rank's piece
  std::size_t staged_bytes_ = 0;
  std::byte* staging_ = nullptr;
  std::vector<Posted> arriving_[2];
  std::vector<Posted> results_;
  std::vector<Posted> sends_;
};

// Everything to everybody, summed by each rank for itself, in the same order.
void reduce_small(Engine& engine, std::span<std::byte> data, DType dtype, ReduceOp op, std::uint64_t sequence) {
  std::byte* const staging = engine.staging(at(engine.size()) * data.size());
  std::vector<Posted> receives;
  std::vector<Posted> sends;
  std::vector<const std::byte*> operands;
  operands.reserve(at(engine.size()));
  for (int rank = 0; rank < engine.size(); ++rank) {
    operands.push_back(rank == engine.rank() ? data.data() : staging + at(rank) * data.size());
  }
  engine.for_each_peer([&](int peer) {
    engine.receive_all(receives, peer, sequence, {staging + at(peer) * data.size(), data.size()});
  });
  engine.for_each_peer([&](int peer) { engine.send_all(sends, peer, sequence, data); });
  engine.wait_all(receives);
  // Not into `data` yet, which is being sent.
  std::byte* const result = staging + at(engine.rank()) * data.size();
  reduce_in_order(dtype, op, operands, result, static_cast<std::int64_t>(data.size() / size_of(dtype)));
  engine.wait_all(sends);
  if (!data.empty()) std::memcpy(data.data(), result, data.size());
}

// Pieces of bytes to and from every rank; the rank's own is copied unless it is in place.
void exchange_pieces(Engine& engine, std::span<const std::span<const std::byte>> to,
                     std::span<const std::span<std::byte>> from, std::uint64_t sequence) {
  std::vector<Posted> receives;
  std::vector<Posted> sends;
  engine.for_each_peer([&](int peer) { engine.receive_all(receives, peer, sequence, from[at(peer)]); });
  engine.for_each_peer([&](int peer) { engine.send_all(sends, peer, sequence, to[at(peer)]); });
  const auto own_to = to[at(engine.rank())];
  const auto own_from = from[at(engine.rank())];
  SCALETRAIN_CHECK_EQ(own_to.size(), own_from.size());
  if (!own_to.empty() && own_to.data() != own_from.data()) {
    std::memcpy(own_from.data(), own_to.data(), own_to.size());
  }
  engine.wait_all(receives);
  engine.wait_all(sends);
}

// The messages of one exchange, from when the stream comes to them.
class Exchange {
 public:
  struct Message {
    Transfer transfer;
    std::uint64_t tag = 0;
  };
  struct OwnCopy {
    View from;
    View to;
  };

  Exchange(std::shared_ptr<Engine> engine, CallName name, std::vector<Message> messages, std::vector<OwnCopy> own)
      : engine_(std::move(engine)), name_(name), messages_(std::move(messages)), own_(std::move(own)) {}

  void post() {
    for (const OwnCopy& copy : own_) {
      if (copy.from.num_bytes() != 0) std::memmove(copy.to.bytes(), copy.from.bytes(), copy.from.num_bytes());
    }
    engine_->run(name_, [&] {
      for (const Message& message : messages_) {
        if (message.transfer.direction == Transfer::Direction::receive)
          engine_->receive(receives_, message.transfer.peer, message.tag, bytes_of(message));
      }
      for (const Message& message : messages_) {
        if (message.transfer.direction == Transfer::Direction::send)
          engine_->send(sends_, message.transfer.peer, message.tag, bytes_of(message));
      }
    });
  }
  void posted_by(Event event) { posted_ = std::move(event); }

  const Event& posted() const { return posted_; }

  // Behind the posting.
  void wait() {
    if (receives_.empty() && sends_.empty()) return;
    engine_->run(name_, [&] {
      engine_->wait_all(receives_);
      engine_->wait_all(sends_);
    });
  }

 private:
  static std::span<std::byte> bytes_of(const Message& message) {
    return {message.transfer.data.bytes(), message.transfer.data.num_bytes()};
  }

  std::shared_ptr<Engine> engine_;  // before the messages, which are destroyed first
  CallName name_;
  std::vector<Message> messages_;
  std::vector<OwnCopy> own_;
  Event posted_;
  std::vector<Posted> receives_;
  std::vector<Posted> sends_;
};

class ExchangeTicket final : public Ticket::State {
 public:
  explicit ExchangeTicket(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  void before(Stream& stream) override {
    stream.after(exchange_->posted());
    stream.call([exchange = exchange_] { exchange->wait(); });
  }
  void wait() override {
    exchange_->posted().wait();
    exchange_->wait();
  }

 private:
  std::shared_ptr<Exchange> exchange_;
};

template <class Byte, class AnyView>
std::vector<std::span<Byte>> cut(const AnyView& view, std::span<const std::int64_t> counts) {
  const auto offsets = offsets_of(counts);
  SCALETRAIN_CHECK_EQ(offsets.back(), view.num_elements());
  const std::size_t width = size_of(view.dtype());
  std::vector<std::span<Byte>> pieces;
  for (std::size_t index = 0; index < counts.size(); ++index) {
    pieces.emplace_back(view.bytes() + static_cast<std::size_t>(offsets[index]) * width,
                        static_cast<std::size_t>(counts[index]) * width);
  }
  return pieces;
}

void check_reducible(DType dtype) {
  SCALETRAIN_CHECK(is_floating(dtype) || dtype == DType::i64);
}

class DirectCommunicator final : public Communicator {
 public:
  DirectCommunicator(std::unique_ptr<Transport> transport, DirectOptions options)
      : engine_(std::make_shared<Engine>(std::move(transport), std::move(options))),
        sent_(Transfer::num_channels, std::vector<std::uint64_t>(at(engine_->size()))),
        received_(sent_) {
    if (engine_->options().mode == DirectOptions::Mode::caller) return;
    queue_.emplace(engine_->errors());
    queue_->interrupt_with([engine = engine_.get()] { engine->transport().stop(); });
  }

  const std::string& group_name() const override { return engine_->options().group_name; }
  int size() const override { return engine_->size(); }
  int rank_in_group() const override { return engine_->rank(); }

  Ticket all_reduce(Stream& stream, View data, ReduceOp op) override {
    check_reducible(data.dtype());
    auto* const bytes = data.bytes();
    if (size() == 1) return issue(stream, "all_reduce", [](Engine&, std::uint64_t) {});
    if (is_small(data.dtype(), data.num_elements())) {
      return issue(stream, "all_reduce", [data, bytes, op](Engine& engine, std::uint64_t sequence) {
        reduce_small(engine, {bytes, data.num_bytes()}, data.dtype(), op, sequence);
      });
    }
    Reduction call{.dtype = data.dtype(),
                   .op = op,
                   .input = bytes,
                   .counts = equal_pieces(data.num_elements(), size()),
                   .output = nullptr,
                   .whole = bytes};
    const auto before = std::accumulate(call.counts.begin(), call.counts.begin() + rank_in_group(), std::int64_t{0});
    call.output = bytes + static_cast<std::size_t>(before) * size_of(data.dtype());
    return issue(stream, "all_reduce", std::move(call));
  }

  Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_reducible(input.dtype());
    SCALETRAIN_CHECK(input.dtype() == output.dtype());
    check_counts(counts);
    const auto offsets = offsets_of(counts);
    SCALETRAIN_CHECK_EQ(offsets.back(), input.num_elements());
    SCALETRAIN_CHECK_EQ(counts[at(rank_in_group())], output.num_elements());
    return issue(stream, "reduce_scatter",
                 Reduction{.dtype = input.dtype(),
                           .op = ReduceOp::sum,
                           .input = input.bytes(),
                           .counts = {counts.begin(), counts.end()},
                           .output = output.bytes(),
                           .whole = nullptr});
  }

  Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    SCALETRAIN_CHECK(input.dtype() == output.dtype());
    check_counts(counts);
    SCALETRAIN_CHECK_EQ(counts[at(rank_in_group())], input.num_elements());
    const std::span<const std::byte> own(input.bytes(), input.num_bytes());
    return issue_pieces(stream, "all_gather", {at(size()), own}, cut<std::byte>(output, counts));
  }

  Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    SCALETRAIN_CHECK(input.dtype() == output.dtype());
    check_counts(send_counts);
    check_counts(receive_counts);
    SCALETRAIN_CHECK_EQ(send_counts[at(rank_in_group())], receive_counts[at(rank_in_group())]);
    return issue_pieces(stream, "all_to_all", cut<const std::byte>(input, send_counts),
                        cut<std::byte>(output, receive_counts));
  }

  Ticket exchange(Stream& stream, std::span<const Transfer> transfers) override {
    engine_->errors()->throw_if_any();
    const CallName name{"exchange", exchanges_++};
    std::vector<Exchange::Message> messages;
    for (const Transfer& transfer : transfers) {
      SCALETRAIN_CHECK(transfer.peer >= 0 && transfer.peer < size());
      SCALETRAIN_CHECK(is_host_accessible(transfer.data.space()));
      const auto channel = static_cast<int>(transfer.channel);
      if (transfer.peer == rank_in_group()) continue;
      auto& counts = (transfer.direction == Transfer::Direction::send ? sent_ : received_)[at(channel)];
      // Both sides know which messages are empty.
      const bool is_empty = transfer.data.num_bytes() == 0;
      messages.push_back({transfer, exchange_tag(channel, is_empty ? 0 : counts[at(transfer.peer)]++)});
    }
    const auto exchange = std::make_shared<Exchange>(engine_, name, std::move(messages), own_copies(transfers));
    stream.call([exchange] { exchange->post(); });
    exchange->posted_by(stream.record());
    return Ticket(std::make_unique<ExchangeTicket>(exchange));
  }

  // A call under way ends with what the transport says; those behind it do not begin.
  void abort() noexcept override {
    engine_->transport().stop();
    engine_->give_up();
  }

 private:
  void check_counts(std::span<const std::int64_t> counts) const { SCALETRAIN_CHECK_EQ(counts.size(), at(size())); }

  // A rank's transfers with itself: the n-th send meets the n-th receive.
  std::vector<Exchange::OwnCopy> own_copies(std::span<const Transfer> transfers) const {
    std::vector<View> from;
    std::vector<View> to;
    for (const Transfer& transfer : transfers) {
      if (transfer.peer != rank_in_group()) continue;
      (transfer.direction == Transfer::Direction::send ? from : to).push_back(transfer.data);
    }
    SCALETRAIN_CHECK_EQ(from.size(), to.size());
    std::vector<Exchange::OwnCopy> copies;
    for (std::size_t index = 0; index < from.size(); ++index) {
      SCALETRAIN_CHECK_EQ(from[index].num_bytes(), to[index].num_bytes());
      copies.push_back({from[index], to[index]});
    }
    return copies;
  }

  Ticket issue(Stream& stream, const char* collective, Reduction call) {
    return issue(stream, collective, [call = std::move(call)](Engine& engine, std::uint64_t sequence) {
      RunningReduction(engine, call, sequence).run();
    });
  }
  Ticket issue_pieces(Stream& stream, const char* collective, std::vector<std::span<const std::byte>> to,
                      std::vector<std::span<std::byte>> from) {
    return issue(stream, collective,
                 [to = std::move(to), from = std::move(from)](Engine& engine, std::uint64_t sequence) {
                   exchange_pieces(engine, to, from, sequence);
                 });
  }
  // Gives the call its number, which makes its tags, at once; it runs in the stream's turn, or on the queue's thread
  // when that has come.
  template <class Body>
  requires std::invocable<Body, Engine&, std::uint64_t> Ticket issue(Stream& stream, const char* collective,
                                                                     Body body) {
    engine_->errors()->throw_if_any();
    const CallName name{collective, collectives_++};
    auto run = [engine = engine_, name, body = std::move(body)] {
      engine->run(name, [&] { body(*engine, name.sequence); });
    };
    if (queue_) return queue_->add(stream.record(), std::move(run));
    stream.call(std::move(run));
    return ticket_of(stream.record());
  }

  std::shared_ptr<Engine> engine_;
  std::uint64_t collectives_ = 0;
  std::uint64_t exchanges_ = 0;
  std::vector<std::vector<std::uint64_t>> sent_;  // messages exchanged, per channel and peer
  std::vector<std::vector<std::uint64_t>> received_;
  std::optional<CallQueue> queue_;  // destroyed first: its thread uses the rest
};

}  // namespace

}  // namespace direct

std::size_t direct_reduce_scatter_staging(DType dtype, std::int64_t own_elements, int size) {
  const auto stretch = static_cast<std::int64_t>(direct::stretch_bytes(size) / size_of(dtype));
  const std::int64_t slots = std::min<std::int64_t>(2, ceil_div(own_elements, stretch));
  const std::int64_t elements =
      checked_mul(slots * std::min(own_elements, stretch), static_cast<std::int64_t>(size - 1));
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

std::size_t direct_all_reduce_staging(DType dtype, std::int64_t elements, int size, int rank) {
  if (size == 1) return 0;
  if (direct::is_small(dtype, elements)) return direct::at(size) * static_cast<std::size_t>(elements) * size_of(dtype);
  return direct_reduce_scatter_staging(dtype, direct::equal_pieces(elements, size)[direct::at(rank)], size);
}

std::int64_t direct_all_reduce_sent(DType dtype, std::int64_t elements, int size, int rank) {
  const std::int64_t peers = size - 1;
  if (direct::is_small(dtype, elements)) return checked_mul(peers, elements);
  const std::int64_t own = direct::equal_pieces(elements, size)[direct::at(rank)];
  return elements - own + checked_mul(peers, own);
}

std::unique_ptr<Communicator> make_direct_communicator(std::unique_ptr<Transport> transport, DirectOptions options) {
  return std::make_unique<direct::DirectCommunicator>(std::move(transport), std::move(options));
}

}  // namespace scaletrain
