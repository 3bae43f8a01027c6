// Hashing for checksums and identities (XXH3, 64 bits). Finds damage; it is no protection against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0);
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0);

// The hash of a stream of pieces: equal to hash_bytes of their concatenation, whatever the cuts.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 lower-case hexadecimal digits, and back (nothing if the text is anything else).
std::string to_hex(std::uint64_t value);
bool from_hex(std::string_view text, std::uint64_t& value);
// Many, with nothing between them.
std::string to_hex(std::span<const std::uint64_t> values);
bool from_hex(std::string_view text, std::vector<std::uint64_t>& values);

// 128 random bits from the operating system as 32 hexadecimal digits: save ids, lock ids.
std::string random_id();

}  // namespace scaletrain
