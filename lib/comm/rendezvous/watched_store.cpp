#include "comm/rendezvous/watched_store.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/sliced_wait.h"

namespace scaletrain {
namespace {

// Between two looks around: the longest that a wait outlives its sense.
constexpr double watch_slice_seconds = 0.25;

}  // namespace

std::optional<std::string> WatchedStore::find_within(const std::string& key, double seconds) {
  return wait_in_slices(
      seconds, watch_slice_seconds, [&](double slice) { return store_.find_within(key, slice); },
      [&] { throw_if_futile(key); });
}

void WatchedStore::throw_if_futile(const std::string& key) {
  if (options_.interrupted && options_.interrupted()) {
    was_interrupted_ = true;
    throw PeerError(fmt::format("interrupted while waiting for the key {} in the store", key));
  }
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
