#include "store/device_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/deadline.h"
#include "store/device_lane.h"

namespace scaletrain {

namespace {

using Call = DeviceLane::Call;
using Calls = DeviceTransfers::Calls;
using Direction = DeviceMessage::Direction;

// An all-reduce of no more is one batch of messages: everything to everybody.
constexpr std::size_t small_all_reduce = std::size_t{32} << 10;
// Pieces and stretches of so many elements begin where kernels read fastest.
constexpr std::int64_t piece_unit = 64;
// Of the GPU's processors one in so many, for a group of collectives and for a queue of a pipeline: a rank is in four
// of each at most, which leaves a quarter of them.
constexpr int collective_share = 8;
constexpr int queue_share = 16;
// What members send each other before the first call: everything is connected then.
constexpr std::size_t first_message_bytes = 256;

std::size_t index_of(int rank) {
  return static_cast<std::size_t>(rank);
}

std::byte* bytes_of(const View& view) {
  return static_cast<std::byte*>(view.data());
}
// Of a message, which only reads what it sends.
std::byte* bytes_of(const ConstView& view) {
  return static_cast<std::byte*>(const_cast<void*>(view.data()));
}

// ---- what members tell each other through the transport before they are connected

// Tags that no call of a direct communicator over the same transport has.
constexpr std::uint64_t claim_tag = std::uint64_t{1} << 63 | std::uint64_t{2} << 56;
constexpr std::uint64_t id_tag = claim_tag + 1;
constexpr std::size_t claim_bytes = 512;

// Everybody's words, all of the same length, in the order of the group.
std::vector<std::string> tell_each_other(Transport& transport, const std::vector<Rank>& ranks, std::uint64_t tag,
                                         const std::string& own, double seconds) {
  std::vector<std::string> all(index_of(transport.size()), std::string(own.size(), '\0'));
  all[index_of(transport.rank())] = own;
  struct Posted {
    int peer;
    std::unique_ptr<Transport::Pending> pending;
  };
  std::vector<Posted> posted;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    posted.push_back({peer, transport.receive(peer, tag, std::as_writable_bytes(std::span(all[index_of(peer)])))});
    posted.push_back({peer, transport.send(peer, tag, std::as_bytes(std::span(own)))});
  }
  const MonotonicTime deadline = deadline_after(seconds);
  for (const Posted& one : posted)
    if (!one.pending->wait_until(deadline))
      throw PeerError(
          fmt::format("waited {:g} s for rank {} (of the world)", seconds, ranks[index_of(one.peer)].value()));
  return all;
}

std::string text_of(const DeviceClaim& claim) {
  std::string text = claim.gpu + '\n' + claim.network + '\n' + claim.obstacle;
  text.resize(claim_bytes, '\0');
  return text;
}
DeviceClaim claim_of(const std::string& text) {
  const std::string words = text.substr(0, text.find('\0'));
  const std::size_t first = words.find('\n');
  const std::size_t second = words.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) throw PeerError("a rank tells nothing of its GPU");
  return {.gpu = words.substr(0, first),
          .network = words.substr(first + 1, second - first - 1),
          .obstacle = words.substr(second + 1)};
}

std::string obstacle_among(const std::vector<Rank>& ranks, const std::vector<DeviceClaim>& claims) {
  std::map<std::string, std::int64_t> gpus;
  for (std::size_t place = 0; place < claims.size(); ++place) {
    const DeviceClaim& claim = claims[place];
    const std::int64_t rank = ranks[place].value();
    if (!claim.obstacle.empty()) return fmt::format("rank {}: {}", rank, claim.obstacle);
    if (claim.network != claims.front().network)
      return fmt::format("rank {} has {} and rank {} {}", ranks.front().value(), claims.front().network, rank,
                         claim.network);
    if (const auto [other, is_new] = gpus.emplace(claim.gpu, rank); !is_new)
      return fmt::format("ranks {} and {} compute on one GPU", other->second, rank);
  }
  return {};
}

// ---- collectives

// Elements [first, first + count) of a piece, as a stretch has them.
struct Stretches {
  std::int64_t longest = 0;  // elements of one
  std::int64_t count = 0;

