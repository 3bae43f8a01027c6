// Preloaded into a program under test (LD_PRELOAD): at the n-th call that concerns a folder's files it fails, writes
// too little, or kills the process, as these variables say.
//   FAULT_FOLDER   absolute and without links; only calls on it and what is below count
//   FAULT_COMMAND  only in a process whose first argument is this ("worker"); unset: in every process
//   FAULT_FROM     counting begins with the first call whose path contains this; unset: at once
//   FAULT_KINDS    "open,read,write,sync,rename,mkdir,unlink,close,truncate,allocate,copy"; unset: all but read
//   FAULT_AT       the first call that is struck, from 1; unset or 0: none
//   FAULT_TIMES    how many in a row are struck; unset: 1
//   FAULT_ACTION   kill-before, kill-after, short, slow (it takes 0.8 s longer), hold (on a save's folder it waits
//                  until a file by that folder's name is in FAULT_RELEASE), hang (it never comes back: the thread is
//                  in a call to that file, for a lock on it), or EIO, ENOSPC, EDQUOT, EINTR, EINVAL, ESTALE, with
//                  "-after" behind the name if the call takes place and its success is denied
//   FAULT_NO_EXCHANGE  set: two names cannot be exchanged here, as on some network file systems
//   FAULT_MARK     a file that is made when a call is struck, so that a test knows that one was
//   FAULT_TRACE    a file that gets a line "NUMBER KIND PATH" for every call that counts
//   FAULT_RANK     only in the process whose command line has "--rank" and this; unset: in every one
//   FAULT_ONCE     set: nothing is struck once the mark is there, so that a process started again is left alone
//   FAULT_JOURNAL  a file that gets every change to the folder with its bytes, in the order of the calls (power_cut.h)
// The real work is done by raw system calls: no look-up of symbols, no allocation and no lock anywhere, so a call may
// come from any thread and before main. A child that was forked and not yet replaced is left alone. What the C library
// calls inside itself (fopen) is not seen.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

enum class Kind : unsigned { open, read, write, sync, rename, mkdir, unlink, close, truncate, allocate, copy };
constexpr const char* kind_names[] = {"open",   "read",  "write",    "sync",     "rename", "mkdir",
                                      "unlink", "close", "truncate", "allocate", "copy"};
constexpr unsigned num_kinds = sizeof kind_names / sizeof kind_names[0];
constexpr unsigned bit_of(Kind kind) {
  return 1u << static_cast<unsigned>(kind);
}

enum class Action { none, kill_before, kill_after, write_short, slow, hold, hang, fail, fail_after };

struct Fault {
  Action action = Action::none;
  int error = 0;
};

// Filled in before main and not changed again.
struct Plan {
  std::atomic<bool> active{false};
  const char* folder = nullptr;  // of the environment at the start
  const char* from = nullptr;
  const char* mark = nullptr;
  const char* release = nullptr;
  bool is_once = false;
  bool no_exchange = false;
  unsigned kinds = 0;
  long at = 0;
  long times = 1;
  Fault fault{};
  int trace = -1;
  int journal = -1;
  long process = 0;
};
Plan plan;
std::atomic<bool> armed{false};
std::atomic<long> calls{0};

// A path, absolute if it could be found.
struct Place {
  char text[2 * PATH_MAX] = {};
};

long link_of(int file, char* out, std::size_t size) {
  char name[40] = "/proc/self/fd/";
  char digits[12];
  std::size_t count = 0;
  for (int rest = file; count == 0 || rest > 0; rest /= 10) digits[count++] = static_cast<char>('0' + rest % 10);
  char* end = name + std::strlen(name);
  while (count > 0) *end++ = digits[--count];
  *end = '\0';
  return ::syscall(SYS_readlinkat, AT_FDCWD, name, out, size);
}

void place_of(int file, Place& place) {
  if (file < 0) return;
  const long length = link_of(file, place.text, PATH_MAX);
  place.text[length < 0 ? 0 : length] = '\0';
}

void place_of(int folder, const char* path, Place& place) {
  if (path == nullptr) return;
  if (path[0] != '/') {
    if (folder == AT_FDCWD) {
      if (::syscall(SYS_getcwd, place.text, static_cast<unsigned long>(PATH_MAX)) < 0) place.text[0] = '\0';
    } else {
      place_of(folder, place);
    }
    const std::size_t length = std::strlen(place.text);
    place.text[length] = '/';
    place.text[length + 1] = '\0';
  }
  std::strncat(place.text, path, PATH_MAX - 1);
}

