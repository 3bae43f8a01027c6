// Preloaded into a program under test (LD_PRELOAD): reads of another process's memory fail from the n-th on, or that
// one is the last that the process has made, as these variables say. Reads of ranks among each other are the only ones
// that a program makes.
//   READS_PROCESS  only in the process whose main thread has this name ("scaletrain r1"); unset: in every one
//   READS_FROM     the first read that is struck, from 1, counted in each process
//   READS_ERROR    errno, a number, of all reads from there on; 0: the process is killed instead (SIGKILL)
//   READS_MARK     a file that is made when the first one is struck. All reads of a process that finds it there are
//                  struck, as by a system whose rules were changed while others ran
//   READS_ONCE     set: such a process, which was started again, is left alone
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "process/process_name.h"

namespace {

long number_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

bool is_process_meant() {
  const char* const wanted = std::getenv("READS_PROCESS");
  return wanted == nullptr || is_process_named(wanted);
}

bool has_mark() {
  const char* const mark = std::getenv("READS_MARK");
  return mark != nullptr && ::access(mark, F_OK) == 0;
}

// The first read that is struck in this process; 0: none.
long first_struck() {
  if (!is_process_meant()) return 0;
  if (!has_mark()) return number_of("READS_FROM");
  return std::getenv("READS_ONCE") != nullptr ? 0 : 1;
}

void leave_mark() {
  const char* const mark = std::getenv("READS_MARK");
  if (mark == nullptr) return;
  const int file = ::open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0) ::close(file);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t process_vm_readv(pid_t process, const iovec* here,
                                                                           unsigned long num_here, const iovec* there,
                                                                           unsigned long num_there,
                                                                           unsigned long flags) {
  static std::atomic<long> calls{0};
  static const long from = first_struck();
  if (from > 0 && calls.fetch_add(1) + 1 >= from) {
    leave_mark();
    const long error = number_of("READS_ERROR");
    if (error == 0) ::kill(::getpid(), SIGKILL);
    errno = static_cast<int>(error);
    return -1;
  }
  return ::syscall(SYS_process_vm_readv, process, here, num_here, there, num_there, flags);
}
