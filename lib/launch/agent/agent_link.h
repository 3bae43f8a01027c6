// An agent's connection with the coordinator: a thread that publishes this place's status and fetches the orders,
// several times in a lease, so that whoever supervises workers never waits for a network.
//
// The lease: who could not renew it in time is cut off, for good. The coordinator counts on it that no worker of this
// place lives then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/process/guarded_thread.h"
#include "comm/rendezvous/key_value_store.h"
#include "launch/coordination/messages.h"

namespace scaletrain {

class AgentLink {
 public:
  struct Options {
    std::int64_t place = 0;
    // In this process; nothing: `reconnect` gives the first one as well.
    std::unique_ptr<KeyValueStore> store{};
    // A new connection, or PeerError within a fraction of the lease. Asked again until the lease has run out.
    std::function<std::unique_ptr<KeyValueStore>()> reconnect{};
    std::string gpus{};           // see PlaceMachine
    double lease = 10.0;          // seconds
    std::int64_t num_places = 1;  // of many, each asks less often
    std::function<bool()> interrupted{};
    std::function<void()> published{};  // hears of each status that was published; called by the thread
    std::optional<ExitStatus> left{};   // of an agent that comes only to say why it cannot take part
  };
  // Publishes the first status at once, on its thread.
  explicit AgentLink(Options options);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  const std::string& incarnation() const { return incarnation_; }
  // The last that were fetched.
  Orders orders() const;
  // Waits until they change, at most `seconds`; false when they have not.
  bool wait_for_orders(double seconds);
  // The lease has run out.
  bool is_cut_off() const;

  // What the next statuses tell; at once published are a report, and workers that have done the first step of the
  // round: after a failure that is what people wait for. start_step: where the round begins.
  void begin_round(std::int64_t round, std::int64_t start_step);
  void set_workers(const GroupStatus& workers);
  void report(const RoundResult& round);
  // There are other orders: they are fetched at once.
  void refresh();
  // Publishes the status as the last word and ends the thread; for as long as the lease at most. Nothing is published
  // any more.
  void leave(const ExitStatus& status);

 private:
  void run();
  bool exchange();
  // Without memory for it: a failed one, of which the lease tells how many there may be.
  void try_exchange();
  void note_contact(MonotonicTime asked_at);

  Options options_;
  const std::string incarnation_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;     // of the thread
  std::condition_variable changed_;  // of the orders, or the end of the thread
  AgentStatus status_;
  Orders orders_;
  std::string orders_serial_;  // the thread's
  std::uint64_t orders_count_ = 0;
  std::uint64_t orders_seen_ = 0;
  MonotonicTime renewed_at_;
  bool is_cut_off_ = false;
  bool is_urgent_ = false;
  std::int64_t start_step_ = 0;  // of the round
  bool is_stopping_ = false;
  GuardedThread thread_;
};

}  // namespace scaletrain
