// Internal to lib/data: the streams of the blocks that samples are being drawn from. Concurrent calls of get() are
// fine.
//
// Its room is counted in samples. Those of a stretch lie in blocks that hold, together, at most the stretch and what
// its two ends cut; of short blocks (the last of each part) that may be any number.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "data/block_reader.h"
#include "data/order/sampler.h"

namespace scaletrain {

class StreamCache {
 public:
  // Empty, with room for blocks of so many samples: other streams will go by the same keys. Not while others use it.
  void begin(std::int64_t samples) {
    capacity_ = samples;
    used_ = 0;
    entries_.clear();
    places_.clear();
  }

  // The stream of the block that `at` lies in, which holds so many samples; from `make` if it is not there.
  template <class Make>
  std::shared_ptr<const BlockStream> get(const SampleLocation& at, std::int64_t samples, Make make) {
    const Key key{at.source, at.epoch, at.part, at.block};
    {
      const std::lock_guard lock(mutex_);
      if (auto found = find(key)) return found;
    }
    auto stream = std::make_shared<const BlockStream>(make());
    const std::lock_guard lock(mutex_);
    if (auto found = find(key)) return found;  // another thread has made it as well
    entries_.push_front({key, samples, stream});
    places_.emplace(key, entries_.begin());
    for (used_ += samples; used_ > capacity_ && entries_.size() > 1; entries_.pop_back()) {
      used_ -= entries_.back().samples;
      places_.erase(entries_.back().key);
    }
    return stream;
  }

 private:
  using Key = std::array<std::int64_t, 4>;
  struct Entry {
    Key key{};
    std::int64_t samples = 0;
    std::shared_ptr<const BlockStream> stream;
  };

  std::shared_ptr<const BlockStream> find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->stream;
  }

  std::int64_t capacity_ = 0;
  std::int64_t used_ = 0;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::map<Key, std::list<Entry>::iterator> places_;
};

}  // namespace scaletrain
