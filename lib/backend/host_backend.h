// What the backends of the host's processor have in common: their memory is the host's, and an operation is done when
// it has been issued.
#pragma once

#include <cstring>
#include <memory>

#include "backend/backend.h"

namespace scaletrain {

// What a kernel finds in a descriptor's `step`.
inline StepScalars step_scalars_at(const ConstView& record) {
  StepScalars step;
  std::memcpy(static_cast<void*>(&step), record.as<double>(), sizeof(step));
  return step;
}

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
