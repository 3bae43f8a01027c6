// What the backends of the host's processor have in common: their memory is the host's, and an operation is done when
// it has been issued.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace scaletrain {

class HostBackend : public Backend {
 public:
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  Space space() const override { return Space::host; }
  Buffer allocate(std::size_t bytes) override { return Buffer(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return Buffer(bytes); }

 private:
  void transfer(Stream& stream, const ConstView& from, const View& to) override {
    // Pinned memory is the host's like any other.
    run(stream, Copy{.input = ConstView(from.bytes(), from.dtype(), from.shape()),
                     .output = View(to.bytes(), to.dtype(), to.shape())});
  }
};

}  // namespace scaletrain
