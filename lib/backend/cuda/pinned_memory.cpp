#include "backend/cuda/pinned_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "backend/cuda/cuda_error.h"

namespace scaletrain::cuda {

namespace {

// From this address on, up to the next end of a piece.
std::size_t bytes_of_piece_left(const void* address) {
  return pinned_piece_bytes - reinterpret_cast<std::uintptr_t>(address) % pinned_piece_bytes;
}

// Memory of the process, from a beginning of a piece on.
std::byte* map_pieces(std::size_t bytes) {
  const std::size_t all = bytes + pinned_piece_bytes;
  void* const mapped = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t before = bytes_of_piece_left(begin) % pinned_piece_bytes;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, all - before - bytes);
  ::madvise(begin + before, bytes, MADV_HUGEPAGE);  // a hint: its failure changes nothing
  return begin + before;
}

// pinned: of so many bytes.
void unmap_pieces(int device, std::byte* memory, std::size_t bytes, std::size_t pinned, WorkCount* work) {
  cudaSetDevice(device);
  for (std::size_t begin = 0; begin < pinned; begin += pinned_piece_bytes) {
    cudaHostUnregister(memory + begin);
    count_work(work);
  }
  ::munmap(memory, bytes);
}

Buffer allocate_pieces(int device, std::size_t bytes, WorkCount* work) {
  const std::size_t pages = align_up(bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  std::byte* const memory = map_pieces(pages);
  // New pages are zero.
  for (std::size_t begin = 0; begin < pages; begin += pinned_piece_bytes) {
    const std::size_t piece = std::min(pinned_piece_bytes, pages - begin);
    const cudaError_t error = cudaHostRegister(memory + begin, piece, cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      unmap_pieces(device, memory, pages, begin, work);
      check(error, "an allocation of pinned memory");
    }
    count_work(work);
  }
  return {memory, bytes, Space::pinned,
          [=](std::byte* given, std::size_t) { unmap_pieces(device, given, pages, pages, work); }};
}

}  // namespace

Buffer allocate_pinned(int device, std::size_t bytes, WorkCount* work) {
  use_device(device);
  if (bytes > pinned_piece_bytes) return allocate_pieces(device, bytes, work);
  void* data = nullptr;
  if (bytes > 0) check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "an allocation of pinned memory");
  auto* const memory = static_cast<std::byte*>(data);
  std::fill_n(memory, bytes, std::byte{0});
  return {memory, bytes, Space::pinned, [](std::byte* given, std::size_t) { cudaFreeHost(given); }};
}

void copy(cudaStream_t stream, const ConstView& from, const View& to) {
  const auto* source = static_cast<const std::byte*>(from.data());
  auto* target = static_cast<std::byte*>(to.data());
  for (std::size_t left = to.num_bytes(); left > 0;) {
    std::size_t bytes = left;
    if (from.space() == Space::pinned) bytes = std::min(bytes, bytes_of_piece_left(source));
    if (to.space() == Space::pinned) bytes = std::min(bytes, bytes_of_piece_left(target));
    check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream), "a copy");
    source += bytes;
    target += bytes;
    left -= bytes;
  }
}

}  // namespace scaletrain::cuda
