#include "base/process/guarded_thread.h"

#include <utility>

namespace scaletrain {

GuardedThread::GuardedThread(std::function<void()> body)
    : end_(std::make_shared<End>()), thread_([end = end_.get(), body = std::move(body)] {
        try {
          body();
        } catch (...) {
          end->error = std::current_exception();
          end->is_failure.store(true, std::memory_order_release);
        }
      }) {}

GuardedThread::~GuardedThread() {
  join();
}

void GuardedThread::join() {
  if (thread_.joinable()) thread_.join();
}

void GuardedThread::join_and_rethrow() {
  join();
  if (end_ && end_->error) std::rethrow_exception(std::exchange(end_->error, nullptr));
}

bool GuardedThread::failed() const {
  return end_ && end_->is_failure.load(std::memory_order_acquire);
}

}  // namespace scaletrain
