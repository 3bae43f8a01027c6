#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "comm/rendezvous/memory_store.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/rendezvous_frame.h"

using namespace scaletrain;

namespace {

std::vector<StoreRequest> sample_requests() {
  using Kind = StoreRequest::Kind;
  return {{.kind = Kind::set, .key = "a", .value = std::string("b\0c", 3)},
          {.kind = Kind::set, .key = "", .value = ""},
          {.kind = Kind::find, .key = "key"},
          {.kind = Kind::wait, .key = "key", .seconds = 2.5},
          {.kind = Kind::add, .key = "n", .amount = std::numeric_limits<std::int64_t>::min()},
          {.kind = Kind::remove, .key = std::string(MemoryStore::max_key_bytes, 'k')}};
}

Nonce nonce_of(std::uint8_t value) {
  Nonce nonce{};
  nonce.fill(value);
  return nonce;
}

}  // namespace

TEST_CASE("requests, replies and verdicts come back as they were sent") {
  for (const StoreRequest& request : sample_requests()) {
    const auto parsed = parse_request(encode(request));
    REQUIRE(parsed.has_value());
    CHECK(*parsed == request);
  }
  for (const StoreReply& reply :
       {StoreReply{.kind = StoreReply::Kind::done, .value = "x"}, StoreReply{.kind = StoreReply::Kind::expired}}) {
    const auto parsed = parse_reply(encode(reply));
    REQUIRE(parsed.has_value());
    CHECK(*parsed == reply);
  }
  CHECK(parse_hello(HelloSide::client, encode_hello(HelloSide::client, nonce_of(7))) == nonce_of(7));
  CHECK_FALSE(parse_hello(HelloSide::server, encode_hello(HelloSide::client, nonce_of(7))).has_value());
  CHECK(parse_verdict(encode_verdict({.accepted = true, .proof = nonce_of(9)}))->proof == nonce_of(9));
  CHECK_FALSE(parse_verdict(encode_verdict({}))->accepted);
  CHECK_FALSE(parse_verdict("").has_value());
}

TEST_CASE("a request cut anywhere or lengthened is refused unless it is a value that may have any length") {
  for (const StoreRequest& request : sample_requests()) {
    const std::string body = encode(request);
    const std::size_t head = 3 + request.key.size();
    for (std::size_t length = 0; length < body.size(); ++length) {
      const bool is_shorter_value = request.kind == StoreRequest::Kind::set && length >= head;
      CHECK(parse_request(body.substr(0, length)).has_value() == is_shorter_value);
    }
    if (request.kind != StoreRequest::Kind::set) CHECK_FALSE(parse_request(body + "x").has_value());
  }
}

TEST_CASE("requests that no client makes are refused") {
  using Kind = StoreRequest::Kind;
  std::string body = encode({.kind = Kind::find, .key = "key"});
  for (const int kind : {0, 8, 255}) {
    body[0] = static_cast<char>(kind);
    CHECK_FALSE(parse_request(body).has_value());
  }
  for (const double seconds : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_FALSE(parse_request(encode({.kind = Kind::wait, .key = "k", .seconds = seconds})).has_value());
  }
  // Who introduces itself or leaves names no key.
  CHECK_FALSE(parse_request(encode({.kind = Kind::leave, .key = "k"})).has_value());
  CHECK_FALSE(parse_request(encode({.kind = Kind::introduce, .key = "k", .amount = 1})).has_value());
  // A key of 257 bytes: length 0x0101, little-endian.
  CHECK_FALSE(parse_request(std::string("\2\1\1", 3) + std::string(257, 'k')).has_value());
  CHECK(parse_request(std::string("\2\0\1", 3) + std::string(256, 'k')).has_value());
  // A value one byte too long.
  std::string large = encode({.kind = Kind::set, .key = "k", .value = std::string(MemoryStore::max_value_bytes, 'v')});
  CHECK(parse_request(large).has_value());
  large.push_back('v');
  CHECK_FALSE(parse_request(large).has_value());
  CHECK_LE(large.size(), largest_frame);
}

TEST_CASE("random bytes are parsed without harm") {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string body(random() % 40, '\0');
    for (char& c : body) c = static_cast<char>(random());
    if (!body.empty() && round % 2 == 0) body[0] = static_cast<char>(1 + random() % 7);
    if (body.size() > 2 && round % 2 == 0) body[2] = 0;
    const auto request = parse_request(body);
    if (request) CHECK(encode(*request) == body);  // nothing is read in two ways
    const auto reply = parse_reply(body);
    if (reply) CHECK(encode(*reply) == body);
  }
}

TEST_CASE("frames are cut from a stream however it is divided") {
  std::string stream;
  for (const char* text : {"one", "", "three"}) stream += make_frame(text);
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameReader reader(16);
    std::vector<std::string> bodies;
    std::string body;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      reader.append(std::string_view(stream).substr(at, piece));
      while (reader.next(body) == FrameReader::Status::frame) bodies.push_back(body);
    }
    CHECK(bodies == std::vector<std::string>{"one", "", "three"});
    CHECK(reader.empty());
  }
}

TEST_CASE("a frame longer than its bound is refused when its length is known, before its body has come") {
  std::string body;
  FrameReader reader(64);
  reader.append(make_frame(std::string(64, 'x')));
  CHECK(reader.next(body) == FrameReader::Status::frame);
  reader.append(std::string_view("\x41\0\0\0", 4));  // 65
  CHECK(reader.next(body) == FrameReader::Status::oversized);
  FrameReader other(largest_frame);
  other.append("\xff\xff\xff\xff");
  CHECK(other.next(body) == FrameReader::Status::oversized);
}

TEST_CASE("a proof depends on the role, the secret and both nonces") {
  const Nonce a = nonce_of(1);
  const Nonce b = nonce_of(2);
  const Proof proof = make_proof(ProverRole::client, "secret", a, b);
  CHECK(same_proof(proof, make_proof(ProverRole::client, "secret", a, b)));
  CHECK_FALSE(same_proof(proof, make_proof(ProverRole::server, "secret", a, b)));
  CHECK_FALSE(same_proof(proof, make_proof(ProverRole::client, "secrets", a, b)));
  CHECK_FALSE(same_proof(proof, make_proof(ProverRole::client, "secret", b, a)));
  CHECK_FALSE(same_proof(proof, make_proof(ProverRole::client, "secret", a, a)));
  CHECK(make_nonce() != make_nonce());
}

TEST_CASE("a proof is HMAC-SHA-256 of the role and the nonces") {
  // Computed by Python's hmac module over b"scaletrain rendezvous 1, client" + b"\1" * 32 + b"\2" * 32.
  const Proof expected{0xfc, 0xce, 0x01, 0x00, 0x93, 0x1c, 0xfc, 0x55, 0x98, 0x3a, 0xf6, 0x0b, 0x7e, 0xef, 0x08, 0xac,
                       0x1b, 0x74, 0x8c, 0x79, 0xa8, 0xce, 0x2d, 0x28, 0xc3, 0x24, 0xf4, 0x23, 0x9c, 0x83, 0x74, 0x46};
  CHECK(make_proof(ProverRole::client, "secret", nonce_of(1), nonce_of(2)) == expected);
}

TEST_CASE("secrets are 64 hexadecimal digits and differ") {
  const std::string secret = make_secret();
  CHECK(secret.size() == 64);
  CHECK(secret.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(secret != make_secret());
}
