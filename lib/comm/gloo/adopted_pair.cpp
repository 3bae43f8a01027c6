#include "comm/gloo/adopted_pair.h"

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/pair.h>
#include <unistd.h>

#include <memory>
#include <mutex>

namespace scaletrain {
namespace {

class AdoptedPair final : public gloo::transport::tcp::Pair {
 public:
  AdoptedPair(gloo::transport::tcp::Context& context, gloo::transport::tcp::Device& device, int peer,
              FileDescriptor connection)
      : Pair(&context, &device, peer, context.getTimeout()) {
    const std::lock_guard lock(m_);
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = connection.release();
    try {
      handleConnected();
    } catch (...) {
      // In this state the base's destructor has nothing to end: the connection may not be watched.
      ::close(fd_);
      fd_ = -1;
      state_ = INITIALIZING;
      throw;
    }
  }
};

}  // namespace

void adopt(gloo::transport::Context& context, gloo::transport::tcp::Device& device, int peer,
           FileDescriptor connection) {
  auto& of_device = dynamic_cast<gloo::transport::tcp::Context&>(context);
  context.getPair(peer) = std::make_unique<AdoptedPair>(of_device, device, peer, std::move(connection));
}

}  // namespace scaletrain
