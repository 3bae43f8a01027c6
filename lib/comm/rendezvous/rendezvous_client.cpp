#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "comm/deadline.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/rendezvous_socket.h"

namespace scaletrain {
namespace {

// How much longer than the server's own deadline a client waits for the answer that the deadline has passed.
constexpr double grace_seconds = 10.0;
// For the farewell, which ends with the process if nobody hears it.
constexpr double leave_seconds = 2.0;

class TcpStore final : public KeyValueStore {
 public:
  TcpStore(FileDescriptor socket, RendezvousAddress server, double reply_seconds)
      : socket_(std::move(socket)), server_(std::move(server)), reply_seconds_(reply_seconds) {}
  ~TcpStore() override {
    if (!is_member_ || !socket_) return;
    try {
      ask({.kind = StoreRequest::Kind::leave}, leave_seconds);
    } catch (const std::exception&) {
      return;  // a server that is gone misses nobody; who has no memory for a farewell is taken for lost, and is
    }
  }
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  void introduce(std::int64_t member) {
    ask({.kind = StoreRequest::Kind::introduce, .amount = member}, reply_seconds_);
    is_member_ = true;
  }

  void set(const std::string& key, const std::string& value) override {
    ask({.kind = StoreRequest::Kind::set, .key = key, .value = value}, reply_seconds_);
  }

  std::optional<std::string> find(const std::string& key) override {
    StoreReply reply = ask({.kind = StoreRequest::Kind::find, .key = key}, reply_seconds_);
    if (reply.kind == StoreReply::Kind::absent) return std::nullopt;
    return std::move(reply.value);
  }

  std::optional<std::string> find_within(const std::string& key, double seconds) override {
    const double bounded = std::clamp(seconds, 0.0, 1e9);
    StoreReply reply = ask({.kind = StoreRequest::Kind::wait, .key = key, .seconds = bounded},
                           bounded + std::min(grace_seconds, reply_seconds_));
    if (reply.kind == StoreReply::Kind::expired) return std::nullopt;
    return std::move(reply.value);
  }

  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const StoreReply reply = ask({.kind = StoreRequest::Kind::add, .key = key, .amount = amount}, reply_seconds_);
    SCALETRAIN_CHECK(reply.kind == StoreReply::Kind::done);  // the key holds a number, and the sum fits
    return std::stoll(reply.value);
  }

  void remove(const std::string& key) override {
    ask({.kind = StoreRequest::Kind::remove, .key = key}, reply_seconds_);
  }

 private:
  StoreReply ask(const StoreRequest& request, double seconds) {
    if (!socket_) fail(request, "the connection was lost before");
    const MonotonicTime deadline = deadline_after(seconds);
    Transferred outcome = send_all(socket_.get(), make_frame(encode(request)), deadline);
    std::string body;
    if (outcome == Transferred::done) outcome = receive_frame(socket_.get(), reader_, body, deadline);
    if (outcome == Transferred::late) fail(request, fmt::format("no answer within {:g} s", seconds));
    if (outcome == Transferred::closed) fail(request, "it has closed the connection or is gone");
    auto reply = outcome == Transferred::done ? parse_reply(body) : std::nullopt;
    if (!reply) fail(request, "its answer cannot be read");
    return std::move(*reply);
  }

  // A request without its answer leaves the stream at an unknown place: it is not used again.
  [[noreturn]] void fail(const StoreRequest& request, const std::string& reason) {
    socket_ = FileDescriptor();
    const std::string about = request.key.empty() ? "" : fmt::format(", key {}", quoted(request.key));
    throw PeerError(fmt::format("rendezvous server {}{}: {}", address_text(server_), about, reason));
  }

