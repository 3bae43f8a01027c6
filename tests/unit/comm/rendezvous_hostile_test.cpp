// What strangers can send to the rendezvous server, and what a stranger in the server's place can send to a client.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/rendezvous_frame.h"

using namespace scaletrain;

namespace {

const std::string secret = "0123456789abcdef";

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// A connection without manners.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = loopback(port);
    REQUIRE(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  explicit Stranger(FileDescriptor socket) : socket_(std::move(socket)) {}

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the other side has had enough
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // All that comes until the other side closes; nothing if it has not within 20 s.
  std::optional<std::string> read_to_end() {
    std::string all;
    std::array<char, 4096> chunk;
    for (;;) {
      pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 20000) <= 0) return std::nullopt;
      const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
      if (got <= 0) return all;
      all.append(chunk.data(), static_cast<std::size_t>(got));
    }
  }
  std::string read_frame() {
    std::string body;
    std::array<char, 4096> chunk;
    while (reader_.next(body) == FrameReader::Status::incomplete) {
      const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
      if (got <= 0) return "";
      reader_.append({chunk.data(), static_cast<std::size_t>(got)});
    }
    return body;
  }

  // As an honest client would.
  void join(const std::string& with_secret) {
    const Nonce own = make_nonce();
    send(make_frame(encode_hello(HelloSide::client, own)));
    const auto theirs = parse_hello(HelloSide::server, read_frame());
    REQUIRE(theirs.has_value());
    send(make_frame(encode_proof(make_proof(ProverRole::client, with_secret, own, *theirs))));
  }

 private:
  FileDescriptor socket_;
  FrameReader reader_{largest_frame};
};

bool serves(const RendezvousServer& server) {
  const auto store = connect_store(server.address(), secret, 30.0);
  store->set("alive", "yes");
  return store->find("alive") == "yes";
}

}  // namespace

TEST_CASE("garbage before the handshake closes the connection without an answer") {
  RendezvousServer server({.secret = secret});
  const std::uint16_t port = server.address().port;
  std::string wrong_magic = encode_hello(HelloSide::client, make_nonce());
  wrong_magic[0] = 'x';
  const std::vector<std::string> garbage{
      "GET / HTTP/1.1\r\n\r\n",
      std::string(4, '\xff'),
      make_frame(std::string(largest_handshake_frame + 1, 'x')),
      make_frame(""),
      make_frame(wrong_magic),
      make_frame(encode_hello(HelloSide::server, make_nonce())),
      make_frame(encode({.kind = StoreRequest::Kind::find, .key = "alive"})),
      std::string(100000, 'z'),
  };
  for (const std::string& bytes : garbage) {
    Stranger stranger(port);
    stranger.send(bytes);
    CHECK(stranger.read_to_end() == "");
  }
  CHECK(serves(server));
}

TEST_CASE("half a frame or silence is dropped at the handshake's deadline and keeps no one waiting") {
  RendezvousServer server({.secret = secret, .handshake_seconds = 0.3});
  Stranger silent(server.address().port);
  Stranger half(server.address().port);
  half.send(make_frame(encode_hello(HelloSide::client, make_nonce())).substr(0, 20));
  CHECK(serves(server));
  CHECK(silent.read_to_end() == "");
  CHECK(half.read_to_end() == "");
}

TEST_CASE("a client with the wrong secret is told no more than the refusal") {
  RendezvousServer server({.secret = secret});
  Stranger stranger(server.address().port);
  stranger.join("another secret");
  CHECK(stranger.read_to_end() == make_frame(encode_verdict({})));
}

TEST_CASE("a request sent before the verdict is not answered when the proof is wrong") {
  RendezvousServer server({.secret = secret});
  server.local_store()->set("private", "value");
  Stranger stranger(server.address().port);
  stranger.send(make_frame(encode_hello(HelloSide::client, make_nonce())));
  stranger.read_frame();
  stranger.send(make_frame(encode_proof(Proof{})) +
                make_frame(encode({.kind = StoreRequest::Kind::find, .key = "private"})));
  const auto answer = stranger.read_to_end();
  REQUIRE(answer.has_value());
  CHECK(answer->find("value") == std::string::npos);
}

