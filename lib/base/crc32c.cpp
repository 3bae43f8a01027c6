#include "base/crc32c.h"

#include <array>

namespace scaletrain {

namespace {

// What a byte does to the remainder, lowest bit first.
constexpr std::array<std::uint32_t, 256> make_table() {
  constexpr std::uint32_t reversed_polynomial = 0x82f63b78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? reversed_polynomial : 0);
    table[byte] = rest;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t rest = ~std::uint32_t{0};
  for (const char byte : bytes) rest = kTable[(rest ^ static_cast<unsigned char>(byte)) & 0xff] ^ (rest >> 8);
  return ~rest;
}

}  // namespace scaletrain
