#include "data/tokens/content_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHead = "scaletrain contents 1 ";
constexpr std::uint64_t kLargestRecord = 1ull << 30;

// The coarsest time that a file system stores is two seconds (FAT).
constexpr std::int64_t kUnsettled = 3'000'000'000;

constexpr double kSaveSeconds = 60.0;

// Reading this much takes long enough that people want to know why.
constexpr std::uint64_t kWorthTelling = 1ull << 30;

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Compared with the times of files only.
std::int64_t system_clock_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

std::vector<FileStamp> stamps_of(std::span<const fs::path> files) {
  std::vector<FileStamp> stamps;
  for (const fs::path& file : files) stamps.push_back(stamp_of(file));
  return stamps;
}

std::uint64_t samples_hash(std::span<const fs::path> files) {
  Hasher hasher;
  for (const fs::path& file : files) hash_samples(FileReader(file), hasher);
  return hasher.digest();
}

// The path and what stands there now: hosts that share a cache folder, and hold a copy of the corpus each, have a
// record each as well.
std::string record_name(const fs::path& source) {
  std::error_code ignored;
  fs::path whole = fs::absolute(source, ignored).lexically_normal();
  struct statx status {};
  const bool is_there = ::statx(AT_FDCWD, whole.c_str(), 0, STATX_INO | STATX_BTIME, &status) == 0;
  const bool has_birth = is_there && (status.stx_mask & STATX_BTIME) != 0;
  const std::array<std::uint64_t, 4> numbers = {hash_text(whole.string()), is_there ? status.stx_ino : 0,
                                                has_birth ? static_cast<std::uint64_t>(status.stx_btime.tv_sec) : 0,
                                                has_birth ? status.stx_btime.tv_nsec : 0u};
  return to_hex(hash_bytes(std::as_bytes(std::span(numbers)))) + ".contents";
}

// A path may hold any byte but zero; a line of the record ends with one.
std::string escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    if (c == '%' || c == '\n')
      text += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    else
      text += c;
  }
  return text;
}

std::string unescaped(std::string_view text) {
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '%' && i + 2 < text.size();
    path += is_code ? (text.substr(i + 1, 2) == "0a" ? '\n' : '%') : text[i];
    if (is_code) i += 2;
  }
  return path;
}

// The fields of a line, one after the other, each ended by a space.
class Fields {
 public:
  explicit Fields(std::string_view line) : rest_(line) {}
  template <class T>
  T number(int base = 10) {
    T value{};
    const std::string_view field = next();
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value, base);
    if (error != std::errc() || end != field.data() + field.size()) throw InputError("a number is expected");
    return value;
  }
  std::string_view next() {
    const std::size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view field = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return field;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace

FileStamp stamp_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_file_error(path, "looking at the file", errno);
  return {static_cast<std::uint64_t>(status.st_size), nanoseconds(status.st_mtim), nanoseconds(status.st_ctim),
          static_cast<std::uint64_t>(status.st_ino)};
}

std::uint64_t stamps_hash(std::span<const fs::path> files) {
  Hasher hasher;
  for (const fs::path& file : files) {
    const FileStamp stamp = stamp_of(file);
    const std::array<std::uint64_t, 5> numbers = {hash_text(file.string()), stamp.bytes,
                                                  static_cast<std::uint64_t>(stamp.modified),
                                                  static_cast<std::uint64_t>(stamp.changed), stamp.inode};
    hasher.update(std::as_bytes(std::span(numbers)));
  }
  return hasher.digest();
}

std::uint64_t hash_of_files(std::span<const fs::path> files) {
  Hasher hasher;
  for (const fs::path& file : files) {
    const FileReader reader(file);
    std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(1u << 20, reader.size())));
    for (std::uint64_t offset = 0; offset < reader.size(); offset += piece.size()) {
      const auto part = std::span(piece).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), reader.size() - offset)));
      reader.read_at(offset, part);
      hasher.update(part);
    }
  }
  return hasher.digest();
}

ContentRecord::ContentRecord(Options options) : options_(std::move(options)), name_(record_name(options_.source)) {
  if (!options_.now) options_.now = system_clock_now;
  for (const fs::path& folder : options_.folders) {
    entries_ = load(folder);
    if (!entries_.empty()) return;
  }
}

void ContentRecord::tell(const std::string& message) const {
  if (options_.report) options_.report(message);
}

