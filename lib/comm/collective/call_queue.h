// Runs calls one after the other on a thread of its own. The thread starts with the first call. Internal to the
// communicators.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "comm/first_error.h"

namespace scaletrain {

class CallQueue {
 public:
  // Errors of calls go to `errors`; once there is one, the calls that follow fail with it unrun.
  explicit CallQueue(std::shared_ptr<FirstError> errors);
  // Gives up the calls that have not begun and waits for the one that runs; `interrupt` is called first if there is
  // one.
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  void interrupt_with(std::function<void()> interrupt);
  // The call begins when those before it have run and `ready` is done. The ticket's wait ends when it has run, and
  // throws its error. A call that is next is run by the thread that waits for it, which saves two changes of threads.
  Ticket add(Event ready, std::function<void()> call);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::function<void()> interrupt_;
};

}  // namespace scaletrain
