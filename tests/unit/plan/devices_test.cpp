#include "plan/describe/devices.h"

#include <doctest/doctest.h>

#include <string_view>

#include "backend/cuda_module.h"
#include "support/near.h"

using namespace scaletrain;

TEST_CASE("known devices have what a verdict needs, and are found however they are written") {
  for (const DeviceModel& device : known_devices()) {
    CAPTURE(device.name);
    CHECK(device.memory > 20ull << 30);
    CHECK(find_device(device.name) == &device);
    // 16 lanes of PCIe: of generation 3 before Ampere, 4 with it and Ada, 5 with Hopper and Blackwell.
    const double lanes = device.sm < 80 ? 15.75e9 : device.sm < 90 ? 31.5e9 : 63e9;
    CHECK(device.host_link == Near(0.8 * lanes).epsilon(0.01));
    CHECK((device.sm >= cuda_oldest_sm) == device.has_bf16);  // both came with Ampere
    CHECK(peak_flops(device, Precision::fp16).value_or(0) >= peak_flops(device, Precision::fp32).value_or(1e99));
  }
  REQUIRE(find_device("H100") != nullptr);
  CHECK(peak_flops(*find_device("H100"), Precision::bf16) == 989e12);
  CHECK(find_device("H100-PCIe") == find_device("h100 pcie"));
  CHECK(find_device("h10") == nullptr);
  CHECK_FALSE(peak_flops(*find_device("v100"), Precision::bf16));
}

TEST_CASE("a device is known by all of the name that its driver gives it") {
  const auto bf16_of = [](std::string_view name) {
    const DeviceModel* const device = find_device_of_driver(name);
    return device == nullptr ? 0.0 : peak_flops(*device, Precision::bf16).value_or(0);
  };
  CHECK(bf16_of("NVIDIA H100 80GB HBM3") == 989e12);
  CHECK(bf16_of("NVIDIA H100 PCIe") == 756e12);
  CHECK(bf16_of("NVIDIA H100 NVL") == 835e12);
  CHECK(bf16_of("NVIDIA H200") == 989e12);
  CHECK(bf16_of("NVIDIA A100-SXM4-40GB") == 312e12);
  CHECK(bf16_of("NVIDIA A100 80GB PCIe") == 312e12);
  CHECK(bf16_of("NVIDIA A10") == 125e12);
  CHECK(bf16_of("NVIDIA GeForce RTX 4090") == 165e12);
  // Others than these, and a part of one.
  for (const char* name : {"", "NVIDIA", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", "the host",
                           "NVIDIA H100 80GB HBM3 MIG 1g.10gb", " | ", "NVIDIA A100-SXM4-80GB | NVIDIA A100 80GB PCIe"})
    CHECK_MESSAGE(find_device_of_driver(name) == nullptr, name);
  for (const DeviceModel& device : known_devices()) CHECK_FALSE(device.driver_names.empty());
}

TEST_CASE("what is advised in place of a precision that a device lacks is one that it has") {
  for (const DeviceModel& device : known_devices()) {
    CAPTURE(device.name);
    CHECK(peak_flops(device, precision_instead(device)));
  }
  CHECK(precision_instead(*find_device("v100")) == Precision::fp16);
  const DeviceModel single{.name = "single", .title = "fp32 alone", .has_bf16 = false, .single = 1e12};
  CHECK(precision_instead(single) == Precision::fp32);
}
