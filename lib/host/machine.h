// What this process may use of the machine it runs on, and who the machine is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

// Bytes of memory that this process and its siblings may fill: the machine's memory or the smallest limit of the
// control groups (version 1 or 2) this process is in, whichever is less.
std::uint64_t available_memory();

// Processors this process may run on: its affinity mask and the control groups' quota (rounded up); at least 1.
int available_processors();

// The affinity mask, ascending; empty where the kernel does not tell.
std::vector<int> affinity_processors();

// One process's share of these processors: neighbours, as even as they divide, each processor in one share. Empty
// (all may run anywhere) where there are fewer processors than shares.
std::vector<int> share_of_processors(const std::vector<int>& processors, std::int64_t share, std::int64_t num_shares);

// What one of several ranks that share processors may use of them.
struct ProcessorShare {
  int threads = 1;                     // of its kernels
  double processors_per_thread = 1.0;  // less than 1 where ranks are more than processors
};
ProcessorShare share_processors(int processors, std::int64_t sharers);

std::string host_name();

// Differs after every start of the machine; empty where the kernel does not tell.
std::string boot_id();

// When a process of this machine was started, in clock ticks since the boot: with the pid, an identity that a reused
// pid does not share. Nothing if there is no such process, or only its remains (a zombie).
std::optional<std::uint64_t> process_start_ticks(std::int64_t pid);

// An identity of the pid namespace this process lives in: pids mean something only within one. Empty if unknown.
std::string pid_namespace();
// The same of the network namespace: 127.0.0.1 leads to those in the same one.
std::string network_namespace();

// Calls visit(folder, is_version_2) for the control group of the process whose `membership` (/proc/self/cgroup) that is
// and for every group above it, of version 2 and of this controller's hierarchy of version 1, below the folder
// `mounts`. Inside a container the path that the kernel tells may be that of the host and not exist there: then only
// the first folders upwards that do have anything in them.
//
// Paths are plain strings here and wherever the machine is asked: that happens while memory runs out, and the path of
// the standard library (GCC 12) does not survive that everywhere.
void for_each_control_group(const std::string& membership, const std::string& mounts, std::string_view controller,
                            const std::function<void(const std::string&, bool)>& visit);

// The smallest limit that the control groups named in `membership` (/proc/self/cgroup) set, below the folder `mounts`
// (/sys/fs/cgroup); nothing if none does. available_memory() is this and /proc/meminfo.
std::optional<std::uint64_t> control_group_memory(const std::string& membership, const std::string& mounts);
// The same for processors: quota divided by period.
std::optional<double> control_group_processors(const std::string& membership, const std::string& mounts);

}  // namespace scaletrain