bool is_inside(const Place& place) {
  const std::size_t length = std::strlen(plan.folder);
  return std::strncmp(place.text, plan.folder, length) == 0 &&
         (place.text[length] == '/' || place.text[length] == '\0');
}

void write_trace(long number, Kind kind, const Place& place) {
  char line[2 * PATH_MAX + 64] = {};
  char digits[24];
  std::size_t count = 0;
  for (long rest = number; rest > 0; rest /= 10) digits[count++] = static_cast<char>('0' + rest % 10);
  char* end = line;
  while (count > 0) *end++ = digits[--count];
  *end++ = ' ';
  std::strcat(end, kind_names[static_cast<unsigned>(kind)]);
  std::strcat(end, " ");
  std::strcat(end, place.text);
  std::strcat(end, "\n");
  ::syscall(SYS_write, plan.trace, line, std::strlen(line));
}

Fault fault_at(Kind kind, const Place& place) {
  if (!is_inside(place) || ::syscall(SYS_getpid) != plan.process) return {};
  if (!armed.load()) {
    if (plan.from != nullptr && std::strstr(place.text, plan.from) == nullptr) return {};
    armed.store(true);
  }
  if ((plan.kinds & bit_of(kind)) == 0) return {};
  const long number = ++calls;
  if (plan.trace >= 0) write_trace(number, kind, place);
  const bool struck = plan.at > 0 && number >= plan.at && number - plan.at < plan.times;
  if (!struck) return {};
  if (plan.is_once && plan.mark != nullptr && ::syscall(SYS_faccessat, AT_FDCWD, plan.mark, F_OK) == 0) return {};
  if (plan.mark != nullptr) {
    const long file = ::syscall(SYS_openat, AT_FDCWD, plan.mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) ::syscall(SYS_close, file);
  }
  return plan.fault;
}

[[noreturn]] void die() {
  for (;;) ::syscall(SYS_kill, plan.process, SIGKILL);
}

[[noreturn]] void hang(const Place& place) {
  const long holder = ::syscall(SYS_openat, AT_FDCWD, place.text, O_RDONLY | O_CLOEXEC, 0);
  const long waiter = ::syscall(SYS_openat, AT_FDCWD, place.text, O_RDONLY | O_CLOEXEC, 0);
  ::syscall(SYS_flock, holder, LOCK_EX);
  for (;;) {
    ::syscall(SYS_flock, waiter, LOCK_EX);
    // What cannot be opened cannot be locked.
    const timespec delay{3600, 0};
    ::syscall(SYS_nanosleep, &delay, nullptr);
  }
}

void hold(const Place& place) {
  const char* const name = std::strstr(place.text, "/.saving-");
  if (name == nullptr || plan.release == nullptr) return;
  Place release;
  std::strncat(release.text, plan.release, PATH_MAX - 1);
  std::strncat(release.text, name, 1 + std::strcspn(name + 1, "/"));
  const timespec pause{0, 10'000'000};
  while (::syscall(SYS_faccessat, AT_FDCWD, release.text, F_OK) != 0) ::syscall(SYS_nanosleep, &pause, nullptr);
}

// `find` fills in the place; `call` does the work, told whether it shall write too little.
template <class Find, class Call>
long perform(Kind kind, Find find, Call call) {
  if (!plan.active.load(std::memory_order_acquire)) return call(false);
  const int before = errno;
  Place place;
  find(place);
  const Fault fault = fault_at(kind, place);
  errno = before;
  if (fault.action == Action::none) return call(false);
  if (fault.action == Action::kill_before) die();
  if (fault.action == Action::hang) hang(place);
  if (fault.action == Action::slow || fault.action == Action::hold) {
    const timespec delay{0, 800'000'000};
    if (fault.action == Action::slow) ::syscall(SYS_nanosleep, &delay, nullptr);
    if (fault.action == Action::hold) hold(place);
    errno = before;
    return call(false);
  }
  // A file is closed whatever close says.
  if (fault.action == Action::fail && kind != Kind::close) {
    errno = fault.error;
    return -1;
  }
  const long result = call(fault.action == Action::write_short);
  if (fault.action == Action::kill_after) die();
  if (fault.action == Action::write_short) return result;
  if (kind == Kind::open && result >= 0) ::syscall(SYS_close, result);
  errno = fault.error;
  return -1;
}

