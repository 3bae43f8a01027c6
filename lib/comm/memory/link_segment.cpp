#include "comm/memory/link_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "comm/rendezvous/rendezvous_proof.h"

namespace scaletrain {

namespace {

static_assert(std::is_same_v<Nonce, LinkMemory::Nonce>);

// Told to those who look at a process's descriptors, and by it the other side knows the right one.
std::string name_of(const LinkMemory::Nonce& nonce) {
  std::string name = "scaletrain-link-";
  for (const std::uint8_t byte : nonce) name += fmt::format("{:02x}", byte);
  return name;
}

LinkMemory* map(int descriptor) {
  void* const memory = ::mmap(nullptr, sizeof(LinkMemory), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<LinkMemory*>(memory);
}

}  // namespace

std::optional<LinkSegment> LinkSegment::create(std::uint32_t capacity) {
  SCALETRAIN_CHECK(capacity > 0 && capacity <= LinkSide::most_offers);
  const Nonce nonce = make_nonce();
  FileDescriptor file(::memfd_create(name_of(nonce).c_str(), MFD_CLOEXEC));
  // All of it now: memory that is missing later would be a SIGBUS.
  if (!file || ::ftruncate(file.get(), sizeof(LinkMemory)) != 0 ||
      ::fallocate(file.get(), 0, 0, sizeof(LinkMemory)) != 0)
    return std::nullopt;
  LinkMemory* const mapped = map(file.get());
  if (mapped == nullptr) return std::nullopt;
  LinkMemory* const memory = new (mapped) LinkMemory();
  memory->nonce = nonce;
  memory->capacity = capacity;
  return LinkSegment(std::move(file), memory);
}

std::optional<LinkSegment> LinkSegment::find(pid_t process, int descriptor, const LinkMemory::Nonce& nonce) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  // Looked at before it is opened: under this number it may be anything, and opening some things has effects.
  std::error_code error;
  if (std::filesystem::read_symlink(path, error) != "/memfd:" + name_of(nonce) + " (deleted)" || error)
    return std::nullopt;
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0 || found.st_size != sizeof(LinkMemory)) return std::nullopt;
  LinkMemory* const memory = map(file.get());
  if (memory == nullptr) return std::nullopt;
  LinkSegment segment(std::move(file), memory);
  segment.close_descriptor();
  if (memory->nonce != nonce || memory->capacity == 0 || memory->capacity > LinkSide::most_offers) return std::nullopt;
  return segment;
}

LinkSegment::~LinkSegment() {
  if (memory_ != nullptr) ::munmap(memory_, sizeof(LinkMemory));
}

LinkSegment::LinkSegment(LinkSegment&& other) noexcept
    : file_(std::move(other.file_)), memory_(std::exchange(other.memory_, nullptr)) {}

LinkSegment& LinkSegment::operator=(LinkSegment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(memory_, other.memory_);
  return *this;
}

int read_memory_of(pid_t process, std::uint64_t address, std::byte* to, std::size_t bytes) {
  constexpr std::size_t at_once = std::size_t{64} << 20;  // the system's own limit is 2 GiB
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, at_once);
    const iovec here{to, part};
    const iovec there{reinterpret_cast<void*>(address), part};
    const ssize_t got = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (got <= 0) return got == 0 ? EFAULT : errno;
    to += got;
    address += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return 0;
}

}  // namespace scaletrain
