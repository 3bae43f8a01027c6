// What is known of common devices: their memory, how fast they multiply matrices and exchange with their host.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "config/config.h"

namespace scaletrain {

struct DeviceModel {
  std::string_view name;     // as --device takes it: "h100"
  std::string_view title;    // "H100 SXM 80 GB"
  std::uint64_t memory = 0;  // bytes, as the driver reports them
  // FLOP/s of dense matrix products by the maker's data sheet; 0: not in hardware.
  double half = 0;  // fp16, and bf16 where there is bf16
  bool has_bf16 = true;
  double tf32 = 0;
  double single = 0;  // fp32
  // Bytes/s each way, both at once, between pinned memory of the host and the device's: assumed to be four fifths of
  // what its link carries, as large copies reach it, and the host's memory to be fast enough for all devices.
  double host_link = 0;
  // What the driver calls such devices, apart by " | ".
  std::string_view driver_names{};
  int sm = 0;  // its compute capability: 90 is 9.0 (cuda_oldest_sm)
};

std::span<const DeviceModel> known_devices();
// Case, and what is neither letter nor digit, does not count; null: not known.
const DeviceModel* find_device(std::string_view name);
// By the name that the driver gives it ("NVIDIA H100 80GB HBM3"); null: not known. A part of a device (MIG) is none.
const DeviceModel* find_device_of_driver(std::string_view name);
// Nothing where the device has no units for it.
std::optional<double> peak_flops(const DeviceModel& device, Precision precision);
// What to compute in where the device has no units for the precision that is asked for: fp16, else fp32.
Precision precision_instead(const DeviceModel& device);

}  // namespace scaletrain
