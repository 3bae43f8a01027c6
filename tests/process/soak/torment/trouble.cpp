#include "trouble.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "process/tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Linux's numbers, the same on every processor; older C libraries have no names for them.
constexpr long call_pidfd_open = 434;
constexpr long call_pidfd_getfd = 438;

// The numbers of a process's open sockets, ascending.
std::vector<int> socket_descriptors_of(pid_t process) {
  std::vector<int> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", error)) {
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (!error && target.rfind("socket:", 0) == 0) found.push_back(std::stoi(entry.path().filename().string()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_tcp_connection(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
         (peer.ss_family == AF_INET || peer.ss_family == AF_INET6);
}

}  // namespace

HangingStorage::HangingStorage(const std::string& name, const fs::path& run)
    : control_(workspace() / ("hang-" + name)), run_(run) {}

HangingStorage::~HangingStorage() {
  std::error_code ignored;
  fs::remove(control_, ignored);
  fs::remove(control_.string() + ".met", ignored);
}

void HangingStorage::attach(Launch& launch) const {
  launch.environment.emplace_back("LD_PRELOAD", HUNG_STORAGE_LIBRARY);
  launch.environment.emplace_back("HUNG_STORAGE", control_.string());
  launch.environment.emplace_back("HUNG_FOLDER", run_.string());
}

bool HangingStorage::hang(pid_t process, double seconds) const {
  const std::string met = control_.string() + ".met";
  fs::remove(met);
  const std::string made = control_.string() + ".part";
  write_file(made, std::to_string(process));
  fs::rename(made, control_);
  sleep_for(seconds);
  fs::remove(control_);
  return fs::exists(met);
}

bool reset_connection(pid_t process, std::size_t choice) {
  const int handle = static_cast<int>(::syscall(call_pidfd_open, process, 0));
  if (handle < 0) return false;
  std::vector<int> connections;
  for (const int number : socket_descriptors_of(process)) {
    const int copy = static_cast<int>(::syscall(call_pidfd_getfd, handle, number, 0));
    if (copy < 0) continue;
    if (is_tcp_connection(copy)) {
      connections.push_back(copy);
    } else {
      ::close(copy);
    }
  }
  ::close(handle);
  bool is_reset = false;
  if (!connections.empty()) {
    // A connected socket that is told to be unconnected sends a reset, and is one for its owner too.
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;
    is_reset = ::connect(connections[choice % connections.size()], &nowhere, sizeof nowhere) == 0;
  }
  for (const int copy : connections) ::close(copy);
  return is_reset;
}

}  // namespace scaletrain
