// A rank's view of the rendezvous whose waits end early: when a member of the world is gone without a farewell, or when
// this rank is asked to leave. Everything that waits through it is so guarded, whatever it waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "comm/rendezvous/key_value_store.h"

namespace scaletrain {

class WatchedStore final : public KeyValueStore {
 public:
  struct Options {
    // Asked several times a second while something is waited for; empty: never. May be true for a while only: once
    // training has begun an interruption is the trainer's business, which saves first.
    std::function<bool()> interrupted{};
  };
  // The store is owned by the caller.
  WatchedStore(KeyValueStore& store, Options options) : store_(store), options_(std::move(options)) {}

  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::optional<std::string> find(const std::string& key) override { return store_.find(key); }
  // PeerError too for the reasons above; it names the rank.
  std::optional<std::string> find_within(const std::string& key, double seconds) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_.add(key, amount); }
  void remove(const std::string& key) override { store_.remove(key); }

  // Whether a wait has ended because of an interruption.
  bool was_interrupted() const { return was_interrupted_; }

 private:
  void throw_if_futile(const std::string& key);

  KeyValueStore& store_;
  Options options_;
  bool was_interrupted_ = false;
};

// The first rank that is gone without a farewell.
std::optional<std::int64_t> lost_rank(KeyValueStore& store);
std::string lost_text(std::int64_t rank);

}  // namespace scaletrain