auto at_file(int file) {
  return [file](Place& place) { place_of(file, place); };
}
auto at_path(int folder, const char* path) {
  return [=](Place& place) { place_of(folder, path, place); };
}

// A change that took place. `data` is what was written, or the other name.
struct Change {
  char kind = '?';
  long number = 0;
  const void* data = nullptr;
  std::size_t size = 0;
};

template <class Find>
void keep_record(Find find, const Change& change) {
  if (plan.journal < 0 || !plan.active.load(std::memory_order_acquire)) return;
  const int before = errno;
  Place place;
  find(place);
  if (is_inside(place) && ::syscall(SYS_getpid) == plan.process) {
    // Kind, number, length of the path, length of the data; then both. One call, so that threads do not mix.
    char head[25] = {change.kind};
    const auto length = static_cast<long>(std::strlen(place.text));
    const auto size = static_cast<long>(change.size);
    std::memcpy(head + 1, &change.number, 8);
    std::memcpy(head + 9, &length, 8);
    std::memcpy(head + 17, &size, 8);
    const iovec parts[] = {{head, sizeof head},
                           {place.text, static_cast<std::size_t>(length)},
                           {const_cast<void*>(change.data), change.size}};
    ::syscall(SYS_writev, plan.journal, parts, 3);
  }
  errno = before;
}

long open_at(int folder, const char* path, int flags, unsigned mode) {
  const long result = perform(Kind::open, at_path(folder, path),
                              [=](bool) { return ::syscall(SYS_openat, folder, path, flags, mode); });
  if (result >= 0 && (flags & (O_CREAT | O_TRUNC)) != 0)
    keep_record(at_path(folder, path), {.kind = 'o', .number = (flags & O_TRUNC) != 0 ? 1 : 0});
  return result;
}
long rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const long result = perform(Kind::rename, at_path(from_folder, from), [=](bool) -> long {
    if (flags != 0 && plan.no_exchange) {
      errno = EINVAL;
      return -1;
    }
    return ::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  });
  if (result == 0) {
    Place target;
    place_of(to_folder, to, target);
    keep_record(
        at_path(from_folder, from),
        {.kind = 'r', .number = static_cast<long>(flags), .data = target.text, .size = std::strlen(target.text)});
  }
  return result;
}
long unlink_at(int folder, const char* path, int flags) {
  const long result =
      perform(Kind::unlink, at_path(folder, path), [=](bool) { return ::syscall(SYS_unlinkat, folder, path, flags); });
  if (result == 0) keep_record(at_path(folder, path), {.kind = 'u'});
  return result;
}
long mkdir_at(int folder, const char* path, unsigned mode) {
  const long result =
      perform(Kind::mkdir, at_path(folder, path), [=](bool) { return ::syscall(SYS_mkdirat, folder, path, mode); });
  if (result == 0) keep_record(at_path(folder, path), {.kind = 'm'});
  return result;
}
std::size_t size_to_write(std::size_t size, bool is_short) {
  return is_short && size > 1 ? size / 2 : size;
}
long write_to(int file, const void* data, std::size_t size) {
  const long result = perform(Kind::write, at_file(file), [=](bool is_short) {
    return ::syscall(SYS_write, file, data, size_to_write(size, is_short));
  });
  if (result > 0 && plan.journal >= 0) {
    const int before = errno;
    const long end = ::syscall(SYS_lseek, file, 0L, SEEK_CUR);
    errno = before;
    keep_record(at_file(file),
                {.kind = 'w', .number = end - result, .data = data, .size = static_cast<std::size_t>(result)});
  }
  return result;
}
long write_to_at(int file, const void* data, std::size_t size, long offset) {
  const long result = perform(Kind::write, at_file(file), [=](bool is_short) {
    return ::syscall(SYS_pwrite64, file, data, size_to_write(size, is_short), offset);
  });
  if (result > 0)
    keep_record(at_file(file), {.kind = 'w', .number = offset, .data = data, .size = static_cast<std::size_t>(result)});
  return result;
}
long sync_file(int file, long number) {
  const long result = perform(Kind::sync, at_file(file), [=](bool) { return ::syscall(number, file); });
  if (result == 0) keep_record(at_file(file), {.kind = 's'});
  return result;
}
long allocate(int file, int mode, long offset, long size) {
  const long result =
      perform(Kind::allocate, at_file(file), [=](bool) { return ::syscall(SYS_fallocate, file, mode, offset, size); });
  if (result == 0) keep_record(at_file(file), {.kind = 'x'});
  return result;
}
long truncate_file(int file, long size) {
  const long result =
      perform(Kind::truncate, at_file(file), [=](bool) { return ::syscall(SYS_ftruncate, file, size); });
  if (result == 0) keep_record(at_file(file), {.kind = 't', .number = size});
  return result;
}

