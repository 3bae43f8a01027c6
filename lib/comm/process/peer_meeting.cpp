#include "comm/process/peer_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/deadline.h"
#include "comm/rendezvous/rendezvous_proof.h"
#include "comm/rendezvous/rendezvous_socket.h"

namespace scaletrain {
namespace {

using namespace std::chrono_literals;

constexpr std::array<char, 8> meeting_magic{'s', 't', 'm', 'e', 'e', 't', '0', '1'};
constexpr std::size_t meeting_nonce_bytes = std::tuple_size_v<Nonce>;
constexpr std::size_t meeting_proof_bytes = std::tuple_size_v<Proof>;
constexpr std::size_t place_at = meeting_magic.size();
constexpr std::size_t nonce_at = place_at + sizeof(std::uint32_t);
constexpr std::size_t proof_at = nonce_at + meeting_nonce_bytes;
constexpr std::size_t meeting_hello_bytes = proof_at + meeting_proof_bytes;
using MeetingHello = std::array<char, meeting_hello_bytes>;

// How long one wait at the store may keep this side from its own port, and how often it is asked for bad news.
constexpr auto store_slice = 500ms;
// Newcomers taken up before others get their turn.
constexpr int accepted_at_once = 256;
// A member's words are there at once; for those whose network is slow.
constexpr auto guest_patience = 5s;
// Strangers held at a time, where the limit on descriptors allows it.
constexpr std::size_t most_guests = 512;
// After this time a call that is not taken up is made anew: the system's own repetitions come at ever longer intervals.
constexpr auto call_patience = 1s;
constexpr auto first_rest = 10ms;
constexpr auto longest_rest = 500ms;
// No connection is accepted for so long after one could not be.
constexpr auto shortage_pause = 100ms;

std::size_t allowed_guests() {
  constexpr rlim_t share = 8;  // the rest of the process needs descriptors too
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return most_guests;
  return std::clamp<std::size_t>(limit.rlim_cur / share, 4, most_guests);
}

// What a pair proves is known for this pair of this meeting alone.
std::string pair_secret(const PeerMeeting& meeting, int caller, int listener) {
  return derived_secret(meeting.secret, fmt::format("meeting {}: {} calls {}", meeting.name, caller, listener));
}

// Where a member listens, and the nonce for those who call it.
struct Place {
  RendezvousAddress address;
  Nonce nonce{};
};

std::string place_text(const Place& place) {
  std::string text(place.nonce.begin(), place.nonce.end());
  text.push_back(static_cast<char>(place.address.port >> 8));
  text.push_back(static_cast<char>(place.address.port & 0xff));
  return text + place.address.host;
}

Place parse_place(const std::string& text) {
  SCALETRAIN_CHECK_LT(meeting_nonce_bytes + 2, text.size());
  Place place;
  std::memcpy(place.nonce.data(), text.data(), meeting_nonce_bytes);
  const auto byte = [&](std::size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(text[at])); };
  place.address.port = static_cast<std::uint16_t>(byte(meeting_nonce_bytes) << 8 | byte(meeting_nonce_bytes + 1));
  place.address.host = text.substr(meeting_nonce_bytes + 2);
  return place;
}

// Reads towards `size` bytes; never beyond, for what follows is the pair's.
enum class Heard { all, part, nothing_more };
Heard hear(int fd, char* bytes, std::size_t size, std::size_t& got) {
  while (got < size) {
    const ssize_t count = ::recv(fd, bytes + got, size - got, 0);
    if (count > 0) {
      got += static_cast<std::size_t>(count);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else {
      return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Heard::part : Heard::nothing_more;
    }
  }
  return Heard::all;
}

// A few bytes on a connection that has just been made: they fit.
bool say(int fd, const void* bytes, std::size_t size) {
  return ::send(fd, bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

FileDescriptor listen_at(const std::string& host, std::uint16_t& port) {
  std::string reason;
  const AddressList list = look_up({.host = host, .port = 0}, true, reason);
  if (!list) throw PeerError(fmt::format("cannot listen at {}: {}", host, reason));
  FileDescriptor socket = make_socket(*list);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (!socket || ::bind(socket.get(), list->ai_addr, list->ai_addrlen) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    const int error = errno;
    throw_refused(fmt::format("cannot listen at {}", host), error);
  }
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return socket;
}

class Gathering {
 public:
  Gathering(KeyValueStore& store, const PeerMeeting& meeting)
      : store_(store),
        meeting_(meeting),
        deadline_(deadline_after(meeting.seconds)),
        most_guests_(allowed_guests()),
        nonce_(make_nonce()),
        sockets_(meeting.members.size()),
        calls_(static_cast<std::size_t>(meeting.own)),
        num_missing_(narrow<int>(meeting.members.size()) - 1) {}

  std::vector<FileDescriptor> run() {
    if (num_missing_ == 0) return std::move(sockets_);
    epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) throw_refused("no epoll is to be had", errno);
    tell_place();
    while (num_missing_ > 0) {
      if (monotonic_now() >= deadline_) throw PeerError(missing_text());
      ask_for_places();
      look_around();
      turn();
    }
    return std::move(sockets_);
  }

 private:
  using Id = std::uint64_t;  // of what epoll watches: the listener, the member at a place that is called, a guest
  static constexpr Id listener_id = 0;
  static constexpr Id first_call = 1;
  static constexpr Id first_guest = Id{1} << 32;

  // Someone who has connected and not said all of its hello.
  struct Guest {
    FileDescriptor socket{};
    MeetingHello hello{};
    std::size_t heard = 0;
    MonotonicTime latest{};
  };
  // A member that is called.
  struct Call {
    std::optional<Place> place{};
    FileDescriptor socket{};
    Nonce nonce{};
    bool is_connected = false;
    Proof answer{};
    std::size_t heard = 0;
    std::chrono::milliseconds rest = first_rest;
    std::optional<MonotonicTime> timer{};  // to be made, or made anew
  };

  int size() const { return narrow<int>(meeting_.members.size()); }
  FileDescriptor& socket_of(int place) { return sockets_[static_cast<std::size_t>(place)]; }
  Call& call_of(int place) { return calls_[static_cast<std::size_t>(place)]; }
  std::string key_of(int listener, int caller) const {
    return fmt::format("meeting/{}/{}/{}", meeting_.name, listener, caller);
  }

  void tell_place() {
    if (meeting_.own + 1 == size()) return;  // nobody comes behind
    Place place{.address = {.host = meeting_.address, .port = 0}, .nonce = nonce_};
    listener_ = listen_at(meeting_.address, place.address.port);
    watch(listener_.get(), listener_id, EPOLLIN, EPOLL_CTL_ADD);
    // A value for one reader: what a member reads through the store grows with the group, not with its square.
    for (int caller = meeting_.own + 1; caller < size(); ++caller)
      store_.set(key_of(meeting_.own, caller), place_text(place));
  }

  // In the order of the group: the meeting needs all of them, so nothing is lost by waiting for one.
  void ask_for_places() {
    while (next_unknown_ < meeting_.own) {
      const std::string key = key_of(next_unknown_, meeting_.own);
      const std::chrono::duration<double> left = deadline_ - monotonic_now();
      const std::chrono::duration<double> slice = std::clamp<std::chrono::duration<double>>(left, 0s, store_slice);
      const auto text = is_crowded_ ? store_.find(key) : store_.find_within(key, slice.count());
      if (!text) return;
      store_.remove(key);
      call_of(next_unknown_).place = parse_place(*text);
      start(next_unknown_++);
    }
  }

  // Where a store is watched, it throws when somebody is gone or nobody shall wait any longer; but only when asked for
  // what is not there.
  void look_around() {
    const MonotonicTime now = monotonic_now();
    if (now < next_look_) return;
    next_look_ = now + store_slice;
    store_.find_within(key_of(meeting_.own, meeting_.own), 0.0);
  }

  // One wait for whatever comes first, and all that has come.
  void turn() {
    std::array<epoll_event, 64> events;
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds_to_wait());
    SCALETRAIN_CHECK(count >= 0 || errno == EINTR);
    is_crowded_ = false;
    for (int i = 0; i < count; ++i) {
      const Id id = events[static_cast<std::size_t>(i)].data.u64;
      if (id == listener_id) {
        accept_guests();
      } else if (id < first_guest) {
        go_on(narrow<int>(static_cast<std::int64_t>(id - first_call)));
      } else if (const auto guest = guests_.find(id); guest != guests_.end()) {
        if (listen_to(guest->second) != Heard::part) guests_.erase(guest);
      }
    }
    handle_timers();
  }

  int milliseconds_to_wait() const {
    if (is_crowded_ || next_unknown_ < meeting_.own) return 0;  // the wait is at the store
    MonotonicTime next = std::min(deadline_, next_look_);
    if (!timers_.empty()) next = std::min(next, timers_.begin()->first);
    if (!guests_.empty()) next = std::min(next, guests_.begin()->second.latest);
    if (listens_again_) next = std::min(next, *listens_again_);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - monotonic_now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
  }

  void handle_timers() {
    const MonotonicTime now = monotonic_now();
    while (!guests_.empty() && guests_.begin()->second.latest <= now) guests_.erase(guests_.begin());
    while (!timers_.empty() && timers_.begin()->first <= now) start(timers_.begin()->second);
    if (listens_again_ && *listens_again_ <= now) {
      listens_again_.reset();
      watch(listener_.get(), listener_id, EPOLLIN, EPOLL_CTL_MOD);
    }
  }

  void watch(int fd, Id id, std::uint32_t interest, int operation) {
    epoll_event event{};
    event.events = interest;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) == 0) return;
    const int error = errno;
    throw_refused(error == ENOSPC ? "epoll watches no more (raise fs.epoll.max_user_watches)" : "epoll watches no more",
                  error);
  }

