#include "comm/rendezvous/memory_store.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/deadline.h"

namespace scaletrain {

namespace {

std::optional<std::int64_t> parse_sum(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace

void MemoryStore::set(const std::string& key, const std::string& value) {
  SCALETRAIN_CHECK_LE(key.size(), max_key_bytes);
  SCALETRAIN_CHECK_LE(value.size(), max_value_bytes);
  {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  changed_.notify_all();
}

std::optional<std::string> MemoryStore::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> MemoryStore::find_within(const std::string& key, double seconds) const {
  const MonotonicTime deadline = deadline_after(seconds);
  std::unique_lock lock(mutex_);
  bool late = false;
  while (true) {
    const auto found = values_.find(key);
    if (found != values_.end()) return found->second;
    if (closed_) throw PeerError(fmt::format("the store was closed while waiting for the key {}: {}", key, *closed_));
    if (late) return std::nullopt;
    late = changed_.wait_until(lock, deadline) == std::cv_status::timeout;
  }
}

std::optional<std::int64_t> MemoryStore::try_add(const std::string& key, std::int64_t amount) {
  SCALETRAIN_CHECK_LE(key.size(), max_key_bytes);
  std::optional<std::int64_t> sum;
  {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    const std::optional<std::int64_t> before = found == values_.end() ? 0 : parse_sum(found->second);
    if (before) sum = scaletrain::try_add(*before, amount);
    if (!sum) return std::nullopt;
    values_[key] = std::to_string(*sum);
  }
  changed_.notify_all();
  return sum;
}

std::int64_t MemoryStore::add(const std::string& key, std::int64_t amount) {
  const auto sum = try_add(key, amount);
  SCALETRAIN_CHECK(sum.has_value());
  return *sum;
}

void MemoryStore::remove(const std::string& key) {
  const std::lock_guard lock(mutex_);
  values_.erase(key);
}

void MemoryStore::close(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_ = reason;
  }
  changed_.notify_all();
}

}  // namespace scaletrain
