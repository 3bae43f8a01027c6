// A few numbers that a device's kernels and the host tell each other: memory of the device with an image of it on the
// host. Where the device's memory is the host's the two are one, and nothing is copied.
#pragma once

#include <cstddef>

#include "backend/backend.h"

namespace scaletrain {

// The host writes the image only when the stream has run what was issued of it before: a copy that has not run yet, or
// a kernel that reads memory which is its own image, would find the new values. Not thread-safe.
class MirroredBuffer {
 public:
  // Zero-filled, both. The backend must outlive it. std::bad_alloc when there is not enough.
  MirroredBuffer(Backend& backend, std::size_t bytes);

  View device(std::size_t offset, DType dtype, Shape shape) const { return device_.view(offset, dtype, shape); }
  View host(std::size_t offset, DType dtype, Shape shape) const;
  // Issue the copy of all of it.
  void to_device(Stream& stream) const;
  void to_host(Stream& stream) const;
  // Issue the copy of a view that device() gave.
  void to_device(Stream& stream, const View& device) const;
  void to_host(Stream& stream, const View& device) const;

 private:
  bool is_one() const { return is_host_accessible(device_.space()); }
  View image_of(const View& device) const;
  View all() const;

  Backend* backend_;
  Buffer device_;
  Buffer image_;  // none where the device's memory is the host's
};

}  // namespace scaletrain
