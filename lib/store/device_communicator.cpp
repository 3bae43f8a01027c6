#include "store/device_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <thread>
#include <utility>

#include "backend/nccl_memory.h"
#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/deadline.h"
#include "store/device_collectives.h"
#include "store/device_exchanges.h"
#include "store/device_lane.h"

namespace scaletrain {

namespace {

using Call = DeviceLane::Call;
using Calls = DeviceTransfers::Calls;
using Direction = DeviceMessage::Direction;
using devices::bytes_of;
using devices::index_of;

// Of the GPU's processors one in so many, for a group of collectives and for a queue of a pipeline: a rank is in four
// of each at most, which leaves a quarter of them.
constexpr int collective_share = 8;
constexpr int queue_share = 16;

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
    std::shared_ptr<PostedTransfer> posted;
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
  DeviceCommunicator(std::shared_ptr<void> kept, DeviceWatch& watch, CollectiveStatus::Group group, int rank,
                     Backend& backend, std::unique_ptr<Transport> transport,
                     std::shared_ptr<DeviceCollectives> collectives, std::shared_ptr<DeviceExchanges> exchanges)
      : kept_(std::move(kept)),
        watch_(watch),
        group_(std::move(group)),
        rank_(rank),
        backend_(backend),
        transport_(std::move(transport)),
        collectives_(std::move(collectives)),
        exchanges_(std::move(exchanges)) {}
  ~DeviceCommunicator() override {
    if (collectives_) close(*collectives_);
    if (exchanges_) close(*exchanges_);
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
  template <class Lanes>
  void close(Lanes& lanes) const {
    const std::string text = fmt::format("group {}: the communicator was closed before its calls had run", group_.name);
    watch_.forget(lanes, text);
    if (lanes.is_busy()) lanes.fail(text);
  }
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
  DeviceWatch& watch_;          // part of it
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
  // First messages of lanes that nobody watches yet. Where one fails, the others end before anybody gives back memory
  // of the device, who would wait for them.
  template <class Body>
  static void connect(DeviceLanes& lanes, Body body) {
    try {
      body();
    } catch (...) {
      lanes.fail_alone(fmt::format("group {}: it could not be connected", lanes.group().name));
      throw;
    }
  }
  void wait_for(const Event& event, DeviceLane& lane, const std::string& whom) const {
    const MonotonicTime deadline = deadline_after(options.connect_seconds);
    while (!event.is_done()) {
      lane.group().is_ready();  // throws what has gone wrong
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
    connect(*made, [&] { wait_for(made->greet(), made->lane(), "the others"); });
    return made;
  }

  // The two links of a rank are made one after the other: first all that begin at an even member, then those at odd
  // ones, and one more behind them where an odd number of members is a ring. No member is in two of a pass, so that a
  // link waits for those of its members' in earlier passes alone, however long the pipeline is.
  static int pass_of(int link, int size) { return link == size - 1 && size % 2 == 1 ? 2 : link % 2; }
  static std::vector<int> links_in_order(Calls calls, int rank, int size) {
    const bool is_ring = calls == Calls::ring_exchanges;
    std::vector<int> links;
    if (is_ring || rank > 0) links.push_back((rank + size - 1) % size);
    if (is_ring || rank < size - 1) links.push_back(rank);
    std::sort(links.begin(), links.end(), [size](int a, int b) { return pass_of(a, size) < pass_of(b, size); });
    return links;
  }

  // One group for each pair of neighbours and channel.
  std::shared_ptr<DeviceExchanges> make_exchanges(Transport& transport, const Group& group) {
    const int size = transport.size();
    const int rank = transport.rank();
    const std::vector<int> links = links_in_order(group.calls, rank, size);
    std::string own(2 * device_group_id_bytes, '\0');
    if (std::find(links.begin(), links.end(), rank) != links.end())
      own = found.network->make_id() + found.network->make_id();
    const auto ids = tell_each_other(transport, group.ranks, id_tag, own, options.connect_seconds);
    auto made = std::make_shared<DeviceExchanges>(CollectiveStatus::Group{group.name, group.ranks}, watch);
    const Buffer memory = options.backend.allocate(devices::first_message_bytes);
    for (const int link : links) {
      const int next = (link + 1) % size;
      const auto connect_way = [&](int from, int to, Transfer::Channel channel, const std::string& id) {
        const bool sends = rank == from;
        const DeviceExchanges::Key key{sends ? Direction::send : Direction::receive, sends ? to : from, channel};
        made->add(key, join(id, {group.ranks[index_of(from)], group.ranks[index_of(to)]}, sends ? 0 : 1, queue_share));
        wait_for(made->greet(key, memory.data()), made->lane_of(key),
                 fmt::format("rank {}", group.ranks[index_of(key.peer)].value()));
      };
      connect(*made, [&] {
        connect_way(link, next, Transfer::Channel::activations, ids[index_of(link)].substr(0, device_group_id_bytes));
        connect_way(next, link, Transfer::Channel::gradients, ids[index_of(link)].substr(device_group_id_bytes));
      });
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
  return std::make_unique<DeviceCommunicator>(impl_, impl_->watch, CollectiveStatus::Group{group.name, group.ranks},
                                              rank, impl_->options.backend, std::move(transport),
                                              std::move(collectives), std::move(exchanges));
}

DeviceTransfers::Calls device_calls(GroupKind kind, bool is_ring) {
  if (kind != GroupKind::pipeline) return Calls::collectives;
  return is_ring ? Calls::ring_exchanges : Calls::chain_exchanges;
}

std::size_t network_bytes(const DeviceTransfers::Group& group, int place, std::int64_t ranks_per_host) {
  const auto host_of = [&](int member) { return group.ranks[index_of(member)].value() / ranks_per_host; };
  const int size = static_cast<int>(group.ranks.size());
  const bool is_collective = group.calls == Calls::collectives;
  NcclConnections connections{.channels =
                                  nccl_channels(planned_processors, is_collective ? collective_share : queue_share)};
  if (is_collective) {
    for (int member = 0; member < size; ++member)
      if (member != place && host_of(member) == host_of(place)) ++connections.sends_on_host;
    connections.receives_on_host = connections.sends_on_host;
    connections.sends_to_others = connections.receives_from_others = connections.sends_on_host < size - 1;
    return nccl_memory(connections);
  }
  std::size_t bytes = 0;
  // With a neighbour one group for what is sent and one for what is received.
  const auto connect = [&](int neighbour) {
    NcclConnections sends = connections;
    NcclConnections receives = connections;
    if (host_of(neighbour) == host_of(place)) {
      sends.sends_on_host = receives.receives_on_host = 1;
    } else {
      sends.sends_to_others = receives.receives_from_others = true;
    }
    bytes += nccl_memory(sends) + nccl_memory(receives);
  };
  const bool is_ring = group.calls == Calls::ring_exchanges;
  if (is_ring || place < size - 1) connect((place + 1) % size);
  if (is_ring || place > 0) connect((place + size - 1) % size);
  return bytes;
}

}  // namespace scaletrain