  std::int64_t length(std::int64_t index, std::int64_t piece) const {
    return std::clamp<std::int64_t>(piece - index * longest, 0, longest);
  }
};

class DeviceCollectives final : public DeviceLanes {
 public:
  DeviceCollectives(CollectiveStatus::Group its_group, int rank, std::unique_ptr<DeviceLane> lane, Buffer staging,
                    Backend& backend, DeviceWatch& watch)
      : DeviceLanes(std::move(its_group)),
        rank_(rank),
        backend_(backend),
        watch_(watch),
        staging_(std::move(staging)),
        lane_(add_lane(std::move(lane))) {}

  int size() const { return static_cast<int>(group().ranks.size()); }
  bool is_busy() { return DeviceLanes::is_busy(watch_.waits()); }

  // Each to each, so that all are connected.
  Event greet() {
    std::vector<DeviceMessage> messages;
    for_each_peer([&](int peer) {
      messages.push_back({Direction::send, peer, staging_.data(), first_message_bytes});
      messages.push_back(
          {Direction::receive, peer, place_of(peer, first_message_bytes) + first_message_bytes, first_message_bytes});
    });
    lane_.issue(messages, watch_.waits());
    return lane_.stream().record();
  }

  // What it follows, until `body` has issued everything.
  template <class Body>
  Event issue(Stream& stream, const char* collective, Body body) {
    const Call call{.collective = collective, .sequence = sequence_++, .with = {}};
    Event done;
    run(call, [&] {
      Event ready = stream.record();
      lane_.stream().after(ready);
      body();
      done = lane_.stream().record();
      lane_.add(call, std::move(ready), done);
    });
    watch_.wake();
    return done;
  }

