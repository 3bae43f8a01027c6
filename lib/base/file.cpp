#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace scaletrain {
namespace {

// What these say is about the path itself and stays so when it is tried again.
constexpr std::array path_errors = {ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG};

bool is_path_error(int error) {
  return std::find(path_errors.begin(), path_errors.end(), error) != path_errors.end();
}

// One call of at most this many bytes: Linux moves no more than 2 GiB - 4 KiB at once.
constexpr std::size_t largest_transfer = 1u << 30;

template <class Call>
auto without_interruption(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

int open_file(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  return without_interruption([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); });
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  const auto parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

void require_offset(const std::filesystem::path& path, std::uint64_t offset, std::uint64_t length) {
  constexpr auto largest = static_cast<std::uint64_t>(INT64_MAX);
  if (offset > largest || length > largest - offset) {
    throw InputError(fmt::format("{}: offset {} with length {} is beyond any file", path.string(), offset, length));
  }
}

// Whether what is written to the file goes past the page cache from now on. False: it stays as it is, and errno says
// why.
bool set_direct(int file, bool direct) {
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && ::fcntl(file, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

// Whether the beginning of the bytes is what O_DIRECT takes.
bool is_direct_unit(std::uint64_t offset, std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  return offset % FileWriter::direct_unit == 0 && address % FileWriter::direct_unit == 0 &&
         bytes.size() >= FileWriter::direct_unit;
}

// The file type under the path, behind links; 0 if there is none.
mode_t type_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_mode & S_IFMT;
  if (!is_path_error(errno)) throw_file_error(path, "looking for it", errno);
  return 0;
}

}  // namespace

void throw_file_error(const std::filesystem::path& path, std::string_view operation, int error) {
  const std::string text =
      fmt::format("{}: {} failed: {}{}", path.string(), operation, std::strerror(error), descriptor_remedy(error));
  if (is_path_error(error)) throw InputError(text);
  if (error == ENOSPC || error == EDQUOT) throw NoSpaceError(text);
  throw FileAccessError(text);
}

std::string_view descriptor_remedy(int error) {
  // The program raises the soft limit itself, as far as the hard one allows.
  if (error == EMFILE)
    return "; RLIMIT_NOFILE (ulimit -n) allows this process no more descriptors: raise its hard limit (ulimit -Hn; "
           "limits.conf; LimitNOFILE= of a systemd unit)";
  if (error == ENFILE)
    return "; this machine has no more descriptors: raise fs.file-max (sysctl), or end what holds them";
  return {};
}

void throw_descriptor_error(std::string_view what, int error) {
  const std::string text = fmt::format("{} failed: {}{}", what, std::strerror(error), descriptor_remedy(error));
  if (error == EMFILE) throw UserError(text);
  throw InputError(text);
}

bool path_exists(const std::filesystem::path& path) {
  return type_of(path) != 0;
}

bool is_folder(const std::filesystem::path& path) {
  return S_ISDIR(type_of(path));
}

bool is_plain_file(const std::filesystem::path& path) {
  return S_ISREG(type_of(path));
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

FileWriter::FileWriter(std::filesystem::path path, Caching caching) : path_(std::move(path)) {
  file_ = FileDescriptor(open_file(path_, O_WRONLY | O_CREAT | O_EXCL, 0666));
  if (!file_) throw_file_error(path_, "creating the file", errno);
  // Not by open(), which would have made the file before it says that this cannot be had here.
  if (caching == Caching::none) is_direct_ = set_direct(file_.get(), true);
}

void FileWriter::use_cache() {
  if (!set_direct(file_.get(), false)) throw_file_error(path_, "going on through the page cache", errno);
  is_direct_ = false;
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write_at(position_, bytes);
  position_ += bytes.size();
}

void FileWriter::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void FileWriter::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  SCALETRAIN_CHECK(file_.get() >= 0);
  require_offset(path_, offset, bytes.size());
  while (!bytes.empty()) {
    std::size_t size = std::min(bytes.size(), largest_transfer);
    if (is_direct_ && !is_direct_unit(offset, bytes)) use_cache();
    if (is_direct_) size -= size % direct_unit;
    const ssize_t n =
        without_interruption([&] { return ::pwrite(file_.get(), bytes.data(), size, static_cast<off_t>(offset)); });
    // Larger units than ours, or a file system that can do without its cache only at times.
    if (n < 0 && errno == EINVAL && is_direct_) {
      use_cache();
      continue;
    }
    if (n < 0) throw_file_error(path_, fmt::format("writing {} bytes at offset {}", bytes.size(), offset), errno);
    if (n == 0) throw_file_error(path_, fmt::format("writing {} bytes at offset {}", bytes.size(), offset), ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void FileWriter::begin_writeback() {
  SCALETRAIN_CHECK(file_.get() >= 0);
  if (position_ == begun_ || is_direct_) return;
  ::sync_file_range(file_.get(), static_cast<off_t>(begun_), static_cast<off_t>(position_ - begun_),
                    SYNC_FILE_RANGE_WRITE);
  begun_ = position_;
}

void FileWriter::finish() {
  SCALETRAIN_CHECK(file_.get() >= 0);
  if (without_interruption([&] { return ::fsync(file_.get()); }) != 0) throw_file_error(path_, "fsync", errno);
  // Network file systems may report a failed write only here. After EINTR the descriptor is gone on Linux.
  if (::close(file_.release()) != 0 && errno != EINTR) throw_file_error(path_, "closing the file", errno);
}

FileReader::FileReader(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe by mistake must fail below, not wait for a writer.
  file_ = FileDescriptor(open_file(path_, O_RDONLY | O_NONBLOCK));
  if (!file_) throw_file_error(path_, "opening the file", errno);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw_file_error(path_, "fstat", errno);
  if (!S_ISREG(status.st_mode)) throw InputError(path_.string() + ": not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void FileReader::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  SCALETRAIN_CHECK(file_.get() >= 0);
  require_offset(path_, offset, out.size());
  while (!out.empty()) {
    const std::size_t size = std::min(out.size(), largest_transfer);
    const ssize_t n =
        without_interruption([&] { return ::pread(file_.get(), out.data(), size, static_cast<off_t>(offset)); });
    if (n < 0) throw_file_error(path_, fmt::format("reading {} bytes at offset {}", out.size(), offset), errno);
    if (n == 0) {
      throw InputError(
          fmt::format("{}: the file ends at offset {}, {} bytes too early", path_.string(), offset, out.size()));
    }
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void hash_samples(const FileReader& file, Hasher& hasher) {
  constexpr std::uint64_t block_bytes = 4096;
  constexpr std::uint64_t bytes_per_block = 16u << 20;
  constexpr std::uint64_t most_blocks = 64;
  std::array<std::byte, block_bytes> block;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read_at
  const std::uint64_t size = file.size();
  const std::uint64_t last = size > block_bytes ? size - block_bytes : 0;
  const std::uint64_t count = std::min(most_blocks, 2 + size / bytes_per_block);
  for (std::uint64_t i = 0; i < count; ++i) {
    // Sizes beyond 2^57 bytes do not exist, so the product fits.
    const std::uint64_t offset = last * i / (count - 1);
    const auto part = std::span(block).first(static_cast<std::size_t>(std::min(block_bytes, size - offset)));
    file.read_at(offset, part);
    hasher.update(part);
  }
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit) {
  const FileReader reader(path);
  if (reader.size() > limit) {
    throw InputError(fmt::format("{}: the file has {} bytes, at most {} are accepted here", path.string(),
                                 grouped_digits(reader.size()), grouped_digits(limit)));
  }
  std::string text(reader.size(), '\0');
  reader.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

void write_file_durably(const std::filesystem::path& path, std::string_view content) {
  const auto folder = parent_of(path);
  const auto temporary = folder / (".tmp-" + random_id());
  try {
    FileWriter writer(temporary);
    writer.write(content);
    writer.finish();
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      throw_file_error(path, "renaming the finished file to this name", errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(folder);
}

void sync_file(const std::filesystem::path& path) {
  const FileDescriptor file(open_file(path, O_RDONLY));
  if (!file) throw_file_error(path, "opening the file", errno);
  if (without_interruption([&] { return ::fsync(file.get()); }) != 0) throw_file_error(path, "fsync", errno);
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor file(open_file(folder, O_RDONLY | O_DIRECTORY));
  if (!file) throw_file_error(folder, "opening the folder", errno);
  // EINVAL: the file system cannot sync folders (some network ones), so there is nothing more to do.
  if (without_interruption([&] { return ::fsync(file.get()); }) != 0 && errno != EINVAL) {
    throw_file_error(folder, "fsync of the folder", errno);
  }
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw_file_error(from, fmt::format("renaming to {}", to.string()), errno);
  sync_folder(parent_of(to));
}

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || c == '\0'; });
}

void create_folders(const std::filesystem::path& folder) {
  std::filesystem::path current;
  for (const auto& part : folder) {
    current /= part;
    if (::mkdir(current.c_str(), 0777) == 0) {
      sync_folder(parent_of(current));
      continue;
    }
    const int error = errno;
    struct stat status {};
    if (::stat(current.c_str(), &status) != 0) throw_file_error(current, "creating the folder", error);
    if (!S_ISDIR(status.st_mode)) throw_file_error(current, "creating the folder", ENOTDIR);
  }
}

void check_folder_is_writable(const std::filesystem::path& folder) {
  std::filesystem::path current;
  for (const auto& part : folder) {
    current /= part;
    struct stat status {};
    if (::stat(current.c_str(), &status) == 0) {
      if (!S_ISDIR(status.st_mode)) throw_file_error(current, "creating the folder", ENOTDIR);
      continue;
    }
    // A link that leads nowhere is there, and no folder can be made in its place.
    const bool is_absent = errno == ENOENT && ::lstat(current.c_str(), &status) != 0;
    if (!is_absent || ::access(parent_of(current).c_str(), W_OK | X_OK) != 0)
      throw_file_error(current, "creating the folder", errno);
    return;
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw_file_error(folder, "writing to the folder", errno);
}

}  // namespace scaletrain
