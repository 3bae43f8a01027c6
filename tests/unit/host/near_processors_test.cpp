#include "host/near_processors.h"

#include <doctest/doctest.h>

#include <numeric>

#include "support/temp_folder.h"

namespace scaletrain {
namespace {

// What a kernel shows of two nodes of four processors with two threads each, and of a device.
struct Machine {
  void has(const std::string& device, const std::string& node, const std::string& local) const {
    folder.write("bus/pci/devices/" + device + "/numa_node", node);
    folder.write("bus/pci/devices/" + device + "/local_cpulist", local);
  }
  std::optional<NearProcessors> near(const std::string& device, const std::vector<int>& usable) const {
    return processors_near(device, usable, folder.path());
  }

  TempFolder folder;
  std::vector<int> all = [] {
    std::vector<int> processors(16);
    std::iota(processors.begin(), processors.end(), 0);
    return processors;
  }();
};

}  // namespace

TEST_CASE("processors_near_a_device_are_those_of_its_node_that_may_be_used") {
  const Machine machine;
  machine.has("0000:1b:00.0", "1\n", "4-7,12-15\n");
  CHECK(machine.near("0000:1b:00.0", machine.all) == NearProcessors{1, {4, 5, 6, 7, 12, 13, 14, 15}});
  // Somebody has bound this process to a part of both nodes.
  CHECK(machine.near("0000:1b:00.0", {2, 3, 4, 5}) == NearProcessors{1, {4, 5}});
  CHECK(machine.near("0000:1b:00.0", {0, 7}) == NearProcessors{1, {7}});
  machine.has("10000:01:00.0", "0\n", "0,2,5\n");
  CHECK(machine.near("10000:01:00.0", machine.all) == NearProcessors{0, {0, 2, 5}});
}

TEST_CASE("where_no_processors_are_nearer_than_others_nothing_is_chosen") {
  const Machine machine;
  machine.has("0000:1b:00.0", "1\n", "4-7\n");
  CHECK_FALSE(machine.near("0000:1b:00.0", {0, 1, 2, 3}));  // bound to the other node
  CHECK_FALSE(machine.near("0000:1b:00.0", {5, 6}));        // bound to nothing but this one
  CHECK_FALSE(machine.near("0000:1b:00.0", {}));
  machine.has("0000:1c:00.0", "-1\n", "4-7\n");  // the firmware does not say where it hangs
  CHECK_FALSE(machine.near("0000:1c:00.0", machine.all));
  machine.has("0000:1d:00.0", "0\n", "0-15\n");  // one node
  CHECK_FALSE(machine.near("0000:1d:00.0", machine.all));
  machine.has("0000:1e:00.0", "2\n", "\n");  // a node of memory alone
  CHECK_FALSE(machine.near("0000:1e:00.0", machine.all));
}

TEST_CASE("what_cannot_be_read_of_a_device_chooses_nothing") {
  const Machine machine;
  CHECK_FALSE(machine.near("0000:1b:00.0", machine.all));
  for (const char* list : {"4-", "-7", "7-4", "4-7,", "4-7,x", "0x4-7", "4-99999999999", "all"}) {
    CAPTURE(list);
    machine.has("0000:1b:00.0", "1\n", list);
    CHECK_FALSE(machine.near("0000:1b:00.0", machine.all));
  }
  for (const char* node : {"", "one", "1 2"}) {
    CAPTURE(node);
    machine.has("0000:1b:00.0", node, "4-7\n");
    CHECK_FALSE(machine.near("0000:1b:00.0", machine.all));
  }
  machine.has("0000:1b:00.0", "1\n", "4-7\n");
  REQUIRE(machine.near("0000:1b:00.0", machine.all));
  for (const char* address : {"", "0000:1b:00.0/", "../devices/0000:1b:00.0", "..", "0000:1B:00.0"}) {
    CAPTURE(address);
    CHECK_FALSE(machine.near(address, machine.all));
  }
}

TEST_CASE("processors_are_written_as_the_kernel_writes_them") {
  CHECK(processors_text({}).empty());
  CHECK(processors_text({3}) == "3");
  CHECK(processors_text({0, 1}) == "0-1");
  CHECK(processors_text({0, 1, 2, 5, 8, 9}) == "0-2,5,8-9");
}

}  // namespace scaletrain
