// What files held when all of their bytes were last read, so that a start need not read terabytes that nobody has
// changed.
//
// Each path that a config names as a source has a record in the data cache's folder, `HASH.contents`: for each file the
// hash of its content (or the fact that its checksums were right), its size, its times, its inode, and a hash of
// sampled blocks. A file all of which is still the same is not read again. Times are compared for being equal, never
// for being later, so that a clock that moves does no harm; a file changed within seconds of its reading is not kept,
// since another change may have left the same time.
//
// What this cannot see: content that changed while size, both times and inode stayed, and outside the sampled blocks
// (hash_samples). No program that writes through the file system does that, since it cannot set the time of change
// (ctime); a failing disk can. DataCheck::all reads everything and refuses what differs from its record.
//
// A record that is damaged or missing costs time, nothing else. It is replaced by a rename, so that starts at the same
// time never see half of one; where two write at once one of them may be lost, and what it held is read once more.
// A folder that cannot be written to is reported. Not for concurrent use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "config/config.h"

namespace scaletrain {

// Takes a line for the user: what is being built, skipped or rebuilt.
using Reporter = std::function<void(const std::string& message)>;

// By which a file is taken for unchanged. Times are nanoseconds since 1970: of the last change of the content, which
// anybody may set, and of the file's last change at all (ctime), which only the system sets.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;
  std::int64_t changed = 0;
  std::uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};
// FileAccessError or InputError if the file cannot be looked at.
FileStamp stamp_of(const std::filesystem::path& path);
// Of all files, with their paths.
std::uint64_t stamps_hash(std::span<const std::filesystem::path> files);

// Of all their bytes, one after the other.
std::uint64_t hash_of_files(std::span<const std::filesystem::path> files);

// What a recorded hash is of.
enum class ContentKind : char {
  bytes = 'b',   // all bytes
  tokens = 't',  // a token file whose index and checksums were right: TokenFile::identity()
  cache = 'c',   // a file of tokenised text whose checksums were right; never changed once it has its name
};

class ContentRecord {
 public:
  struct Options {
    std::filesystem::path source;                // as the config names it
    std::vector<std::filesystem::path> folders;  // read from the first that has it, written to the first that can be
    DataCheck check = DataCheck::changed;
    Reporter report{};
    std::function<std::int64_t()> now{};  // the system's clock if empty; nanoseconds since 1970
  };
  // Reads the record.
  explicit ContentRecord(Options options);

  // The hash that `read` gives of these files, which belong together: from the record if they have not changed since,
  // else by calling it, which reads about `bytes`. InputError, with DataCheck::all, if it is not what the record says
  // of files that seem unchanged.
  std::uint64_t hash_of(ContentKind kind, std::span<const std::filesystem::path> files, std::uint64_t bytes,
                        const std::function<std::uint64_t()>& read);
  DataCheck check() const { return options_.check; }
  // Writes what is new, as hash_of does by itself every minute. Never throws for what the file system refuses,
  // but reports it, once.
  void save();

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t samples = 0;
    std::vector<FileStamp> stamps;
  };
  using Key = std::pair<ContentKind, std::string>;  // the path of the first file
  using Entries = std::map<Key, Entry>;

  Entries load(const std::filesystem::path& folder) const;
  static std::string text_of(const Entries& entries);
  static Entries parse(std::string_view text);
  void tell(const std::string& message) const;

  Options options_;
  std::string name_;
  Entries entries_;
  std::set<Key> fresh_;  // what this object has read, and is to be written
  MonotonicTime saved_ = monotonic_now();
  bool has_told_ = false;
};

}  // namespace scaletrain
