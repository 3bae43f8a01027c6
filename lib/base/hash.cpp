#include "base/hash.h"

#include <sys/random.h>
#include <xxhash.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"

namespace scaletrain {

struct Hasher::State {
  struct Free {
    void operator()(XXH3_state_t* owned) const { XXH3_freeState(owned); }
  };
  std::unique_ptr<XXH3_state_t, Free> stream{XXH3_createState()};
};

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

Hasher::Hasher() : state_(std::make_unique<State>()) {
  if (!state_->stream) throw std::bad_alloc();
  XXH3_64bits_reset(state_->stream.get());
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(std::span<const std::byte> bytes) {
  SCALETRAIN_CHECK(state_ != nullptr);
  if (!bytes.empty()) XXH3_64bits_update(state_->stream.get(), bytes.data(), bytes.size());
}

std::uint64_t Hasher::digest() const {
  SCALETRAIN_CHECK(state_ != nullptr);
  return XXH3_64bits_digest(state_->stream.get());
}

namespace {
constexpr std::string_view hex_digits = "0123456789abcdef";
}

std::string to_hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = hex_digits[value & 15];
  return text;
}

bool from_hex(std::string_view text, std::uint64_t& value) {
  if (text.size() != 16) return false;
  std::uint64_t sum = 0;
  for (const char c : text) {
    const std::size_t digit = hex_digits.find(c);
    if (digit == std::string_view::npos) return false;
    sum = sum << 4 | digit;
  }
  value = sum;
  return true;
}

std::string to_hex(std::span<const std::uint64_t> values) {
  std::string text;
  text.reserve(values.size() * 16);
  for (const std::uint64_t value : values) text += to_hex(value);
  return text;
}

bool from_hex(std::string_view text, std::vector<std::uint64_t>& values) {
  if (text.size() % 16 != 0) return false;
  std::vector<std::uint64_t> found(text.size() / 16);
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!from_hex(text.substr(i * 16, 16), found[i])) return false;
  values = std::move(found);
  return true;
}

std::string random_id() {
  std::array<std::uint64_t, 2> bits{};
  std::size_t got = 0;
  while (got < sizeof bits) {
    const ssize_t n = ::getrandom(reinterpret_cast<char*>(bits.data()) + got, sizeof bits - got, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw InputError(std::string("the system gives no random numbers (getrandom): ") + std::strerror(errno));
    got += static_cast<std::size_t>(n);
  }
  return to_hex(bits[0]) + to_hex(bits[1]);
}

}  // namespace scaletrain
