#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "data/tokens/token_formats.h"
#include "data/tokens/token_type.h"

namespace scaletrain {
namespace {

constexpr std::array<char, 9> kIndexMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
// Magic, version (uint64), type code (uint8), number of sequences (uint64), length of the document index (uint64).
constexpr std::uint64_t kVersionOffset = 9;
constexpr std::uint64_t kTypeOffset = 17;
constexpr std::uint64_t kSequencesOffset = 18;
constexpr std::uint64_t kDocumentsOffset = 26;
constexpr std::uint64_t kIndexHeaderBytes = 34;

// Reads an array in pieces: use(index of the first element, elements).
template <class T, class Use>
void for_each_piece(const MappedFile& file, std::uint64_t begin, std::int64_t count, Use use) {
  constexpr std::int64_t piece_size = 8192;
  std::vector<T> piece(static_cast<std::size_t>(std::min(piece_size, count)));
  for (std::int64_t first = 0; first < count; first += piece_size) {
    const auto size = static_cast<std::size_t>(std::min(piece_size, count - first));
    const auto elements = std::span(piece).first(size);
    file.read(begin + static_cast<std::uint64_t>(first) * sizeof(T), std::as_writable_bytes(elements));
    use(first, std::span<const T>(elements));
  }
}

class MegatronFile final : public TokenFile {
 public:
  MegatronFile(const std::filesystem::path& bin, const std::filesystem::path& idx) : bin_(bin), idx_(idx) {
    read_header();
  }

  std::uint64_t bytes_to_verify() const override { return idx_.size(); }
  void verify() const override {
    check_sequences();
    check_documents();
  }

  std::int64_t num_tokens() const override { return num_tokens_; }
  std::int64_t num_documents() const override { return num_index_entries_ - 1; }

  std::int64_t document_end(std::int64_t document) const override {
    SCALETRAIN_CHECK(document >= 0 && document < num_documents());
    const std::uint64_t offset = documents_begin_ + static_cast<std::uint64_t>(document + 1) * 8;
    const auto sequence = read_number<std::int64_t>(idx_, offset);
    if (sequence == num_sequences_) return num_tokens_;
    std::int64_t end = -1;
    if (sequence >= 0 && sequence < num_sequences_) {
      end = read_number<std::int64_t>(idx_, pointers_begin_ + static_cast<std::uint64_t>(sequence) * 8) /
            token_bytes(type_);
    }
    // Checked when the file was opened; it may have been rewritten since.
    if (end < 0 || end > num_tokens_) {
      throw InputError(fmt::format("{}: the document index at offset {} changed while the file was in use",
                                   idx_.path().string(), offset));
    }
    return end;
  }

  std::string format() const override { return "Megatron token file"; }
  std::string dtype() const override { return token_type_name(type_); }
  bool one_document() const override { return false; }
  const std::filesystem::path& path() const override { return bin_.path(); }
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) const override {
    read_mapped_tokens(bin_, 0, num_tokens_, type_, first, out, vocab);
  }
  std::vector<std::filesystem::path> files() const override { return {bin_.path(), idx_.path()}; }
  std::uint64_t identity() const override {
    Hasher hasher;
    for (const std::uint64_t part : {sampled_identity(idx_), sampled_identity(bin_)}) {
      hasher.update(std::as_bytes(std::span(&part, 1)));
    }
    return hasher.digest();
  }

 private:
  [[noreturn]] void refuse(std::uint64_t offset, const std::string& what) const {
    throw InputError(fmt::format("{}: at offset {}: {}", idx_.path().string(), offset, what));
  }

  void read_header() {
    if (idx_.size() < kIndexHeaderBytes) {
      refuse(idx_.size(), fmt::format("the file ends within its header of {} bytes", kIndexHeaderBytes));
    }
    std::array<char, 9> magic{};
    idx_.read(0, std::as_writable_bytes(std::span(magic)));
    if (magic != kIndexMagic) refuse(0, "no Megatron index: it does not begin with MMIDIDX");
    const auto version = read_number<std::uint64_t>(idx_, kVersionOffset);
    if (version != 1) refuse(kVersionOffset, fmt::format("index version {}; only version 1 is known", version));
    type_ = type_of_code(read_number<std::uint8_t>(idx_, kTypeOffset));
    const auto sequences = read_number<std::uint64_t>(idx_, kSequencesOffset);
    const auto documents = read_number<std::uint64_t>(idx_, kDocumentsOffset);
    const std::uint64_t body = idx_.size() - kIndexHeaderBytes;
    // 12 bytes a sequence and 8 an entry of the document index; compared by division, the products could wrap.
    if (sequences > body / 12) {
      refuse(kSequencesOffset, fmt::format("{} sequences do not fit into a file of {} bytes", sequences, idx_.size()));
    }
    if (documents > body / 8 || sequences * 12 + documents * 8 != body) {
      refuse(kDocumentsOffset,
             fmt::format(
                 "{} sequences and {} document entries make {} bytes, the file has {}; it is "
                 "truncated, has trailing bytes, or is not an index of text",
                 sequences, documents,
                 documents > body / 8 ? "more" : std::to_string(kIndexHeaderBytes + sequences * 12 + documents * 8),
                 idx_.size()));
    }
    if (documents < 1) refuse(kDocumentsOffset, "the document index is empty; it has at least the entry 0");
    num_sequences_ = static_cast<std::int64_t>(sequences);
    num_index_entries_ = static_cast<std::int64_t>(documents);
    pointers_begin_ = kIndexHeaderBytes + sequences * 4;
    documents_begin_ = pointers_begin_ + sequences * 8;
    const auto width = static_cast<std::uint64_t>(token_bytes(type_));
    if (bin_.size() % width != 0) {
      throw InputError(fmt::format("{}: {} bytes are no whole number of tokens of {} bytes; the file is truncated",
                                   bin_.path().string(), bin_.size(), width));
    }
    num_tokens_ = static_cast<std::int64_t>(bin_.size() / width);
  }

