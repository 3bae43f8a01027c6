#include "telemetry/live_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <limits>

namespace scaletrain {

namespace {

// Columns of the terminal behind the stream, 0 if it is none.
std::size_t columns_of(std::FILE* out) {
  struct winsize size {};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace

std::string fields_that_fit(std::FILE* out, std::span<const std::string> fields) {
  // The last column stays free, because some terminals wrap there.
  const std::size_t columns = columns_of(out);
  const std::size_t room = columns > 1 ? columns - 1 : std::numeric_limits<std::size_t>::max();
  std::string shown;
  for (const std::string& field : fields) {
    if (shown.size() + field.size() > room) return shown.empty() ? field.substr(0, room) : shown;
    shown += field;
  }
  return shown;
}

}  // namespace scaletrain