TEST_CASE("a proof that another connection has given proves nothing on this one") {
  RendezvousServer server({.secret = secret});
  const Nonce own = make_nonce();
  const std::string hello = make_frame(encode_hello(HelloSide::client, own));
  Stranger first(server.address().port);
  first.send(hello);
  const auto theirs = parse_hello(HelloSide::server, first.read_frame());
  REQUIRE(theirs.has_value());
  const std::string proof = make_frame(encode_proof(make_proof(ProverRole::client, secret, own, *theirs)));
  first.send(proof);
  const auto verdict = parse_verdict(first.read_frame());
  REQUIRE(verdict.has_value());
  CHECK(verdict->accepted);
  Stranger second(server.address().port);
  second.send(hello);
  second.read_frame();
  second.send(proof);
  CHECK(second.read_to_end() == make_frame(encode_verdict({})));
}

TEST_CASE("garbage, oversized lengths and half requests of a member end only its own connection") {
  RendezvousServer server({.secret = secret});
  const std::vector<std::string> garbage{
      make_frame("nonsense"),
      make_frame(""),
      std::string("\xff\xff\xff\x7f", 4),
      make_frame(encode({.kind = StoreRequest::Kind::wait, .key = "k", .seconds = -1.0})),
  };
  for (const std::string& bytes : garbage) {
    Stranger member(server.address().port);
    member.join(secret);
    member.send(bytes);
    const auto answer = member.read_to_end();
    REQUIRE(answer.has_value());
    CHECK(answer->size() == 4 + 33);  // the verdict, and no more
  }
  Stranger half(server.address().port);
  half.join(secret);
  half.send(make_frame(encode({.kind = StoreRequest::Kind::find, .key = "alive"})).substr(0, 6));
  Stranger gone_while_waiting(server.address().port);
  gone_while_waiting.join(secret);
  gone_while_waiting.send(make_frame(encode({.kind = StoreRequest::Kind::wait, .key = "alive", .seconds = 60.0})));
  gone_while_waiting = Stranger(FileDescriptor());
  CHECK(serves(server));
}

TEST_CASE("a member that takes no answers does not keep others waiting") {
  RendezvousServer server({.secret = secret});
  server.local_store()->set("large", std::string(std::size_t{8} << 20, 'x'));
  Stranger member(server.address().port);
  member.join(secret);
  const std::string request = make_frame(encode({.kind = StoreRequest::Kind::find, .key = "large"}));
  for (int i = 0; i < 20; ++i) member.send(request);
  CHECK(serves(server));
}

TEST_CASE("requests sent together are answered one by one, in order") {
  RendezvousServer server({.secret = secret});
  Stranger member(server.address().port);
  member.join(secret);
  CHECK(parse_verdict(member.read_frame())->accepted);
  member.send(make_frame(encode({.kind = StoreRequest::Kind::wait, .key = "a", .seconds = 0.1})) +
              make_frame(encode({.kind = StoreRequest::Kind::wait, .key = "b", .seconds = 30.0})) +
              make_frame(encode({.kind = StoreRequest::Kind::find, .key = "c"})));
  CHECK(parse_reply(member.read_frame())->kind == StoreReply::Kind::expired);
  server.local_store()->set("b", "2");
  CHECK(parse_reply(member.read_frame())->value == "2");
  CHECK(parse_reply(member.read_frame())->kind == StoreReply::Kind::absent);
}

TEST_CASE("a thousand silent connections do not keep a member out") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t possible = limit.rlim_cur > 2500 ? 1000 : 200;
  RendezvousServer server({.secret = secret, .handshake_seconds = 60.0});
  std::vector<Stranger> strangers;
  strangers.reserve(possible);
  for (std::size_t i = 0; i < possible; ++i) strangers.emplace_back(server.address().port);
  CHECK(serves(server));
}

