#include "host/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "host/machine.h"

namespace scaletrain {
namespace {

// An address of the network that is reserved for documents: nothing is sent there, only the route is looked up.
constexpr const char* somewhere_else = "192.0.2.1";

std::string text_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int error =
      ::getnameinfo(address, size, text.data(), static_cast<socklen_t>(text.size()), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? std::string(text.data()) : std::string();
}

// The local address that the kernel would send from; empty if there is no route. Connecting a datagram socket sends
// nothing.
std::string source_towards(const addrinfo& target) {
  const FileDescriptor socket(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), target.ai_addr, target.ai_addrlen) != 0) return {};
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  auto* const address = reinterpret_cast<sockaddr*>(&local);  // NOLINT: the sockets interface
  if (::getsockname(socket.get(), address, &size) != 0) return {};
  return text_of(address, size);
}

struct InterfaceAddress {
  std::string name;
  std::string address;
  bool is_loopback = false;
};

// Of all interfaces that are up, IPv4 before IPv6; without addresses that mean nothing off their link.
std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      const std::string address = text_of(entry->ifa_addr, size);
      if (!address.empty() && address.find('%') == std::string::npos)
        found.push_back({entry->ifa_name, address, (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return found;
}

// The first interface that leads somewhere; empty if there is none.
std::string first_interface() {
  for (const InterfaceAddress& entry : interface_addresses())
    if (!entry.is_loopback && entry.address.find(':') == std::string::npos) return entry.address;
  return {};
}

}  // namespace

std::string address_of_interface(const std::string& interface) {
  std::string known;
  for (const InterfaceAddress& entry : interface_addresses()) {
    if (entry.name == interface || entry.address == interface) return entry.address;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", entry.name, entry.address);
  }
  throw UserError(
      fmt::format("launch.interface: the host {} has no interface that is called {} or has that address; there is {}; "
                  "name one of these, or set auto",
                  host_name(), quoted(interface), known.empty() ? "none" : known));
}

std::string interface_of_address(const std::string& address) {
  for (const InterfaceAddress& entry : interface_addresses())
    if (entry.address == address) return entry.name;
  return {};
}

std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = host.empty() ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.empty() ? somewhere_else : host.c_str(), "9", &hints, &list);
  if (error != 0) throw PeerError(fmt::format("{}: cannot be resolved: {}", host, ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  for (const addrinfo* target = list; target != nullptr; target = target->ai_next)
    if (std::string address = source_towards(*target); !address.empty()) return address;
  std::string address = first_interface();
  return address.empty() ? "127.0.0.1" : address;
}

}  // namespace scaletrain
