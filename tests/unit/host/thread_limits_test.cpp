#include "host/thread_limits.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>

#include "support/temp_folder.h"

using namespace scaletrain;

namespace {

// While it lives, the processes of this user are limited.
class ProcessLimit {
 public:
  explicit ProcessLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NPROC, &before_);
    const rlimit lower{.rlim_cur = std::min(most, before_.rlim_max), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NPROC, &lower);
  }
  ~ProcessLimit() { ::setrlimit(RLIMIT_NPROC, &before_); }
  ProcessLimit(const ProcessLimit&) = delete;
  ProcessLimit& operator=(const ProcessLimit&) = delete;

 private:
  rlimit before_{};
};

const ThreadLimit* find_limit(const std::vector<ThreadLimit>& limits, const std::string& words) {
  for (const ThreadLimit& limit : limits)
    if (limit.name.find(words) != std::string::npos) return &limit;
  return nullptr;
}

}  // namespace

TEST_CASE("limits are read from the control groups, all levels of both versions, and from the machine") {
  const TempFolder folder;
  folder.write("proc/self/cgroup", "0::/job/step\n7:pids:/old\n");
  folder.write("proc/self/status", "Name:\tx\nUid:\t4242\t4242\t4242\t4242\nThreads:\t3\nCapEff:\t0000000000000000\n");
  folder.write("proc/self/uid_map", "         0          0 4294967295\n");
  folder.write("proc/loadavg", "0.00 0.01 0.05 1/345 6789\n");
  folder.write("proc/sys/kernel/threads-max", "1000\n");
  folder.write("proc/sys/kernel/pid_max", "400\n");
  folder.write("mounts/job/pids.max", "64\n");
  folder.write("mounts/job/pids.current", "60\n");
  folder.write("mounts/job/step/pids.max", "max\n");
  folder.write("mounts/job/step/pids.current", "3\n");
  folder.write("mounts/pids/old/pids.max", "128\n");
  folder.write("mounts/pids/old/pids.current", "5\n");
  CHECK(running_threads(folder / "proc") == 3);
  const auto limits = thread_limits(folder / "proc", folder / "mounts");
  const ThreadLimit* const job = find_limit(limits, "mounts/job");
  REQUIRE(job != nullptr);
  CHECK(job->most == 64);
  CHECK(job->used == 60);
  CHECK(find_limit(limits, "job/step") == nullptr);  // without a limit
  const ThreadLimit* const old = find_limit(limits, "pids/old");
  REQUIRE(old != nullptr);
  CHECK(old->most == 128);
  const ThreadLimit* const machine = find_limit(limits, "pid_max");
  REQUIRE(machine != nullptr);
  CHECK(machine->most == 400);
  CHECK(machine->used == 345);
  CHECK(find_limit(limits, "threads-max") != nullptr);
}

TEST_CASE("a limit of the user counts the threads of all that is the user's, and exempts who the kernel exempts") {
  const TempFolder folder;
  const std::string caps_of_none = "CapEff:\t0000000000000000\n";
  folder.write("proc/self/status", "Uid:\t4242\t4242\t4242\t4242\nThreads:\t3\n" + caps_of_none);
  folder.write("proc/self/uid_map", "         0          0 4294967295\n");
  folder.write("proc/17/status", "Uid:\t4242\t4242\t4242\t4242\nThreads:\t3\n");
  folder.write("proc/18/status", "Uid:\t4242\t0\t0\t0\nThreads:\t40\n");
  folder.write("proc/19/status", "Uid:\t1\t1\t1\t1\nThreads:\t500\n");
  const ProcessLimit limit(2000);
  const auto user = [&] {
    const auto limits = thread_limits(folder / "proc", folder / "mounts");
    const ThreadLimit* const found = find_limit(limits, "RLIMIT_NPROC");
    return found == nullptr ? std::optional<ThreadLimit>() : *found;
  };
  REQUIRE(user().has_value());
  CHECK(user()->most == 2000);
  CHECK(user()->used == 43);
  // CAP_SYS_RESOURCE.
  folder.write("proc/self/status", "Uid:\t4242\t4242\t4242\t4242\nThreads:\t3\nCapEff:\t0000000001000000\n");
  CHECK_FALSE(user().has_value());
  // The machine's root; but not a container's, which is somebody else outside.
  folder.write("proc/self/status", "Uid:\t0\t0\t0\t0\nThreads:\t3\n" + caps_of_none);
  CHECK_FALSE(user().has_value());
  folder.write("proc/self/uid_map", "         0     100000      65536\n");
  CHECK(user().has_value());
}

TEST_CASE("of the limits on threads the one that is used up is named, in words that every process finds alike") {
  const ThreadLimit user{.name = "RLIMIT_NPROC", .remedy = "raise it (ulimit -u)", .most = 50, .used = 57};
  const ThreadLimit group{.name = "pids.max", .remedy = "raise it (--pids-limit)", .most = 100, .used = 98};
  CHECK(met_limit_text({group, user}) == "RLIMIT_NPROC allows 50, and all are in use: raise it (ulimit -u)");
  // Who looks later finds more of them, or a few that have ended meanwhile.
  ThreadLimit later = user;
  later.used = 50;
  CHECK(met_limit_text({group, later}) == met_limit_text({group, user}));
  CHECK(met_limit_text({group}) ==
        "the nearest limit is pids.max, which allows 100, and 98 are in use: raise it (--pids-limit)");
  CHECK(met_limit_text({}).find("ulimit -u") != std::string::npos);
}