TEST_CASE("strangers make room for a newcomer when the server is full, members do not") {
  RendezvousServer server({.secret = secret, .handshake_seconds = 60.0, .max_clients = 3});
  const auto member = connect_store(server.address(), secret, 10.0);
  std::vector<Stranger> strangers;
  strangers.reserve(10);
  for (int i = 0; i < 10; ++i) strangers.emplace_back(server.address().port);
  const auto second = connect_store(server.address(), secret, 10.0);
  const auto third = connect_store(server.address(), secret, 10.0);
  CHECK_THROWS_AS(connect_store(server.address(), secret, 0.3), PeerError);
  member->set("a", "1");
  CHECK(second->find("a") == "1");
  CHECK(third->find("a") == "1");
}

TEST_CASE("strangers hold few of the serving process's descriptors, and never a member's") {
  RendezvousServer server({.secret = secret, .handshake_seconds = 60.0, .max_strangers = 4});
  const auto member = connect_store(server.address(), secret, 10.0);
  std::vector<Stranger> strangers;
  strangers.reserve(30);
  for (int i = 0; i < 30; ++i) strangers.emplace_back(server.address().port);
  // The newest four may stay; the others are dropped without a word, long before their deadline.
  for (std::size_t i = 0; i < 26; ++i) CHECK(strangers[i].read_to_end() == "");
  member->set("a", "1");
  CHECK(member->find("a") == "1");
}

TEST_CASE("a member whose connection ends without a farewell is told of, one that leaves is not") {
  RendezvousServer server({.secret = secret});
  const auto local = server.local_store();
  connect_store(server.address(), secret, 10.0, 5)->set("a", "1");
  const auto watcher = connect_store(server.address(), secret, 10.0);
  CHECK(watcher->find("a") == "1");
  {
    Stranger unnamed(server.address().port);
    unnamed.join(secret);
    CHECK(parse_verdict(unnamed.read_frame())->accepted);
  }
  for (const std::int64_t number : {3, 2}) {
    Stranger member(server.address().port);
    member.join(secret);
    CHECK(parse_verdict(member.read_frame())->accepted);
    member.send(make_frame(encode({.kind = StoreRequest::Kind::introduce, .amount = number})));
    CHECK(parse_reply(member.read_frame())->kind == StoreReply::Kind::done);
    CHECK(local->find(num_lost_members_key) == (number == 3 ? std::nullopt : std::optional<std::string>("1")));
    member = Stranger(FileDescriptor());
    // Who waits for the news gets it at once.
    CHECK(watcher->wait(lost_member_key, 20.0) == "3");
    for (int i = 0; i < 2000 && local->find(num_lost_members_key) != (number == 3 ? "1" : "2"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(local->find(lost_member_key) == "3");
  CHECK(local->find(num_lost_members_key) == "2");
}

TEST_CASE("a process that does not know the secret cannot pose as the server") {
  FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listener.get(), 8) == 0);
  socklen_t length = sizeof address;
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);

  enum class Act { echo_proof, other_service };
  const auto message_for = [&](Act act) {
    std::thread impostor([&] {
      Stranger client(FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
      if (act == Act::other_service) return client.send("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
      client.read_frame();
      client.send(make_frame(encode_hello(HelloSide::server, make_nonce())));
      const auto proof = parse_proof(client.read_frame());
      if (!proof) return;
      // The client's own proof sent back, as a server that knows the secret could have made it.
      client.send(make_frame(encode_verdict({.accepted = true, .proof = *proof})));
      client.read_to_end();
    });
    std::string message;
    try {
      connect_store({"127.0.0.1", ntohs(address.sin_port)}, secret, 30.0);
    } catch (const PeerError& error) {
      message = error.what();
    }
    impostor.join();
    return message;
  };
  CHECK(message_for(Act::echo_proof).find("does not know the job's secret") != std::string::npos);
  CHECK(message_for(Act::other_service).find("is not a scaletrain rendezvous server") != std::string::npos);
}
