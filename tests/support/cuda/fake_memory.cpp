#include "support/cuda/fake_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "support/sanitizers.h"

namespace scaletrain::cuda {

namespace {

constexpr std::size_t page = 4096;
// Of all GPUs together: addresses alone, until somebody writes there.
constexpr std::size_t all_bytes = std::size_t{64} << 30;

std::byte* map(int file, int access) {
  void* const mapped = ::mmap(nullptr, all_bytes, access, MAP_SHARED | MAP_NORESERVE, file, 0);
  SCALETRAIN_CHECK(mapped != MAP_FAILED);
  ::madvise(mapped, all_bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(mapped);
}

}  // namespace

FakeMemory& FakeMemory::of_process() {
  static FakeMemory& all = *new FakeMemory;  // for good: streams may outlive what is static
  return all;
}

FakeMemory::FakeMemory() {
  if (is_sanitized) return;
  const int file = ::memfd_create("memory of GPUs", MFD_CLOEXEC);
  SCALETRAIN_CHECK(file >= 0 && ::ftruncate(file, all_bytes) == 0);
  memory_ = map(file, PROT_NONE);
  values_ = map(file, PROT_READ | PROT_WRITE);
  ::close(file);
}

std::byte* FakeMemory::allocate(std::size_t bytes) {
  if (memory_ == nullptr) return static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  const std::size_t wanted = std::max<std::size_t>(1, (bytes + page - 1) / page) * page;
  const std::lock_guard lock(mutex_);
  std::size_t begin = 0;
  for (const auto& [first, last] : pieces_) {
    if (first - begin >= wanted) break;
    begin = last;
  }
  if (all_bytes - begin < wanted) return nullptr;
  pieces_.emplace(begin, begin + wanted);
  if (running_ > 0) open(true);
  return memory_ + begin;
}

void FakeMemory::free(std::byte* memory) {
  if (memory_ == nullptr) return std::free(memory);
  const std::lock_guard lock(mutex_);
  const auto piece = pieces_.find(static_cast<std::size_t>(memory - memory_));
  SCALETRAIN_CHECK(piece != pieces_.end());
  ::madvise(values_ + piece->first, piece->second - piece->first, MADV_REMOVE);
  pieces_.erase(piece);
}

std::byte* FakeMemory::values_of(std::byte* memory) const {
  return memory_ == nullptr ? memory : values_ + (memory - memory_);
}

void FakeMemory::begin() {
  const std::lock_guard lock(mutex_);
  ++running_;
  if (!pieces_.empty()) open(true);
}
void FakeMemory::end() {
  const std::lock_guard lock(mutex_);
  if (--running_ == 0) open(false);
}
void FakeMemory::open(bool is_open) {
  if (memory_ == nullptr || is_open_ == is_open) return;
  is_open_ = is_open;
  SCALETRAIN_CHECK(::mprotect(memory_, all_bytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
}

}  // namespace scaletrain::cuda
