#include "telemetry/record_file.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace scaletrain {

namespace {

// About a day of steps of one second, for a full disk.
constexpr std::size_t most_waiting = 32u << 20;

}  // namespace

void RecordFile::open(FileDescriptor file, std::uint64_t end) {
  file_ = std::move(file);
  end_ = end;
}

void RecordFile::add(std::string_view record) {
  // The newest is given up, not the oldest: part of the oldest may be in the file already and must be completed.
  if (waiting_.size() + record.size() <= most_waiting) waiting_ += record;
}

void RecordFile::add_first(std::string_view record) {
  waiting_.insert(0, record);
}

void RecordFile::clear() {
  waiting_.clear();
}

int RecordFile::write() {
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t n = ::write(file_.get(), waiting_.data() + done, waiting_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    done += static_cast<std::size_t>(n);
  }
  end_ += done;
  waiting_.clear();
  return 0;
}

int RecordFile::sync() {
  int result = 0;
  do {
    result = ::fsync(file_.get());
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

int RecordFile::cut_to(std::uint64_t end) {
  return ::ftruncate(file_.get(), static_cast<off_t>(end)) == 0 ? 0 : errno;
}

}  // namespace scaletrain
