#include "comm/rendezvous_proof.h"

#include <sodium.h>

#include <string_view>

#include "base/error.h"
#include "comm/rendezvous.h"

namespace scaletrain {
namespace {

void require_sodium() {
  SCALETRAIN_CHECK(sodium_init() >= 0);  // may be called any number of times, from any thread
}

std::string_view role_text(ProverRole role) {
  return role == ProverRole::client ? "scaletrain rendezvous 1, client" : "scaletrain rendezvous 1, server";
}

}  // namespace

std::string make_secret() {
  require_sodium();
  std::array<std::uint8_t, 32> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  std::array<char, 2 * 32 + 1> text{};
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  return text.data();
}

Nonce make_nonce() {
  require_sodium();
  Nonce nonce{};
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Proof make_proof(ProverRole role, const std::string& secret, const Nonce& client, const Nonce& server) {
  require_sodium();
  static_assert(crypto_auth_hmacsha256_BYTES == std::tuple_size_v<Proof>);
  const auto bytes_of = [](const auto& text) { return reinterpret_cast<const unsigned char*>(text.data()); };
  const std::string_view name = role_text(role);
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(secret), secret.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(name), name.size());
  crypto_auth_hmacsha256_update(&state, client.data(), client.size());
  crypto_auth_hmacsha256_update(&state, server.data(), server.size());
  Proof proof{};
  crypto_auth_hmacsha256_final(&state, proof.data());
  return proof;
}

bool same_proof(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace scaletrain
