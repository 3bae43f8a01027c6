#include "comm/rendezvous/locked_store.h"

#include <chrono>
#include <thread>

#include "comm/sliced_wait.h"

namespace scaletrain {

namespace {
// How long one thread's wait may hold up another's call.
constexpr double slice_seconds = 0.1;
// A mutex is not fair: who comes back at once might never let another in.
constexpr std::chrono::milliseconds between_slices(1);
}  // namespace

void LockedStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  store_.set(key, value);
}

std::optional<std::string> LockedStore::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return store_.find(key);
}

std::optional<std::string> LockedStore::find_within(const std::string& key, double seconds) {
  const auto wait = [&](double slice) {
    const std::lock_guard lock(mutex_);
    return store_.find_within(key, slice);
  };
  return wait_in_slices(seconds, slice_seconds, wait, [] { std::this_thread::sleep_for(between_slices); });
}

std::int64_t LockedStore::add(const std::string& key, std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  return store_.add(key, amount);
}

void LockedStore::remove(const std::string& key) {
  const std::lock_guard lock(mutex_);
  store_.remove(key);
}

}  // namespace scaletrain
