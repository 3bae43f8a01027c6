#include "comm/rendezvous/rendezvous_frame.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/rendezvous/memory_store.h"

namespace scaletrain {
namespace {

constexpr std::size_t length_bytes = 4;
constexpr std::size_t magic_bytes = 8;
static_assert(largest_frame >= 16 + MemoryStore::max_key_bytes + MemoryStore::max_value_bytes);

std::string_view magic(HelloSide side) {
  return side == HelloSide::client ? std::string_view("STrdv1c\n", magic_bytes)
                                   : std::string_view("STrdv1s\n", magic_bytes);
}

template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

template <class T>
T get(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(static_cast<std::uint8_t>(bytes[i])) << (8 * i)));
  }
  return value;
}

std::string_view text_of(const std::array<std::uint8_t, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// `text` has 32 bytes.
std::array<std::uint8_t, 32> array_of(std::string_view text) {
  std::array<std::uint8_t, 32> bytes{};
  std::memcpy(bytes.data(), text.data(), bytes.size());
  return bytes;
}

}  // namespace

std::string make_frame(std::string_view body) {
  SCALETRAIN_CHECK_LE(body.size(), largest_frame);
  std::string frame;
  frame.reserve(length_bytes + body.size());
  put(frame, narrow<std::uint32_t>(body.size()));
  frame.append(body);
  return frame;
}

void FrameReader::append(std::string_view bytes) {
  buffer_.erase(0, taken_);
  taken_ = 0;
  buffer_.append(bytes);
}

FrameReader::Status FrameReader::next(std::string& body) {
  const std::string_view rest = std::string_view(buffer_).substr(taken_);
  if (rest.size() < length_bytes) return Status::incomplete;
  const std::size_t length = get<std::uint32_t>(rest);
  if (length > largest_body_) return Status::oversized;
  if (rest.size() - length_bytes < length) return Status::incomplete;
  body.assign(rest.substr(length_bytes, length));
  taken_ += length_bytes + length;
  if (empty()) {
    // A connection that once carried 16 MiB does not keep them.
    if (buffer_.capacity() > (std::size_t{1} << 16)) std::string().swap(buffer_);
    buffer_.clear();
    taken_ = 0;
  }
  return Status::frame;
}

std::string encode(const StoreRequest& request) {
  SCALETRAIN_CHECK_LE(request.key.size(), MemoryStore::max_key_bytes);
  SCALETRAIN_CHECK_LE(request.value.size(), MemoryStore::max_value_bytes);
  std::string body;
  body.reserve(16 + request.key.size() + request.value.size());
  body.push_back(static_cast<char>(request.kind));
  put(body, narrow<std::uint16_t>(request.key.size()));
  body.append(request.key);
  if (request.kind == StoreRequest::Kind::set) body.append(request.value);
  if (request.kind == StoreRequest::Kind::wait) put(body, std::bit_cast<std::uint64_t>(request.seconds));
  if (request.kind == StoreRequest::Kind::add || request.kind == StoreRequest::Kind::introduce)
    put(body, static_cast<std::uint64_t>(request.amount));
  return body;
}

std::optional<StoreRequest> parse_request(std::string_view body) {
  if (body.size() < 3) return std::nullopt;
  StoreRequest request;
  const auto kind = static_cast<std::uint8_t>(body[0]);
  if (kind < 1 || kind > 7) return std::nullopt;
  request.kind = static_cast<StoreRequest::Kind>(kind);
  const std::size_t key_bytes = get<std::uint16_t>(body.substr(1));
  body.remove_prefix(3);
  if (key_bytes > MemoryStore::max_key_bytes || key_bytes > body.size()) return std::nullopt;
  request.key = body.substr(0, key_bytes);
  const bool has_key = request.kind != StoreRequest::Kind::introduce && request.kind != StoreRequest::Kind::leave;
  if (!has_key && key_bytes != 0) return std::nullopt;
  body.remove_prefix(key_bytes);
  switch (request.kind) {
    case StoreRequest::Kind::set:
      if (body.size() > MemoryStore::max_value_bytes) return std::nullopt;
      request.value = body;
      return request;
    case StoreRequest::Kind::wait:
      if (body.size() != 8) return std::nullopt;
      request.seconds = std::bit_cast<double>(get<std::uint64_t>(body));
      if (!std::isfinite(request.seconds) || request.seconds < 0.0) return std::nullopt;
      return request;
    case StoreRequest::Kind::add:
    case StoreRequest::Kind::introduce:
      if (body.size() != 8) return std::nullopt;
      request.amount = static_cast<std::int64_t>(get<std::uint64_t>(body));
      return request;
    case StoreRequest::Kind::find:
    case StoreRequest::Kind::remove:
    case StoreRequest::Kind::leave:
      break;
  }
  if (!body.empty()) return std::nullopt;
  return request;
}

std::string encode(const StoreReply& reply) {
  std::string body;
  body.reserve(1 + reply.value.size());
  body.push_back(static_cast<char>(reply.kind));
  body.append(reply.value);
  return body;
}

std::optional<StoreReply> parse_reply(std::string_view body) {
  if (body.empty()) return std::nullopt;
  const auto kind = static_cast<std::uint8_t>(body[0]);
  if (kind < 1 || kind > 4) return std::nullopt;
  StoreReply reply{.kind = static_cast<StoreReply::Kind>(kind), .value = std::string(body.substr(1))};
  if (reply.kind != StoreReply::Kind::done && !reply.value.empty()) return std::nullopt;
  return reply;
}

std::string encode_hello(HelloSide side, const Nonce& nonce) {
  std::string body(magic(side));
  body.append(text_of(nonce));
  return body;
}

std::optional<Nonce> parse_hello(HelloSide side, std::string_view body) {
  if (body.size() != magic_bytes + 32 || body.substr(0, magic_bytes) != magic(side)) return std::nullopt;
  return array_of(body.substr(magic_bytes));
}

std::string encode_proof(const Proof& proof) {
  return std::string(text_of(proof));
}

std::optional<Proof> parse_proof(std::string_view body) {
  if (body.size() != 32) return std::nullopt;
  return array_of(body);
}

std::string encode_verdict(const HelloVerdict& verdict) {
  std::string body(1, verdict.accepted ? '\1' : '\0');
  if (verdict.accepted) body.append(text_of(verdict.proof));
  return body;
}

std::optional<HelloVerdict> parse_verdict(std::string_view body) {
  if (body == std::string_view("\0", 1)) return HelloVerdict{};
  if (body.size() != 33 || body[0] != '\1') return std::nullopt;
  return HelloVerdict{.accepted = true, .proof = array_of(body.substr(1))};
}

}  // namespace scaletrain