struct ActionName {
  const char* name;
  Fault fault;
};
constexpr ActionName actions[] = {
    {"kill-before", {Action::kill_before, 0}},
    {"kill-after", {Action::kill_after, 0}},
    {"short", {Action::write_short, 0}},
    {"slow", {Action::slow, 0}},
    {"hold", {Action::hold, 0}},
    {"hang", {Action::hang, 0}},
    {"EIO", {Action::fail, EIO}},
    {"ENOSPC", {Action::fail, ENOSPC}},
    {"EDQUOT", {Action::fail, EDQUOT}},
    {"EINTR", {Action::fail, EINTR}},
    {"EINVAL", {Action::fail, EINVAL}},
    {"ESTALE", {Action::fail, ESTALE}},
    {"EIO-after", {Action::fail_after, EIO}},
    {"ESTALE-after", {Action::fail_after, ESTALE}},
};

// A test that misspells something must not pass because nothing happened.
[[noreturn]] void refuse(const char* text) {
  ::syscall(SYS_write, STDERR_FILENO, "storage_faults: not understood: ", 32ul);
  ::syscall(SYS_write, STDERR_FILENO, text, std::strlen(text));
  ::syscall(SYS_exit_group, 120);
  for (;;) {
  }
}

Fault parse_action(const char* text) {
  for (const ActionName& action : actions) {
    if (std::strcmp(action.name, text) == 0) return action.fault;
  }
  refuse(text);
}

unsigned parse_kinds(const char* text) {
  if (text == nullptr) return ((1u << num_kinds) - 1) & ~bit_of(Kind::read);
  unsigned kinds = 0;
  while (*text != '\0') {
    const std::size_t length = std::strcspn(text, ",");
    unsigned kind = 0;
    while (kind < num_kinds &&
           (std::strlen(kind_names[kind]) != length || std::strncmp(kind_names[kind], text, length) != 0))
      ++kind;
    if (kind == num_kinds) refuse(text);
    kinds |= 1u << kind;
    text += length;
    if (*text == ',') ++text;
  }
  return kinds;
}

bool is_wanted_process() {
  const char* const command = std::getenv("FAULT_COMMAND");
  if (command == nullptr) return true;
  char line[4096] = {};
  const long file = ::syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
  if (file < 0) return false;
  ::syscall(SYS_read, file, line, sizeof line - 1);
  ::syscall(SYS_close, file);
  if (std::strcmp(line + std::strlen(line) + 1, command) != 0) return false;
  const char* const rank = std::getenv("FAULT_RANK");
  if (rank == nullptr) return true;
  for (const char* word = line; *word != '\0'; word += std::strlen(word) + 1) {
    if (std::strcmp(word, "--rank") == 0) return std::strcmp(word + sizeof "--rank", rank) == 0;
  }
  return false;
}

// Far from the numbers that the program's own files get.
int open_for_notes(const char* path) {
  constexpr int high = 900;
  const long file = ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) refuse(path);
  const long moved = ::syscall(SYS_fcntl, file, F_DUPFD_CLOEXEC, high);
  ::syscall(SYS_close, file);
  return static_cast<int>(moved);
}

