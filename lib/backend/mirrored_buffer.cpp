#include "backend/mirrored_buffer.h"

#include "base/numbers/checked.h"

namespace scaletrain {

MirroredBuffer::MirroredBuffer(Backend& backend, std::size_t bytes)
    : backend_(&backend), device_(backend.allocate(bytes)) {
  if (!is_one()) image_ = backend.allocate_pinned(bytes);
}

View MirroredBuffer::host(std::size_t offset, DType dtype, Shape shape) const {
  return is_one() ? device(offset, dtype, shape) : image_.view(offset, dtype, shape);
}

void MirroredBuffer::to_device(Stream& stream) const {
  to_device(stream, all());
}

void MirroredBuffer::to_host(Stream& stream) const {
  to_host(stream, all());
}

void MirroredBuffer::to_device(Stream& stream, const View& device) const {
  if (!is_one()) backend_->copy(stream, image_of(device), device);
}

void MirroredBuffer::to_host(Stream& stream, const View& device) const {
  if (!is_one()) backend_->copy(stream, device, image_of(device));
}

View MirroredBuffer::image_of(const View& device) const {
  const auto offset = static_cast<const std::byte*>(device.data()) - device_.data();
  return image_.view(narrow<std::size_t>(offset), device.dtype(), device.shape());
}

View MirroredBuffer::all() const {
  return device(0, DType::u8, {narrow<std::int64_t>(device_.size())});
}

}  // namespace scaletrain
