// Preloaded into a program under test (LD_PRELOAD): the wall clock goes wrong by as many seconds as the file says that
// MOVED_CLOCK names, looked up at every call. The clocks that count from the machine's start are left alone, as they
// are when a real clock is set.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>

namespace {

long seconds_off() {
  const char* const path = std::getenv("MOVED_CLOCK");
  if (path == nullptr) return 0;
  const int before = errno;
  char text[32] = {};
  const long file = ::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (file >= 0) {
    ::syscall(SYS_read, file, text, sizeof text - 1);
    ::syscall(SYS_close, file);
  }
  errno = before;
  return std::strtol(text, nullptr, 10);
}

bool is_of_the_wall(int clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

struct Microseconds {
  long seconds;
  long fraction;
};

}  // namespace

// Under names of our own, since the C library's headers declare these with attributes that vary.
#define HOOK(TYPE, NAME, SYMBOL, ...)                                                       \
  extern "C" __attribute__((visibility("default"))) TYPE NAME(__VA_ARGS__) __asm__(SYMBOL); \
  extern "C" TYPE NAME(__VA_ARGS__)

HOOK(int, hook_clock_gettime, "clock_gettime", int clock, timespec* time) {
  const long result = ::syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && is_of_the_wall(clock)) time->tv_sec += seconds_off();
  return static_cast<int>(result);
}
HOOK(long, hook_time, "time", long* out) {
  timespec now{};
  ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  const long seconds = now.tv_sec + seconds_off();
  if (out != nullptr) *out = seconds;
  return seconds;
}
HOOK(int, hook_gettimeofday, "gettimeofday", Microseconds* time, void*) {
  timespec now{};
  ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  if (time != nullptr) *time = {now.tv_sec + seconds_off(), now.tv_nsec / 1000};
  return 0;
}
