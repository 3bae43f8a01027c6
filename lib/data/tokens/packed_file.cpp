#include "data/tokens/packed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "data/tokens/token_formats.h"

namespace scaletrain {

namespace {

constexpr std::uint32_t kPackedVersion = 1;
constexpr std::size_t kPackedPieceBytes = 1u << 20;
constexpr std::uint64_t kSectionAlignment = 8;

std::uint64_t header_hash_of(const PackedHeader& header) {
  return hash_bytes(std::as_bytes(std::span(&header, 1)).first(offsetof(PackedHeader, header_hash)));
}

}  // namespace

PackedFile::PackedFile(const std::filesystem::path& path, MappedFile::Keeping keeping) : file_(path, keeping) {
  if (file_.size() < sizeof(PackedHeader)) refuse(file_.size(), "the file ends within its header");
  file_.read(0, std::as_writable_bytes(std::span(&header_, 1)));
  if (header_.magic != kPackedMagic) refuse(0, "no file of packed instructions");
  if (header_.version != kPackedVersion)
    refuse(8, fmt::format("version {}; only {} is known", header_.version, kPackedVersion));
  if (header_.header_hash != header_hash_of(header_)) refuse(0, "the header's checksum is wrong: the file is damaged");
  if (header_.token_bytes != 2 && header_.token_bytes != 4)
    refuse(12, fmt::format("{} bytes a token", header_.token_bytes));
  const PackedCounts& counts = header_.counts;
  const std::uint64_t body = file_.size() - sizeof(PackedHeader);
  // By division first: the products could wrap.
  const bool fits =
      counts.tokens <= body / header_.token_bytes && counts.documents <= body / 8 && counts.rows <= body / 8;
  if (fits) {
    learned_begin_ = round_up(sizeof(PackedHeader) + counts.tokens * header_.token_bytes, kSectionAlignment);
    documents_begin_ = round_up(learned_begin_ + ceil_div(counts.tokens, std::uint64_t{8}), kSectionAlignment);
    rows_begin_ = documents_begin_ + counts.documents * 8;
  }
  if (!fits || rows_begin_ + counts.rows * 8 != file_.size())
    refuse(24, fmt::format("{} tokens in {} documents and {} rows make no file of {} bytes", counts.tokens,
                           counts.documents, counts.rows, file_.size()));
  type_ = header_.token_bytes == 2 ? TokenType::u16 : TokenType::u32;
}

void PackedFile::refuse(std::uint64_t offset, const std::string& what) const {
  throw InputError(fmt::format("{}: at offset {}: {}", file_.path().string(), offset, what));
}

std::int64_t PackedFile::read_end(std::uint64_t section, std::int64_t index, std::int64_t most) const {
  const std::uint64_t offset = section + static_cast<std::uint64_t>(index) * 8;
  std::int64_t end = 0;
  file_.read(offset, std::as_writable_bytes(std::span(&end, 1)));
  if (end < 0 || end > most) refuse(offset, "the ends of documents or rows changed while the file was in use");
  return end;
}

std::int64_t PackedFile::document_end(std::int64_t document) const {
  SCALETRAIN_CHECK(document >= 0 && document < num_documents());
  return read_end(documents_begin_, document, num_tokens());
}

std::int64_t PackedFile::row_end(std::int64_t row) const {
  SCALETRAIN_CHECK(row >= 0 && row < num_rows());
  return read_end(rows_begin_, row, num_documents());
}

std::int64_t PackedFile::row_tokens(std::int64_t row) const {
  const auto end_of = [this](std::int64_t documents) { return documents == 0 ? 0 : document_end(documents - 1); };
  return end_of(row_end(row)) - (row == 0 ? 0 : end_of(row_end(row - 1)));
}

void PackedFile::read_learned(std::int64_t first, std::span<std::uint8_t> out) const {
  SCALETRAIN_CHECK(first >= 0 && first + std::ssize(out) <= num_tokens());
  if (out.empty()) return;
  const auto begin = static_cast<std::uint64_t>(first);
  std::vector<std::uint8_t> bytes((begin + out.size() - 1) / 8 - begin / 8 + 1);
  file_.read(learned_begin_ + begin / 8, std::as_writable_bytes(std::span(bytes)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t bit = begin % 8 + i;
    out[i] = static_cast<std::uint8_t>(bytes[bit / 8] >> bit % 8 & 1);
  }
}

void PackedFile::read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) const {
  read_mapped_tokens(file_, sizeof(PackedHeader), num_tokens(), type_, first, out, vocab);
}

void PackedFile::check_ends(std::uint64_t section, std::int64_t count, std::int64_t last,
                            std::int64_t most_between) const {
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t end = read_end(section, i, last);
    if (end <= previous || end - previous > most_between)
      refuse(section + static_cast<std::uint64_t>(i) * 8, fmt::format("an end at {} behind one at {}", end, previous));
    previous = end;
  }
  if (previous != last) refuse(section, fmt::format("the last end is {} of {}", previous, last));
}

