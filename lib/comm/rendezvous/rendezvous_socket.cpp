#include "comm/rendezvous/rendezvous_socket.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace scaletrain {

std::string address_text(const RendezvousAddress& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return is_ipv6 ? fmt::format("[{}]:{}", address.host, address.port)
                 : fmt::format("{}:{}", address.host, address.port);
}

AddressList look_up(const RendezvousAddress& address, bool to_bind, std::string& error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_bind ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int result = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (result != 0) {
    error = result == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(result);
    return nullptr;
  }
  return AddressList(list);
}

void throw_refused(std::string_view what, int error) {
  const std::string text = fmt::format("{}: {}{}", what, std::strerror(error), descriptor_remedy(error));
  if (error == EMFILE) throw UserError(text);
  throw PeerError(text);
}

FileDescriptor make_socket(const addrinfo& address) {
  return FileDescriptor(
      ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
}

void prepare_connection(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // A host without power says nothing: it is gone after 15 silent seconds and three questions without an answer.
  const int idle_seconds = 15;
  const int seconds_between = 5;
  const int questions = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds_between, sizeof seconds_between);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &questions, sizeof questions);
}

bool wait_ready(int fd, short events, MonotonicTime deadline) {
  // Whoever wakes so much later stood still, in a job that was suspended, and so may have the other side: it has a
  // moment more.
  constexpr auto longest_delay = std::chrono::seconds(1);
  constexpr auto second_look = std::chrono::seconds(2);
  for (;;) {
    const MonotonicTime before = monotonic_now();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - before).count();
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows reports the error
    const MonotonicTime now = monotonic_now();
    if (now - std::max(before, deadline) > longest_delay) {
      deadline = now + second_look;
    } else if (now >= deadline) {
      return false;
    }
  }
}

Transferred send_all(int fd, std::string_view bytes, MonotonicTime deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd, POLLOUT, deadline)) return Transferred::late;
    } else if (errno != EINTR) {
      return Transferred::closed;
    }
  }
  return Transferred::done;
}

Transferred receive_frame(int fd, FrameReader& reader, std::string& body, MonotonicTime deadline) {
  std::array<char, 1 << 16> chunk;
  for (;;) {
    switch (reader.next(body)) {
      case FrameReader::Status::frame:
        return Transferred::done;
      case FrameReader::Status::oversized:
        return Transferred::malformed;
      case FrameReader::Status::incomplete:
        break;
    }
    const ssize_t got = ::recv(fd, chunk.data(), chunk.size(), 0);
    if (got > 0) {
      reader.append({chunk.data(), static_cast<std::size_t>(got)});
    } else if (got == 0) {
      return Transferred::closed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd, POLLIN, deadline)) return Transferred::late;
    } else if (errno != EINTR) {
      return Transferred::closed;
    }
  }
}

}  // namespace scaletrain
