// Owned memory of one space, 64-byte aligned, and an arena that hands out planned pieces of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "tensor/view.h"

namespace scaletrain {

inline constexpr std::size_t buffer_alignment = 64;  // one cache line, one AVX-512 register

inline constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = buffer_alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// A piece of a buffer at an address that the plan fixed. Does not own.
struct Region {
  std::byte* data = nullptr;
  std::size_t size = 0;
  Space space = Space::host;
};

// Zero-filled bytes. Move-only. data() is an address in its space: the host reads and writes through the views of
// memory that it can reach.
class Buffer {
 public:
  using Free = std::function<void(std::byte* data, std::size_t size)>;  // must not throw

  Buffer() = default;
  // Of the host. Throws std::bad_alloc with nothing allocated when there is not enough. Large buffers come straight
  // from the kernel (mmap), with huge pages where it grants them: they are touched, and so become resident, only as
  // they are written.
  explicit Buffer(std::size_t bytes);
  // Of any space, from whoever allocated it (a backend): `free` is what gives it back.
  Buffer(std::byte* data, std::size_t size, Space space, Free free);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  Space space() const { return space_; }
  Region region() const { return {data_, size_, space_}; }
  // A view of [offset, offset + bytes of shape); the offset must be aligned to the element size, and the end inside.
  View view(std::size_t offset, DType dtype, Shape shape) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Space space_ = Space::host;
  Free free_;
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
