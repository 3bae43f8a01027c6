#include "launch/coordination/coordinator_thread.h"

#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "base/process/exit_status.h"

namespace scaletrain {

namespace {

constexpr auto look_period = std::chrono::milliseconds(50);

// That an agent which is given up has left.
void publish_loss(KeyValueStore& store, const AgentStatus& status) {
  AgentStatus gone;
  gone.place = status.place;
  gone.incarnation = status.incarnation;
  gone.left = ExitStatus{.code = ExitCode::interrupted, .message = "given up by the coordinator"};
  store.set(status_key(status.place), to_text(gone));
}

}  // namespace

CoordinatorThread::CoordinatorThread(Coordinator& coordinator, std::unique_ptr<KeyValueStore> store)
    : coordinator_(coordinator), store_(std::move(store)) {}

CoordinatorThread::~CoordinatorThread() {
  join();
}

void CoordinatorThread::start(std::function<void()> published) {
  published_ = std::move(published);
  thread_ = GuardedThread([this] { run(); });
}

void CoordinatorThread::look_now() {
  {
    const std::lock_guard lock(mutex_);
    has_news_ = true;
  }
  news_.notify_all();
}

void CoordinatorThread::join() {
  if (thread_.joinable()) thread_.join();
}

void CoordinatorThread::run() {
  try {
    while (!coordinator_.is_done()) {
      look_once();
      std::unique_lock lock(mutex_);
      news_.wait_for(lock, look_period, [this] { return has_news_; });
      has_news_ = false;
    }
  } catch (...) {
    error_ = std::current_exception();
    tell_end();
  }
}

// Nobody is left who could give other orders. Of an end that cannot be told for want of memory nobody would hear: it
// ends the process (base/process/last_words.h), and the others find their coordinator gone.
void CoordinatorThread::tell_end() {
  try {
    const ExitStatus status = exit_status_of(error_);
    Orders orders;
    orders.command = OrderKind::over;
    orders.code = status.code;
    orders.reason = status.message;
    publish_orders(*store_, orders);
    if (published_) published_();
  } catch (const std::bad_alloc&) {
    std::terminate();
  }
}

void CoordinatorThread::look_once() {
  for (std::int64_t place = 0; place < coordinator_.places(); ++place) {
    auto text = store_->find(status_key(place));
    std::string& before = texts_[place];
    if (!text || *text == before) continue;
    statuses_[place] = parse_status(*text);
    before = std::move(*text);
  }
  std::vector<AgentStatus> list;
  list.reserve(statuses_.size());
  for (const auto& entry : statuses_) list.push_back(entry.second);
  coordinator_.look(seconds_since(begin_), list);
  for (const AgentStatus& status : list) {
    if (!coordinator_.roster().is_given_up(status)) continue;
    if (!status.left) publish_loss(*store_, status);
    statuses_.erase(status.place);
  }
  std::string orders = to_text(coordinator_.orders());
  if (orders == published_text_) return;
  publish_orders(*store_, coordinator_.orders());
  published_text_ = std::move(orders);
  if (published_) published_();
}

}  // namespace scaletrain
