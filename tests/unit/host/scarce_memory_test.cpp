// The machine is asked while memory runs out. In a program of its own: operator new is replaced here.
#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "host/machine.h"
#include "host/memory_kills.h"
#include "host/thread_limits.h"
#include "support/temp_folder.h"

namespace {

long requests_left = -1;  // that are granted; negative: all

}  // namespace

void* operator new(std::size_t bytes) {
  if (requests_left == 0) throw std::bad_alloc();
  if (requests_left > 0) --requests_left;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace scaletrain {
namespace {

// Refuses every request from the n-th on, for every n until all are granted: the call returns, or throws bad_alloc.
void check_survives(const std::function<void()>& call) {
  long granted = 0;
  for (bool is_enough = false; !is_enough; ++granted) {
    requests_left = granted;
    try {
      call();
    } catch (const std::bad_alloc&) {
      requests_left = 0;
    }
    is_enough = requests_left > 0;
    requests_left = -1;
  }
  CHECK(granted > 10);
}

}  // namespace

TEST_CASE("what limits this machine is asked safely, whichever request for memory is the last that is granted") {
  const TempFolder folder;
  const std::string mounts = (folder / "fs").string();
  const std::string proc = (folder / "proc").string();
  folder.write("proc/self/status", "Uid:\t4242\t4242\t4242\t4242\nThreads:\t3\nCapEff:\t0000000000000000\n");
  folder.write("proc/loadavg", "0.00 0.01 0.05 1/345 6789\n");
  folder.write("proc/sys/kernel/threads-max", "1000\n");
  for (const char* const path :
       {"/", "/../..", "/../../pods/17", "/a/b/../c", "/a/",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-pod1234.slice/cri-1234567890.scope"}) {
    CAPTURE(path);
    const std::string membership =
        folder.write("proc/self/cgroup", std::string("4:memory:") + path + "\n3:pids:/b\n0::" + path + "\n").string();
    check_survives([&] { control_group_memory(membership, mounts); });
    check_survives([&] { control_group_processors(membership, mounts); });
    check_survives([&] { memory_kills(membership, mounts, proc + "/vmstat"); });
    check_survives([&] { thread_limits(proc, mounts); });
  }
}

}  // namespace scaletrain
