// A TCP port of the loopback interface on which nobody listens, and which nobody else is given: it is bound here. For
// tests of what happens before a server comes, or when none does. A server of this project, which reuses addresses, can
// be told to listen on it meanwhile.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <stdexcept>

#include "base/file.h"

namespace scaletrain {

class HeldPort {
 public:
  HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const int on = 1;
    // Only who reuses addresses himself shares his own.
    if (::bind(socket_.get(), generic, length) != 0 || ::getsockname(socket_.get(), generic, &length) != 0 ||
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0)
      throw std::runtime_error("no port of the loopback interface is to be had");
    port_ = ntohs(address.sin_port);
  }

  std::uint16_t port() const { return port_; }

 private:
  FileDescriptor socket_;
  std::uint16_t port_ = 0;
};

}  // namespace scaletrain
