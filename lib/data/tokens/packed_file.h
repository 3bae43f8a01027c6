// Instructions, tokenised and packed for one context: what is written once into the cache and then read sample by
// sample.
//
//   PackedHeader | tokens (uint16 or uint32) | learned (a bit a token) | document ends | row ends
//
// A row is a training sample: whole conversations, one after the other, at most `context` tokens. Each section begins
// at a multiple of 8 bytes; ends are int64, those of documents in tokens, those of rows in documents. A token is
// learned if the loss asks for it: the first of a document never is. Padding is not stored.
//
// Errors are InputErrors that name the file and the offset. Const members may be called concurrently.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_type.h"

namespace scaletrain {

// What there is to tell of them.
struct PackedCounts {
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t rows = 0;
  std::uint64_t learned = 0;
  std::uint64_t cut = 0;       // documents that were longer than the context
  std::uint64_t left_out = 0;  // of which nothing that is learned was within it
  std::uint64_t quoted = 0;    // whose messages spell special tokens, which were taken for text
  bool operator==(const PackedCounts&) const = default;
};

struct PackedHeader {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t token_bytes = 0;  // 2 or 4
  std::uint64_t context = 0;
  PackedCounts counts;
  std::uint64_t identity = 0;  // of the records and of how they were tokenised and packed
  std::uint64_t tokenizer_hash = 0;
  std::uint64_t content_hash = 0;  // of all behind the header
  std::uint64_t header_hash = 0;
};
static_assert(sizeof(PackedHeader) == 112, "the header is written as it lies in memory: no padding");

class PackedFile final : public TokenFile {
 public:
  // Reads the header.
  explicit PackedFile(const std::filesystem::path& path,
                      MappedFile::Keeping keeping = MappedFile::Keeping::is_reopened);

  std::int64_t context() const { return static_cast<std::int64_t>(header_.context); }
  std::int64_t num_rows() const { return static_cast<std::int64_t>(header_.counts.rows); }
  const PackedCounts& counts() const { return header_.counts; }
  // One past the last document of a row.
  std::int64_t row_end(std::int64_t row) const;
  // Tokens of a row, without padding.
  std::int64_t row_tokens(std::int64_t row) const;
  // Whether each of the tokens [first, first + out.size()) is learned: 1 or 0.
  void read_learned(std::int64_t first, std::span<std::uint8_t> out) const;

  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(header_.counts.tokens); }
  std::int64_t num_documents() const override { return static_cast<std::int64_t>(header_.counts.documents); }
  std::int64_t document_end(std::int64_t document) const override;
  std::string format() const override { return "packed instructions"; }
  std::string dtype() const override { return token_type_name(type_); }
  bool one_document() const override { return false; }
  const std::filesystem::path& path() const override { return file_.path(); }
  std::uint64_t bytes_to_verify() const override { return file_.size(); }
  void verify() const override;
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) const override;
  std::uint64_t identity() const override { return header_.identity ^ header_.tokenizer_hash; }

 private:
  [[noreturn]] void refuse(std::uint64_t offset, const std::string& what) const;
  std::int64_t read_end(std::uint64_t section, std::int64_t index, std::int64_t most) const;
  void check_ends(std::uint64_t section, std::int64_t count, std::int64_t last, std::int64_t most_between) const;

  MappedFile file_;
  PackedHeader header_;
  TokenType type_ = TokenType::u16;
  // Where the sections begin.
  std::uint64_t learned_begin_ = 0;
  std::uint64_t documents_begin_ = 0;
  std::uint64_t rows_begin_ = 0;
};

// Writes such a file in one pass. Holds a bit for each token and 8 bytes for each document and row until the end. Not
// for concurrent use.
class PackedWriter {
 public:
  PackedWriter(const std::filesystem::path& path, std::int64_t vocab, std::int64_t context);

  // learned: for each token, 1 or 0.
  void append_document(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> learned);
  void end_row();
  // Completes and syncs the file. Of `told` the numbers of what was cut, left out and quoted.
  void finish(const PackedCounts& told, std::uint64_t identity, std::uint64_t tokenizer_hash);

 private:
  void write(std::span<const std::byte> bytes);
  void pad();

  FileWriter file_;
  PackedHeader header_;
  std::vector<std::byte> tokens_;
  std::vector<std::uint8_t> learned_;  // 8 tokens each
  std::vector<std::int64_t> document_ends_;
  std::vector<std::int64_t> row_ends_;
  Hasher hasher_;
};

}  // namespace scaletrain
