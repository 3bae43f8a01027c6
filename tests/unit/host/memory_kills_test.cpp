#include "host/memory_kills.h"

#include <doctest/doctest.h>

#include "support/temp_folder.h"

namespace scaletrain {

TEST_CASE("kills for want of memory are counted where the control group tells them") {
  const TempFolder folder;
  const auto machine = folder.write("vmstat", "nr_free_pages 12\noom_kill 7\n");
  std::filesystem::create_directories(folder / "mounts/jobs/a");
  std::filesystem::create_directories(folder / "mounts/memory/jobs/b");

  const auto second = folder.write("second", "0::/jobs/a\n");
  folder.write("mounts/jobs/a/memory.events", "low 0\nhigh 3\nmax 4\noom 2\noom_kill 2\n");
  CHECK(memory_kills(second, folder / "mounts", machine) == 2);

  const auto first = folder.write("first", "4:memory,hugetlb:/jobs/b\n1:cpu:/\n");
  folder.write("mounts/memory/jobs/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  CHECK(memory_kills(first, folder / "mounts", machine) == 3);
}

TEST_CASE("where no group tells, the machine's count stands for it, and without that there is none") {
  const TempFolder folder;
  const auto membership = folder.write("cgroup", "0::/nowhere\nnonsense\n");
  const auto machine = folder.write("vmstat", "nr_free_pages 12\noom_kill 7\n");
  CHECK(memory_kills(membership, folder / "mounts", machine) == 7);
  CHECK(memory_kills(folder / "missing", folder / "mounts", machine) == 7);
  CHECK_FALSE(memory_kills(membership, folder / "mounts", folder / "missing"));
}

}  // namespace scaletrain
