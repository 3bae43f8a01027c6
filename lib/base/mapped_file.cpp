#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <ctime>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace scaletrain {
namespace {

// A signal handler has no argument of ours, so the guard's state must be reachable without one. `landing` is the place
// this thread's guarded copy returns to, null outside one.
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

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

// One file, open.
class MappedFile::Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) : file_(path) {
    struct stat status {};
    if (::fstat(file_.descriptor(), &status) != 0) throw_file_error(path, "fstat", errno);
    stamp_ = {.device = status.st_dev,
              .inode = status.st_ino,
              .modified = nanoseconds(status.st_mtim),
              .changed = nanoseconds(status.st_ctim)};
    if (size() == 0) return;
    void* mapped = ::mmap(nullptr, size(), PROT_READ, MAP_SHARED, file_.descriptor(), 0);
    if (mapped == MAP_FAILED) throw_file_error(path, fmt::format("mapping {} bytes", size()), errno);
    data_ = static_cast<const std::byte*>(mapped);
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }
  std::uint64_t size() const { return file_.size(); }
  const Stamp& stamp() const { return stamp_; }
  // Not through the map: of a page that is touched the system reads megabytes around it.
  std::uint64_t samples() const {
    Hasher hasher;
    hash_samples(file_, hasher);
    return hasher.digest();
  }
  // False if it is known to be shorter now.
  bool has_still(std::uint64_t bytes) const {
    struct stat status {};
    return ::fstat(file_.descriptor(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) >= bytes;
  }

 private:
  friend class MappedFile::OpenMaps;

  FileReader file_;
  const std::byte* data_ = nullptr;
  Stamp stamp_;
  std::list<std::shared_ptr<Mapping>>::iterator place_;  // in OpenMaps
};

// Those that were read last, of the whole process: it is the process that has so many descriptors and mappings. One
// that is let go while it is read is closed by its reader.
class MappedFile::OpenMaps {
 public:
  static OpenMaps& of_process() {
    static OpenMaps maps;
    return maps;
  }

  std::shared_ptr<Mapping> find(const MappedFile& file) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Mapping> mapping = file.mapping_.lock();
    if (mapping && mapping->place_ != maps_.end()) maps_.splice(maps_.begin(), maps_, mapping->place_);
    return mapping;
  }

  bool is_stamped(const MappedFile& file, const Stamp& stamp) {
    const std::lock_guard lock(mutex_);
    return file.stamp_ == stamp;
  }

  void add(const MappedFile& file, const std::shared_ptr<Mapping>& mapping) {
    std::shared_ptr<Mapping> last;  // closed behind the lock
    const std::lock_guard lock(mutex_);
    // Another thread may have opened it as well.
    if (const auto other = file.mapping_.lock(); other && other->place_ != maps_.end()) return;
    maps_.push_front(mapping);
    mapping->place_ = maps_.begin();
    file.mapping_ = mapping;
    file.stamp_ = mapping->stamp();
    if (std::ssize(maps_) <= kMostOpenMaps) return;
    last = std::move(maps_.back());
    last->place_ = maps_.end();
    maps_.pop_back();
  }

  void remove(const MappedFile& file) {
    const std::shared_ptr<Mapping> mapping = file.mapping_.lock();  // closed behind the lock
    const std::lock_guard lock(mutex_);
    if (!mapping || mapping->place_ == maps_.end()) return;
    maps_.erase(std::exchange(mapping->place_, maps_.end()));
  }

 private:
  std::mutex mutex_;
  std::list<std::shared_ptr<Mapping>> maps_;  // the last read first
};

MappedFile::MappedFile(std::filesystem::path path, Keeping keeping) : path_(std::move(path)) {
  install_guard_once();
  auto mapping = std::make_shared<Mapping>(path_);
  size_ = mapping->size();
  if (keeping == Keeping::stays_open) {
    kept_ = std::move(mapping);
    return;
  }
  samples_ = mapping->samples();
  OpenMaps::of_process().add(*this, mapping);
}

MappedFile::~MappedFile() {
  OpenMaps::of_process().remove(*this);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      size_(std::exchange(other.size_, 0)),
      samples_(other.samples_),
      kept_(std::move(other.kept_)),
      mapping_(std::move(other.mapping_)),
      stamp_(other.stamp_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  MappedFile taken(std::move(other));
  std::swap(path_, taken.path_);
  std::swap(size_, taken.size_);
  std::swap(samples_, taken.samples_);
  std::swap(kept_, taken.kept_);
  std::swap(mapping_, taken.mapping_);
  std::swap(stamp_, taken.stamp_);
  return *this;
}

std::shared_ptr<const MappedFile::Mapping> MappedFile::mapping() const {
  if (kept_) return kept_;
  OpenMaps& maps = OpenMaps::of_process();
  if (auto open = maps.find(*this)) return open;
  const auto again = std::make_shared<Mapping>(path_);
  if (again->size() != size_ || (!maps.is_stamped(*this, again->stamp()) && again->samples() != samples_)) {
    throw InputError(
        fmt::format("{}: another file, or of another size, than the one of {} bytes that was opened at "
                    "first; it was replaced or truncated while it was in use. Restore the file and restart.",
                    path_.string(), size_));
  }
  maps.add(*this, again);
  return again;
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
  const std::shared_ptr<const Mapping> open = mapping();
  if (!guarded_copy(out.data(), open->data() + offset, out.size())) throw unreadable();
  // A file truncated inside a page reads as zeros up to that page's end, without any signal.
  if (out.back() == std::byte{0} && !open->has_still(offset + out.size())) throw unreadable();
}

}  // namespace scaletrain