__attribute__((constructor)) void begin() {
  plan.folder = std::getenv("FAULT_FOLDER");
  if (plan.folder == nullptr || !is_wanted_process()) return;
  plan.from = std::getenv("FAULT_FROM");
  plan.mark = std::getenv("FAULT_MARK");
  plan.release = std::getenv("FAULT_RELEASE");
  plan.is_once = std::getenv("FAULT_ONCE") != nullptr;
  plan.no_exchange = std::getenv("FAULT_NO_EXCHANGE") != nullptr;
  plan.kinds = parse_kinds(std::getenv("FAULT_KINDS"));
  if (const char* at = std::getenv("FAULT_AT")) plan.at = std::atol(at);
  if (const char* times = std::getenv("FAULT_TIMES")) plan.times = std::atol(times);
  if (const char* action = std::getenv("FAULT_ACTION")) plan.fault = parse_action(action);
  if (const char* trace = std::getenv("FAULT_TRACE")) plan.trace = open_for_notes(trace);
  if (const char* journal = std::getenv("FAULT_JOURNAL")) plan.journal = open_for_notes(journal);
  plan.process = ::syscall(SYS_getpid);
  plan.active.store(true, std::memory_order_release);
}

}  // namespace

// The C library's functions under names of our own, since its headers declare them with attributes that vary.
#define HOOK(TYPE, NAME, SYMBOL, ...)                                                       \
  extern "C" __attribute__((visibility("default"))) TYPE NAME(__VA_ARGS__) __asm__(SYMBOL); \
  extern "C" TYPE NAME(__VA_ARGS__)

// A mode that was not passed is a number that the kernel does not look at.
HOOK(int, hook_open, "open", const char* path, int flags, unsigned mode) {
  return static_cast<int>(open_at(AT_FDCWD, path, flags, mode));
}
HOOK(int, hook_open64, "open64", const char* path, int flags, unsigned mode) {
  return static_cast<int>(open_at(AT_FDCWD, path, flags, mode));
}
HOOK(int, hook_openat, "openat", int folder, const char* path, int flags, unsigned mode) {
  return static_cast<int>(open_at(folder, path, flags, mode));
}
HOOK(int, hook_openat64, "openat64", int folder, const char* path, int flags, unsigned mode) {
  return static_cast<int>(open_at(folder, path, flags, mode));
}
// What a fortified build calls where no mode is passed.
HOOK(int, hook_open_2, "__open_2", const char* path, int flags) {
  return static_cast<int>(open_at(AT_FDCWD, path, flags, 0));
}
HOOK(int, hook_open64_2, "__open64_2", const char* path, int flags) {
  return static_cast<int>(open_at(AT_FDCWD, path, flags, 0));
}
HOOK(int, hook_openat_2, "__openat_2", int folder, const char* path, int flags) {
  return static_cast<int>(open_at(folder, path, flags, 0));
}
HOOK(int, hook_openat64_2, "__openat64_2", int folder, const char* path, int flags) {
  return static_cast<int>(open_at(folder, path, flags, 0));
}
HOOK(int, hook_creat, "creat", const char* path, unsigned mode) {
  return static_cast<int>(open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode));
}
HOOK(int, hook_creat64, "creat64", const char* path, unsigned mode) {
  return static_cast<int>(open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode));
}

HOOK(ssize_t, hook_read, "read", int file, void* data, std::size_t size) {
  return perform(Kind::read, at_file(file), [=](bool) { return ::syscall(SYS_read, file, data, size); });
}
HOOK(ssize_t, hook_pread, "pread", int file, void* data, std::size_t size, long offset) {
  return perform(Kind::read, at_file(file), [=](bool) { return ::syscall(SYS_pread64, file, data, size, offset); });
}
HOOK(ssize_t, hook_pread64, "pread64", int file, void* data, std::size_t size, long offset) {
  return perform(Kind::read, at_file(file), [=](bool) { return ::syscall(SYS_pread64, file, data, size, offset); });
}

HOOK(ssize_t, hook_write, "write", int file, const void* data, std::size_t size) {
  return write_to(file, data, size);
}
HOOK(ssize_t, hook_pwrite, "pwrite", int file, const void* data, std::size_t size, long offset) {
  return write_to_at(file, data, size, offset);
}
HOOK(ssize_t, hook_pwrite64, "pwrite64", int file, const void* data, std::size_t size, long offset) {
  return write_to_at(file, data, size, offset);
}
HOOK(ssize_t, hook_writev, "writev", int file, const iovec* parts, int count) {
  keep_record(at_file(file), {.kind = 'x'});
  return perform(Kind::write, at_file(file), [=](bool is_short) {
    return ::syscall(SYS_writev, file, parts, is_short && count > 1 ? count / 2 : count);
  });
}

