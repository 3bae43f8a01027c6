// A thread that lets no exception out: it is carried to whoever waits for the thread. The only way in which this
// project starts threads; those of libraries have terminate's handler (last_words.h).
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <thread>

namespace scaletrain {

// Move-only; used by one thread, but for failed(). What the body uses must outlive join().
class GuardedThread {
 public:
  GuardedThread() = default;  // none
  // std::system_error if the system grants no thread, std::bad_alloc if there is no room for its stack or what is noted
  // of it; then nothing runs.
  explicit GuardedThread(std::function<void()> body);
  // Joins. An exception that nobody has asked for is lost.
  ~GuardedThread();
  GuardedThread(GuardedThread&&) noexcept = default;
  // Onto one that is not joinable: as with std::thread, anything else ends the process.
  GuardedThread& operator=(GuardedThread&&) noexcept = default;

  bool joinable() const { return thread_.joinable(); }
  // Waits for the end of the body. The second call and those after it do nothing.
  void join();
  // Joins, and throws what the body has thrown, if it did: once.
  void join_and_rethrow();
  // The body has thrown. While it runs, by any thread: whoever depends on it finds out without waiting.
  bool failed() const;

 private:
  struct End {
    std::exception_ptr error;
    std::atomic<bool> is_failure{false};
  };
  std::shared_ptr<End> end_;
  std::thread thread_;
};

}  // namespace scaletrain