  TokenType type_of_code(std::uint8_t code) const {
    switch (code) {
      case 1:
        return TokenType::u8;
      case 2:
        return TokenType::i8;
      case 3:
        return TokenType::i16;
      case 4:
        return TokenType::i32;
      case 5:
        return TokenType::i64;
      case 6:
      case 7:
        refuse(kTypeOffset, fmt::format("type code {} is floating point; token ids are integers", code));
      case 8:
        return TokenType::u16;
      default:
        refuse(kTypeOffset, fmt::format("unknown type code {}; known are 1 to 8", code));
    }
  }

  void check_sequences() const {
    const std::int64_t width = token_bytes(type_);
    std::int64_t total = 0;  // tokens of the sequences so far; at most num_tokens_
    std::vector<std::int64_t> pointers;
    for_each_piece<std::int32_t>(
        idx_, kIndexHeaderBytes, num_sequences_, [&](std::int64_t first, std::span<const std::int32_t> lengths) {
          pointers.resize(lengths.size());
          const std::uint64_t begin = pointers_begin_ + static_cast<std::uint64_t>(first) * 8;
          idx_.read(begin, std::as_writable_bytes(std::span(pointers)));
          for (std::size_t i = 0; i < lengths.size(); ++i) {
            const std::int64_t sequence = first + static_cast<std::int64_t>(i);
            if (pointers[i] != total * width) {
              refuse(begin + i * 8,
                     fmt::format("sequence {} begins at byte {} of the token file, but the one before it ends "
                                 "at byte {}; gaps and overlaps are not accepted",
                                 sequence, pointers[i], total * width));
            }
            if (lengths[i] < 0 || lengths[i] > num_tokens_ - total) {
              refuse(kIndexHeaderBytes + static_cast<std::uint64_t>(sequence) * 4,
                     fmt::format("sequence {} has length {}, but {} has only {} tokens behind token {}", sequence,
                                 lengths[i], bin_.path().filename().string(), num_tokens_ - total, total));
            }
            total += lengths[i];
          }
        });
    if (total != num_tokens_) {
      refuse(kIndexHeaderBytes,
             fmt::format("the sequences have {} tokens together, {} has {}; the two files do not belong together",
                         total, bin_.path().filename().string(), num_tokens_));
    }
  }

  void check_documents() const {
    std::int64_t previous = 0;
    for_each_piece<std::int64_t>(
        idx_, documents_begin_, num_index_entries_, [&](std::int64_t first, std::span<const std::int64_t> entries) {
          for (std::size_t i = 0; i < entries.size(); ++i) {
            const std::int64_t index = first + static_cast<std::int64_t>(i);
            if (entries[i] < previous || entries[i] > num_sequences_ || (index == 0 && entries[i] != 0)) {
              refuse(
                  documents_begin_ + static_cast<std::uint64_t>(index) * 8,
                  fmt::format("entry {} of the document index is {}; the entries begin with 0, never decrease and end "
                              "with the number of sequences, {}",
                              index, entries[i], num_sequences_));
            }
            previous = entries[i];
          }
        });
    if (previous != num_sequences_) {
      refuse(idx_.size() - 8, fmt::format("the document index ends with {}, not with the number of sequences, {}",
                                          previous, num_sequences_));
    }
  }

  MappedFile bin_;
  MappedFile idx_;
  TokenType type_ = TokenType::u16;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_index_entries_ = 0;
  std::int64_t num_tokens_ = 0;
  std::uint64_t pointers_begin_ = 0;
  std::uint64_t documents_begin_ = 0;
};

}  // namespace

std::unique_ptr<TokenFile> open_megatron_file(const std::filesystem::path& bin, const std::filesystem::path& idx) {
  return std::make_unique<MegatronFile>(bin, idx);
}

}  // namespace scaletrain
