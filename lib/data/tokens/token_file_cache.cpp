#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "data/tokens/cache_format.h"
#include "data/tokens/token_formats.h"
#include "data/tokens/token_type.h"

namespace scaletrain {
namespace {

constexpr std::size_t kPieceBytes = 1u << 20;

std::uint64_t hash_section(const MappedFile& file, std::uint64_t begin, std::uint64_t size) {
  Hasher hasher;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, size)));
  for (std::uint64_t done = 0; done < size;) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, size - done)));
    file.read(begin + done, part);
    hasher.update(part);
    done += part.size();
  }
  return hasher.digest();
}

class CacheFile final : public TokenFile {
 public:
  CacheFile(const std::filesystem::path& path, MappedFile::Keeping keeping) : file_(path, keeping) {
    if (file_.size() < sizeof(CacheHeader)) refuse(file_.size(), "the file ends within its header");
    file_.read(0, std::as_writable_bytes(std::span(&header_, 1)));
    if (header_.magic != kCacheMagic) refuse(0, "no token file of this program");
    if (header_.version != kCacheVersion)
      refuse(8, fmt::format("version {}; only {} is known", header_.version, kCacheVersion));
    if (header_.header_hash != cache_header_hash(header_))
      refuse(0, "the header's checksum is wrong: the file is damaged");
    if (header_.token_bytes != 2 && header_.token_bytes != 4)
      refuse(12, fmt::format("{} bytes a token", header_.token_bytes));
    const std::uint64_t body = file_.size() - sizeof(CacheHeader);
    // By division first: the products could wrap.
    if (header_.num_tokens > body / header_.token_bytes || header_.num_documents > body / 8) {
      refuse(16, fmt::format("{} tokens in {} documents do not fit into a file of {} bytes", header_.num_tokens,
                             header_.num_documents, file_.size()));
    }
    documents_begin_ = cache_documents_begin(header_.num_tokens, header_.token_bytes);
    if (documents_begin_ + header_.num_documents * 8 != file_.size()) {
      refuse(16, fmt::format("{} tokens in {} documents make {} bytes, the file has {}", header_.num_tokens,
                             header_.num_documents, documents_begin_ + header_.num_documents * 8, file_.size()));
    }
    type_ = header_.token_bytes == 2 ? TokenType::u16 : TokenType::u32;
  }

  std::uint64_t bytes_to_verify() const override { return file_.size(); }
  void verify() const override {
    if (hash_section(file_, sizeof(CacheHeader), header_.num_tokens * header_.token_bytes) != header_.tokens_hash) {
      refuse(sizeof(CacheHeader), "the checksum of the tokens is wrong: the file is damaged");
    }
    if (hash_section(file_, documents_begin_, header_.num_documents * 8) != header_.documents_hash) {
      refuse(documents_begin_, "the checksum of the document ends is wrong: the file is damaged");
    }
    check_documents();
  }

  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(header_.num_tokens); }
  std::int64_t num_documents() const override { return static_cast<std::int64_t>(header_.num_documents); }
  std::int64_t document_end(std::int64_t document) const override {
    SCALETRAIN_CHECK(document >= 0 && document < num_documents());
    const std::uint64_t offset = documents_begin_ + static_cast<std::uint64_t>(document) * 8;
    const auto end = read_number<std::int64_t>(file_, offset);
    if (end < 0 || end > num_tokens()) refuse(offset, "the document ends changed while the file was in use");
    return end;
  }
  std::string format() const override { return "token file"; }
  std::string dtype() const override { return token_type_name(type_); }
  bool one_document() const override { return false; }
  const std::filesystem::path& path() const override { return file_.path(); }
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) const override {
    read_mapped_tokens(file_, sizeof(CacheHeader), num_tokens(), type_, first, out, vocab);
  }
  std::uint64_t identity() const override { return header_.identity ^ header_.tokenizer_hash; }

 private:
  [[noreturn]] void refuse(std::uint64_t offset, const std::string& what) const {
    throw InputError(fmt::format("{}: at offset {}: {}", file_.path().string(), offset, what));
  }

  // The checksum says that the numbers are those that were written, not that whoever wrote them meant well.
  void check_documents() const {
    std::vector<std::int64_t> ends(kPieceBytes / 8);
    std::int64_t previous = 0;
    for (std::uint64_t first = 0; first < header_.num_documents; first += ends.size()) {
      const auto part = std::span(ends).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(ends.size(), header_.num_documents - first)));
      file_.read(documents_begin_ + first * 8, std::as_writable_bytes(part));
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (part[i] < previous || part[i] > num_tokens()) {
          refuse(documents_begin_ + (first + i) * 8,
                 fmt::format("document {} ends at token {}, the one before it at {}; the file has {} tokens", first + i,
                             part[i], previous, num_tokens()));
        }
        previous = part[i];
      }
    }
    if (previous != num_tokens()) {
      refuse(documents_begin_, fmt::format("the documents end at token {} of {}", previous, num_tokens()));
    }
  }

  MappedFile file_;
  CacheHeader header_;
  std::uint64_t documents_begin_ = 0;
  TokenType type_ = TokenType::u16;
};

}  // namespace

