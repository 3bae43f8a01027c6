// Internal to lib/data: how token files store their numbers, and reading them out of a map.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"

namespace scaletrain {

enum class TokenType { u8, i8, i16, u16, i32, u32, i64 };

std::int64_t token_bytes(TokenType type);
// "uint16".
std::string token_type_name(TokenType type);

// Tokens [first, first + out.size()) of an array that starts at byte `begin` of `file` and holds `count` tokens.
void read_mapped_tokens(const MappedFile& file, std::uint64_t begin, std::int64_t count, TokenType type,
                        std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab);

// A little-endian number at a byte offset.
template <class T>
T read_number(const MappedFile& file, std::uint64_t offset) {
  T value{};
  file.read(offset, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// Size and checksum: of all bytes up to 64 MiB, of evenly spaced pieces beyond that.
std::uint64_t sampled_identity(const MappedFile& file);

}  // namespace scaletrain
