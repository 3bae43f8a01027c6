#include "strangers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "support/program.h"

namespace scaletrain {
namespace {

std::string file_of_process(pid_t process, const char* name) {
  std::ifstream in("/proc/" + std::to_string(process) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The text that ends with a NUL behind `words`.
std::string behind(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + words.size();
  return text.substr(begin, text.find('\0', begin) - begin);
}

}  // namespace

std::optional<RendezvousPlace> rendezvous_of(pid_t worker) {
  const std::string text = behind(file_of_process(worker, "cmdline"), std::string("--rendezvous") + '\0');
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  return RendezvousPlace{text.substr(0, colon), static_cast<std::uint16_t>(std::stoi(text.substr(colon + 1)))};
}

std::string secret_of(pid_t worker) {
  return behind(std::string(1, '\0') + file_of_process(worker, "environ"), std::string(1, '\0') + "SCALETRAIN_SECRET=");
}

Stranger::Stranger(const RendezvousPlace& place) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(place.port);
  if (::inet_pton(AF_INET, place.host.c_str(), &address.sin_addr) == 1 &&
      ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return;
  ::close(socket_);
  socket_ = -1;
}

Stranger::~Stranger() {
  if (socket_ >= 0) ::close(socket_);
}

Stranger::Stranger(Stranger&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}

void Stranger::send(std::string_view bytes) const {
  constexpr int patience_ms = 200;
  while (!bytes.empty()) {
    pollfd entry{.fd = socket_, .events = POLLOUT, .revents = 0};
    if (::poll(&entry, 1, patience_ms) <= 0) return;
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::string Stranger::receive(double seconds, const std::function<bool(const std::string&)>& is_enough) const {
  std::string all;
  std::array<char, 4096> chunk{};
  for (const double end = test_clock() + seconds; test_clock() < end;) {
    pollfd entry{.fd = socket_, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 50) <= 0) continue;
    const ssize_t got = ::recv(socket_, chunk.data(), chunk.size(), 0);
    if (got <= 0) break;
    all.append(chunk.data(), static_cast<std::size_t>(got));
    if (is_enough && is_enough(all)) break;
  }
  return all;
}

bool Stranger::is_dropped(double seconds) const {
  std::array<char, 4096> chunk{};
  for (const double end = test_clock() + seconds; test_clock() < end;) {
    pollfd entry{.fd = socket_, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 50) > 0 && ::recv(socket_, chunk.data(), chunk.size(), 0) <= 0) return true;
  }
  return false;
}

std::vector<std::string> hostile_texts() {
  std::mt19937 random(7);
  std::string noise(4096, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  const std::string nothing(4, '\0');
  const std::string four_gib(4, '\xff');
  const std::string two_gib("\xff\xff\xff\x7f", 4);
  return {"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
          "SSH-2.0-OpenSSH_9.2\r\n",
          noise,
          nothing,
          four_gib,
          four_gib + std::string(1 << 20, 'x'),
          two_gib + noise,
          std::string("\x40\x00\x00\x00", 4) + std::string(64, 'h'),
          std::string(1 << 20, '\n')};
}

Siege::Siege(const RendezvousPlace& place, int half_open) {
  for (const std::string& text : hostile_texts()) {
    const Stranger stranger(place);
    if (stranger.connected()) stranger.send(text);
  }
  for (int i = 0; i < half_open; ++i) {
    Stranger stranger(place);
    if (!stranger.connected()) continue;
    // A frame's length and the first byte of what was announced.
    stranger.send(std::string_view("\x24\x00\x00\x00s", static_cast<std::size_t>(i % 6)));
    waiting_.push_back(std::move(stranger));
  }
}

}  // namespace scaletrain
