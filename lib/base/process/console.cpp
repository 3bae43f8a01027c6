#include "base/process/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/clock.h"
#include "base/file.h"

namespace scaletrain {

namespace {

// Where poll() says that a pipe takes something, so much goes into it without a wait.
constexpr std::size_t least_room = 512;

// One write that does not wait, as far as the system can be had to.
class Writer {
 public:
  explicit Writer(int descriptor) : descriptor_(descriptor) {
    struct stat info {};
    if (::fstat(descriptor, &info) != 0) return;
    is_file_ = S_ISREG(info.st_mode);
    is_socket_ = S_ISSOCK(info.st_mode);
    // A description of its own: O_NONBLOCK on the shared one would be everybody's.
    if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))
      own_ = FileDescriptor(
          ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
  bool may_wait() const { return !is_file_ && !is_socket_ && !own_; }
  int descriptor() const { return own_ ? own_.get() : descriptor_; }
  ssize_t write(std::string_view text) const {
    if (is_socket_) return ::send(descriptor_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (own_ || is_file_) return ::write(descriptor(), text.data(), text.size());
    return ::write(descriptor_, text.data(), std::min(text.size(), least_room));
  }

 private:
  int descriptor_;
  bool is_file_ = false;
  bool is_socket_ = false;
  FileDescriptor own_;
};

}  // namespace

bool write_to_console(int descriptor, std::string_view text, double patience) {
  const Writer writer(descriptor);
  const MonotonicTime begin = monotonic_now();
  bool is_full = writer.may_wait();  // not known
  while (!text.empty()) {
    if (is_full) {
      const double left = std::max(0.0, patience - seconds_since(begin));
      pollfd room{writer.descriptor(), POLLOUT, 0};
      const int ready = ::poll(&room, 1, static_cast<int>(std::ceil(left * 1000)));
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) return false;
    }
    const ssize_t n = writer.write(text);
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
      is_full = writer.may_wait();
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (seconds_since(begin) >= patience) return false;
      is_full = true;
    } else if (n == 0 || errno != EINTR) {
      return true;
    }
  }
  return true;
}

}  // namespace scaletrain
