#include "data/corpus/megatron_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "base/error.h"

namespace scaletrain {
namespace {

constexpr std::size_t kWaitingBytes = 1u << 20;

std::filesystem::path beside(const std::filesystem::path& stem, const char* ending) {
  return stem.string() + ending;
}

std::uint8_t code_of(TokenType type) {
  constexpr std::uint8_t code_of_i32 = 4;
  constexpr std::uint8_t code_of_u16 = 8;
  SCALETRAIN_CHECK(type == TokenType::u16 || type == TokenType::i32);
  return type == TokenType::u16 ? code_of_u16 : code_of_i32;
}

// Sequences of the lengths that the documents have.
struct Sequence {
  std::int64_t length = 0;
  bool ends_document = false;
};
template <class Use>
void for_each_sequence(const FileReader& documents, std::int64_t longest, Use use) {
  std::vector<std::int64_t> lengths(kWaitingBytes / sizeof(std::int64_t));
  const std::uint64_t all = documents.size() / sizeof(std::int64_t);
  for (std::uint64_t first = 0; first < all; first += lengths.size()) {
    const auto part =
        std::span(lengths).first(static_cast<std::size_t>(std::min<std::uint64_t>(lengths.size(), all - first)));
    documents.read_at(first * sizeof(std::int64_t), std::as_writable_bytes(part));
    for (std::int64_t left : part) {
      for (; left > longest; left -= longest) use(Sequence{longest, false});
      use(Sequence{left, true});
    }
  }
}

// Numbers one after the other.
class NumberWriter {
 public:
  explicit NumberWriter(FileWriter& file) : file_(file) {}
  template <class T>
  void put(T number) {
    std::array<std::byte, sizeof(T)> bytes{};
    std::memcpy(bytes.data(), &number, sizeof(T));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    if (bytes_.size() >= kWaitingBytes) flush();
  }
  void flush() {
    file_.write(bytes_);
    bytes_.clear();
  }

 private:
  FileWriter& file_;
  std::vector<std::byte> bytes_;
};

void write_index(const std::filesystem::path& path, const FileReader& documents, TokenType type, std::int64_t longest) {
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  std::uint64_t sequences = 0;
  std::uint64_t num_documents = 0;
  for_each_sequence(documents, longest, [&](const Sequence& sequence) {
    ++sequences;
    num_documents += sequence.ends_document ? 1 : 0;
  });
  constexpr std::string_view magic("MMIDIDX\0\0", 9);
  constexpr std::uint64_t version = 1;
  FileWriter file(path);
  file.write(magic);
  NumberWriter numbers(file);
  numbers.put(version);
  numbers.put(code_of(type));
  numbers.put(sequences);
  numbers.put(num_documents + 1);
  for_each_sequence(documents, longest,
                    [&](const Sequence& sequence) { numbers.put(static_cast<std::int32_t>(sequence.length)); });
  std::int64_t offset = 0;
  for_each_sequence(documents, longest, [&](const Sequence& sequence) {
    numbers.put(offset);
    offset += sequence.length * token_bytes(type);
  });
  std::int64_t count = 0;
  numbers.put(count);
  for_each_sequence(documents, longest, [&](const Sequence& sequence) {
    ++count;
    if (sequence.ends_document) numbers.put(count);
  });
  numbers.flush();
  file.finish();
}

}  // namespace

TokenType megatron_token_type(std::int64_t vocab) {
  constexpr std::int64_t first_of_32_bits = 65500;
  return vocab < first_of_32_bits ? TokenType::u16 : TokenType::i32;
}

MegatronWriter::AppendedFile::AppendedFile(std::filesystem::path path, std::uint64_t size)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
  if (!file_) throw_file_error(path_, "opening for writing", errno);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw_file_error(path_, "looking at the file", errno);
  if (static_cast<std::uint64_t>(status.st_size) < size)
    throw InputError(
        fmt::format("{}: the file has {} bytes, and {} were written and synced: it was cut; remove the "
                    "folder {} and begin anew",
                    path_.string(), status.st_size, size, path_.parent_path().string()));
  if (::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) throw_file_error(path_, "cutting the file", errno);
  if (::lseek(file_.get(), 0, SEEK_END) < 0) throw_file_error(path_, "seeking", errno);
}

void MegatronWriter::AppendedFile::append(std::span<const std::byte> bytes) {
  waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
  if (waiting_.size() >= kWaitingBytes) flush();
}

void MegatronWriter::AppendedFile::flush() {
  for (std::size_t done = 0; done < waiting_.size();) {
    const ::ssize_t written = ::write(file_.get(), waiting_.data() + done, waiting_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw_file_error(path_, "writing", written < 0 ? errno : EIO);
    done += static_cast<std::size_t>(written);
  }
  waiting_.clear();
}

void MegatronWriter::AppendedFile::sync() {
  flush();
  if (::fdatasync(file_.get()) != 0) throw_file_error(path_, "syncing", errno);
}

MegatronWriter::MegatronWriter(const std::filesystem::path& stem, TokenType type, const Extent& extent,
                               std::int64_t longest_sequence)
    : stem_(stem),
      type_(type),
      extent_(extent),
      longest_sequence_(longest_sequence),
      tokens_(beside(stem, ".bin"), static_cast<std::uint64_t>(extent.tokens * token_bytes(type))),
      documents_(beside(stem, ".documents"), static_cast<std::uint64_t>(extent.documents) * sizeof(std::int64_t)) {}

bool MegatronWriter::is_there(const std::filesystem::path& stem, TokenType type, const Extent& extent) {
  const auto has = [&stem](const char* ending, std::int64_t bytes) {
    std::error_code error;
    const auto size = std::filesystem::file_size(beside(stem, ending), error);
    return !error && size >= static_cast<std::uint64_t>(bytes);
  };
  return has(".bin", extent.tokens * token_bytes(type)) &&
         has(".documents", extent.documents * std::int64_t{sizeof(std::int64_t)});
}

void MegatronWriter::append(std::span<const std::int32_t> tokens) {
  if (type_ == TokenType::i32) {
    tokens_.append(std::as_bytes(tokens));
  } else {
    bytes_.resize(tokens.size() * 2);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto token = static_cast<std::uint16_t>(tokens[i]);
      std::memcpy(bytes_.data() + 2 * i, &token, sizeof(token));
    }
    tokens_.append(bytes_);
  }
  extent_.tokens += static_cast<std::int64_t>(tokens.size());
  extent_.open_tokens += static_cast<std::int64_t>(tokens.size());
}

void MegatronWriter::end_document() {
  documents_.append(std::as_bytes(std::span(&extent_.open_tokens, 1)));
  extent_.open_tokens = 0;
  ++extent_.documents;
}

MegatronWriter::Extent MegatronWriter::sync() {
  tokens_.sync();
  documents_.sync();
  return extent_;
}

void MegatronWriter::finish() {
  SCALETRAIN_CHECK(extent_.open_tokens == 0);
  sync();
  write_index(beside(stem_, ".idx"), FileReader(beside(stem_, ".documents")), type_, longest_sequence_);
}

}  // namespace scaletrain
