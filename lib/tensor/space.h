// Where memory lies, and so who may read and write it.
#pragma once

#include <cstdint>
#include <string_view>

namespace scaletrain {

enum class Space : std::uint8_t {
  host,    // the processor's
  pinned,  // the processor's, in pages that stay where they are: a device copies from and to it beside the host's work
  device,  // a device's own: its kernels and copies reach it, the host never does
};

inline constexpr bool is_host_accessible(Space space) {
  return space != Space::device;
}

std::string_view to_text(Space space);  // "host", "pinned", "device"

}  // namespace scaletrain