  void all_reduce(const View& data, ReduceOp op) {
    if (data.num_bytes() <= small_all_reduce && align_up(data.num_bytes()) * index_of(size()) <= device_stretch_bytes)
      return all_reduce_small(data, op);
    const std::int64_t piece = round_up(ceil_div<std::int64_t>(data.num_elements(), size()), piece_unit);
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < size(); ++rank)
      counts.push_back(std::clamp<std::int64_t>(data.num_elements() - rank * piece, 0, piece));
    std::byte* const own = bytes_of(data) + offset_of(counts, rank_) * size_of(data.dtype());
    reduce_scatter(data, counts, own, op);
    gather(own, data.dtype(), counts, bytes_of(data));
  }

  // Of piece r, rank r sums a stretch while no rank sends it anything else.
  void reduce_scatter(const ConstView& input, const std::vector<std::int64_t>& counts, std::byte* output,
                      ReduceOp op = ReduceOp::sum) {
    const std::size_t width = size_of(input.dtype());
    const Stretches stretches = stretches_of(input.dtype(), counts);
    const std::int64_t own = counts[index_of(rank_)];
    std::byte* const all = bytes_of(input);
    for (std::int64_t index = 0; index < stretches.count; ++index) {
      const std::int64_t length = stretches.length(index, own);
      const auto place = [&](int piece) {
        return all + (offset_of(counts, piece) + static_cast<std::size_t>(index * stretches.longest)) * width;
      };
      const std::size_t bytes = static_cast<std::size_t>(length) * width;
      const std::size_t stride = align_up(bytes);
      std::vector<DeviceMessage> messages;
      for_each_peer([&](int peer) {
        const auto sent = static_cast<std::size_t>(stretches.length(index, counts[index_of(peer)])) * width;
        if (sent > 0) messages.push_back({Direction::send, peer, place(peer), sent});
        if (bytes > 0) messages.push_back({Direction::receive, peer, place_of(peer, stride), bytes});
      });
      lane_.issue(messages, watch_.waits());
      if (length > 0)
        reduce({.dtype = input.dtype(),
                .count = length,
                .own_data = place(rank_),
                .stride = stride,
                .output = output + static_cast<std::size_t>(index * stretches.longest) * width},
               op);
    }
  }

  void gather(std::byte* own, DType dtype, const std::vector<std::int64_t>& counts, std::byte* all) {
    const std::size_t width = size_of(dtype);
    std::vector<DeviceMessage> messages;
    const std::size_t bytes = static_cast<std::size_t>(counts[index_of(rank_)]) * width;
    for_each_peer([&](int peer) {
      const std::size_t received = static_cast<std::size_t>(counts[index_of(peer)]) * width;
      if (bytes > 0) messages.push_back({Direction::send, peer, own, bytes});
      if (received > 0) messages.push_back({Direction::receive, peer, all + offset_of(counts, peer) * width, received});
    });
    copy(own, all + offset_of(counts, rank_) * width, bytes);
    lane_.issue(messages, watch_.waits());
  }

  void all_to_all(const ConstView& input, const std::vector<std::int64_t>& send_counts, const View& output,
                  const std::vector<std::int64_t>& receive_counts) {
    const std::size_t width = size_of(input.dtype());
    const auto from = [&](int peer) { return bytes_of(input) + offset_of(send_counts, peer) * width; };
    const auto to = [&](int peer) { return bytes_of(output) + offset_of(receive_counts, peer) * width; };
    std::vector<DeviceMessage> messages;
    for_each_peer([&](int peer) {
      const std::size_t sent = static_cast<std::size_t>(send_counts[index_of(peer)]) * width;
      const std::size_t received = static_cast<std::size_t>(receive_counts[index_of(peer)]) * width;
      if (sent > 0) messages.push_back({Direction::send, peer, from(peer), sent});
      if (received > 0) messages.push_back({Direction::receive, peer, to(peer), received});
    });
    copy(from(rank_), to(rank_), static_cast<std::size_t>(send_counts[index_of(rank_)]) * width);
    lane_.issue(messages, watch_.waits());
  }

 private:
  // The other ranks, beginning after this one, so that not all turn to the same one first.
  template <class Function>
  void for_each_peer(Function function) const {
    for (int step = 1; step < size(); ++step) function((rank_ + step) % size());
  }
  // Elements before piece `piece`.
  static std::size_t offset_of(const std::vector<std::int64_t>& counts, int piece) {
    return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.begin() + piece, std::int64_t{0}));
  }
  // Of the staged operands, which lie there in the order of the ranks.
  std::byte* place_of(int peer, std::size_t stride) const {
    return staging_.data() + index_of(peer < rank_ ? peer : peer - 1) * stride;
  }

  Stretches stretches_of(DType dtype, const std::vector<std::int64_t>& counts) const {
    const std::size_t bytes = device_stretch_bytes / index_of(std::max(1, size() - 1));
    const std::int64_t longest = static_cast<std::int64_t>(bytes / size_of(dtype)) / piece_unit * piece_unit;
    SCALETRAIN_CHECK_LE(piece_unit, longest);
    return {.longest = longest, .count = ceil_div(*std::max_element(counts.begin(), counts.end()), longest)};
  }

  void all_reduce_small(const View& data, ReduceOp op) {
    const std::size_t stride = align_up(data.num_bytes());
    std::vector<DeviceMessage> messages;
    if (data.num_bytes() > 0)
      for_each_peer([&](int peer) {
        messages.push_back({Direction::send, peer, bytes_of(data), data.num_bytes()});
        messages.push_back({Direction::receive, peer, place_of(peer, stride), data.num_bytes()});
      });
    lane_.issue(messages, watch_.waits());
    reduce({.dtype = data.dtype(),
            .count = data.num_elements(),
            .own_data = bytes_of(data),
            .stride = stride,
            .output = bytes_of(data)},
           op);
  }

  void reduce(DeviceReduction reduction, ReduceOp op) {
    reduction.op = op == ReduceOp::sum ? DeviceReduction::Operator::sum : DeviceReduction::Operator::maximum;
    reduction.operands = size();
    reduction.own = rank_;
    reduction.others = staging_.data();
    lane_.group().reduce(reduction);
  }

  void copy(std::byte* from, std::byte* to, std::size_t bytes) {
    if (bytes == 0 || from == to) return;
    const Shape shape{static_cast<std::int64_t>(bytes)};
    backend_.copy(lane_.stream(), ConstView(from, DType::u8, shape, Space::device),
                  View(to, DType::u8, shape, Space::device));
  }

  int rank_;
  Backend& backend_;
  DeviceWatch& watch_;
  Buffer staging_;
  DeviceLane& lane_;
  std::uint64_t sequence_ = 0;
};

// ---- exchanges

