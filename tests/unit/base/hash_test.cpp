#include "base/hash.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace scaletrain;

namespace {

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 256);
  return bytes;
}

}  // namespace

// The reference implementation's own value for an empty input.
TEST_CASE("the hash is XXH3 with 64 bits") {
  CHECK(hash_text("") == 0x2d06800538d394c2ull);
}

TEST_CASE("text, bytes and seed") {
  const std::string text = "abc";
  CHECK(hash_text(text) == hash_bytes(std::as_bytes(std::span(text.data(), text.size()))));
  CHECK(hash_text(text, 1) != hash_text(text, 2));
  CHECK(hash_text("abc") != hash_text("abd"));
}

TEST_CASE("a stream hashes as its concatenation whatever the cuts") {
  const auto bytes = pattern(100003);
  const std::span<const std::byte> all(bytes);
  const std::uint64_t expected = hash_bytes(all);
  for (const std::size_t piece : {1u, 7u, 64u, 255u, 256u, 257u, 1024u, 65536u, 200000u}) {
    Hasher hasher;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      hasher.update(all.subspan(at, std::min(piece, bytes.size() - at)));
    }
    CHECK(hasher.digest() == expected);
  }
  Hasher early;
  early.update(all.first(500));
  CHECK(early.digest() == hash_bytes(all.first(500)));  // a digest does not end the stream
  early.update(all.subspan(500));
  Hasher moved = std::move(early);
  CHECK(moved.digest() == expected);
  CHECK(Hasher().digest() == hash_bytes({}));
}

TEST_CASE("one changed bit changes the hash") {
  auto bytes = pattern(4096);
  const std::uint64_t before = hash_bytes(bytes);
  for (std::size_t i = 0; i < bytes.size(); i += 97) {
    bytes[i] ^= std::byte{1};
    CHECK(hash_bytes(bytes) != before);
    bytes[i] ^= std::byte{1};
  }
}

TEST_CASE("hexadecimal text goes both ways and nothing else is taken") {
  CHECK(to_hex(0x0123456789abcdefull) == "0123456789abcdef");
  CHECK(to_hex(0) == "0000000000000000");
  std::uint64_t value = 5;
  CHECK(from_hex("fedcba9876543210", value));
  CHECK(value == 0xfedcba9876543210ull);
  for (const char* bad : {"", "0", "fedcba987654321", "fedcba98765432100", "FEDCBA9876543210", "0x23456789abcdef",
                          "fedcba987654321 ", "-edcba9876543210"}) {
    CHECK_FALSE(from_hex(bad, value));
  }
  CHECK(value == 0xfedcba9876543210ull);
}

TEST_CASE("random ids are 32 digits and do not repeat") {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(random_id());
  CHECK(ids.size() == 1000);
  for (const auto& id : ids) {
    std::uint64_t half = 0;
    REQUIRE(id.size() == 32);
    CHECK(from_hex(std::string_view(id).substr(0, 16), half));
    CHECK(from_hex(std::string_view(id).substr(16), half));
  }
}
