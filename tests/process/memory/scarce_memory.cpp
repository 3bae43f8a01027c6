// Preloaded into a program under test (LD_PRELOAD): in the process whose command line contains SCARCE_PROCESS (its
// words with blanks between them), the SCARCE_AT-th call of operator new fails, and SCARCE_COUNT - 1 after it; 0: all
// after it. How many calls there were is written to the file SCARCE_TOTAL when the process ends normally. Nothing here
// asks for memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<long> calls{0};
long first_failure = 0;  // 0: none
long num_failures = 0;
bool is_meant = false;

long number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

__attribute__((constructor)) void begin() {
  const char* const wanted = std::getenv("SCARCE_PROCESS");
  if (wanted == nullptr) return;
  static char words[1 << 14];
  const int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const ssize_t count = ::read(file, words, sizeof words - 1);
  ::close(file);
  if (count <= 0) return;
  std::replace(words, words + count, '\0', ' ');
  is_meant = std::strstr(words, wanted) != nullptr;
  first_failure = number("SCARCE_AT");
  num_failures = number("SCARCE_COUNT");
}

__attribute__((destructor)) void end() {
  const char* const total = std::getenv("SCARCE_TOTAL");
  if (!is_meant || total == nullptr) return;
  char digits[24];
  char* place = digits + sizeof digits;
  for (long rest = calls; rest > 0 || place == digits + sizeof digits; rest /= 10) *--place = char('0' + rest % 10);
  const int file = ::open(total, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  [[maybe_unused]] const ssize_t n = ::write(file, place, static_cast<std::size_t>(digits + sizeof digits - place));
  ::close(file);
}

bool is_refused() {
  if (!is_meant) return false;
  const long call = ++calls;
  return first_failure > 0 && call >= first_failure && (num_failures == 0 || call < first_failure + num_failures);
}

// As the library's own operator new.
[[noreturn]] void refuse() {
  if (const std::new_handler handler = std::get_new_handler()) handler();
  throw std::bad_alloc();
}

void* allocate(std::size_t bytes) {
  if (is_refused()) refuse();
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* allocate_aligned(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (is_refused()) refuse();
  if (::posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes == 0 ? 1 : bytes) != 0)
    throw std::bad_alloc();
  return memory;
}

}  // namespace

#define VISIBLE __attribute__((visibility("default")))

VISIBLE void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
VISIBLE void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
VISIBLE void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_aligned(bytes, static_cast<std::size_t>(alignment));
}
VISIBLE void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_aligned(bytes, static_cast<std::size_t>(alignment));
}
VISIBLE void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return is_refused() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
VISIBLE void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return is_refused() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
VISIBLE void operator delete(void* memory) noexcept {
  std::free(memory);
}
VISIBLE void operator delete[](void* memory) noexcept {
  std::free(memory);
}
VISIBLE void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
VISIBLE void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
VISIBLE void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
VISIBLE void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
VISIBLE void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
VISIBLE void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
