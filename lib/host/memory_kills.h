// Whether the kernel has been ending processes for want of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace scaletrain {

// How many processes it has ended so in this process's memory control group (version 1 or 2), or the nearest above it
// that tells, or on this machine; only ever grows. Nothing if none tells. The arguments are for tests.
std::optional<std::int64_t> memory_kills(const std::string& membership = "/proc/self/cgroup",
                                         const std::string& mounts = "/sys/fs/cgroup",
                                         const std::string& machine = "/proc/vmstat");

}  // namespace scaletrain
