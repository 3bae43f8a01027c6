#include "launch/watched_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/clock.h"
#include "base/error.h"
#include "comm/rendezvous.h"

namespace scaletrain {
namespace {

// Between two looks around: the longest that a wait outlives its sense.
constexpr double slice_seconds = 0.25;

}  // namespace

std::optional<std::string> WatchedStore::find_within(const std::string& key, double seconds) {
  const MonotonicTime begin = monotonic_now();
  for (;;) {
    const double left = std::max(0.0, seconds - seconds_since(begin));
    if (auto value = store_.find_within(key, std::min(left, slice_seconds))) return value;
    throw_if_futile(key);
    if (left <= slice_seconds) return std::nullopt;
  }
}

void WatchedStore::throw_if_futile(const std::string& key) {
  if (options_.interrupted && options_.interrupted()) {
    was_interrupted_ = true;
    throw PeerError(fmt::format("interrupted while waiting for the key {} in the store", key));
  }
  if (options_.failure)
    if (const auto failure = options_.failure(store_)) throw PeerError(*failure);
  if (const auto rank = lost_rank(store_)) throw PeerError(lost_text(*rank));
}

std::optional<std::int64_t> lost_rank(KeyValueStore& store) {
  const auto text = store.find(lost_member_key);
  if (!text) return std::nullopt;
  std::int64_t rank = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, rank);
  if (error != std::errc() || stop != end) return std::nullopt;
  return rank;
}

std::string lost_text(std::int64_t rank) {
  return fmt::format("rank {} is gone: its process ended without a word, or its host or the network to it failed",
                     rank);
}

}  // namespace scaletrain
