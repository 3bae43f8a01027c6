// Whether the kernel has been ending processes for want of memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace scaletrain {

// How many processes it has ended so in this process's memory control group (version 1 or 2), or where that does not
// tell, on this machine; only ever grows. Nothing if neither tells. The arguments are for tests.
std::optional<std::int64_t> memory_kills(const std::filesystem::path& membership = "/proc/self/cgroup",
                                         const std::filesystem::path& mounts = "/sys/fs/cgroup",
                                         const std::filesystem::path& machine = "/proc/vmstat");

}  // namespace scaletrain
