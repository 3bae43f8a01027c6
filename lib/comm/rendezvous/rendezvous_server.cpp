#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/process/guarded_thread.h"
#include "comm/deadline.h"
#include "comm/rendezvous/memory_store.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/rendezvous_socket.h"

namespace scaletrain {
namespace {

using ClientId = std::uint64_t;

// A frame once begun, and the taking of a reply, must move on within this time; a client between requests may be silent
// for as long as it likes.
constexpr double stall_seconds = 30.0;
// How long no connection is accepted after one could not be.
constexpr double pause_seconds = 0.1;

// Told to the serving thread by others.
class Doorbell {
 public:
  Doorbell() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!event_) throw_refused("the rendezvous server has no eventfd", errno);
  }
  int fd() const { return event_.get(); }
  void ring() const {
    const std::uint64_t one = 1;
    // Cannot fail but by a full counter, which has rung already.
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }
  void silence() const {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
  }

 private:
  FileDescriptor event_;
};

// What the serving thread shares with local stores, which may outlive the server.
struct SharedStore {
  MemoryStore values;
  Doorbell doorbell;
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::vector<std::string> changed;  // by local stores: clients may wait for these keys

  void announce(const std::string& key) {
    {
      const std::lock_guard lock(mutex);
      if (stopping) return;
      changed.push_back(key);
    }
    doorbell.ring();
  }
};

class LocalStore final : public KeyValueStore {
 public:
  explicit LocalStore(std::shared_ptr<SharedStore> shared) : shared_(std::move(shared)) {}
  void set(const std::string& key, const std::string& value) override {
    shared_->values.set(key, value);
    shared_->announce(key);
  }
  std::optional<std::string> find(const std::string& key) override { return shared_->values.find(key); }
  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    return shared_->values.find_within(key, seconds);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const std::int64_t sum = shared_->values.add(key, amount);
    shared_->announce(key);
    return sum;
  }
  void remove(const std::string& key) override { shared_->values.remove(key); }

 private:
  std::shared_ptr<SharedStore> shared_;
};

struct Client {
  enum class State { hello, proof, serving };

  FileDescriptor socket{};
  State state = State::hello;
  Nonce client_nonce{};
  Nonce server_nonce{};
  FrameReader reader{largest_handshake_frame};
  // The reply under way; no further request is read before it has left. Shared: many clients may wait for one value.
  std::shared_ptr<const std::string> reply{};
  std::size_t replied = 0;
  bool last_reply = false;
  std::optional<std::string> parked{};   // the key waited for
  std::optional<std::int64_t> member{};  // who has introduced itself and not left yet
  std::optional<MonotonicTime> timer{};
  std::uint32_t interest = EPOLLIN;
};

