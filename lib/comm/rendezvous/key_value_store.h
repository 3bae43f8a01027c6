// A small store of named values that all processes of a run share: rendezvous, checkpoint reports, decisions at
// start-up. Never tensors. Implementations: in_process/world.h, rendezvous.h (TCP, authenticated).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace scaletrain {

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // Keys are at most 256 bytes, values at most 16 MiB; larger ones are a bug. A second set replaces the first.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Nothing if the key is not there.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // Blocks until the key is there; nothing after `seconds`. PeerError when the server is gone.
  virtual std::optional<std::string> find_within(const std::string& key, double seconds) = 0;
  // The same; PeerError naming the key after `seconds`.
  std::string wait(const std::string& key, double seconds);
  // Adds to an integer (0 if absent) and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  // Removes a key, if it is there: values that everyone has read.
  virtual void remove(const std::string& key) = 0;
};

}  // namespace scaletrain
