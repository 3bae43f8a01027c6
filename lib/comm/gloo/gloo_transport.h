// Transport over Gloo's TCP device: CPU memory, any number of hosts. One device (one loop thread) per process, one
// full-mesh context per group. Members prove to each other that they know the job's secret before Gloo sees them
// (peer_meeting.h); what they then say is neither encrypted nor authenticated. It binds to the interface it is told.
//
// A wait that ends at its deadline leaves its message and all others as they were. A peer that is gone ends the waits
// on it, and only those, within a fraction of a second. Destroying a message that is half-way leaves its connection
// stuck: such a transport is good only for being destroyed. Messages may have any size, none and more than 2 GiB
// included; the last tag, 2^64 - 1, is taken.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/numbers/strong.h"
#include "comm/rendezvous/key_value_store.h"
#include "comm/transport.h"

namespace scaletrain {

class GlooDevice {
 public:
  // address: the numeric address of this host to bind to and to tell the others. PeerError if it cannot be bound.
  // secret: the job's, the same at all members; not empty.
  // SIGPIPE is ignored from then on, unless the program has installed a handler: Gloo writes to connections that peers
  // may close.
  GlooDevice(const std::string& address, const std::string& secret);
  ~GlooDevice();
  GlooDevice(const GlooDevice&) = delete;
  GlooDevice& operator=(const GlooDevice&) = delete;

  // Connects with all members, which find each other through the store: every member calls with the same unique name.
  // Blocks until connected; PeerError after `seconds`, naming the group and who is missing. The device outlives the
  // transport.
  std::unique_ptr<Transport> connect(KeyValueStore& store, const std::string& name, const std::vector<Rank>& members,
                                     Rank self, double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
