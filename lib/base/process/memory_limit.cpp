#include "base/process/memory_limit.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace scaletrain {
namespace {

// RLIM_INFINITY: none.
rlim_t limit_of(decltype(RLIMIT_AS) resource) noexcept {
  rlimit limit{};
  return ::getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// What starting a thread maps: a stack, and what the heap grows by for what is noted of it.
std::size_t bytes_of_thread() noexcept {
  std::size_t stack = std::size_t{8} << 20;
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) == 0) {
    ::pthread_attr_getstacksize(&attributes, &stack);
    ::pthread_attr_destroy(&attributes);
  }
  constexpr std::size_t heap_growth = std::size_t{2} << 20;
  return stack + heap_growth;
}

// The most address space that this process has had; 0 where that cannot be read.
rlim_t most_mapped() noexcept {
  const int status = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (status < 0) return 0;
  std::array<char, 4096> bytes{};
  const ssize_t count = ::read(status, bytes.data(), bytes.size() - 1);
  ::close(status);
  const std::string_view text(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  constexpr std::string_view name = "VmPeak:";
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return 0;
  return static_cast<rlim_t>(std::strtoull(bytes.data() + at + name.size(), nullptr, 10)) << 10;
}

bool can_map(std::size_t count) noexcept {
  void* const room = ::mmap(nullptr, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return false;
  ::munmap(room, count);
  return true;
}

}  // namespace

bool is_out_of_memory(const std::system_error& error) noexcept {
  if (error.code() != std::errc::resource_unavailable_try_again) return false;
  const std::size_t need = bytes_of_thread();
  const rlim_t limit = limit_of(RLIMIT_AS);
  // Not what is mapped now: another thread may have held for a moment what was missing.
  if (limit != RLIM_INFINITY && most_mapped() + need > limit) return true;
  return !can_map(need);
}

MemoryLimitText::MemoryLimitText() noexcept {
  const rlim_t space = limit_of(RLIMIT_AS);
  const rlim_t data = limit_of(RLIMIT_DATA);
  const rlim_t least = std::min(space, data);
  if (least == RLIM_INFINITY) return;
  const int count =
      std::snprintf(text_.data(), text_.size(),
                    "; ulimit -%c gives each process %llu KiB of %s, which its threads take up too: raise it",
                    space <= data ? 'v' : 'd', static_cast<unsigned long long>(least >> 10),
                    space <= data ? "address space" : "data");
  count_ = std::min(static_cast<std::size_t>(std::max(count, 0)), text_.size() - 1);
}

}  // namespace scaletrain
