#include "backend/cuda/pinned_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <new>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "base/process/guarded_thread.h"

namespace scaletrain::cuda {

namespace {

// From this address on, up to the next end of a piece.
std::size_t bytes_of_piece_left(const void* address) {
  return pinned_piece_bytes - reinterpret_cast<std::uintptr_t>(address) % pinned_piece_bytes;
}

// Touches new memory, by several threads in ascending order: ahead of who needs it there, and with that one's help.
class Toucher {
 public:
  Toucher(std::byte* memory, std::size_t bytes, int threads)
      : memory_(memory), bytes_(bytes), touched_((bytes + stretch - 1) / stretch) {
    try {
      for (int thread = 1; thread < threads; ++thread)
        helpers_.emplace_back([this] {
          while (touch_next()) continue;
        });
    } catch (const std::exception&) {  // no room for another thread: those that are there do it
    }
  }
  ~Toucher() { next_ = touched_.size(); }
  Toucher(const Toucher&) = delete;
  Toucher& operator=(const Toucher&) = delete;

  // Returns when all before this is there.
  void wait_for(std::size_t bytes) {
    const std::size_t end = (bytes + stretch - 1) / stretch;
    while (next_ < end && touch_next()) continue;
    for (; num_seen_ < end; ++num_seen_) touched_[num_seen_].wait(false);
  }

 private:
  // Milliseconds of one thread.
  static constexpr std::size_t stretch = std::size_t{8} << 20;

  // False: nothing is left.
  bool touch_next() {
    const std::size_t index = next_++;
    if (index >= touched_.size()) return false;
    const std::size_t end = std::min((index + 1) * stretch, bytes_);
    for (std::size_t at = index * stretch; at < end; at += page_) {
      volatile std::byte* const page = memory_ + at;
      *page = std::byte{0};
    }
    touched_[index] = true;
    touched_[index].notify_one();
    return true;
  }

  std::byte* memory_;
  std::size_t bytes_;
  std::size_t page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<std::atomic<bool>> touched_;
  std::size_t num_seen_ = 0;
  std::atomic<std::size_t> next_{0};
  std::vector<GuardedThread> helpers_;  // last: they use the rest
};

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

// New pages are zero.
Buffer allocate_pieces(int device, std::size_t bytes, int threads, WorkCount* work) {
  const std::size_t pages = align_up(bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  std::byte* const memory = map_pieces(pages);
  std::size_t pinned = 0;
  try {
    Toucher toucher(memory, pages, threads);
    for (; pinned < pages; pinned += pinned_piece_bytes) {
      const std::size_t piece = std::min(pinned_piece_bytes, pages - pinned);
      toucher.wait_for(pinned + piece);
      check(cudaHostRegister(memory + pinned, piece, cudaHostRegisterPortable), "an allocation of pinned memory");
      count_work(work);
    }
  } catch (...) {
    unmap_pieces(device, memory, pages, pinned, work);
    throw;
  }
  return {memory, bytes, Space::pinned,
          [=](std::byte* given, std::size_t) { unmap_pieces(device, given, pages, pages, work); }};
}

}  // namespace

Buffer allocate_pinned(int device, std::size_t bytes, int threads, WorkCount* work) {
  use_device(device);
  if (bytes > pinned_piece_bytes) return allocate_pieces(device, bytes, threads, work);
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
