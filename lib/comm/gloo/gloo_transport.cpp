#include "comm/gloo/gloo_transport.h"

#include <fmt/format.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <exception>
#include <future>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/deadline.h"
#include "comm/gloo/adopted_pair.h"
#include "comm/gloo/post_queue.h"
#include "comm/gloo/wait_watch.h"

// What Gloo's TCP transport does, as Debian 12 ships it (commit 5b14351), and what is made of it here:
//
// A wait that times out closes every connection of the context, and the peers then see rank after rank "lost" instead
// of the one that was silent. So its own time-outs are never reached: a WaitWatch ends waits through abortWait*, which
// leaves the operation posted, to be waited for again.
//
// A broken connection is told to the operations that wait in its queues, not to the one message that is half sent or
// half received. So each connection has a sentinel: a receive that no one sends to, whose state tells the connection's.
// Waits look at it every health_interval.
//
// The destructor of a buffer that is in use on the loop's thread waits for that use to end; later ones find it gone.
// The memory is safe, but the stream of a connection whose message was given up half-way is stuck, and its loop busy,
// until the transport is destroyed.
//
// Its pairs listen for themselves and believe whoever comes first: they are given connections instead
// (process/peer_meeting.h, adopted_pair.h).
//
// Its loop burns time while another thread posts: so its own thread posts. See post_queue.h. It writes without
// MSG_NOSIGNAL.
namespace scaletrain {
namespace {

using GlooBuffer = gloo::transport::UnboundBuffer;

constexpr std::uint64_t sentinel_tag = std::numeric_limits<std::uint64_t>::max();
constexpr auto never = std::chrono::hours(24 * 365);
// Gloo can be asked only by waiting: a message that is complete already must have the time to say so.
constexpr auto shortest_wait = std::chrono::milliseconds(5);

// Gloo's messages begin with a place in its sources.
std::string reason_text(const std::exception& error) {
  const std::string_view text = error.what();
  const auto end = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

// A buffer that is given up may have been told its end, unseen, by the loop's thread: taking its lock once more orders
// that before the end of the buffer and of its memory.
void order_before_end(GlooBuffer& buffer) {
  buffer.abortWaitRecv();
}

// What the transport shares with its pending messages, which may outlive it.
class Group {
 public:
  Group(std::vector<Rank> members, int self, std::shared_ptr<WaitWatch> watch, std::shared_ptr<PostQueue> posts,
        std::shared_ptr<gloo::transport::Context> context)
      : members_(std::move(members)),
        self_(self),
        watch_(std::move(watch)),
        posts_(std::move(posts)),
        context_(std::move(context)),
        sentinels_(members_.size()) {}
  ~Group() {
    // The connections end first: a peer that goes now has then nobody to tell. Not by close(), which resets them and so
    // loses what is still under way to the peer.
    for (std::size_t peer = 0; peer < sentinels_.size(); ++peer) {
      if (!sentinels_[peer]) continue;
      context_->getPair(narrow<int>(peer)).reset();
      order_before_end(*sentinels_[peer]);
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  int self() const { return self_; }
  WaitWatch& watch() { return *watch_; }
  PostQueue& posts() { return *posts_; }
  std::unique_ptr<GlooBuffer> make_buffer(void* data, std::size_t bytes) {
    return context_->createUnboundBuffer(data, bytes);
  }

  // Once, when all are connected.
  void post_sentinels(const std::vector<int>& peers) {
    for (const int peer : peers) {
      auto& sentinel = sentinels_[static_cast<std::size_t>(peer)];
      sentinel = make_buffer(nullptr, 0);
      sentinel->recv(peer, sentinel_tag, 0, 0);
    }
  }

  void stop() { stopped_ = true; }
  void require_running() const {
    if (stopped_) throw PeerError("transfers have been stopped on this side");
  }

  // Why the connection to a peer is broken, or nothing.
  std::optional<std::string> broken(int peer) {
    const std::lock_guard lock(sentinel_mutex_);
    auto& sentinel = *sentinels_[static_cast<std::size_t>(peer)];
    sentinel.abortWaitRecv();  // the wait that follows returns at once
    try {
      sentinel.waitRecv(nullptr, never);
    } catch (const std::exception& error) {
      return reason_text(error);
    }
    return std::nullopt;
  }

  [[noreturn]] void lost(int peer, const std::string& reason) const {
    throw PeerError(
        fmt::format("the connection to rank {} is lost: {}", members_[static_cast<std::size_t>(peer)].value(), reason));
  }

 private:
  std::vector<Rank> members_;
  int self_;
  std::shared_ptr<WaitWatch> watch_;
  std::shared_ptr<PostQueue> posts_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::atomic<bool> stopped_{false};
  std::mutex sentinel_mutex_;
  std::vector<std::unique_ptr<GlooBuffer>> sentinels_;  // by peer; none where there is no connection
};

enum class Direction { send, receive };

class Message final : public Transport::Pending, private WaitWatch::Target, private PostQueue::Post {
 public:
  Message(std::shared_ptr<Group> group, Direction direction, int peer, std::uint64_t tag, void* data, std::size_t bytes)
      : group_(std::move(group)), direction_(direction), peer_(peer), tag_(tag) {
    SCALETRAIN_CHECK(peer >= 0 && peer < group_->size() && peer != group_->self());
    SCALETRAIN_CHECK(tag != sentinel_tag);
    group_->require_running();
    buffer_ = group_->make_buffer(data, bytes);
    group_->posts().add(*this);
  }

  ~Message() override {
    group_->posts().remove(*this);  // even if complete: it may be so before its posting has returned
    if (!complete_) order_before_end(*buffer_);
  }

  bool wait_until(MonotonicTime deadline) override {
    constexpr int turns_after_loss = 2;
    std::optional<std::string> loss;
    int turns = 0;
    while (!complete_) {
      group_->require_running();
      throw_if_not_posted();
      const MonotonicTime now = monotonic_now();
      const MonotonicTime latest = now + (loss ? shortest_wait : health_interval);
      if (wait_once(std::clamp(deadline, now + shortest_wait, latest))) break;
      // Nothing completes on a broken connection; but what had completed on it before counts, and the watch may have
      // rung before Gloo was asked.
      if (loss && ++turns == turns_after_loss) group_->lost(peer_, *loss);
      if (!loss) loss = group_->broken(peer_);
      if (const auto turn = monotonic_now() - now; turn > longest_turn) deadline += turn;
      if (!loss && monotonic_now() >= deadline) return false;
    }
    return true;
  }

 private:
  // False if woken by the watch.
  bool wait_once(MonotonicTime until) {
    group_->watch().add(*this, until);
    try {
      complete_ = direction_ == Direction::send ? buffer_->waitSend(nullptr, never) : buffer_->waitRecv(nullptr, never);
    } catch (const std::exception& error) {
      group_->watch().remove(*this, until);
      group_->lost(peer_, reason_text(error));
    }
    group_->watch().remove(*this, until);
    return complete_;
  }

  // On the loop's thread.
  void post() noexcept override {
    try {
      if (direction_ == Direction::send)
        buffer_->send(peer_, tag_, 0, buffer_->size);
      else
        buffer_->recv(peer_, tag_, 0, buffer_->size);
    } catch (const std::exception&) {
      // Kept as it is: there may be no memory for a text, and this thread is Gloo's.
      {
        const std::lock_guard lock(failure_mutex_);
        failure_ = std::current_exception();
      }
      Message::wake();
    }
  }

  void throw_if_not_posted() {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) return;
    try {
      std::rethrow_exception(failure_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      group_->lost(peer_, reason_text(error));
    }
  }

  void wake() override {
    if (direction_ == Direction::send)
      buffer_->abortWaitSend();
    else
      buffer_->abortWaitRecv();
  }

  std::shared_ptr<Group> group_;
  Direction direction_;
  int peer_;
  std::uint64_t tag_;
  std::unique_ptr<GlooBuffer> buffer_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // why it could not be posted
  bool complete_ = false;
};

// Makes the pairs of a context out of connections, on the loop's thread as AdoptedPair demands.
class Adoption final : private PostQueue::Post {
 public:
  Adoption(gloo::transport::Context& context, gloo::transport::tcp::Device& device,
           std::vector<FileDescriptor> connections)
      : context_(context), device_(device), connections_(std::move(connections)) {}

  // Throws what Gloo has thrown. Once.
  void run(PostQueue& posts) {
    posts.add(*this);
    auto done = done_.get_future();
    done.wait();
    posts.remove(*this);
    done.get();
  }

 private:
  void post() noexcept override {
    try {
      for (std::size_t peer = 0; peer < connections_.size(); ++peer) {
        if (connections_[peer]) adopt(context_, device_, static_cast<int>(peer), std::move(connections_[peer]));
      }
      done_.set_value();
    } catch (...) {
      done_.set_exception(std::current_exception());
    }
  }

  gloo::transport::Context& context_;
  gloo::transport::tcp::Device& device_;
  std::vector<FileDescriptor> connections_;
  std::promise<void> done_;
};

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  int size() const override { return group_->size(); }
  int rank() const override { return group_->self(); }
  std::unique_ptr<Pending> send(int peer, std::uint64_t tag, std::span<const std::byte> data) override {
    // Gloo has one type of buffer for both directions; it only reads what it sends.
    return std::make_unique<Message>(group_, Direction::send, peer, tag, const_cast<std::byte*>(data.data()),
                                     data.size());
  }
  std::unique_ptr<Pending> receive(int peer, std::uint64_t tag, std::span<std::byte> data) override {
    return std::make_unique<Message>(group_, Direction::receive, peer, tag, data.data(), data.size());
  }
  // The connections stay: what has left this side completes at its peers. Waits end within health_interval.
  void stop() noexcept override { group_->stop(); }

 private:
  std::shared_ptr<Group> group_;
};

// A process writes to connections that its peers may have closed: that is an error to report, not a signal to die of. A
// handler that the program has installed stays.
void ignore_sigpipe() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) == 0 &&
      current.sa_handler == SIG_DFL) {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, nullptr);
  }
}

}  // namespace

