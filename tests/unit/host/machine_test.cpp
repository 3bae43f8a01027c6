#include "host/machine.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/temp_folder.h"

namespace scaletrain {

TEST_CASE("the least memory limit of a group and the groups above it counts, in version 2") {
  const TempFolder folder;
  const auto membership = folder.write("cgroup", "0::/jobs/mine\n");
  folder.write("fs/memory.max", "max\n");
  folder.write("fs/jobs/memory.max", "1073741824\n");
  folder.write("fs/jobs/mine/memory.max", "4294967296\n");
  CHECK(control_group_memory(membership, folder / "fs") == 1073741824u);
  folder.write("fs/jobs/mine/memory.max", "536870912\n");
  CHECK(control_group_memory(membership, folder / "fs") == 536870912u);
}

TEST_CASE("a container that sees only its own group at the root is limited by it") {
  const TempFolder folder;
  const auto membership = folder.write("cgroup", "0::/../../pods/17\n");
  folder.write("fs/memory.max", "268435456\n");
  CHECK(control_group_memory(membership, folder / "fs") == 268435456u);
}

TEST_CASE("version 1 limits are read from the controller's own hierarchy; the huge value means none") {
  const TempFolder folder;
  const auto membership = folder.write("cgroup", "5:cpu,cpuacct:/a\n4:memory:/b\n3:pids:/b\n");
  folder.write("fs/memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_FALSE(control_group_memory(membership, folder / "fs"));
  folder.write("fs/memory/b/memory.limit_in_bytes", "2147483648\n");
  CHECK(control_group_memory(membership, folder / "fs") == 2147483648u);
  folder.write("fs/cpu,cpuacct/a/cpu.cfs_quota_us", "150000\n");
  folder.write("fs/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  CHECK(control_group_processors(membership, folder / "fs") == 1.5);
  folder.write("fs/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  CHECK_FALSE(control_group_processors(membership, folder / "fs"));
}

TEST_CASE("the processor quota of version 2 is quota over period; max means none") {
  const TempFolder folder;
  const auto membership = folder.write("cgroup", "0::/g\n");
  folder.write("fs/g/cpu.max", "max 100000\n");
  CHECK_FALSE(control_group_processors(membership, folder / "fs"));
  folder.write("fs/cpu.max", "250000 100000\n");
  CHECK(control_group_processors(membership, folder / "fs") == 2.5);
}

TEST_CASE("this machine has memory, processors and a name") {
  CHECK(available_memory() > (64u << 20));
  CHECK(available_processors() >= 1);
  CHECK_FALSE(host_name().empty());
  CHECK(boot_id().size() == 36);
  CHECK_FALSE(pid_namespace().empty());
}

TEST_CASE("a process has a start time while it lives, and none as a zombie or afterwards") {
  const auto own = process_start_ticks(::getpid());
  REQUIRE(own);
  CHECK(*own > 0);
  CHECK(process_start_ticks(::getpid()) == own);

  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  REQUIRE(child > 0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(process_start_ticks(child));
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK_FALSE(process_start_ticks(child));
}

TEST_CASE("ranks that are more than their processors count a part of one each") {
  CHECK(share_processors(2, 8).threads == 1);
  CHECK(share_processors(2, 8).processors_per_thread == 0.25);
  CHECK(share_processors(2, 2).threads == 1);
  CHECK(share_processors(2, 2).processors_per_thread == 1.0);
  CHECK(share_processors(7, 2).threads == 3);
  CHECK(share_processors(7, 2).processors_per_thread == 1.0);
  CHECK(share_processors(3, 2).threads == 1);
  CHECK(share_processors(1, 1).threads == 1);
}

}  // namespace scaletrain
