// The rendezvous store over TCP: a server in one process, a client in every other. Both sides prove that they know the
// job's secret (HMAC-SHA-256 over both sides' nonces) before anything else is read; messages are bounded, every read
// has a deadline, and a client that does not prove itself in time is dropped without an answer. Contents are not
// encrypted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/rendezvous/key_value_store.h"

namespace scaletrain {

// 32 random bytes as hexadecimal text.
std::string make_secret();
// A secret for one purpose, which follows from the job's and `salt` (HMAC-SHA-256 of it, as hexadecimal text): the salt
// may be told in clear to those who know the job's.
std::string derived_secret(const std::string& secret, const std::string& salt);

struct RendezvousAddress {
  std::string host;  // numeric address or name
  std::uint16_t port = 0;
  bool operator==(const RendezvousAddress&) const = default;
};

class RendezvousServer {
 public:
  struct Options {
    std::string bind_address = "127.0.0.1";
    std::uint16_t port = 0;  // 0: any free one
    std::string secret;
    double handshake_seconds = 5.0;
    int max_clients = 65536;  // that have proved themselves; further ones are turned away
    int max_strangers = 128;  // that have not yet; the oldest makes room for a newcomer
  };
  // Listens and serves on a thread of its own. PeerError if the address cannot be bound.
  explicit RendezvousServer(Options options);
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  RendezvousAddress address() const;
  // The same store without a connection, for the process that serves.
  std::unique_ptr<KeyValueStore> local_store();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Where the server tells of members whose connection ended without a farewell: the first one's number, and how many
// there are. Their process is gone, or its host, or the network between.
inline constexpr const char* lost_member_key = "rendezvous/lost";
inline constexpr const char* num_lost_members_key = "rendezvous/lost/count";

// Tries until `seconds` have passed; PeerError naming the address then, or when the secret is refused. The store is
// used by one thread at a time. With `member`, its number, the server watches the connection from now on until the
// store's destructor says farewell. A server that does not answer a request within reply_seconds (beyond what the
// request itself waits for) is a PeerError.
inline constexpr double store_reply_seconds = 60.0;
std::unique_ptr<KeyValueStore> connect_store(const RendezvousAddress& address, const std::string& secret,
                                             double seconds, std::optional<std::int64_t> member = {},
                                             double reply_seconds = store_reply_seconds);

}  // namespace scaletrain