struct GlooDevice::Impl {
  std::shared_ptr<gloo::transport::tcp::Device> device;
  std::shared_ptr<WaitWatch> watch;
  std::shared_ptr<PostQueue> posts;
};

GlooDevice::GlooDevice(const std::string& address) : impl_(std::make_unique<Impl>()) {
  ignore_sigpipe();
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
  try {
    impl_->device = std::make_shared<gloo::transport::tcp::Device>(gloo::transport::tcp::CreateDeviceAttr(attributes));
  } catch (const std::system_error&) {
    throw;  // its thread was refused
  } catch (const std::exception& error) {
    throw PeerError(fmt::format("cannot bind to {}: {}", address, reason_text(error)));
  }
  impl_->watch = std::make_shared<WaitWatch>();
  impl_->posts = std::make_shared<PostQueue>(impl_->device);
}

GlooDevice::~GlooDevice() = default;

std::unique_ptr<Transport> GlooDevice::connect(const std::vector<Rank>& members, int own,
                                               std::vector<FileDescriptor> connections) {
  std::vector<int> peers;
  for (int peer = 0; peer < narrow<int>(connections.size()); ++peer) {
    if (connections[static_cast<std::size_t>(peer)]) peers.push_back(peer);
  }
  try {
    const auto context = impl_->device->createContext(own, narrow<int>(members.size()));
    context->setTimeout(never);
    Adoption(*context, *impl_->device, std::move(connections)).run(*impl_->posts);
    auto group = std::make_shared<Group>(members, own, impl_->watch, impl_->posts, context);
    group->post_sentinels(peers);
    return std::make_unique<GlooTransport>(std::move(group));
  } catch (const BugError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(fmt::format("a connection broke at once: {}", reason_text(error)));
  }
}

}  // namespace scaletrain