void PackedFile::verify() const {
  Hasher hasher;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(kPackedPieceBytes, file_.size())));
  for (std::uint64_t done = sizeof(PackedHeader); done < file_.size();) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), file_.size() - done)));
    file_.read(done, part);
    hasher.update(part);
    done += part.size();
  }
  if (hasher.digest() != header_.content_hash)
    refuse(sizeof(PackedHeader), "the checksum is wrong: the file is damaged");
  // The checksum says that the numbers are those that were written, not that whoever wrote them meant well.
  check_ends(documents_begin_, num_documents(), num_tokens(), context());
  check_ends(rows_begin_, num_rows(), num_documents(), context());
  for (std::int64_t row = 0; row < num_rows(); ++row)
    if (row_tokens(row) > context())
      refuse(rows_begin_ + static_cast<std::uint64_t>(row) * 8, fmt::format("row {} is longer than the context", row));
}

PackedWriter::PackedWriter(const std::filesystem::path& path, std::int64_t vocab, std::int64_t context) : file_(path) {
  SCALETRAIN_CHECK(vocab > 0 && vocab <= std::int64_t{INT32_MAX} && context > 0);
  header_.magic = kPackedMagic;
  header_.version = kPackedVersion;
  header_.token_bytes = vocab <= 65536 ? 2 : 4;
  header_.context = static_cast<std::uint64_t>(context);
  // The place of the header; it is written last, because it holds the checksums.
  const PackedHeader empty;
  file_.write(std::as_bytes(std::span(&empty, 1)));
}

void PackedWriter::write(std::span<const std::byte> bytes) {
  hasher_.update(bytes);
  file_.write(bytes);
}

void PackedWriter::pad() {
  const std::uint64_t at = file_.position();
  write(std::vector<std::byte>(round_up(at, kSectionAlignment) - at));
}

void PackedWriter::append_document(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> learned) {
  SCALETRAIN_CHECK_EQ(tokens.size(), learned.size());
  SCALETRAIN_CHECK(!tokens.empty() && tokens.size() <= header_.context && learned[0] == 0);
  PackedCounts& counts = header_.counts;
  for (std::size_t i = 0; i < tokens.size(); ++i, ++counts.tokens) {
    std::array<std::byte, 4> bytes{};
    std::memcpy(bytes.data(), &tokens[i], sizeof(tokens[i]));
    tokens_.insert(tokens_.end(), bytes.begin(), bytes.begin() + header_.token_bytes);
    if (counts.tokens % 8 == 0) learned_.push_back(0);
    if (learned[i] == 0) continue;
    ++counts.learned;
    learned_.back() = static_cast<std::uint8_t>(learned_.back() | 1u << counts.tokens % 8);
  }
  document_ends_.push_back(static_cast<std::int64_t>(counts.tokens));
  if (tokens_.size() < kPackedPieceBytes) return;
  write(tokens_);
  tokens_.clear();
}

void PackedWriter::end_row() {
  row_ends_.push_back(std::ssize(document_ends_));
}

void PackedWriter::finish(const PackedCounts& told, std::uint64_t identity, std::uint64_t tokenizer_hash) {
  write(tokens_);
  pad();
  write(std::as_bytes(std::span(learned_)));
  pad();
  write(std::as_bytes(std::span(document_ends_)));
  write(std::as_bytes(std::span(row_ends_)));
  PackedCounts& counts = header_.counts;
  counts.documents = document_ends_.size();
  counts.rows = row_ends_.size();
  counts.cut = told.cut;
  counts.left_out = told.left_out;
  counts.quoted = told.quoted;
  header_.identity = identity;
  header_.tokenizer_hash = tokenizer_hash;
  header_.content_hash = hasher_.digest();
  header_.header_hash = header_hash_of(header_);
  file_.write_at(0, std::as_bytes(std::span(&header_, 1)));
  file_.finish();
}

}  // namespace scaletrain
