// In-order queues of work on one device, and moments in them. What is issued to a stream runs one after the other,
// beside the host; different streams run beside each other, unless one waits for the other's event. A backend makes
// streams (Backend::make_stream); there is no default stream.
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace scaletrain {

// A moment: done when everything issued before it has run. A handle, by value; any thread.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool is_done() = 0;
    // Blocks the host. Throws what has ended the stream before that moment came.
    virtual void wait() = 0;
  };

  Event() = default;  // done
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool is_done() const { return state_ == nullptr || state_->is_done(); }
  void wait() const {
    if (state_) state_->wait();
  }
  // What a stream of its own kind may know it by; null: done.
  State* state() const { return state_.get(); }

 private:
  std::shared_ptr<State> state_;
};

// Issued to by one thread at a time. What its work uses must live until it has run: who hands over memory of its own
// waits for the stream before that memory ends.
class Stream {
 public:
  virtual ~Stream() = default;
  // Blocks the host until everything issued so far has run, and throws what a function of call() has thrown. For the
  // one record that the host reads of a step, for shutdown and for tests.
  virtual void synchronize() = 0;
  // Runs a function of the host in its turn: behind everything issued before, and what is issued behind it waits for
  // it. Where operations are done when they are issued it runs now, by the caller, who gets what it throws; elsewhere
  // on a thread of the stream: if it throws, nothing behind it runs until synchronize() has thrown that. There it may
  // not wait for events of the device nor use it otherwise: that stands in order by after().
  virtual void call(std::function<void()> function) = 0;
  // Now, in this stream's order.
  virtual Event record() = 0;
  // What is issued later runs behind that moment of another stream of the same device. The host does not wait, but
  // where operations are done when they are issued.
  virtual void after(const Event& event) {
    call([event] { event.wait(); });
  }
};

// Of a device whose operations are done when they have been issued: the host's processor.
class HostStream final : public Stream {
 public:
  void synchronize() override {}
  void call(std::function<void()> function) override { function(); }
  Event record() override { return {}; }
};

}  // namespace scaletrain
