// A byte that says in which pieces they arrive, then the bytes of a connection. The same frames come out however they
// were cut, and whatever a parser accepts is what its counterpart writes.
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/rendezvous/rendezvous_frame.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

struct Frames {
  std::vector<std::string> bodies;
  bool is_oversized = false;
  bool operator==(const Frames&) const = default;
};

Frames read_frames(std::string_view stream, std::size_t piece, std::size_t largest_body) {
  FrameReader reader(largest_body);
  Frames frames;
  for (std::size_t first = 0; first < stream.size() && !frames.is_oversized; first += piece) {
    reader.append(stream.substr(first, piece));
    std::string body;
    FrameReader::Status status = reader.next(body);
    for (; status == FrameReader::Status::frame; status = reader.next(body)) {
      SCALETRAIN_CHECK(body.size() <= largest_body);
      frames.bodies.push_back(body);
    }
    frames.is_oversized = status == FrameReader::Status::oversized;
  }
  return frames;
}

void check_body(const std::string& body) {
  if (const auto request = parse_request(body)) SCALETRAIN_CHECK(encode(*request) == body);
  if (const auto reply = parse_reply(body)) SCALETRAIN_CHECK(encode(*reply) == body);
  for (const HelloSide side : {HelloSide::client, HelloSide::server}) {
    if (const auto nonce = parse_hello(side, body)) SCALETRAIN_CHECK(encode_hello(side, *nonce) == body);
  }
  if (const auto proof = parse_proof(body)) SCALETRAIN_CHECK(encode_proof(*proof) == body);
  if (const auto verdict = parse_verdict(body)) SCALETRAIN_CHECK(encode_verdict(*verdict) == body);
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scaletrain;
  if (size == 0) return 0;
  const std::size_t piece = std::size_t{data[0]} + 1;
  const std::string_view stream = fuzz::text_of(data + 1, size - 1);
  for (const std::size_t largest_body : {largest_handshake_frame, largest_frame}) {
    const Frames frames = read_frames(stream, piece, largest_body);
    SCALETRAIN_CHECK(frames == read_frames(stream, std::max<std::size_t>(stream.size(), 1), largest_body));
    for (const std::string& body : frames.bodies) check_body(body);
  }
  check_body(std::string(stream));
  return 0;
}
