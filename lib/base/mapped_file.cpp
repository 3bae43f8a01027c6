#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace scaletrain {
namespace {

// A signal handler has no argument of ours, so the guard's state must be reachable without one: the only file-level
// state of this layer. `landing` is the place this thread's guarded copy returns to, null outside one.
thread_local sigjmp_buf* landing = nullptr;

struct sigaction& previous_action() {
  static struct sigaction action {};
  return action;
}

void on_bus_error(int signal, siginfo_t*, void*) {
  if (landing != nullptr) siglongjmp(*landing, 1);
  // Not ours: whoever handled the signal before gets it, because the instruction faults again on return.
  ::sigaction(signal, &previous_action(), nullptr);
}

void install_guard_once() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    // SA_NODEFER: the jump out of the handler must not leave the signal blocked, and saving the mask at every copy
    // would cost a system call.
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &previous_action()) == 0;
  }();
  SCALETRAIN_CHECK(installed);
}

// False when a page of the source could not be read. No object with a destructor may live here: the jump skips them.
bool guarded_copy(std::byte* to, const std::byte* from, std::size_t size) {
  sigjmp_buf place;
  if (sigsetjmp(place, 0) != 0) {
    landing = nullptr;
    return false;
  }
  landing = &place;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(to, from, size);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  landing = nullptr;
  return true;
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  install_guard_once();
  file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file_) throw_file_error(path_, "opening the file", errno);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw_file_error(path_, "fstat", errno);
  if (!S_ISREG(status.st_mode)) throw InputError(path_.string() + ": not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) throw_file_error(path_, fmt::format("mapping {} bytes", size_), errno);
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  MappedFile taken(std::move(other));
  std::swap(path_, taken.path_);
  std::swap(file_, taken.file_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

void MappedFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    throw InputError(fmt::format("{}: the file has {} bytes, reading {} at offset {} would pass its end",
                                 path_.string(), size_, out.size(), offset));
  }
  if (out.empty()) return;
  const auto unreadable = [&] {
    return InputError(fmt::format(
        "{}: {} bytes at offset {} cannot be read any more; the file was truncated or its disk failed while it was in "
        "use. Restore the file and restart.",
        path_.string(), out.size(), offset));
  };
  if (!guarded_copy(out.data(), data_ + offset, out.size())) throw unreadable();
  // A file truncated inside a page reads as zeros up to that page's end, without any signal.
  if (out.back() == std::byte{0}) {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < offset + out.size()) {
      throw unreadable();
    }
  }
}

}  // namespace scaletrain
