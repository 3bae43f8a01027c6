// Internal to lib/data: the token file that this program writes.
//
//   CacheHeader | tokens (uint16 or uint32) | zeros up to a multiple of 8 | document ends (int64, ascending)
//
// The checksum of a section is the hash of its bytes; the header's covers the header up to itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/hash.h"

namespace scaletrain {

struct CacheHeader {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t token_bytes = 0;  // 2 or 4
  std::uint64_t num_tokens = 0;
  std::uint64_t num_documents = 0;
  std::uint64_t identity = 0;  // of the text and of how it was cut
  std::uint64_t tokenizer_hash = 0;
  std::uint64_t tokens_hash = 0;
  std::uint64_t documents_hash = 0;
  std::uint64_t header_hash = 0;
};
static_assert(sizeof(CacheHeader) == 72, "the header is written as it lies in memory: no padding");

inline constexpr std::uint32_t kCacheVersion = 1;

std::uint64_t cache_header_hash(const CacheHeader& header);
// Where the document ends begin.
std::uint64_t cache_documents_begin(std::uint64_t num_tokens, std::uint32_t token_bytes);

// Writes such a file in one pass and bounded memory; document ends wait in a second file beside it, which the
// destructor removes. Not for concurrent use.
class CacheWriter {
 public:
  CacheWriter(const std::filesystem::path& path, std::int64_t vocab);
  ~CacheWriter();
  CacheWriter(const CacheWriter&) = delete;
  CacheWriter& operator=(const CacheWriter&) = delete;

  void append(std::span<const std::int32_t> tokens);
  void end_document();
  // Completes and syncs the file.
  void finish(std::uint64_t identity, std::uint64_t tokenizer_hash);

  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  void flush_tokens();
  void flush_ends();

  FileWriter file_;
  std::filesystem::path ends_path_;
  std::optional<FileWriter> ends_file_;
  std::uint32_t token_bytes_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_documents_ = 0;
  std::vector<std::byte> tokens_;
  std::vector<std::int64_t> ends_;
  Hasher tokens_hasher_;
  Hasher ends_hasher_;
};

}  // namespace scaletrain
