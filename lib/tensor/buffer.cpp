#include "tensor/buffer.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "base/numbers/checked.h"

namespace scaletrain {

namespace {
constexpr std::size_t huge_page = 2u << 20;
}

Buffer::Buffer(std::size_t bytes)
    : size_(bytes), free_([](std::byte* data, std::size_t size) { ::munmap(data, size); }) {
  if (bytes == 0) return;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (bytes >= huge_page) ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: its failure changes nothing
  data_ = static_cast<std::byte*>(memory);
}

Buffer::Buffer(std::byte* data, std::size_t size, Space space, Free free)
    : data_(data), size_(size), space_(space), free_(std::move(free)) {}

Buffer::~Buffer() {
  if (data_ != nullptr) free_(data_, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      space_(other.space_),
      free_(std::move(other.free_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(space_, other.space_);
  std::swap(free_, other.free_);
  return *this;
}

View Buffer::view(std::size_t offset, DType dtype, Shape shape) const {
  const std::size_t bytes = static_cast<std::size_t>(shape.num_elements()) * size_of(dtype);
  SCALETRAIN_CHECK_EQ(offset % size_of(dtype), 0u);
  SCALETRAIN_CHECK_LE(checked_add(offset, bytes), size_);
  return {data_ + offset, dtype, shape, space_};
}

View RegionAllocator::allocate(DType dtype, Shape shape) {
  const std::size_t bytes = align_up(static_cast<std::size_t>(shape.num_elements()) * size_of(dtype));
  const std::size_t offset = used_;
  used_ = checked_add(used_, bytes);
  SCALETRAIN_CHECK_LE(used_, region_.size);
  return {counts_only() ? nullptr : region_.data + offset, dtype, shape, region_.space};
}

}  // namespace scaletrain
