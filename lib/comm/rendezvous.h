// The rendezvous store over TCP: a server in one process, a client in every other. Both sides prove that they know the
// job's secret (HMAC-SHA-256 over both sides' nonces) before anything else is read; messages are bounded, every read
// has a deadline, and a client that does not prove itself in time is dropped without an answer. Contents are not
// encrypted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/key_value_store.h"

namespace scaletrain {

// 32 random bytes as hexadecimal text.
std::string make_secret();

struct RendezvousAddress {
  std::string host;  // numeric address or name
  std::uint16_t port = 0;
};

class RendezvousServer {
 public:
  struct Options {
    std::string bind_address = "127.0.0.1";
    std::uint16_t port = 0;  // 0: any free one
    std::string secret;
    double handshake_seconds = 5.0;
    int max_clients = 65536;
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

// Tries until `seconds` have passed; PeerError naming the address then, or when the secret is refused. The store is
// used by one thread at a time.
std::unique_ptr<KeyValueStore> connect_store(const RendezvousAddress& address, const std::string& secret,
                                             double seconds);

}  // namespace scaletrain