HOOK(int, hook_fsync, "fsync", int file) {
  return static_cast<int>(sync_file(file, SYS_fsync));
}
HOOK(int, hook_fdatasync, "fdatasync", int file) {
  return static_cast<int>(sync_file(file, SYS_fdatasync));
}
HOOK(int, hook_close, "close", int file) {
  return static_cast<int>(perform(Kind::close, at_file(file), [=](bool) { return ::syscall(SYS_close, file); }));
}

HOOK(int, hook_rename, "rename", const char* from, const char* to) {
  return static_cast<int>(rename_at(AT_FDCWD, from, AT_FDCWD, to, 0));
}
HOOK(int, hook_renameat, "renameat", int from_folder, const char* from, int to_folder, const char* to) {
  return static_cast<int>(rename_at(from_folder, from, to_folder, to, 0));
}
HOOK(int, hook_renameat2, "renameat2", int from_folder, const char* from, int to_folder, const char* to,
     unsigned flags) {
  return static_cast<int>(rename_at(from_folder, from, to_folder, to, flags));
}

HOOK(int, hook_mkdir, "mkdir", const char* path, unsigned mode) {
  return static_cast<int>(mkdir_at(AT_FDCWD, path, mode));
}
HOOK(int, hook_mkdirat, "mkdirat", int folder, const char* path, unsigned mode) {
  return static_cast<int>(mkdir_at(folder, path, mode));
}

HOOK(int, hook_unlink, "unlink", const char* path) {
  return static_cast<int>(unlink_at(AT_FDCWD, path, 0));
}
HOOK(int, hook_unlinkat, "unlinkat", int folder, const char* path, int flags) {
  return static_cast<int>(unlink_at(folder, path, flags));
}
HOOK(int, hook_rmdir, "rmdir", const char* path) {
  return static_cast<int>(unlink_at(AT_FDCWD, path, AT_REMOVEDIR));
}
HOOK(int, hook_remove, "remove", const char* path) {
  const long result = perform(Kind::unlink, at_path(AT_FDCWD, path), [=](bool) {
    const long first = ::syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    return first < 0 && errno == EISDIR ? ::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR) : first;
  });
  if (result == 0) keep_record(at_path(AT_FDCWD, path), {.kind = 'u'});
  return static_cast<int>(result);
}

HOOK(int, hook_truncate, "truncate", const char* path, long size) {
  const long result =
      perform(Kind::truncate, at_path(AT_FDCWD, path), [=](bool) { return ::syscall(SYS_truncate, path, size); });
  if (result == 0) keep_record(at_path(AT_FDCWD, path), {.kind = 't', .number = size});
  return static_cast<int>(result);
}
HOOK(int, hook_ftruncate, "ftruncate", int file, long size) {
  return static_cast<int>(truncate_file(file, size));
}
HOOK(int, hook_ftruncate64, "ftruncate64", int file, long size) {
  return static_cast<int>(truncate_file(file, size));
}
HOOK(int, hook_fallocate, "fallocate", int file, int mode, long offset, long size) {
  return static_cast<int>(allocate(file, mode, offset, size));
}
HOOK(int, hook_fallocate64, "fallocate64", int file, int mode, long offset, long size) {
  return static_cast<int>(allocate(file, mode, offset, size));
}
// Says what is wrong by its result, not by errno.
HOOK(int, hook_posix_fallocate, "posix_fallocate", int file, long offset, long size) {
  const int before = errno;
  const int error = allocate(file, 0, offset, size) == 0 ? 0 : errno;
  errno = before;
  return error;
}
HOOK(ssize_t, hook_copy_file_range, "copy_file_range", int from, long* from_offset, int to, long* to_offset,
     std::size_t size, unsigned flags) {
  keep_record(at_file(to), {.kind = 'x'});
  return perform(Kind::copy, at_file(to), [=](bool is_short) {
    return ::syscall(SYS_copy_file_range, from, from_offset, to, to_offset, size_to_write(size, is_short), flags);
  });
}
