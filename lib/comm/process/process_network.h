// What connects a process that is a rank with the others of its run, on this host and elsewhere: one transport per
// group. Members of one host that can read each other's memory exchange through it (memory/memory_link.h), all others
// by Gloo over TCP (gloo/gloo_transport.h). Members prove to each other that they know the job's secret before anything
// else is said (peer_meeting.h); what they then say on a network is neither encrypted nor authenticated.
//
// Transports keep to transport.h; a peer that is gone ends the waits on it, and only those, within a fraction of a
// second. The last tag, 2^64 - 1, is taken. A message that was given up half-way may leave its connection stuck: such a
// transport is good only for being destroyed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/numbers/strong.h"
#include "comm/memory/link_segment.h"
#include "comm/rendezvous/key_value_store.h"
#include "comm/transport.h"

namespace scaletrain {

class ProcessNetwork {
 public:
  struct Options {
    std::string address;      // numeric, of this host: to bind to and to tell the others
    std::string secret;       // the job's, the same at all members; not empty
    bool uses_memory = true;  // false: by TCP whatever host the others are on
    std::uint32_t link_capacity = LinkSide::most_offers;
  };

  // PeerError if the address cannot be bound.
  explicit ProcessNetwork(Options options);
  ~ProcessNetwork();
  ProcessNetwork(const ProcessNetwork&) = delete;
  ProcessNetwork& operator=(const ProcessNetwork&) = delete;

  // Connects with all members, which find each other through the store: every member calls with the same unique name.
  // Blocks until connected; PeerError after `seconds`, naming the group and who is missing. The network outlives the
  // transport. One thread at a time.
  std::unique_ptr<Transport> connect(KeyValueStore& store, const std::string& name, const std::vector<Rank>& members,
                                     Rank self, double seconds);

  // Of all groups so far: peers that are reached through memory, and by TCP.
  struct Reach {
    std::int64_t by_memory = 0;
    std::int64_t by_tcp = 0;
    std::string refusal;  // see FoundLinks
  };
  const Reach& reach() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