// A transfer that has been asked for.
struct Posted {
  Call call{};
  DeviceMessage message{};
  Event ready{};
  bool is_issued = false;
  Event done{};
};

class DeviceExchanges final : public DeviceLanes {
 public:
  struct Key {
    Direction direction;
    int peer;
    Transfer::Channel channel;
    auto operator<=>(const Key&) const = default;
  };

  DeviceExchanges(CollectiveStatus::Group its_group, DeviceWatch& watch)
      : DeviceLanes(std::move(its_group)), watch_(watch) {}

  bool is_busy() { return DeviceLanes::is_busy(watch_.waits()); }
  void add(const Key& key, std::unique_ptr<DeviceLane> lane) { queues_[key].lane = &add_lane(std::move(lane)); }
  bool has(const Key& key) const { return queues_.contains(key); }

  Event greet(const Key& key, std::byte* memory) {
    DeviceLane& lane = *queues_.at(key).lane;
    // Of the two members the sender is the first.
    const int peer = key.direction == Direction::send ? 1 : 0;
    const DeviceMessage message{key.direction, peer, memory, first_message_bytes};
    lane.issue({&message, 1}, watch_.waits());
    return lane.stream().record();
  }

  std::shared_ptr<Posted> post(const Key& key, Call call, const View& data, Event ready) {
    auto posted = std::make_shared<Posted>();
    posted->call = std::move(call);
    posted->message = {key.direction, key.direction == Direction::send ? 1 : 0, bytes_of(data), data.num_bytes()};
    posted->ready = std::move(ready);
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_.at(key);
    queue.posted.push_back(posted);
    if (key.direction == Direction::send) issue(queue, posted.get());
    return posted;
  }

  // Up to it, in the order of their queue; `done` is there afterwards.
  void issue_up_to(const Key& key, const Posted& posted) {
    const std::lock_guard lock(mutex_);
    if (!posted.is_issued) issue(queues_.at(key), &posted);
  }
  void issue_posted() noexcept override {
    const std::lock_guard lock(mutex_);
    try {
      for (auto& [key, queue] : queues_) issue(queue, nullptr);
    } catch (const std::exception&) {  // NOLINT: it has ended the lanes
    }
  }

 private:
  struct Queue {
    DeviceLane* lane = nullptr;
    std::deque<std::shared_ptr<Posted>> posted{};
  };

  // Up to `last`; null: all.
  void issue(Queue& queue, const Posted* last) {
    while (!queue.posted.empty()) {
      const std::shared_ptr<Posted> next = std::move(queue.posted.front());
      queue.posted.pop_front();
      run(next->call, [&] {
        queue.lane->stream().after(next->ready);
        if (next->message.bytes > 0) queue.lane->issue({&next->message, 1}, watch_.waits());
        next->done = queue.lane->stream().record();
        next->is_issued = true;
        queue.lane->add(next->call, next->ready, next->done);
      });
      watch_.wake();
      if (next.get() == last) return;
    }
  }

  DeviceWatch& watch_;
  std::mutex mutex_;  // of whoever issues: the rank's thread, and the watch
  std::map<Key, Queue> queues_;
};

// ---- tickets

class DeviceCollectiveTicket final : public Ticket::State {
 public:
  DeviceCollectiveTicket(std::shared_ptr<DeviceCollectives> lanes, Event done)
      : lanes_(std::move(lanes)), done_(std::move(done)) {}

  void before(Stream& stream) override {
    lanes_->errors().throw_if_any();
    stream.after(done_);
  }
  void wait() override {
    done_.wait();
    lanes_->errors().throw_if_any();
  }

 private:
  std::shared_ptr<DeviceCollectives> lanes_;
  Event done_;
};

class DeviceExchangeTicket final : public Ticket::State {
 public:
  struct Part {
    DeviceExchanges::Key key;
    std::shared_ptr<Posted> posted;
  };
  DeviceExchangeTicket(std::shared_ptr<DeviceExchanges> lanes, std::vector<Part> parts)
      : lanes_(std::move(lanes)), parts_(std::move(parts)) {}

  void before(Stream& stream) override {
    issue();
    for (const Part& part : parts_) stream.after(part.posted->done);
  }
  void wait() override {
    issue();
    for (const Part& part : parts_) part.posted->done.wait();
    lanes_->errors().throw_if_any();
  }