// The serving thread's own: connections, parked waits, timers. Every client has at most one timer: of its handshake, of
// the frame it has begun, of the reply it does not take, or of its wait.
class Server {
 public:
  Server(SharedStore& shared, FileDescriptor listener, RendezvousServer::Options options)
      : shared_(shared), listener_(std::move(listener)), options_(std::move(options)) {
    epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) throw_refused("the rendezvous server has no epoll", errno);
    watch(listener_.get(), listener_id, EPOLLIN, EPOLL_CTL_ADD);
    watch(shared_.doorbell.fd(), doorbell_id, EPOLLIN, EPOLL_CTL_ADD);
  }

  void run() {
    std::array<epoll_event, 64> events;
    while (!shared_.stopping) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds_left());
      SCALETRAIN_CHECK(count >= 0 || errno == EINTR);
      for (int i = 0; i < count; ++i) handle(events[static_cast<std::size_t>(i)]);
      handle_timers();
      handle_resumed();
      tell_losses();
    }
  }

 private:
  static constexpr ClientId listener_id = 0;
  static constexpr ClientId doorbell_id = 1;

  void watch(int fd, ClientId id, std::uint32_t interest, int operation) {
    epoll_event event{};
    event.events = interest;
    event.data.u64 = id;
    SCALETRAIN_CHECK(::epoll_ctl(epoll_.get(), operation, fd, &event) == 0);
  }

  int milliseconds_left() const {
    std::optional<MonotonicTime> next = resume_listening_;
    if (!timers_.empty() && (!next || timers_.begin()->first < *next)) next = timers_.begin()->first;
    if (!next) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - monotonic_now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
  }

  void handle(const epoll_event& event) {
    const ClientId id = event.data.u64;
    if (id == listener_id) return accept_clients();
    if (id == doorbell_id) return handle_changes();
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;  // dropped by an earlier event of this wait
    Client& client = found->second;
    bool keep = (event.events & (EPOLLERR | EPOLLHUP)) == 0 || (event.events & EPOLLIN) != 0;
    if (keep && client.parked) keep = (event.events & EPOLLRDHUP) == 0;
    if (keep && (event.events & EPOLLOUT) != 0)
      keep = flush(client) && serve_buffered(id, client);
    else if (keep && (event.events & EPOLLIN) != 0)
      keep = read_some(client) && serve_buffered(id, client);
    settle(id, client, keep);
  }

  // After anything has happened to a client: what it is watched for, and its timer.
  void settle(ClientId id, Client& client, bool keep) {
    if (!keep) return drop(id);
    const std::uint32_t interest = client.reply ? EPOLLOUT : (client.parked ? EPOLLRDHUP : EPOLLIN);
    if (interest != client.interest) {
      client.interest = interest;
      watch(client.socket.get(), id, interest, EPOLL_CTL_MOD);
    }
    if (client.state != Client::State::serving || client.parked) return;  // these have theirs
    const bool stalled = client.reply || !client.reader.empty();
    if (!stalled)
      set_timer(id, client, std::nullopt);
    else if (!client.timer)
      set_timer(id, client, deadline_after(stall_seconds));
  }

  void set_timer(ClientId id, Client& client, std::optional<MonotonicTime> when) {
    if (client.timer) timers_.erase({*client.timer, id});
    client.timer = when;
    if (when) timers_.insert({*when, id});
  }

  void drop(ClientId id) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    set_timer(id, found->second, std::nullopt);
    unpark(id, found->second);
    unproven_.erase(id);
    const std::optional<std::int64_t> member = found->second.member;
    clients_.erase(found);  // closes, and so leaves the epoll set
    if (member) lost_.push_back(*member);
  }

  // Not within drop(): answering those who wait for the news may drop others.
  void tell_losses() {
    while (!lost_.empty()) {
      const std::int64_t member = lost_.front();
      lost_.pop_front();
      if (!shared_.values.find(lost_member_key)) shared_.values.set(lost_member_key, std::to_string(member));
      shared_.values.try_add(num_lost_members_key, 1);
      wake(lost_member_key);
      wake(num_lost_members_key);
    }
  }

  void unpark(ClientId id, Client& client) {
    if (!client.parked) return;
    const auto found = parked_.find(*client.parked);
    found->second.erase(id);
    if (found->second.empty()) parked_.erase(found);
    client.parked.reset();
  }

  void accept_clients() {
    constexpr int at_once = 64;  // clients that are there already get their turn
    for (int i = 0; i < at_once; ++i) {
      FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        const int error = errno;
        if (error == EAGAIN || error == EWOULDBLOCK) return;
        // A connection that broke before it was accepted.
        if (error == ECONNABORTED || error == EINTR || error == EPROTO) continue;
        const bool is_shortage = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
        if (!is_shortage || !drop_oldest_unproven()) pause_listening();
        return;
      }
      if (unproven_.size() >= static_cast<std::size_t>(options_.max_strangers)) drop_oldest_unproven();
      prepare_connection(socket.get());
      const ClientId id = next_id_++;
      Client& client = clients_[id];
      client.socket = std::move(socket);
      watch(client.socket.get(), id, client.interest, EPOLL_CTL_ADD);
      unproven_.insert(id);
      set_timer(id, client, deadline_after(options_.handshake_seconds));
    }
  }

  // Strangers make room for newcomers, of which one may be a member.
  bool drop_oldest_unproven() {
    if (unproven_.empty()) return false;
    drop(*unproven_.begin());
    return true;
  }

  void pause_listening() {
    watch(listener_.get(), listener_id, 0, EPOLL_CTL_MOD);
    resume_listening_ = deadline_after(pause_seconds);
  }

  void handle_timers() {
    const MonotonicTime now = monotonic_now();
    if (resume_listening_ && *resume_listening_ <= now) {
      resume_listening_.reset();
      watch(listener_.get(), listener_id, EPOLLIN, EPOLL_CTL_MOD);
    }
    while (!timers_.empty() && timers_.begin()->first <= now) {
      const ClientId id = timers_.begin()->second;
      Client& client = clients_.at(id);
      if (!client.parked) {
        drop(id);
        continue;
      }
      set_timer(id, client, std::nullopt);
      unpark(id, client);
      settle(id, client,
             reply(client, make_frame(encode({.kind = StoreReply::Kind::expired}))) && serve_buffered(id, client));
    }
  }

  void handle_changes() {
    shared_.doorbell.silence();
    std::vector<std::string> changed;
    {
      const std::lock_guard lock(shared_.mutex);
      changed.swap(shared_.changed);
    }
    for (const std::string& key : changed) wake(key);
  }

  // Answers the clients that wait for the key.
  void wake(const std::string& key) {
    const auto found = parked_.find(key);
    if (found == parked_.end()) return;
    const auto value = shared_.values.find(key);
    if (!value) return;  // set and removed again
    const auto frame =
        std::make_shared<const std::string>(make_frame(encode({.kind = StoreReply::Kind::done, .value = *value})));
    const std::set<ClientId> waiting = std::exchange(found->second, {});
    parked_.erase(found);
    for (const ClientId id : waiting) {
      Client& client = clients_.at(id);
      client.parked.reset();
      set_timer(id, client, std::nullopt);
      if (!client.reader.empty()) resumed_.push_back(id);  // not served here: answers do not nest
      settle(id, client, reply(client, frame));
    }
  }

  // Clients whose wait has ended and whose next request was there already.
  void handle_resumed() {
    while (!resumed_.empty()) {
      const ClientId id = resumed_.back();
      resumed_.pop_back();
      const auto found = clients_.find(id);
      if (found != clients_.end()) settle(id, found->second, serve_buffered(id, found->second));
    }
  }

  // False once the client is to be dropped; so with all below.
  static bool read_some(Client& client) {
    std::array<char, 1 << 16> chunk;
    const ssize_t got = ::recv(client.socket.get(), chunk.data(), chunk.size(), 0);
    if (got > 0) client.reader.append({chunk.data(), static_cast<std::size_t>(got)});
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
  }

  bool serve_buffered(ClientId id, Client& client) {
    std::string body;
    while (!client.reply && !client.parked) {
      const auto status = client.reader.next(body);
      if (status == FrameReader::Status::incomplete) return true;
      if (status == FrameReader::Status::oversized) return false;
      // A frame is complete: the time of the next one starts anew.
      if (client.state == Client::State::serving) set_timer(id, client, std::nullopt);
      if (!serve(id, client, body)) return false;
    }
    return true;
  }

  bool serve(ClientId id, Client& client, const std::string& body) {
    switch (client.state) {
      case Client::State::hello: {
        const auto nonce = parse_hello(HelloSide::client, body);
        if (!nonce) return false;
        client.client_nonce = *nonce;
        client.server_nonce = make_nonce();
        client.state = Client::State::proof;
        return reply(client, make_frame(encode_hello(HelloSide::server, client.server_nonce)));
      }
      case Client::State::proof: {
        const auto proof = parse_proof(body);
        if (!proof) return false;
        return judge(id, client, *proof);
      }
      case Client::State::serving:
        break;
    }
    const auto request = parse_request(body);
    return request && answer(id, client, *request);
  }

  bool judge(ClientId id, Client& client, const Proof& proof) {
    const auto proof_of = [&](ProverRole role) {
      return make_proof(role, options_.secret, client.client_nonce, client.server_nonce);
    };
    if (!same_proof(proof, proof_of(ProverRole::client))) {
      client.last_reply = true;
      return reply(client, make_frame(encode_verdict({})));
    }
    // Whoever is turned away finds its connection closed, and tries again.
    if (clients_.size() - unproven_.size() >= static_cast<std::size_t>(options_.max_clients)) return false;
    client.state = Client::State::serving;
    client.reader.set_largest_body(largest_frame);
    unproven_.erase(id);
    set_timer(id, client, std::nullopt);
    return reply(client, make_frame(encode_verdict({.accepted = true, .proof = proof_of(ProverRole::server)})));
  }

  bool answer(ClientId id, Client& client, const StoreRequest& request) {
    StoreReply result;
    bool is_change = false;
    switch (request.kind) {
      case StoreRequest::Kind::set:
        shared_.values.set(request.key, request.value);
        is_change = true;
        break;
      case StoreRequest::Kind::remove:
        shared_.values.remove(request.key);
        break;
      case StoreRequest::Kind::introduce:
        client.member = request.amount;
        break;
      case StoreRequest::Kind::leave:
        client.member.reset();
        break;
      case StoreRequest::Kind::add: {
        const auto sum = shared_.values.try_add(request.key, request.amount);
        if (sum)
          result.value = std::to_string(*sum);
        else
          result.kind = StoreReply::Kind::not_a_number;
        is_change = sum.has_value();
        break;
      }
      case StoreRequest::Kind::find:
      case StoreRequest::Kind::wait: {
        auto value = shared_.values.find(request.key);
        if (value) {
          result.value = std::move(*value);
        } else if (request.kind == StoreRequest::Kind::find) {
          result.kind = StoreReply::Kind::absent;
        } else {
          client.parked = request.key;
          parked_[request.key].insert(id);
          set_timer(id, client, deadline_after(request.seconds));
          return true;
        }
        break;
      }
    }
    const bool keep = reply(client, make_frame(encode(result)));
    if (is_change) wake(request.key);
    return keep;
  }

  static bool reply(Client& client, std::string frame) {
    return reply(client, std::make_shared<const std::string>(std::move(frame)));
  }
  static bool reply(Client& client, std::shared_ptr<const std::string> frame) {
    client.reply = std::move(frame);
    client.replied = 0;
    return flush(client);
  }

  // Sends what the socket takes.
  static bool flush(Client& client) {
    while (client.reply) {
      const std::string_view rest = std::string_view(*client.reply).substr(client.replied);
      const ssize_t sent = ::send(client.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EINTR) continue;
        return errno == EAGAIN || errno == EWOULDBLOCK;
      }
      client.replied += static_cast<std::size_t>(sent);
      if (client.replied == client.reply->size()) {
        client.reply.reset();
        return !client.last_reply;
      }
    }
    return true;
  }

  SharedStore& shared_;
  FileDescriptor listener_;
  RendezvousServer::Options options_;
  FileDescriptor epoll_;
  std::map<ClientId, Client> clients_;
  std::set<ClientId> unproven_;  // oldest first
  std::unordered_map<std::string, std::set<ClientId>> parked_;
  std::set<std::pair<MonotonicTime, ClientId>> timers_;
  std::vector<ClientId> resumed_;
  std::deque<std::int64_t> lost_;  // members, not told of yet
  std::optional<MonotonicTime> resume_listening_;
  ClientId next_id_ = 2;
};

