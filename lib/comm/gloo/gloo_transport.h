// Transport over Gloo's TCP device: CPU memory, any number of hosts. One device (one loop thread) per process, one
// full-mesh context per group. The data plane is not authenticated: it binds to the interface it is told.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/strong.h"
#include "comm/key_value_store.h"
#include "comm/transport.h"

namespace scaletrain {

class GlooDevice {
 public:
  // address: the numeric address of this host to bind to and to tell the others. PeerError if it cannot be bound.
  explicit GlooDevice(const std::string& address);
  ~GlooDevice();
  GlooDevice(const GlooDevice&) = delete;
  GlooDevice& operator=(const GlooDevice&) = delete;

  // Connects with all members through the store: every member calls with the same unique name. Blocks until connected;
  // PeerError after `seconds`, naming the group. The device outlives the transport.
  std::unique_ptr<Transport> connect(KeyValueStore& store, const std::string& name, const std::vector<Rank>& members,
                                     Rank self, double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
