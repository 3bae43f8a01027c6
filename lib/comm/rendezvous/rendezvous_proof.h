// How two processes prove to each other that they know the job's secret: HMAC-SHA-256 (RFC 2104) under the secret, over
// the prover's role and the nonces of both sides. The roles differ, so an answer sent back to its maker proves nothing;
// the nonces are fresh, so neither does an answer heard before.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace scaletrain {

using Nonce = std::array<std::uint8_t, 32>;
using Proof = std::array<std::uint8_t, 32>;

enum class ProverRole { client, server };

Nonce make_nonce();
Proof make_proof(ProverRole role, const std::string& secret, const Nonce& client, const Nonce& server);
// In time that does not depend on where two proofs differ.
bool same_proof(const Proof& a, const Proof& b);

}  // namespace scaletrain
