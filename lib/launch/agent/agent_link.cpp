#include "launch/agent/agent_link.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "host/machine.h"

namespace scaletrain {
namespace {

// Between two statuses: what a failure on one node waits at most before it is heard of on the others.
constexpr double usual_period = 0.25;
constexpr double periods_in_lease = 10.0;
// Statuses a second of all agents together, which one process reads.
constexpr double statuses_per_second = 1000.0;

double period_of(double lease, std::int64_t num_places) {
  const double fair = static_cast<double>(num_places) / statuses_per_second;
  return std::min(std::max(usual_period, fair), lease / periods_in_lease);
}

}  // namespace

AgentLink::AgentLink(Options options)
    : options_(std::move(options)), incarnation_(random_id()), renewed_at_(monotonic_now()) {
  SCALETRAIN_CHECK((options_.store || options_.reconnect) && options_.lease > 0);
  status_.place = options_.place;
  status_.host = host_name();
  status_.machine = own_machine(options_.gpus);
  status_.incarnation = incarnation_;
  status_.left = options_.left;
  thread_ = GuardedThread([this] { run(); });
}

AgentLink::~AgentLink() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Orders AgentLink::orders() const {
  const std::lock_guard lock(mutex_);
  return orders_;
}

bool AgentLink::wait_for_orders(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return orders_count_ != orders_seen_; });
  return std::exchange(orders_seen_, orders_count_) != orders_count_;
}

bool AgentLink::is_cut_off() const {
  const std::lock_guard lock(mutex_);
  return is_cut_off_ || (options_.reconnect && seconds_since(renewed_at_) > options_.lease);
}

void AgentLink::begin_round(std::int64_t round, std::int64_t start_step) {
  const std::lock_guard lock(mutex_);
  start_step_ = start_step;
  status_.round = round;
  status_.report.reset();
  status_.workers = {};
}

void AgentLink::set_workers(const GroupStatus& workers) {
  bool is_first_step = false;
  {
    const std::lock_guard lock(mutex_);
    is_first_step = status_.workers.step <= start_step_ && workers.step > start_step_;
    status_.workers = workers;
    is_urgent_ = is_urgent_ || is_first_step;
  }
  if (is_first_step) wake_.notify_all();
}

void AgentLink::report(const RoundResult& round) {
  {
    const std::lock_guard lock(mutex_);
    status_.report = round;
    is_urgent_ = true;
  }
  wake_.notify_all();
}

void AgentLink::refresh() {
  {
    const std::lock_guard lock(mutex_);
    is_urgent_ = true;
  }
  wake_.notify_all();
}

void AgentLink::leave(const ExitStatus& status) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return;
    status_.left = status;
    is_stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// The lease counts from before the request: the coordinator cannot have seen the status earlier.
void AgentLink::note_contact(MonotonicTime asked_at) {
  const std::lock_guard lock(mutex_);
  // A process that stood still finds its lease run out however fast the answer comes.
  is_cut_off_ = is_cut_off_ || (options_.reconnect && seconds_since(renewed_at_) > options_.lease);
  if (!is_cut_off_) renewed_at_ = asked_at;
}

bool AgentLink::exchange() {
  std::string text;
  const MonotonicTime asked_at = monotonic_now();
  {
    const std::lock_guard lock(mutex_);
    is_cut_off_ = is_cut_off_ || (options_.reconnect && seconds_since(renewed_at_) > options_.lease);
    // Whoever is cut off is taken for dead, and must not look alive again; that it leaves may be known.
    if (is_cut_off_ && !status_.left) return false;
    ++status_.beat;
    status_.is_interrupted = options_.interrupted && options_.interrupted();
    text = to_text(status_);
    is_urgent_ = false;
  }
  try {
    if (!options_.store) options_.store = options_.reconnect();
    options_.store->set(status_key(options_.place), text);
    const auto serial = options_.store->find(orders_serial_key);
    note_contact(asked_at);
    if (options_.published) options_.published();
    if (!serial || *serial == orders_serial_) return true;
    Orders parsed = fetch_orders(*options_.store, options_.place, options_.lease);
    {
      const std::lock_guard lock(mutex_);
      orders_ = std::move(parsed);
      ++orders_count_;
    }
    orders_serial_ = *serial;
    changed_.notify_all();
    return true;
  } catch (const std::exception&) {
    // Whatever it was, the lease tells how long it may last.
    if (options_.reconnect) options_.store.reset();
    return false;
  }
}

void AgentLink::try_exchange() {
  try {
    exchange();
  } catch (const std::bad_alloc&) {
    return;
  }
}

void AgentLink::run() {
  const auto period = std::chrono::duration<double>(period_of(options_.lease, options_.num_places));
  for (;;) {
    try_exchange();
    std::unique_lock lock(mutex_);
    if (is_stopping_) {
      // The last word, once: a coordinator that does not hear it waits the lease out.
      lock.unlock();
      try_exchange();
      return;
    }
    wake_.wait_for(lock, period, [this] { return is_stopping_ || is_urgent_; });
  }
}

}  // namespace scaletrain
