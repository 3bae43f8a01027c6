// What travels over a rendezvous connection: frames, each a length of 4 bytes (little-endian) and that many bytes, and
// the requests, replies and handshake messages inside them. Knows nothing of sockets; every byte may come from an
// enemy.
//
//   client                                   server
//   hello: magic, client's nonce         ->
//                                        <-  hello: magic, server's nonce
//   proof: HMAC(role, both nonces)       ->
//                                        <-  verdict: accepted with the server's own proof, or refused
//   request                              ->
//                                        <-  reply                     (one at a time)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/rendezvous/rendezvous_proof.h"

namespace scaletrain {

// Bounds of a frame's body. Before a peer has proved itself no message is longer than the hello.
constexpr std::size_t largest_handshake_frame = 64;
// A request to set the longest key to the longest value.
constexpr std::size_t largest_frame = 16 + 256 + (std::size_t{16} << 20);

std::string make_frame(std::string_view body);

// Cuts a stream of bytes into frames. Holds what was appended and not yet taken, never more: the length that a peer
// announces reserves nothing.
class FrameReader {
 public:
  enum class Status { incomplete, frame, oversized };

  explicit FrameReader(std::size_t largest_body) : largest_body_(largest_body) {}
  void set_largest_body(std::size_t largest_body) { largest_body_ = largest_body; }
  void append(std::string_view bytes);
  // frame: `body` is the next one. oversized: the stream cannot be read further.
  Status next(std::string& body);
  // Nothing waits to be taken.
  bool empty() const { return taken_ == buffer_.size(); }

 private:
  std::size_t largest_body_;
  std::string buffer_;
  std::size_t taken_ = 0;  // bytes of the buffer that are consumed
};

struct StoreRequest {
  enum class Kind : std::uint8_t {
    set = 1,
    find = 2,
    wait = 3,
    add = 4,
    remove = 5,
    introduce = 6,  // without a key: the member's number is the amount
    leave = 7       // without a key: the end of the connection is no loss
  };
  Kind kind = Kind::find;
  std::string key{};
  std::string value{};      // set
  double seconds = 0.0;     // wait; finite, not negative
  std::int64_t amount = 0;  // add, introduce
  bool operator==(const StoreRequest&) const = default;
};

struct StoreReply {
  enum class Kind : std::uint8_t {
    done = 1,         // with the value found, waited for, or summed up
    absent = 2,       // find
    expired = 3,      // wait
    not_a_number = 4  // add
  };
  Kind kind = Kind::done;
  std::string value{};
  bool operator==(const StoreReply&) const = default;
};

// Bodies of frames. The parsers return nothing for whatever their counterpart cannot have made.
std::string encode(const StoreRequest& request);
std::optional<StoreRequest> parse_request(std::string_view body);
std::string encode(const StoreReply& reply);
std::optional<StoreReply> parse_reply(std::string_view body);

enum class HelloSide { client, server };
std::string encode_hello(HelloSide side, const Nonce& nonce);
std::optional<Nonce> parse_hello(HelloSide side, std::string_view body);
std::string encode_proof(const Proof& proof);
std::optional<Proof> parse_proof(std::string_view body);

struct HelloVerdict {
  bool accepted = false;
  Proof proof{};  // the server's own, if accepted
};
std::string encode_verdict(const HelloVerdict& verdict);
std::optional<HelloVerdict> parse_verdict(std::string_view body);

}  // namespace scaletrain