  FileDescriptor socket_;
  RendezvousAddress server_;
  // The server answers from memory, on a thread that never blocks: beyond this it is stuck or cut off.
  double reply_seconds_;
  FrameReader reader_{largest_frame};
  bool is_member_ = false;
};

// Retrying a port of the range that the system draws from for outgoing connections can connect a socket to itself.
bool connected_to_itself(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_length = sizeof own;
  socklen_t peer_length = sizeof peer;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) return false;
  return own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

// A connection to the first address that takes one, or nothing with the reason.
FileDescriptor open_connection(const addrinfo* list, MonotonicTime deadline, std::string& error) {
  // One address of several that swallows packets must not use up all the time.
  constexpr auto longest_attempt = std::chrono::seconds(5);
  for (const addrinfo* address = list; address != nullptr; address = address->ai_next) {
    FileDescriptor socket = make_socket(*address);
    if (!socket) {
      error = std::strerror(errno);
      continue;
    }
    int problem = ::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (problem == EINPROGRESS || problem == EINTR) {
      problem = ETIMEDOUT;
      if (wait_ready(socket.get(), POLLOUT, std::min(deadline, monotonic_now() + longest_attempt))) {
        socklen_t length = sizeof problem;
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &length);
      }
    }
    if (problem == 0 && connected_to_itself(socket.get())) problem = ECONNREFUSED;
    if (problem == 0) {
      prepare_connection(socket.get());
      return socket;
    }
    error = std::strerror(problem);
  }
  return {};
}

// True once both sides have proved themselves; false with the reason if it is worth another attempt.
bool shake_hands(int fd, const RendezvousAddress& server, const std::string& secret, MonotonicTime deadline,
                 std::string& error) {
  FrameReader reader(largest_handshake_frame);
  std::string body;
  const auto exchange = [&](const std::string& message) {
    Transferred outcome = send_all(fd, make_frame(message), deadline);
    // What the server said before it closed may still wait to be read.
    if (outcome != Transferred::late) outcome = receive_frame(fd, reader, body, deadline);
    if (outcome == Transferred::late) error = "it accepted the connection and then said nothing";
    if (outcome == Transferred::closed) error = "it closed the connection during the handshake";
    if (outcome == Transferred::malformed) {
      throw PeerError(
          fmt::format("{} is not a scaletrain rendezvous server: something else answers there", address_text(server)));
    }
    return outcome == Transferred::done;
  };
  const Nonce own = make_nonce();
  if (!exchange(encode_hello(HelloSide::client, own))) return false;
  const auto theirs = parse_hello(HelloSide::server, body);
  if (!theirs) {
    throw PeerError(
        fmt::format("{} is not a scaletrain rendezvous server: something else answers there", address_text(server)));
  }
  if (!exchange(encode_proof(make_proof(ProverRole::client, secret, own, *theirs)))) return false;
  const auto verdict = parse_verdict(body);
  if (verdict && !verdict->accepted) {
    throw PeerError(
        fmt::format("the rendezvous server {} refused this process's secret: all processes of a job need the same "
                    "secret (SCALETRAIN_SECRET, or the file in the run folder)",
                    address_text(server)));
  }
  if (!verdict || !same_proof(verdict->proof, make_proof(ProverRole::server, secret, own, *theirs))) {
    throw PeerError(fmt::format("the process that answers at {} does not know the job's secret", address_text(server)));
  }
  return true;
}

}  // namespace

std::unique_ptr<KeyValueStore> connect_store(const RendezvousAddress& address, const std::string& secret,
                                             double seconds, std::optional<std::int64_t> member, double reply_seconds) {
  SCALETRAIN_CHECK(!secret.empty());
  constexpr auto first_pause = std::chrono::milliseconds(20);
  constexpr auto longest_pause = std::chrono::milliseconds(500);
  constexpr auto longest_handshake = std::chrono::seconds(10);
  const MonotonicTime deadline = deadline_after(seconds);
  std::string error = "no attempt was made";
  for (auto pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
    const AddressList list = look_up(address, false, error);
    FileDescriptor socket = open_connection(list.get(), deadline, error);
    if (socket &&
        shake_hands(socket.get(), address, secret, std::min(deadline, monotonic_now() + longest_handshake), error)) {
      auto store = std::make_unique<TcpStore>(std::move(socket), address, reply_seconds);
      if (member) store->introduce(*member);
      return store;
    }
    if (monotonic_now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
  }
  throw PeerError(fmt::format("no connection to the rendezvous server {} within {:g} s: {}", address_text(address),
                              seconds, error));
}

}  // namespace scaletrain
