// The cyclic redundancy check CRC-32C (Castagnoli; RFC 3720, appendix B.4), which TensorBoard's event files carry.
// Finds damage; it is no protection against an adversary.
#pragma once

#include <cstdint>
#include <string_view>

namespace scaletrain {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace scaletrain