std::uint64_t ContentRecord::hash_of(ContentKind kind, std::span<const fs::path> files, std::uint64_t bytes,
                                     const std::function<std::uint64_t()>& read) {
  SCALETRAIN_CHECK(!files.empty());
  const Key key(kind, files.front().string());
  const std::int64_t begin = options_.now();
  const std::vector<FileStamp> stamps = stamps_of(files);
  const auto entry = entries_.find(key);
  const bool seems_same = entry != entries_.end() && entry->second.stamps == stamps;
  if (seems_same && options_.check == DataCheck::changed && entry->second.samples == samples_hash(files))
    return entry->second.hash;
  if (bytes >= kWorthTelling) {
    tell(fmt::format(
        "verifying {} ({}): {}", files.front().string(), bytes_text(bytes),
        options_.check == DataCheck::all ? "data.verify is all" : "it is new, or has changed since it was last read"));
  }
  const std::uint64_t hash = read();
  if (seems_same && options_.check == DataCheck::all && hash != entry->second.hash) {
    throw InputError(
        fmt::format("{}: its content is not what it was when it was last read, though its size, times and inode are "
                    "the same: the disk or its file system has damaged it. Restore the file; if it is right as it is, "
                    "touch it and start again",
                    files.front().string()));
  }
  // Nobody changes a cache under its name, and it is always young when it is read first.
  const bool is_settled = kind == ContentKind::cache || std::all_of(stamps.begin(), stamps.end(), [&](const auto& s) {
                            return s.changed < begin - kUnsettled || s.changed > begin + kUnsettled;
                          });
  const std::uint64_t samples = samples_hash(files);
  if (!is_settled || stamps_of(files) != stamps) return hash;
  entries_[key] = {hash, samples, stamps};
  fresh_.insert(key);
  if (seconds_since(saved_) > kSaveSeconds) save();  // whoever is stopped now need not begin anew
  return hash;
}

ContentRecord::Entries ContentRecord::load(const fs::path& folder) const {
  const fs::path path = folder / name_;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  try {
    return parse(read_text_file(path, kLargestRecord));
  } catch (const InputError& error) {
    tell(fmt::format("{}: what was known of the data cannot be used, it is read again: {}", path.string(),
                     error.what()));
    return {};
  }
}

// kind hash samples files, then of each file bytes modified changed inode, then the path.
std::string ContentRecord::text_of(const Entries& entries) {
  std::string body;
  for (const auto& [key, entry] : entries) {
    body += fmt::format("{} {} {} {}", static_cast<char>(key.first), to_hex(entry.hash), to_hex(entry.samples),
                        entry.stamps.size());
    for (const FileStamp& stamp : entry.stamps)
      body += fmt::format(" {} {} {} {}", stamp.bytes, stamp.modified, stamp.changed, stamp.inode);
    body += " " + escaped(key.second) + "\n";
  }
  return fmt::format("{}{}\n{}", kHead, to_hex(hash_text(body)), body);
}

ContentRecord::Entries ContentRecord::parse(std::string_view text) {
  constexpr std::size_t most_files = 2;  // that belong together
  const std::size_t head = text.find('\n');
  std::uint64_t hash = 0;
  if (!text.starts_with(kHead) || head == std::string_view::npos ||
      !from_hex(text.substr(kHead.size(), head - kHead.size()), hash))
    throw InputError("it begins as no record of this version does");
  text.remove_prefix(head + 1);
  if (hash_text(text) != hash) throw InputError("its checksum is wrong");
  Entries entries;
  for (const std::string& line : split_text(text, '\n')) {
    if (line.empty()) continue;
    Fields fields(line);
    const std::string_view kind = fields.next();
    Entry entry;
    entry.hash = fields.number<std::uint64_t>(16);
    entry.samples = fields.number<std::uint64_t>(16);
    const auto count = fields.number<std::size_t>();
    if (kind.size() != 1 || count == 0 || count > most_files) throw InputError("a line of it makes no sense");
    for (std::size_t i = 0; i < count; ++i) {
      FileStamp stamp;
      stamp.bytes = fields.number<std::uint64_t>();
      stamp.modified = fields.number<std::int64_t>();
      stamp.changed = fields.number<std::int64_t>();
      stamp.inode = fields.number<std::uint64_t>();
      entry.stamps.push_back(stamp);
    }
    entries[{static_cast<ContentKind>(kind.front()), unescaped(fields.rest())}] = std::move(entry);
  }
  return entries;
}

void ContentRecord::save() {
  if (fresh_.empty()) return;
  std::string reason = "there is no data.cache, SCALETRAIN_CACHE or HOME";
  for (const fs::path& folder : options_.folders) {
    try {
      create_folders(folder);
      // What others have found meanwhile stays, unless its file is gone.
      Entries all = load(folder);
      std::erase_if(all, [](const auto& entry) {
        std::error_code ignored;
        return !fs::exists(entry.first.second, ignored);
      });
      for (const Key& key : fresh_) all[key] = entries_.at(key);
      write_file_durably(folder / name_, text_of(all));
      fresh_.clear();
      saved_ = monotonic_now();
      return;
    } catch (const InputError& error) {
      reason = error.what();
    }
  }
  if (std::exchange(has_told_, true)) return;
  tell(fmt::format("{}: what it holds cannot be noted for the next start, which will read all of it again: {}",
                   options_.source.string(), reason));
}

}  // namespace scaletrain
