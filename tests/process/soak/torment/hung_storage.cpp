// Preloaded into a program under test (LD_PRELOAD): as long as the file exists that HUNG_STORAGE names, the process
// whose id is in it gets no answer from the folder HUNG_FOLDER (absolute, without links): what it writes, syncs or
// renames there takes until the file is gone. HUNG_STORAGE with ".met" behind it is made by the first call that had to
// wait. The work is done by raw system calls, so that a call may come from any thread and before main.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

constexpr long poll_nanoseconds = 10'000'000;

bool is_told_to_wait(const char* control) {
  char text[32] = {};
  const long file = ::syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC, 0);
  if (file < 0) return false;
  ::syscall(SYS_read, file, text, sizeof text - 1);
  ::syscall(SYS_close, file);
  return std::strtol(text, nullptr, 10) == ::syscall(SYS_getpid);
}

bool is_inside(const char* path) {
  const char* const folder = std::getenv("HUNG_FOLDER");
  return folder != nullptr && std::strncmp(path, folder, std::strlen(folder)) == 0;
}

void wait_for_storage(const char* path) {
  const char* const control = std::getenv("HUNG_STORAGE");
  if (control == nullptr || !is_inside(path) || !is_told_to_wait(control)) return;
  char met[PATH_MAX] = {};
  std::strncat(met, control, PATH_MAX - 5);
  std::strcat(met, ".met");
  const long mark = ::syscall(SYS_openat, AT_FDCWD, met, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (mark >= 0) ::syscall(SYS_close, mark);
  while (is_told_to_wait(control)) {
    const timespec pause{0, poll_nanoseconds};
    ::syscall(SYS_nanosleep, &pause, nullptr);
  }
}

void wait_for_storage(int file) {
  // Most writes are to sockets and pipes, and most of the time nothing hangs.
  const char* const control = std::getenv("HUNG_STORAGE");
  if (control == nullptr || ::syscall(SYS_faccessat, AT_FDCWD, control, F_OK) != 0) return;
  char name[40] = "/proc/self/fd/";
  char digits[12];
  std::size_t count = 0;
  for (int rest = file; rest > 0 || count == 0; rest /= 10) digits[count++] = static_cast<char>('0' + rest % 10);
  char* end = name + std::strlen(name);
  while (count > 0) *end++ = digits[--count];
  *end = '\0';
  char path[PATH_MAX] = {};
  if (::syscall(SYS_readlinkat, AT_FDCWD, name, path, sizeof path - 1) > 0) wait_for_storage(path);
}

}  // namespace

// Under names of our own, since the C library's headers declare these with attributes that vary.
#define HOOK(TYPE, NAME, SYMBOL, ...)                                                       \
  extern "C" __attribute__((visibility("default"))) TYPE NAME(__VA_ARGS__) __asm__(SYMBOL); \
  extern "C" TYPE NAME(__VA_ARGS__)

HOOK(long, hook_write, "write", int file, const void* bytes, std::size_t count) {
  wait_for_storage(file);
  return ::syscall(SYS_write, file, bytes, count);
}
HOOK(long, hook_writev, "writev", int file, const iovec* parts, int count) {
  wait_for_storage(file);
  return ::syscall(SYS_writev, file, parts, count);
}
HOOK(long, hook_pwrite, "pwrite", int file, const void* bytes, std::size_t count, long offset) {
  wait_for_storage(file);
  return ::syscall(SYS_pwrite64, file, bytes, count, offset);
}
HOOK(long, hook_pwrite64, "pwrite64", int file, const void* bytes, std::size_t count, long offset) {
  wait_for_storage(file);
  return ::syscall(SYS_pwrite64, file, bytes, count, offset);
}
HOOK(int, hook_fsync, "fsync", int file) {
  wait_for_storage(file);
  return static_cast<int>(::syscall(SYS_fsync, file));
}
HOOK(int, hook_fdatasync, "fdatasync", int file) {
  wait_for_storage(file);
  return static_cast<int>(::syscall(SYS_fdatasync, file));
}
HOOK(int, hook_rename, "rename", const char* from, const char* to) {
  wait_for_storage(to);
  return static_cast<int>(::syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}
