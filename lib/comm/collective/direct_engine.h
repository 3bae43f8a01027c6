#pragma once

// What the calls of one DirectCommunicator share: the transport, messages with their tags and deadlines, staging, and
// the error that ends them all. Included by direct_communicator.cpp alone.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/collective/direct_communicator.h"
#include "comm/deadline.h"
#include "comm/first_error.h"

namespace scaletrain::direct {

// What needs no staging travels in messages of this size, so that the deadline, which starts anew with every message,
// does not limit how much a call may carry.
inline constexpr std::size_t longest_message = std::size_t{16} << 20;

inline std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

// Names a call in messages.
struct CallName {
  const char* collective;
  std::uint64_t sequence;
};

// A message carries an operand or a result of a collective, or is the n-th exchanged one of its pair and direction.
enum class Content : std::uint64_t { operand = 0, result = 1 };
inline std::uint64_t collective_tag(std::uint64_t sequence, Content content, std::uint64_t index) {
  SCALETRAIN_CHECK(index < (std::uint64_t{1} << 23) && sequence < (std::uint64_t{1} << 39));
  return sequence << 24 | static_cast<std::uint64_t>(content) << 23 | index;
}
inline std::uint64_t exchange_tag(int channel, std::uint64_t index) {
  return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(channel) << 56 | index;
}

struct Posted {
  std::unique_ptr<Transport::Pending> pending;
  int peer = 0;
};

// A wait that has ended without an answer; the text says how long and for whom.
class LateError : public PeerError {
 public:
  using PeerError::PeerError;
};

// What the calls of one communicator share. The collectives run one at a time, on whatever thread; exchanges beside
// them.
class Engine {
 public:
  Engine(std::unique_ptr<Transport> transport, DirectOptions options)
      : transport_(std::move(transport)), options_(std::move(options)) {
    SCALETRAIN_CHECK_EQ(options_.ranks.size(), at(transport_->size()));
  }

  Transport& transport() { return *transport_; }
  const DirectOptions& options() const { return options_; }
  const std::shared_ptr<FirstError>& errors() const { return errors_; }
  int size() const { return transport_->size(); }
  int rank() const { return transport_->rank(); }

  // Runs a part of a call; an error is named after it, stays, and is thrown.
  template <class Body>
  void run(const CallName& name, Body body) {
    errors_->throw_if_any();
    const auto named = [&](const char* what) {
      return fmt::format("group {}: {} #{}{}", options_.group_name, name.collective, name.sequence, what);
    };
    try {
      body();
      return;
    } catch (const LateError& error) {
      errors_->keep_peer(named(" ") + error.what());
    } catch (const PeerError& error) {
      errors_->keep_peer(named(": ") + error.what());
    } catch (...) {
      errors_->keep_current();
    }
    errors_->throw_if_any();
  }

  // Every later call fails.
  void give_up() noexcept {
    try {
      errors_->keep_peer(fmt::format("group {}: this rank has given it up", options_.group_name));
    } catch (const std::bad_alloc&) {
      return;  // they fail at the transport
    }
  }

  // Waits for all, each as long as the options say since the last one that came; then forgets them.
  void wait_all(std::vector<Posted>& posted) const {
    for (std::size_t index = 0; index < posted.size(); ++index) {
      const MonotonicTime begin = monotonic_now();
      if (!wait_patiently(*posted[index].pending, begin)) throw late(std::span(posted).subspan(index), begin);
      count_work(options_.work);
    }
    posted.clear();
  }

  // The other ranks, beginning after this one, so that not all turn to the same one first.
  template <class Function>
  void for_each_peer(Function function) const {
    for (int step = 1; step < size(); ++step) function((rank() + step) % size());
  }

  // One message, unless it is empty: both sides know its size.
  void send(std::vector<Posted>& posted, int peer, std::uint64_t tag, std::span<const std::byte> data) {
    if (!data.empty()) posted.push_back({transport_->send(peer, tag, data), peer});
  }
  void receive(std::vector<Posted>& posted, int peer, std::uint64_t tag, std::span<std::byte> data) {
    if (!data.empty()) posted.push_back({transport_->receive(peer, tag, data), peer});
  }
  // As many messages as it takes.
  void send_all(std::vector<Posted>& posted, int peer, std::uint64_t sequence, std::span<const std::byte> data) {
    for (std::size_t first = 0; first < data.size(); first += longest_message) {
      send(posted, peer, collective_tag(sequence, Content::operand, first / longest_message),
           data.subspan(first, std::min(longest_message, data.size() - first)));
    }
  }
  void receive_all(std::vector<Posted>& posted, int peer, std::uint64_t sequence, std::span<std::byte> data) {
    for (std::size_t first = 0; first < data.size(); first += longest_message) {
      receive(posted, peer, collective_tag(sequence, Content::operand, first / longest_message),
              data.subspan(first, std::min(longest_message, data.size() - first)));
    }
  }

  // Memory for what the collective under way receives and sums; kept, for fresh pages cost more than the sums.
  std::byte* staging(std::size_t bytes) {
    if (bytes > staging_bytes_) {
      staging_.reset();
      staging_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      staging_bytes_ = bytes;
    }
    return staging_.get();
  }

 private:
  // False when the deadline has passed since `begin` and since the last word of who looks after the ranks.
  bool wait_patiently(Transport::Pending& pending, MonotonicTime begin) const {
    for (MonotonicTime since = begin;;) {
      if (pending.wait_until(deadline_after(options_.deadline, since))) return true;
      const MonotonicTime word = options_.vouched ? options_.vouched() : since;
      if (word <= since) return false;
      since = word;
    }
  }

  // All of them have had their time; those that have come all the same are not named.
  LateError late(std::span<Posted> posted, MonotonicTime begin) const {
    std::set<std::int64_t> missing;
    for (const Posted& one : posted) {
      if (missing.contains(options_.ranks[at(one.peer)].value())) continue;
      bool complete = false;
      try {
        complete = one.pending->wait_until(monotonic_now());
      } catch (const PeerError&) {
        complete = false;
      }
      if (!complete) missing.insert(options_.ranks[at(one.peer)].value());
    }
    // It may have come since: then it was late, and still to blame.
    if (missing.empty()) missing.insert(options_.ranks[at(posted.front().peer)].value());
    const bool one = missing.size() == 1;
    const double waited = seconds_since(begin);
    const std::string unwatched =
        waited < options_.deadline + 1.0
            ? ""
            : fmt::format(", the last {:g} of them without a word from who watches the ranks", options_.deadline);
    return LateError(
        fmt::format("waited {:g} s{} for {} {} (of the world); {} dead, stuck, or issued another collective",
                    unwatched.empty() ? options_.deadline : std::round(waited), unwatched, one ? "rank" : "ranks",
                    fmt::join(missing, ", "), one ? "it is" : "they are"));
  }

  std::unique_ptr<Transport> transport_;
  DirectOptions options_;
  std::shared_ptr<FirstError> errors_ = std::make_shared<FirstError>();
  std::unique_ptr<std::byte[]> staging_;
  std::size_t staging_bytes_ = 0;
};

}  // namespace scaletrain::direct
