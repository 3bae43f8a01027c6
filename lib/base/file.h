// Files whose content must survive: written under a temporary name, synced, renamed. Every failure is an InputError
// that names the path, the operation and the system's reason; a FileAccessError where the reason says nothing about the
// file itself. A failed fsync is never retried on the same file (its pages may already be marked clean); the caller
// writes a new one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace scaletrain {

class Hasher;

// The system refused to look at a file or to change it: no permission, no descriptor or memory left, a disk or server
// that fails. What the file holds is unknown, so whoever judges files must not take this for damage. A path that is not
// there, or that leads to something else than a file or folder, is a plain InputError.
class FileAccessError : public InputError {
 public:
  using InputError::InputError;
};
// The disk, or what this user may take of it, is full.
class NoSpaceError : public FileAccessError {
 public:
  using FileAccessError::FileAccessError;
};

// Throws the one that fits this errno: "PATH: OPERATION failed: REASON", and what to do where descriptors have run out.
[[noreturn]] void throw_file_error(const std::filesystem::path& path, std::string_view operation, int error);

// What to do where the system has no descriptor left, for this process (EMFILE) or at all (ENFILE), after a semicolon;
// empty for any other errno.
std::string_view descriptor_remedy(int error);
// The system has refused a descriptor that is no file's: UserError where this process may have no more, InputError
// otherwise. "WHAT failed: REASON", and what to do.
[[noreturn]] void throw_descriptor_error(std::string_view what, int error);

// Whether there is something under the path, behind links. FileAccessError if that cannot be told.
bool path_exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
bool is_plain_file(const std::filesystem::path& path);

// Owns a file descriptor. Move-only. The destructor closes without reporting; writers call close() to learn of errors.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();

 private:
  int fd_ = -1;
};

// Sequential or positioned writes to a new file (created as the umask says; it must not exist yet).
class FileWriter {
 public:
  // Whether the system keeps a copy of what is written (its page cache), which costs a processor more than the storage
  // itself does. Without one (O_DIRECT), whole units of direct_unit bytes go straight to the storage, as long as they
  // come from memory and lie at offsets that are multiples of it. The first write that does not fit, and the first that
  // the file system refuses, leave that way for good: they and all later ones go through the cache. What the file holds
  // is the same.
  enum class Caching { by_system, none };
  static constexpr std::size_t direct_unit = 4096;

  explicit FileWriter(std::filesystem::path path, Caching caching = Caching::by_system);
  // Appends; short writes are continued, EINTR is retried.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Writes at an offset without moving the append position.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  std::uint64_t position() const { return position_; }
  // Has the disk begin with what was appended through the cache since the last call, so that finish() finds less to do.
  // No promise, and no error: finish() has both.
  void begin_writeback();
  // fsync, then close. Nothing may be written after it.
  void finish();
  const std::filesystem::path& path() const { return path_; }
  // Whether writes that fit go past the cache, so far.
  bool is_direct() const { return is_direct_; }

 private:
  void use_cache();

  std::filesystem::path path_;
  FileDescriptor file_;
  bool is_direct_ = false;
  std::uint64_t position_ = 0;
  std::uint64_t begun_ = 0;  // up to where writing back was begun
};

// Positioned reads of an existing regular file. Concurrent calls are fine.
class FileReader {
 public:
  explicit FileReader(std::filesystem::path path);
  std::uint64_t size() const { return size_; }  // at opening
  // Reads exactly out.size() bytes; an end of file before that is an InputError with the offset.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return file_.get(); }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

// Adds sampled blocks of the file to the hash, by which one that nobody has changed is told from another of its size:
// 4 KiB each, the first, the last, one more for every 16 MiB, at most 64.
void hash_samples(const FileReader& file, Hasher& hasher);

// Of all files that are mapped at the same time so many are open, and so many mappings there are, in the whole process.
inline constexpr std::int64_t kMostOpenMaps = 64;

// A file mapped read-only. Reads go through read(), which turns a page that vanished (the file was truncated or its
// disk failed while we run) into an InputError with file and offset instead of a SIGBUS. Concurrent reads are fine.
//
// A data set may have a hundred thousand files, and a process neither descriptors nor mappings for them all. So the
// kMostOpenMaps that were read last stay open, the others are opened again by their next read. What is found then is
// taken for the same file if device, inode, size and times are what they were, or else if size and sampled blocks are:
// a file may be moved to another disk, or be replaced by a copy of itself. Anything else is an InputError. A file that
// stays open may be deleted or replaced without harm.
class MappedFile {
 public:
  // stays_open: beside the kMostOpenMaps, for a file that is to lose its name while it is in use.
  enum class Keeping { is_reopened, stays_open };

  explicit MappedFile(std::filesystem::path path, Keeping keeping = Keeping::is_reopened);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::uint64_t size() const { return size_; }
  // Copies bytes [offset, offset + out.size()); beyond the end is an InputError.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  class Mapping;
  class OpenMaps;
  // Equal for a file that nobody has touched. Times are nanoseconds since 1970.
  struct Stamp {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::int64_t modified = 0;
    std::int64_t changed = 0;
    bool operator==(const Stamp&) const = default;
  };
  std::shared_ptr<const Mapping> mapping() const;

  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  std::uint64_t samples_ = 0;               // hash_samples() at first
  std::shared_ptr<const Mapping> kept_;     // of a file that stays open
  mutable std::weak_ptr<Mapping> mapping_;  // this and stamp_: for OpenMaps alone
  mutable Stamp stamp_;                     // when it was opened last
};

// The whole file as text; one larger than limit bytes is an InputError, refused before it is read.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t limit);

// The file appears under its name complete and synced, or not at all: temporary name, fsync, rename, fsync of the
// folder.
void write_file_durably(const std::filesystem::path& path, std::string_view content);

// fsync of what anybody has written to an existing file.
void sync_file(const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& folder);

// rename(2), then fsync of the destination's folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// True for a plain name that stays inside its folder: not empty, no '/', no NUL, not "." or "..", at most 255 bytes.
bool is_plain_file_name(std::string_view name);

// create_directories whose failure is an InputError with the path and the reason. New folders are as the umask says.
void create_folders(const std::filesystem::path& folder);
// Makes nothing: the InputError that making the folder, or a file in it, would end with, as far as the system tells
// ahead.
void check_folder_is_writable(const std::filesystem::path& folder);

}  // namespace scaletrain
