// A store that is used by one thread at a time, for several threads: each call waits its turn. A long wait for a key
// is made in slices, so that other calls come between.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "comm/rendezvous/key_value_store.h"

namespace scaletrain {

class LockedStore final : public KeyValueStore {
 public:
  // The store is owned by the caller, and used through this alone.
  explicit LockedStore(KeyValueStore& store) : store_(store) {}

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> find(const std::string& key) override;
  std::optional<std::string> find_within(const std::string& key, double seconds) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  void remove(const std::string& key) override;

 private:
  KeyValueStore& store_;
  std::mutex mutex_;
};

}  // namespace scaletrain
