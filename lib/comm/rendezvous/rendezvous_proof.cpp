#include "comm/rendezvous/rendezvous_proof.h"

#include <sodium.h>

#include <initializer_list>
#include <string_view>

#include "base/error.h"
#include "comm/rendezvous/rendezvous.h"

namespace scaletrain {
namespace {

void require_sodium() {
  SCALETRAIN_CHECK(sodium_init() >= 0);  // may be called any number of times, from any thread
}

std::string_view role_text(ProverRole role) {
  return role == ProverRole::client ? "scaletrain rendezvous 1, client" : "scaletrain rendezvous 1, server";
}

std::string_view characters(const std::array<std::uint8_t, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string hexadecimal(const std::array<std::uint8_t, 32>& bytes) {
  std::array<char, 2 * 32 + 1> text{};
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  return text.data();
}

// HMAC-SHA-256 over the parts, one behind the other.
Proof authenticate(const std::string& secret, std::initializer_list<std::string_view> parts) {
  require_sodium();
  static_assert(crypto_auth_hmacsha256_BYTES == std::tuple_size_v<Proof>);
  const auto bytes_of = [](std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); };
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(secret), secret.size());
  for (const std::string_view part : parts) crypto_auth_hmacsha256_update(&state, bytes_of(part), part.size());
  Proof proof{};
  crypto_auth_hmacsha256_final(&state, proof.data());
  return proof;
}

}  // namespace

std::string make_secret() {
  return hexadecimal(make_nonce());
}

std::string derived_secret(const std::string& secret, const std::string& salt) {
  // The purpose's own name in front keeps it apart from every proof under the same secret.
  return hexadecimal(authenticate(secret, {"scaletrain secret 1, ", salt}));
}

Nonce make_nonce() {
  require_sodium();
  Nonce nonce{};
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Proof make_proof(ProverRole role, const std::string& secret, const Nonce& client, const Nonce& server) {
  return authenticate(secret, {role_text(role), characters(client), characters(server)});
}

bool same_proof(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace scaletrain
