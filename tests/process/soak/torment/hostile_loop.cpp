#include "hostile_loop.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

#include "support/program.h"

namespace scaletrain {

struct HostileLoop::Shared {
  std::atomic<long> intrusions{0};
};

namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_held = 600;
constexpr int at_once = 40;  // per port
constexpr auto stranger_pause = std::chrono::microseconds(500);
constexpr auto scout_pause = std::chrono::milliseconds(1);
constexpr uid_t nobody = 65534;

// Listening ports of this host by the inode of their socket. They stand first in the table.
std::map<std::string, std::uint16_t> listening_sockets() {
  std::map<std::string, std::uint16_t> found;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::array<std::string, 10> columns;
    for (std::string& column : columns) words >> column;
    if (columns[3] != "0A") break;
    const std::string port = columns[1].substr(columns[1].find(':') + 1);
    found[columns[9]] = static_cast<std::uint16_t>(std::stoul(port, nullptr, 16));
  }
  return found;
}

std::set<std::uint16_t> ports_of(pid_t process, const std::map<std::string, std::uint16_t>& listening) {
  std::set<std::uint16_t> ports;
  std::error_code error;
  for (fs::directory_iterator entry("/proc/" + std::to_string(process) + "/fd", error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(entry->path(), closed).string();
    if (!target.starts_with("socket:[")) continue;
    const auto socket = listening.find(target.substr(8, target.size() - 9));
    if (socket != listening.end()) ports.insert(socket->second);
  }
  return ports;
}

// An open connection, or -1.
int intrude(std::uint16_t port, unsigned turn) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 && errno != EINPROGRESS) {
    ::close(socket);
    return -1;
  }
  static const std::string noise(4096, '\x01');
  const std::array<std::string_view, 5> words{"", "GET / HTTP/1.1\r\n\r\n", noise, "stmeet01", "\x24"};
  const std::string_view said = words[turn % words.size()];
  if (!said.empty()) [[maybe_unused]]
    const auto sent = ::send(socket, said.data(), said.size(), MSG_NOSIGNAL);
  return socket;
}

// Reads the ports to attack, each time all of them, and attacks until it is killed.
[[noreturn]] void be_hostile(int commands, std::atomic<long>& intrusions) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setgid(nobody) != 0 || ::setuid(nobody) != 0)) ::_exit(1);
  std::deque<int> held;
  std::array<std::uint16_t, 64> ports{};
  std::size_t num_ports = 0;
  for (unsigned turn = 0;; ++turn) {
    for (;;) {
      const ssize_t got = ::read(commands, ports.data(), sizeof ports);
      if (got == 0) ::_exit(0);
      if (got < 0) break;
      num_ports = static_cast<std::size_t>(got) / sizeof ports[0];
    }
    for (std::size_t i = 0; i < num_ports && ports[i] != 0; ++i) {
      for (unsigned k = 0; k < at_once; ++k) {
        const int socket = intrude(ports[i], turn + k);
        if (socket < 0) break;
        ++intrusions;
        // Every third closes at once.
        if (k % 3 == 0)
          ::close(socket);
        else
          held.push_back(socket);
        if (held.size() > most_held) {
          ::close(held.front());
          held.pop_front();
        }
      }
    }
    std::this_thread::sleep_for(stranger_pause);
  }
}

}  // namespace

HostileLoop::HostileLoop()
    : shared_(static_cast<Shared*>(
          ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  REQUIRE(shared_ != MAP_FAILED);
  new (shared_) Shared;
  // A packet is one list of ports.
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_DIRECT | O_NONBLOCK | O_CLOEXEC) == 0);
  stranger_ = ::fork();
  REQUIRE(stranger_ >= 0);
  if (stranger_ == 0) {
    ::close(ends[1]);
    be_hostile(ends[0], shared_->intrusions);
  }
  ::close(ends[0]);
  commands_ = ends[1];
  scout_ = std::thread([this] { look_for_ports(); });
}

HostileLoop::~HostileLoop() {
  over_ = true;
  scout_.join();
  ::kill(stranger_, SIGKILL);
  ::waitpid(stranger_, nullptr, 0);
  ::close(commands_);
  ::munmap(shared_, sizeof(Shared));
}

void HostileLoop::look_for_ports() {
  std::set<std::uint16_t> told;
  for (; !over_; std::this_thread::sleep_for(scout_pause)) {
    const pid_t agent = agent_;
    if (agent < 0) continue;
    const auto listening = listening_sockets();
    std::set<std::uint16_t> ports = ports_of(agent, listening);
    for (const pid_t worker : children_of(agent)) ports.merge(ports_of(worker, listening));
    if (ports == told) continue;
    std::array<std::uint16_t, 64> list{};
    std::size_t length = 0;
    for (const std::uint16_t port : ports) {
      if (length < list.size()) list[length++] = port;
    }
    // None is told as a zero.
    const std::size_t bytes = std::max<std::size_t>(length, 1) * sizeof list[0];
    if (::write(commands_, list.data(), bytes) != static_cast<ssize_t>(bytes)) continue;
    told = ports;
    const std::lock_guard lock(mutex_);
    ports_.merge(ports);
  }
}

long HostileLoop::intrusions() const {
  return shared_->intrusions;
}

std::set<std::uint16_t> HostileLoop::ports() const {
  const std::lock_guard lock(mutex_);
  return ports_;
}

}  // namespace scaletrain
