// Posts messages on the thread of Gloo's loop. Gloo locks a connection while it posts; its loop does not wait for that
// lock but turns round until it gets it. A poster that loses its core there, which the message it has just sent often
// brings about, then waits for a loop that burns its whole time slice: milliseconds, at every message, once there are
// more threads than cores. Posted by the loop's own thread, nothing contends.
#pragma once

#include <memory>

namespace gloo::transport::tcp {
class Device;
}

namespace scaletrain {

class PostQueue {
 public:
  class Post {
   public:
    virtual ~Post() = default;
    // On the loop's thread. Throws nothing.
    virtual void post() noexcept = 0;
  };

  explicit PostQueue(std::shared_ptr<gloo::transport::tcp::Device> device);
  ~PostQueue();
  PostQueue(const PostQueue&) = delete;
  PostQueue& operator=(const PostQueue&) = delete;

  // In the order of the calls. Thread-safe.
  void add(Post& post);
  // After this, post() is not running and will not. Thread-safe, not on the loop's thread.
  void remove(Post& post);

 private:
  class Handler;
  std::unique_ptr<Handler> handler_;
};

}  // namespace scaletrain
