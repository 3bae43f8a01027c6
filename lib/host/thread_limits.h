// How many threads, which the system counts as processes, and descriptors this process may have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace scaletrain {

// Something that bounds how many threads there may be.
struct ThreadLimit {
  std::string name;    // "RLIMIT_NPROC (ulimit -u) of this user"
  std::string remedy;  // "raise it with ulimit -u, or LimitNPROC= of a systemd unit"
  std::uint64_t most = 0;
  std::uint64_t used = 0;
};

// Those that bind this process: its user's (not where the kernel exempts it), its control groups' (version 1 or 2), the
// machine's. What cannot be read binds nothing. The arguments are for tests.
std::vector<ThreadLimit> thread_limits(const std::string& proc = "/proc", const std::string& mounts = "/sys/fs/cgroup");
// After the system has refused a thread: the limit that is used up, or else the one that is nearest to it, and what to
// do; words that are the same for every process that meets a limit which is used up.
std::string met_limit_text(const std::vector<ThreadLimit>& limits);
// Threads of this process now.
std::int64_t running_threads(const std::string& proc = "/proc");
// Of RLIMIT_NOFILE; nothing where it is unlimited.
std::optional<std::uint64_t> descriptor_limit();

}  // namespace scaletrain
