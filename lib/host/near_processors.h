// Which processors are near a device on the PCI bus: those of the NUMA node that it hangs on. Their memory is the one
// that the device reaches without a second processor's help, and threads there reach both.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace scaletrain {

struct NearProcessors {
  int node = 0;                   // the kernel's number of it
  std::vector<int> processors{};  // ascending

  bool operator==(const NearProcessors&) const = default;
};

// Those near the device of this address ("0000:1b:00.0") among the ones that may be used (ascending), which are never
// added to. Nothing where that leaves all of them or none, where the kernel knows no node of the device (one node, a
// virtual machine) or does not tell, and of an address that is none. sys: where the kernel shows its devices.
std::optional<NearProcessors> processors_near(const std::string& bus_address, const std::vector<int>& usable,
                                              const std::string& sys = "/sys");

// "0-3,8" of ascending numbers, as the kernel writes them.
std::string processors_text(const std::vector<int>& processors);

}  // namespace scaletrain