 private:
  void issue() {
    lanes_->errors().throw_if_any();
    for (const Part& part : parts_) lanes_->issue_up_to(part.key, *part.posted);
    lanes_->errors().throw_if_any();
  }

  std::shared_ptr<DeviceExchanges> lanes_;
  std::vector<Part> parts_;
};

// ---- the communicator

void check_device_counts(std::span<const std::int64_t> counts, int size, std::int64_t elements) {
  SCALETRAIN_CHECK_EQ(counts.size(), index_of(size));
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    SCALETRAIN_CHECK_LE(std::int64_t{0}, count);
    total = checked_add(total, count);
  }
  SCALETRAIN_CHECK_EQ(total, elements);
}
template <class AnyView>
void check_memory(const AnyView& view) {
  SCALETRAIN_CHECK(view.space() == Space::device || view.num_bytes() == 0);
}

// Of the calls that its group has; the other ones are bugs.
class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::shared_ptr<void> kept, CollectiveStatus::Group group, int rank, Backend& backend,
                     std::unique_ptr<Transport> transport, std::shared_ptr<DeviceCollectives> collectives,
                     std::shared_ptr<DeviceExchanges> exchanges)
      : kept_(std::move(kept)),
        group_(std::move(group)),
        rank_(rank),
        backend_(backend),
        transport_(std::move(transport)),
        collectives_(std::move(collectives)),
        exchanges_(std::move(exchanges)) {}
  ~DeviceCommunicator() override {
    const std::string text = fmt::format("group {}: the communicator was closed before its calls had run", group_.name);
    if (collectives_ && collectives_->is_busy()) collectives_->fail(text);
    if (exchanges_ && exchanges_->is_busy()) exchanges_->fail(text);
  }
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  const std::string& group_name() const override { return group_.name; }
  int size() const override { return static_cast<int>(group_.ranks.size()); }
  int rank_in_group() const override { return rank_; }

  Ticket all_reduce(Stream& stream, View data, ReduceOp op) override {
    check_memory(data);
    SCALETRAIN_CHECK(is_floating(data.dtype()) || data.dtype() == DType::i64);
    return issue(stream, "all_reduce", [&](DeviceCollectives& all) { all.all_reduce(data, op); });
  }
  Ticket reduce_scatter(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_pieces(counts, input, output);
    SCALETRAIN_CHECK(is_floating(input.dtype()) || input.dtype() == DType::i64);
    return issue(stream, "reduce_scatter",
                 [&](DeviceCollectives& all) { all.reduce_scatter(input, copy_of(counts), bytes_of(output)); });
  }
  Ticket all_gather(Stream& stream, ConstView input, std::span<const std::int64_t> counts, View output) override {
    check_pieces(counts, output, input);
    return issue(stream, "all_gather", [&](DeviceCollectives& all) {
      all.gather(bytes_of(input), input.dtype(), copy_of(counts), bytes_of(output));
    });
  }
  Ticket all_to_all(Stream& stream, ConstView input, std::span<const std::int64_t> send_counts, View output,
                    std::span<const std::int64_t> receive_counts) override {
    SCALETRAIN_CHECK(input.dtype() == output.dtype());
    check_memory(input);
    check_memory(output);
    check_device_counts(send_counts, size(), input.num_elements());
    check_device_counts(receive_counts, size(), output.num_elements());
    SCALETRAIN_CHECK_EQ(send_counts[index_of(rank_)], receive_counts[index_of(rank_)]);
    return issue(stream, "all_to_all", [&](DeviceCollectives& all) {
      all.all_to_all(input, copy_of(send_counts), output, copy_of(receive_counts));
    });
  }

  Ticket exchange(Stream& stream, std::span<const Transfer> transfers) override {
    SCALETRAIN_CHECK(exchanges_ != nullptr);
    exchanges_->errors().throw_if_any();
    Call call{.collective = "exchange", .sequence = sequence_++, .with = {}};
    for (const Transfer& transfer : transfers) {
      check_memory(transfer.data);
      SCALETRAIN_CHECK(transfer.peer == rank_ || exchanges_->has(key_of(transfer)));
      if (transfer.peer == rank_) continue;
      const std::int64_t peer = group_.ranks[index_of(transfer.peer)].value();
      if (std::find(call.with.begin(), call.with.end(), peer) == call.with.end()) call.with.push_back(peer);
    }
    copy_own(stream, transfers);
    const Event ready = stream.record();
    std::vector<DeviceExchangeTicket::Part> parts;
    for (const Transfer& transfer : transfers) {
      if (transfer.peer == rank_) continue;
      const DeviceExchanges::Key key = key_of(transfer);
      parts.push_back({key, exchanges_->post(key, call, transfer.data, ready)});
    }
    return Ticket(std::make_unique<DeviceExchangeTicket>(exchanges_, std::move(parts)));
  }

  void abort() noexcept override {
    try {
      const std::string text = fmt::format("group {}: this rank has given it up", group_.name);
      if (collectives_) collectives_->fail(text);
      if (exchanges_) exchanges_->fail(text);
    } catch (const std::bad_alloc&) {
      if (collectives_) collectives_->fail({});
      if (exchanges_) exchanges_->fail({});
    }
  }

 private:
  static std::vector<std::int64_t> copy_of(std::span<const std::int64_t> counts) {
    return {counts.begin(), counts.end()};
  }
  static DeviceExchanges::Key key_of(const Transfer& transfer) {
    return {transfer.direction == Transfer::Direction::send ? Direction::send : Direction::receive, transfer.peer,
            transfer.channel};
  }
  void check_pieces(std::span<const std::int64_t> counts, const ConstView& all, const ConstView& own) const {
    SCALETRAIN_CHECK(all.dtype() == own.dtype());
    check_memory(all);
    check_memory(own);
    check_device_counts(counts, size(), all.num_elements());
    SCALETRAIN_CHECK_EQ(counts[index_of(rank_)], own.num_elements());
  }

  template <class Body>
  Ticket issue(Stream& stream, const char* collective, Body body) {
    SCALETRAIN_CHECK(collectives_ != nullptr);
    Event done = collectives_->issue(stream, collective, [&] { body(*collectives_); });
    return Ticket(std::make_unique<DeviceCollectiveTicket>(collectives_, std::move(done)));
  }

  // A rank's transfers with itself: the n-th send meets the n-th receive.
  void copy_own(Stream& stream, std::span<const Transfer> transfers) {
    std::vector<View> from;
    std::vector<View> to;
    for (const Transfer& transfer : transfers)
      if (transfer.peer == rank_)
        (transfer.direction == Transfer::Direction::send ? from : to).push_back(transfer.data);
    SCALETRAIN_CHECK_EQ(from.size(), to.size());
    for (std::size_t index = 0; index < from.size(); ++index) backend_.copy(stream, from[index], to[index]);
  }

  std::shared_ptr<void> kept_;  // what the lanes use
  CollectiveStatus::Group group_;
  int rank_;
  Backend& backend_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<DeviceCollectives> collectives_;
  std::shared_ptr<DeviceExchanges> exchanges_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

