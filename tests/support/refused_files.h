// Files that are whole and that the system does not let be opened, also not by root, whom no permission keeps out.
#pragma once

#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "support/sanitizers.h"

namespace scaletrain {

// While it lives, opening the file for reading without blocking fails with EAGAIN: a write lease is held on it. For at
// most /proc/sys/fs/lease-break-time, 45 s. False where the file system of the file has no leases, or it is open.
class FileLease {
 public:
  explicit FileLease(const std::filesystem::path& file)
      : handler_(std::signal(SIGIO, SIG_IGN)), fd_(::open(file.c_str(), O_RDWR | O_CLOEXEC)) {
    is_held_ = fd_ >= 0 && ::fcntl(fd_, F_SETLEASE, F_WRLCK) == 0;
  }
  ~FileLease() {
    if (fd_ >= 0) ::close(fd_);
    std::signal(SIGIO, handler_);
  }
  FileLease(const FileLease&) = delete;
  FileLease& operator=(const FileLease&) = delete;
  explicit operator bool() const { return is_held_; }

 private:
  void (*handler_)(int);
  int fd_;
  bool is_held_ = false;
};

// While it lives, what is below the folder cannot be looked at by this thread (EACCES): nobody is let in, and root
// gives up being let in everywhere.
class ClosedFolder {
 public:
  explicit ClosedFolder(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::permissions(folder_, std::filesystem::perms::none);
    constexpr uid_t nobody = 65534;
    before_ = ::setfsuid(nobody);
  }
  ~ClosedFolder() {
    ::setfsuid(static_cast<uid_t>(before_));
    std::error_code ignored;
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all, ignored);
  }
  ClosedFolder(const ClosedFolder&) = delete;
  ClosedFolder& operator=(const ClosedFolder&) = delete;

 private:
  std::filesystem::path folder_;
  int before_ = 0;
};

// The sanitizers' own checks open pipes.
inline constexpr bool descriptors_may_run_out = !is_sanitized;

// While it lives, at most `free` more files can be opened by this process (EMFILE).
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t free) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    // New descriptors take the lowest free numbers, so the limit lies behind the free-th of those.
    const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    rlim_t limit = static_cast<rlim_t>(lowest);
    for (rlim_t left = free; left > 0; ++limit) {
      const int fd = static_cast<int>(limit);
      if (fd == lowest || ::fcntl(fd, F_GETFD) < 0) --left;
    }
    ::close(lowest);
    const rlimit lower{limit, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace scaletrain
