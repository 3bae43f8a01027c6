// The map behind a KeyValueStore: thread-safe, in this process's memory. in_process/world.h hands out stores over one,
// and the rendezvous server serves one to other processes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace scaletrain {

// The operations of key_value_store.h. Any thread at any time.
class MemoryStore {
 public:
  // What key_value_store.h allows: a server refuses longer ones before it allocates.
  static constexpr std::size_t max_key_bytes = 256;
  static constexpr std::size_t max_value_bytes = std::size_t{16} << 20;

  void set(const std::string& key, const std::string& value);
  std::optional<std::string> find(const std::string& key) const;
  // PeerError with the reason given to close().
  std::optional<std::string> find_within(const std::string& key, double seconds) const;
  // Sums are kept as decimal text; nothing, and no change, if the key holds something else or the sum does not fit.
  std::optional<std::int64_t> try_add(const std::string& key, std::int64_t amount);
  // The same; anything that does not add up is a bug.
  std::int64_t add(const std::string& key, std::int64_t amount);
  void remove(const std::string& key);
  // Ends all waits, now and later, for keys that are not there. Values can still be read. The first reason stays.
  void close(const std::string& reason);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::unordered_map<std::string, std::string> values_;
  std::optional<std::string> closed_;
};

}  // namespace scaletrain
