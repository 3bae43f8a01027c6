// Owned memory, 64-byte aligned, and an arena that hands out planned pieces of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tensor/view.h"

namespace scaletrain {

inline constexpr std::size_t buffer_alignment = 64;  // one cache line, one AVX-512 register

inline constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = buffer_alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Zero-filled bytes of the host. Move-only. Throws std::bad_alloc with nothing allocated when there is not enough.
// Large buffers come straight from the kernel (mmap), with huge pages where it grants them: they are touched, and so
// become resident, only as they are written.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  // A view of [offset, offset + bytes of shape); the offset must be aligned to the element size, and the end inside.
  View view(std::size_t offset, DType dtype, Shape shape) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A piece of a buffer at an address that the plan fixed. Does not own.
struct Region {
  std::byte* data = nullptr;
  std::size_t size = 0;
};

// Hands out aligned views of a region one after the other; asking for more than the region holds is a bug. The same
// class without memory (data == nullptr) only counts: layers size their regions by running the same allocations through
// it.
class RegionAllocator {
 public:
  explicit RegionAllocator(Region region) : region_(region) {}
  static RegionAllocator counting() { return RegionAllocator(Region{nullptr, SIZE_MAX}); }

  View allocate(DType dtype, Shape shape);
  std::size_t used() const { return used_; }
  bool counts_only() const { return region_.data == nullptr; }

 private:
  Region region_;
  std::size_t used_ = 0;
};

}  // namespace scaletrain
