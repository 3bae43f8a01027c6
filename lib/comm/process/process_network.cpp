#include "comm/process/process_network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "comm/deadline.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/memory/link_offer.h"
#include "comm/memory/link_watch.h"
#include "comm/memory/memory_link.h"
#include "comm/process/peer_meeting.h"
#include "comm/rendezvous/rendezvous_socket.h"

namespace scaletrain {

namespace {

bool is_numeric_address(const std::string& address) {
  std::array<unsigned char, sizeof(in6_addr)> parsed{};
  return ::inet_pton(AF_INET, address.c_str(), parsed.data()) == 1 ||
         ::inet_pton(AF_INET6, address.c_str(), parsed.data()) == 1;
}

// At once, and with more words than Gloo has for it.
void require_bindable(const std::string& address) {
  if (!is_numeric_address(address))
    throw PeerError(fmt::format("{} is not a numeric address (IPv4 or IPv6) to bind to", quoted(address)));
  std::string reason;
  const AddressList list = look_up({.host = address, .port = 0}, true, reason);
  if (list) {
    const FileDescriptor socket = make_socket(*list);
    if (socket && ::bind(socket.get(), list->ai_addr, list->ai_addrlen) == 0) return;
    const int error = errno;
    throw_refused(fmt::format("cannot bind to {}", address), error);
  }
  throw PeerError(fmt::format("cannot bind to {}: {}", address, reason));
}

// Sends each message the way that leads to its peer.
class RoutedTransport final : public Transport {
 public:
  // links: by place; none for this rank, and for those that are reached by `network`, which is null if there are none.
  RoutedTransport(int rank, std::vector<std::shared_ptr<MemoryLink>> links, std::unique_ptr<Transport> network)
      : rank_(rank), links_(std::move(links)), network_(std::move(network)) {}
  ~RoutedTransport() override {
    for (const auto& link : links_) {
      if (link) link->close();
    }
  }
  RoutedTransport(const RoutedTransport&) = delete;
  RoutedTransport& operator=(const RoutedTransport&) = delete;

  int size() const override { return narrow<int>(links_.size()); }
  int rank() const override { return rank_; }
  std::unique_ptr<Pending> send(int peer, std::uint64_t tag, std::span<const std::byte> data) override {
    MemoryLink* const link = link_to(peer);
    return link != nullptr ? link->send(tag, data) : network_->send(peer, tag, data);
  }
  std::unique_ptr<Pending> receive(int peer, std::uint64_t tag, std::span<std::byte> data) override {
    MemoryLink* const link = link_to(peer);
    return link != nullptr ? link->receive(tag, data) : network_->receive(peer, tag, data);
  }
  void stop() noexcept override {
    for (const auto& link : links_) {
      if (link) link->stop();
    }
    if (network_) network_->stop();
  }

 private:
  MemoryLink* link_to(int peer) const {
    SCALETRAIN_CHECK(peer >= 0 && peer < size() && peer != rank_);
    return links_[static_cast<std::size_t>(peer)].get();
  }

  int rank_;
  std::vector<std::shared_ptr<MemoryLink>> links_;
  std::unique_ptr<Transport> network_;
};

}  // namespace

struct ProcessNetwork::Impl {
  explicit Impl(Options given) : options(std::move(given)) {}

  Options options;
  // Made when the first peer needs them.
  std::optional<LinkWatch> watch{};
  std::optional<GlooDevice> gloo{};
  Reach reach{};

  std::unique_ptr<Transport> connect(const std::vector<Rank>& members, int own, std::vector<FileDescriptor> connections,
                                     FoundLinks found);
};

ProcessNetwork::ProcessNetwork(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {
  require_bindable(impl_->options.address);
}

ProcessNetwork::~ProcessNetwork() = default;

const ProcessNetwork::Reach& ProcessNetwork::reach() const {
  return impl_->reach;
}

std::unique_ptr<Transport> ProcessNetwork::connect(KeyValueStore& store, const std::string& name,
                                                   const std::vector<Rank>& members, Rank self, double seconds) {
  const auto place = std::find(members.begin(), members.end(), self);
  SCALETRAIN_CHECK(place != members.end());
  const int own = narrow<int>(place - members.begin());
  auto connections = meet_peers(store, {.name = name,
                                        .members = members,
                                        .own = own,
                                        .address = impl_->options.address,
                                        .secret = impl_->options.secret,
                                        .seconds = seconds});
  try {
    // Where a store is watched, it throws when somebody is gone or nobody shall wait any longer, if it is asked for
    // what is not there.
    const auto look_around = [&] { store.find_within("meeting/" + name, 0.0); };
    FoundLinks found = find_links({.members = members,
                                   .own = own,
                                   .connections = connections,
                                   .is_wanted = impl_->options.uses_memory,
                                   .deadline = deadline_after(seconds),
                                   .look_around = look_around,
                                   .capacity = impl_->options.link_capacity});
    return impl_->connect(members, own, std::move(connections), std::move(found));
  } catch (const PeerError& error) {
    throw PeerError(fmt::format("group {}: {}", name, error.what()));
  }
}

std::unique_ptr<Transport> ProcessNetwork::Impl::connect(const std::vector<Rank>& members, int own,
                                                         std::vector<FileDescriptor> connections, FoundLinks found) {
  std::vector<std::shared_ptr<MemoryLink>> links(members.size());
  bool needs_network = false;
  for (std::size_t peer = 0; peer < members.size(); ++peer) {
    if (!connections[peer]) continue;
    if (!found.peers[peer]) {
      needs_network = true;
      ++reach.by_tcp;
      continue;
    }
    if (!watch) watch.emplace();
    links[peer] = std::make_shared<MemoryLink>(std::move(*found.peers[peer]), members[peer],
                                               std::move(connections[peer]), *watch);
    watch->add(links[peer]);
    ++reach.by_memory;
  }
  if (reach.refusal.empty()) reach.refusal = std::move(found.refusal);
  std::unique_ptr<Transport> network;
  if (needs_network) {
    if (!gloo) gloo.emplace(options.address);
    network = gloo->connect(members, own, std::move(connections));
  }
  return std::make_unique<RoutedTransport>(own, std::move(links), std::move(network));
}

}  // namespace scaletrain