std::unique_ptr<TokenFile> open_cache_file(const std::filesystem::path& path, MappedFile::Keeping keeping) {
  return std::make_unique<CacheFile>(path, keeping);
}

std::uint64_t cache_header_hash(const CacheHeader& header) {
  return hash_bytes(std::as_bytes(std::span(&header, 1)).first(offsetof(CacheHeader, header_hash)));
}

std::uint64_t cache_documents_begin(std::uint64_t num_tokens, std::uint32_t token_bytes) {
  return round_up(sizeof(CacheHeader) + num_tokens * token_bytes, std::uint64_t{8});
}

CacheWriter::CacheWriter(const std::filesystem::path& path, std::int64_t vocab)
    : file_(path), ends_path_(path.string() + ".ends"), token_bytes_(vocab <= 65536 ? 2 : 4) {
  SCALETRAIN_CHECK(vocab > 0 && vocab <= std::int64_t{INT32_MAX});
  ends_file_.emplace(ends_path_);
  // The place of the header; it is written last, because it holds the checksums.
  const CacheHeader empty;
  file_.write(std::as_bytes(std::span(&empty, 1)));
}

CacheWriter::~CacheWriter() {
  ::unlink(ends_path_.c_str());
}

void CacheWriter::append(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    std::array<std::byte, 4> bytes{};
    std::memcpy(bytes.data(), &token, sizeof(token));
    tokens_.insert(tokens_.end(), bytes.begin(), bytes.begin() + token_bytes_);
    if (tokens_.size() >= kPieceBytes) flush_tokens();
  }
  num_tokens_ += static_cast<std::int64_t>(tokens.size());
}

void CacheWriter::end_document() {
  ends_.push_back(num_tokens_);
  ++num_documents_;
  if (ends_.size() * 8 >= kPieceBytes) flush_ends();
}

void CacheWriter::flush_tokens() {
  tokens_hasher_.update(tokens_);
  file_.write(tokens_);
  tokens_.clear();
}

void CacheWriter::flush_ends() {
  const auto bytes = std::as_bytes(std::span(ends_));
  ends_hasher_.update(bytes);
  ends_file_->write(bytes);
  ends_.clear();
}

void CacheWriter::finish(std::uint64_t identity, std::uint64_t tokenizer_hash) {
  flush_tokens();
  flush_ends();
  const auto num_tokens = static_cast<std::uint64_t>(num_tokens_);
  const std::uint64_t padding = cache_documents_begin(num_tokens, token_bytes_) - file_.position();
  file_.write(std::vector<std::byte>(padding));
  const FileReader ends(ends_path_);
  std::vector<std::byte> piece(kPieceBytes);
  for (std::uint64_t done = 0; done < ends.size();) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, ends.size() - done)));
    ends.read_at(done, part);
    file_.write(part);
    done += part.size();
  }
  CacheHeader header;
  header.magic = kCacheMagic;
  header.version = kCacheVersion;
  header.token_bytes = token_bytes_;
  header.num_tokens = num_tokens;
  header.num_documents = static_cast<std::uint64_t>(num_documents_);
  header.identity = identity;
  header.tokenizer_hash = tokenizer_hash;
  header.tokens_hash = tokens_hasher_.digest();
  header.documents_hash = ends_hasher_.digest();
  header.header_hash = cache_header_hash(header);
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  file_.finish();
}

}  // namespace scaletrain
