#include "plan/describe/devices.h"

#include <array>
#include <cctype>
#include <string>

namespace scaletrain {

namespace {

constexpr std::uint64_t mib = 1u << 20;
constexpr double tera = 1e12;
// PCIe of 16 lanes, of which generations 3, 4 and 5 carry 15.75, 31.5 and 63 GB/s each way.
constexpr double gen3 = 12.5e9;
constexpr double gen4 = 25e9;
constexpr double gen5 = 50e9;

// Data sheets of NVIDIA, without sparsity.
constexpr std::array<DeviceModel, 13> devices = {{
    {"v100", "V100 SXM2 32 GB", 32'768 * mib, 125 * tera, false, 0, 15.7 * tera, gen3, "Tesla V100-SXM2-32GB", 70},
    {"a100-40gb", "A100 SXM 40 GB", 40'960 * mib, 312 * tera, true, 156 * tera, 19.5 * tera, gen4,
     "NVIDIA A100-SXM4-40GB | NVIDIA A100-PCIE-40GB", 80},
    {"a100", "A100 SXM 80 GB", 81'920 * mib, 312 * tera, true, 156 * tera, 19.5 * tera, gen4,
     "NVIDIA A100-SXM4-80GB | NVIDIA A100 80GB PCIe", 80},
    {"h100", "H100 SXM 80 GB", 81'559 * mib, 989 * tera, true, 494 * tera, 67 * tera, gen5, "NVIDIA H100 80GB HBM3",
     90},
    {"h100-pcie", "H100 PCIe 80 GB", 81'559 * mib, 756 * tera, true, 378 * tera, 51 * tera, gen5, "NVIDIA H100 PCIe",
     90},
    {"h100-nvl", "H100 NVL 94 GB", 95'830 * mib, 835 * tera, true, 417 * tera, 60 * tera, gen5, "NVIDIA H100 NVL", 90},
    {"h200", "H200 SXM 141 GB", 143'771 * mib, 989 * tera, true, 494 * tera, 67 * tera, gen5, "NVIDIA H200", 90},
    {"b200", "B200 180 GB", 183'359 * mib, 2'250 * tera, true, 1'125 * tera, 75 * tera, gen5, "NVIDIA B200", 100},
    {"a10", "A10 24 GB", 23'028 * mib, 125 * tera, true, 62.5 * tera, 31.2 * tera, gen4, "NVIDIA A10", 86},
    {"l4", "L4 24 GB", 23'034 * mib, 121 * tera, true, 60 * tera, 30.3 * tera, gen4, "NVIDIA L4", 89},
    {"l40s", "L40S 48 GB", 46'068 * mib, 362 * tera, true, 183 * tera, 91.6 * tera, gen4, "NVIDIA L40S", 89},
    {"rtx-3090", "RTX 3090 24 GB", 24'576 * mib, 71 * tera, true, 35.6 * tera, 35.6 * tera, gen4,
     "NVIDIA GeForce RTX 3090", 86},
    {"rtx-4090", "RTX 4090 24 GB", 24'564 * mib, 165 * tera, true, 82.6 * tera, 82.6 * tera, gen4,
     "NVIDIA GeForce RTX 4090", 89},
}};

std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::span<const DeviceModel> known_devices() {
  return devices;
}

const DeviceModel* find_device(std::string_view name) {
  const std::string wanted = folded(name);
  for (const DeviceModel& device : devices)
    if (folded(device.name) == wanted) return &device;
  return nullptr;
}

const DeviceModel* find_device_of_driver(std::string_view name) {
  constexpr std::string_view separator = " | ";
  for (const DeviceModel& device : devices) {
    for (std::string_view names = device.driver_names; !names.empty();) {
      const std::size_t end = names.find(separator);
      if (names.substr(0, end) == name) return &device;
      names.remove_prefix(end == std::string_view::npos ? names.size() : end + separator.size());
    }
  }
  return nullptr;
}

std::optional<double> peak_flops(const DeviceModel& device, Precision precision) {
  double peak = 0;
  switch (precision) {
    case Precision::fp32:
      peak = device.single;
      break;
    case Precision::tf32:
      peak = device.tf32;
      break;
    case Precision::bf16:
      peak = device.has_bf16 ? device.half : 0;
      break;
    case Precision::fp16:
      peak = device.half;
      break;
  }
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

Precision precision_instead(const DeviceModel& device) {
  return peak_flops(device, Precision::fp16) ? Precision::fp16 : Precision::fp32;
}

}  // namespace scaletrain
