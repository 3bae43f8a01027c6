#include "base/process/guarded_thread.h"

#include <new>
#include <system_error>
#include <utility>

#include "base/process/memory_limit.h"

namespace scaletrain {
namespace {

template <class Body>
std::thread start_thread(Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    if (is_out_of_memory(error)) throw std::bad_alloc();
    throw;
  }
}

}  // namespace

GuardedThread::GuardedThread(std::function<void()> body)
    : end_(std::make_shared<End>()), thread_(start_thread([end = end_.get(), body = std::move(body)] {
        try {
          body();
        } catch (...) {
          end->error = std::current_exception();
          end->is_failure.store(true, std::memory_order_release);
        }
      })) {}

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