  // Those who call this member.

  void accept_guests() {
    for (int i = 0; i < accepted_at_once; ++i) {
      FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        const int error = errno;
        if (error == EAGAIN || error == EWOULDBLOCK) return;
        if (error == ECONNABORTED || error == EINTR || error == EPROTO) continue;
        if (!drop_oldest_guest()) pause_listening();
        return;
      }
      Guest guest{.socket = std::move(socket), .latest = monotonic_now() + guest_patience};
      if (listen_to(guest) != Heard::part) continue;
      if (guests_.size() >= most_guests_) drop_oldest_guest();
      watch(guest.socket.get(), next_guest_, EPOLLIN, EPOLL_CTL_ADD);
      guests_.emplace(next_guest_++, std::move(guest));
    }
    is_crowded_ = true;
  }

  bool drop_oldest_guest() {
    if (guests_.empty()) return false;
    listen_to(guests_.begin()->second);  // it may have come to speak meanwhile
    guests_.erase(guests_.begin());
    return true;
  }

  void pause_listening() {
    watch(listener_.get(), listener_id, 0, EPOLL_CTL_MOD);
    listens_again_ = monotonic_now() + shortage_pause;
  }

  // part: the guest has more to say. After all else it has become a member's connection, or is to be dropped.
  Heard listen_to(Guest& guest) {
    const Heard heard = hear(guest.socket.get(), guest.hello.data(), meeting_hello_bytes, guest.heard);
    const bool is_ours =
        std::equal(meeting_magic.begin(), meeting_magic.begin() + std::min(guest.heard, meeting_magic.size()),
                   guest.hello.begin());
    if (!is_ours) return Heard::nothing_more;
    if (heard == Heard::all) welcome(guest);
    return heard;
  }

  void welcome(Guest& guest) {
    std::uint32_t caller = 0;
    for (std::size_t i = 0; i < sizeof caller; ++i)
      caller |= static_cast<std::uint32_t>(static_cast<unsigned char>(guest.hello[place_at + i])) << (8 * i);
    const auto first = static_cast<std::uint32_t>(meeting_.own) + 1;
    if (caller < first || caller >= static_cast<std::uint32_t>(size())) return;
    const int place = static_cast<int>(caller);
    if (socket_of(place)) return;
    Nonce nonce{};
    Proof proof{};
    std::memcpy(nonce.data(), guest.hello.data() + nonce_at, meeting_nonce_bytes);
    std::memcpy(proof.data(), guest.hello.data() + proof_at, meeting_proof_bytes);
    const std::string secret = pair_secret(meeting_, place, meeting_.own);
    if (!same_proof(proof, make_proof(ProverRole::client, secret, nonce, nonce_))) return;
    const Proof answer = make_proof(ProverRole::server, secret, nonce, nonce_);
    // If this fails, it calls again.
    if (say(guest.socket.get(), answer.data(), answer.size())) settle(place, std::move(guest.socket));
  }

  // Those whom this member calls.

  void start(int place) {
    Call& call = call_of(place);
    set_timer(place, std::nullopt);
    call.socket = {};
    call.is_connected = false;
    call.heard = 0;
    call.nonce = make_nonce();
    std::string reason;
    const AddressList list = look_up(call.place->address, false, reason);
    if (list) call.socket = make_socket(*list);
    if (!call.socket) return rest(place);
    const bool is_done = ::connect(call.socket.get(), list->ai_addr, list->ai_addrlen) == 0;
    if (!is_done && errno != EINPROGRESS) return rest(place);
    watch(call.socket.get(), first_call + static_cast<Id>(place), EPOLLOUT, EPOLL_CTL_ADD);
    if (is_done) return introduce(place);
    set_timer(place, monotonic_now() + call_patience);
  }

  void introduce(int place) {
    Call& call = call_of(place);
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(call.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) return rest(place);
    MeetingHello hello{};
    std::copy(meeting_magic.begin(), meeting_magic.end(), hello.begin());
    const auto own = static_cast<std::uint32_t>(meeting_.own);
    for (std::size_t i = 0; i < sizeof own; ++i) hello[place_at + i] = static_cast<char>(own >> (8 * i) & 0xff);
    std::memcpy(hello.data() + nonce_at, call.nonce.data(), meeting_nonce_bytes);
    const Proof proof =
        make_proof(ProverRole::client, pair_secret(meeting_, meeting_.own, place), call.nonce, call.place->nonce);
    std::memcpy(hello.data() + proof_at, proof.data(), meeting_proof_bytes);
    if (!say(call.socket.get(), hello.data(), hello.size())) return rest(place);
    call.is_connected = true;
    set_timer(place, std::nullopt);  // the other side may be waiting for somebody at the store
    watch(call.socket.get(), first_call + static_cast<Id>(place), EPOLLIN, EPOLL_CTL_MOD);
  }

  void go_on(int place) {
    Call& call = call_of(place);
    if (!call.socket) return;  // ended by an earlier event of this turn
    if (!call.is_connected) return introduce(place);
    const Heard heard =
        hear(call.socket.get(), reinterpret_cast<char*>(call.answer.data()), call.answer.size(), call.heard);
    if (heard == Heard::part) return;
    const std::string secret = pair_secret(meeting_, meeting_.own, place);
    if (heard == Heard::all &&
        same_proof(call.answer, make_proof(ProverRole::server, secret, call.nonce, call.place->nonce))) {
      settle(place, std::move(call.socket));
    } else {
      rest(place);
    }
  }

  // Closes what there is of the call; it is made again in a moment.
  void rest(int place) {
    Call& call = call_of(place);
    call.socket = {};
    set_timer(place, monotonic_now() + call.rest);
    call.rest = std::min<std::chrono::milliseconds>(2 * call.rest, longest_rest);
  }

  void set_timer(int place, std::optional<MonotonicTime> when) {
    Call& call = call_of(place);
    if (call.timer) timers_.erase({*call.timer, place});
    call.timer = when;
    if (when) timers_.insert({*when, place});
  }

  void settle(int place, FileDescriptor socket) {
    // What is said on it from here on is the pair's. One that said its hello at once is not watched.
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
    socket_of(place) = std::move(socket);
    --num_missing_;
  }

  std::string missing_text() const {
    constexpr std::size_t longest_list = 8;
    std::vector<std::int64_t> missing;
    for (int place = 0; place < size(); ++place) {
      const auto at = static_cast<std::size_t>(place);
      if (place != meeting_.own && !sockets_[at]) missing.push_back(meeting_.members[at].value());
    }
    const std::size_t num_missing = missing.size();
    missing.resize(std::min(num_missing, longest_list));
    return fmt::format("{} {}{} did not come", num_missing == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
                       num_missing > longest_list ? fmt::format(" and {} more", num_missing - longest_list) : "");
  }

  KeyValueStore& store_;
  const PeerMeeting& meeting_;
  MonotonicTime deadline_;
  MonotonicTime next_look_ = monotonic_now() + store_slice;
  std::size_t most_guests_;
  Nonce nonce_;
  FileDescriptor epoll_;
  FileDescriptor listener_;
  std::vector<FileDescriptor> sockets_;
  std::vector<Call> calls_;
  std::set<std::pair<MonotonicTime, int>> timers_;  // of calls
  std::map<Id, Guest> guests_;                      // the oldest first
  Id next_guest_ = first_guest;
  std::optional<MonotonicTime> listens_again_;
  int next_unknown_ = 0;  // the first member before this one whose place is not known
  int num_missing_;
  bool is_crowded_ = false;  // more may wait at the port than was taken up
};

}  // namespace

std::vector<FileDescriptor> meet_peers(KeyValueStore& store, const PeerMeeting& meeting) {
  SCALETRAIN_CHECK(meeting.own >= 0 && meeting.own < narrow<int>(meeting.members.size()));
  SCALETRAIN_CHECK(!meeting.secret.empty());
  try {
    return Gathering(store, meeting).run();
  } catch (const PeerError& error) {
    throw PeerError(fmt::format("group {}, within {:g} s: {}", meeting.name, meeting.seconds, error.what()));
  } catch (const UserError& error) {
    throw UserError(fmt::format("group {}: {}", meeting.name, error.what()));
  }
}

}  // namespace scaletrain
