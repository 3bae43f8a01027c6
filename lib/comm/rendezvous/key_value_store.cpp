#include "comm/rendezvous/key_value_store.h"

#include <fmt/format.h>

#include "base/error.h"

namespace scaletrain {

std::string KeyValueStore::wait(const std::string& key, double seconds) {
  if (auto value = find_within(key, seconds)) return std::move(*value);
  throw PeerError(
      fmt::format("waited {:g} s for the key {} in the store; the rank that sets it is dead or stuck", seconds, key));
}

}  // namespace scaletrain
