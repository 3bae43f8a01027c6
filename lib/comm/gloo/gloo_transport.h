// Transport over Gloo's TCP device: CPU memory, any number of hosts. One device (one loop thread) per process, one
// context per group, on connections whose members have met (process/peer_meeting.h); what they then say is neither
// encrypted nor authenticated.
//
// A wait that ends at its deadline leaves its message and all others as they were. A peer that is gone ends the waits
// on it, and only those, within a fraction of a second. Destroying a message that is half-way leaves its connection
// stuck: such a transport is good only for being destroyed. Messages may have any size, none and more than 2 GiB
// included; the last tag, 2^64 - 1, is taken.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/numbers/strong.h"
#include "comm/transport.h"

namespace scaletrain {

class GlooDevice {
 public:
  // address: the numeric address of this host that Gloo is to bind to. PeerError if it cannot be bound.
  // SIGPIPE is ignored from then on, unless the program has installed a handler: Gloo writes to connections that peers
  // may close.
  explicit GlooDevice(const std::string& address);
  ~GlooDevice();
  GlooDevice(const GlooDevice&) = delete;
  GlooDevice& operator=(const GlooDevice&) = delete;

  // Carries what is said to the members for which there is a connection, by place; nothing may be sent to the others.
  // PeerError if a connection breaks at once. The device outlives the transport.
  std::unique_ptr<Transport> connect(const std::vector<Rank>& members, int own,
                                     std::vector<FileDescriptor> connections);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