FileDescriptor listen_on(const RendezvousAddress& address) {
  std::string error;
  const AddressList list = look_up(address, true, error);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    FileDescriptor socket = make_socket(*entry);
    const int on = 1;
    if (socket && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0 && ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    if (errno == EMFILE) throw_refused("the rendezvous server cannot listen", errno);
    error = std::strerror(errno);
  }
  throw PeerError(
      fmt::format("the rendezvous server cannot listen on {}: {}{}", address_text(address), error,
                  address.port == 0 ? "" : " (launch.port chose the port: choose another, or auto for any free one)"));
}

std::uint16_t port_of(int fd) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  SCALETRAIN_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

}  // namespace

struct RendezvousServer::State {
  RendezvousAddress address;
  std::shared_ptr<SharedStore> shared;
  GuardedThread thread;
};

RendezvousServer::RendezvousServer(Options options) : state_(std::make_shared<State>()) {
  SCALETRAIN_CHECK(!options.secret.empty());
  SCALETRAIN_CHECK(options.max_clients > 0 && options.max_strangers > 0);
  FileDescriptor listener = listen_on({options.bind_address, options.port});
  state_->address = {options.bind_address, port_of(listener.get())};
  state_->shared = std::make_shared<SharedStore>();
  auto server = std::make_shared<Server>(*state_->shared, std::move(listener), std::move(options));
  // Its connections close with it: the thread owns it alone.
  state_->thread = GuardedThread([shared = state_->shared, serving = std::exchange(server, nullptr)]() mutable {
    const std::shared_ptr<Server> running = std::exchange(serving, nullptr);
    try {
      running->run();
    } catch (const std::bad_alloc&) {
      // Whoever it serves would know no reason, and nobody waits for this thread: the process ends and says it
      // (base/process/last_words.h).
      std::terminate();
    } catch (const std::exception& error) {
      // Clients see their connections close; the serving process itself is told here.
      shared->values.close(fmt::format("the rendezvous server failed: {}", error.what()));
    }
  });
}

RendezvousServer::~RendezvousServer() {
  SharedStore& shared = *state_->shared;
  {
    const std::lock_guard lock(shared.mutex);
    shared.stopping = true;
  }
  shared.doorbell.ring();
  state_->thread.join();
  shared.values.close("the rendezvous server was stopped");
}

RendezvousAddress RendezvousServer::address() const {
  return state_->address;
}

std::unique_ptr<KeyValueStore> RendezvousServer::local_store() {
  return std::make_unique<LocalStore>(state_->shared);
}

}  // namespace scaletrain
