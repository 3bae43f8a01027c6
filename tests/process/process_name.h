// Which process a preloaded library is in.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

// Whether the main thread of this process has that name now: a worker gets its own ("scaletrain r1") as it begins.
inline bool is_process_named(const char* wanted) {
  char name[64] = {};
  const int file = ::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t count = ::read(file, name, sizeof name - 1);
  ::close(file);
  if (count > 0 && name[count - 1] == '\n') name[count - 1] = '\0';
  return std::strcmp(name, wanted) == 0;
}
