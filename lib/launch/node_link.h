// An agent's connection with the coordinator: a thread that publishes this node's status and fetches the orders,
// several times in a lease, so that whoever supervises workers never waits for a network.
//
// The lease: who could not renew it in time is cut off, for good. The coordinator counts on it that no worker of this
// node lives then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "comm/key_value_store.h"
#include "launch/coordination.h"

namespace scaletrain {

class NodeLink {
 public:
  struct Options {
    std::int64_t node = 0;
    // In this process; nothing: `reconnect` gives the first one as well.
    std::unique_ptr<KeyValueStore> store{};
    // A new connection, or PeerError within a fraction of the lease. Asked again until the lease has run out.
    std::function<std::unique_ptr<KeyValueStore>()> reconnect{};
    double lease = 10.0;  // seconds
    std::function<bool()> interrupted{};
    std::optional<Departure> departure{};  // of an agent that comes only to say why it cannot take part
  };
  // Publishes the first status at once, on its thread.
  explicit NodeLink(Options options);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  const std::string& incarnation() const { return incarnation_; }
  // The last that were fetched.
  Orders orders() const;
  // Waits until they change, at most `seconds`; false when they have not.
  bool wait_for_orders(double seconds);
  // The lease has run out.
  bool is_cut_off() const;

  // What the next statuses tell; a report is published at once.
  void begin_attempt(std::int64_t attempt);
  void set_pulse(const CrewPulse& pulse);
  void report(const Attempt& attempt);
  // Publishes the departure and ends the thread; for as long as the lease at most. Nothing is published any more.
  void leave(const Departure& departure);

 private:
  void run();
  bool exchange();
  void note_contact(MonotonicTime asked_at);

  Options options_;
  const std::string incarnation_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;     // of the thread
  std::condition_variable changed_;  // of the orders, or the end of the thread
  NodeStatus status_;
  Orders orders_;
  std::string orders_serial_;  // the thread's
  std::uint64_t orders_count_ = 0;
  std::uint64_t orders_seen_ = 0;
  MonotonicTime renewed_at_;
  bool is_cut_off_ = false;
  bool is_urgent_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace scaletrain
