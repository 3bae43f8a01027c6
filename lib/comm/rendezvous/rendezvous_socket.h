// TCP as the rendezvous needs it: non-blocking sockets, deadlines, no signals. Of the files that speak over it,
// rendezvous_server.cpp and rendezvous_client.cpp, and of gloo/, which binds as they do.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/file.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/rendezvous_frame.h"

namespace scaletrain {

// "127.0.0.1:4000", "[::1]:4000".
std::string address_text(const RendezvousAddress& address);

struct AddressListDeleter {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;
// The addresses that a name or numeric address stands for; empty with the reason in `error`. A name server that does
// not answer may block for as long as the system's resolver does.
AddressList look_up(const RendezvousAddress& address, bool to_bind, std::string& error);

// The system has refused a descriptor, a watch on one, or an address: UserError where this process may have no more
// descriptors, which is no fault of a peer's and stays so; PeerError otherwise. "WHAT: REASON", and what to do.
[[noreturn]] void throw_refused(std::string_view what, int error);

// A new socket for one of them; without one, errno says why.
FileDescriptor make_socket(const addrinfo& address);
// Small messages at once, and an end to connections whose host has vanished.
void prepare_connection(int fd);

enum class Transferred { done, late, closed, malformed };
// The whole of `bytes`.
Transferred send_all(int fd, std::string_view bytes, MonotonicTime deadline);
Transferred receive_frame(int fd, FrameReader& reader, std::string& body, MonotonicTime deadline);
// Until the descriptor is ready for `events` (of poll); false at the deadline.
bool wait_ready(int fd, short events, MonotonicTime deadline);

}  // namespace scaletrain