struct DeviceTransfers::Impl {
  explicit Impl(Options its_options)
      : options(std::move(its_options)),
        found(options.backend.find_network(options.network)),
        watch({.deadline = options.deadline,
               .vouched = options.vouched,
               .work = options.work,
               .status = options.status,
               .patience = options.patience}) {}

  DeviceClaim claim() const {
    const auto device = options.backend.device();
    return {.gpu = device ? device->id : "",
            .network = found.network ? found.network->name() : "",
            .obstacle = options.has_own_gpu ? found.obstacle : "another rank computes on its GPU too"};
  }

  std::unique_ptr<DeviceLane> join(const std::string& id, std::vector<Rank> members, int rank, int share) {
    auto group =
        found.network->join({.id = id, .size = static_cast<int>(members.size()), .rank = rank, .share = share});
    members.erase(members.begin() + rank);
    auto lane = std::make_unique<DeviceLane>(std::move(group), std::move(members));
    lane->wait_until_ready(options.connect_seconds, {});
    return lane;
  }
  // Of a first message.
  void wait_for(const Event& event, const std::string& whom) const {
    const MonotonicTime deadline = deadline_after(options.connect_seconds);
    while (!event.is_done()) {
      if (monotonic_now() > deadline)
        throw PeerError(fmt::format("waited {:g} s for the first message of {}", options.connect_seconds, whom));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::shared_ptr<DeviceCollectives> make_collectives(Transport& transport, const Group& group) {
    const int rank = transport.rank();
    // Before the others wait for this rank: a driver that allocates may wait for the device.
    Buffer staging = options.backend.allocate(device_stretch_bytes);
    std::string own(device_group_id_bytes, '\0');
    if (rank == 0) own = found.network->make_id();
    const std::string id = tell_each_other(transport, group.ranks, id_tag, own, options.connect_seconds).front();
    auto made = std::make_shared<DeviceCollectives>(CollectiveStatus::Group{group.name, group.ranks}, rank,
                                                    join(id, group.ranks, rank, collective_share), std::move(staging),
                                                    options.backend, watch);
    wait_for(made->greet(), "the others");
    return made;
  }

  // One group for each pair of neighbours and channel, made in one order by all.
  std::shared_ptr<DeviceExchanges> make_exchanges(Transport& transport, const Group& group) {
    const int size = transport.size();
    const int rank = transport.rank();
    const int links = group.calls == Calls::ring_exchanges ? size : size - 1;
    std::string own(2 * device_group_id_bytes, '\0');
    if (rank < links) own = found.network->make_id() + found.network->make_id();
    const auto ids = tell_each_other(transport, group.ranks, id_tag, own, options.connect_seconds);
    auto made = std::make_shared<DeviceExchanges>(CollectiveStatus::Group{group.name, group.ranks}, watch);
    const Buffer memory = options.backend.allocate(first_message_bytes);
    for (int link = 0; link < links; ++link) {
      const int next = (link + 1) % size;
      if (rank != link && rank != next) continue;
      const auto connect = [&](int from, int to, Transfer::Channel channel, const std::string& id) {
        const bool sends = rank == from;
        const DeviceExchanges::Key key{sends ? Direction::send : Direction::receive, sends ? to : from, channel};
        made->add(key, join(id, {group.ranks[index_of(from)], group.ranks[index_of(to)]}, sends ? 0 : 1, queue_share));
        wait_for(made->greet(key, memory.data()), fmt::format("rank {}", group.ranks[index_of(key.peer)].value()));
      };
      connect(link, next, Transfer::Channel::activations, ids[index_of(link)].substr(0, device_group_id_bytes));
      connect(next, link, Transfer::Channel::gradients, ids[index_of(link)].substr(device_group_id_bytes));
    }
    return made;
  }

  Options options;
  FoundDeviceNetwork found;
  DeviceWatch watch;
};

DeviceTransfers::DeviceTransfers(Options options) : impl_(std::make_shared<Impl>(std::move(options))) {}

std::string DeviceTransfers::network_name() const {
  return impl_->found.network ? impl_->found.network->name() : "";
}

std::string DeviceTransfers::obstacle(Transport& transport, const Group& group) const {
  std::vector<DeviceClaim> claims;
  for (const std::string& text :
       tell_each_other(transport, group.ranks, claim_tag, text_of(impl_->claim()), impl_->options.connect_seconds))
    claims.push_back(claim_of(text));
  return obstacle_among(group.ranks, claims);
}

std::unique_ptr<Communicator> DeviceTransfers::make(std::unique_ptr<Transport> transport, const Group& group) {
  SCALETRAIN_CHECK(impl_->found.network != nullptr);
  const int rank = transport->rank();
  std::shared_ptr<DeviceCollectives> collectives;
  std::shared_ptr<DeviceExchanges> exchanges;
  try {
    if (group.calls == Calls::collectives)
      impl_->watch.watch(collectives = impl_->make_collectives(*transport, group));
    else
      impl_->watch.watch(exchanges = impl_->make_exchanges(*transport, group));
  } catch (const PeerError& error) {
    throw PeerError(fmt::format("group {}: {}: {}", group.name, network_name(), error.what()));
  }
  return std::make_unique<DeviceCommunicator>(impl_, CollectiveStatus::Group{group.name, group.ranks}, rank,
                                              impl_->options.backend, std::move(transport), std::move(collectives),
                                              std::move(exchanges));
}

}  // namespace scaletrain
