// A test program's own view of the file system; what is mounted in it goes with the program. Only for root, and not in
// every container: a test that may not says so and is skipped.
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <filesystem>

namespace scaletrain {

inline bool enter_own_mounts() {
  static const bool entered =
      ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return entered;
}

// A file system in memory; options as "size=4m".
inline bool mount_memory(const std::filesystem::path& folder, unsigned long flags, const char* options) {
  return enter_own_mounts() && ::mount("none", folder.c_str(), "tmpfs", flags, options) == 0;
}

}  // namespace scaletrain
