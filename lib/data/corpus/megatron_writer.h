// Internal to lib/data: writes a pair of Megatron's token files (token_file.h says how they look) so that a writer that
// was killed can be followed by another one which goes on.
//
// Tokens go to STEM.bin; the documents' lengths wait in STEM.documents, from which finish() makes STEM.idx. What a
// killed writer has written behind the extent that its last sync() returned is cut off. Not for concurrent use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

#include "base/file.h"
#include "data/tokens/token_type.h"

namespace scaletrain {

// As Megatron-LM chooses it: 16 bits without a sign for vocabularies below 65500, else 32 bits.
TokenType megatron_token_type(std::int64_t vocab);

class MegatronWriter {
 public:
  struct Extent {
    std::int64_t tokens = 0;
    std::int64_t documents = 0;
    std::int64_t open_tokens = 0;  // of the tokens, those of a document that has not ended yet
    bool operator==(const Extent&) const = default;
  };
  // A document with more tokens becomes several sequences: the index has 32 bits for a sequence's length.
  static constexpr std::int64_t kLongestSequence = std::numeric_limits<std::int32_t>::max();

  // Goes on at the extent; {}: begins anew, whatever is there.
  MegatronWriter(const std::filesystem::path& stem, TokenType type, const Extent& extent,
                 std::int64_t longest_sequence = kLongestSequence);

  // Whether one could go on at the extent: the files are at least as long.
  static bool is_there(const std::filesystem::path& stem, TokenType type, const Extent& extent);

  void append(std::span<const std::int32_t> tokens);
  void end_document();
  // Everything so far is on the disk.
  Extent sync();
  // Writes and syncs the index. Nothing may follow.
  void finish();

  const Extent& extent() const { return extent_; }
  const std::filesystem::path& stem() const { return stem_; }

 private:
  class AppendedFile {
   public:
    AppendedFile(std::filesystem::path path, std::uint64_t size);
    void append(std::span<const std::byte> bytes);
    void flush();
    void sync();

   private:
    std::filesystem::path path_;
    FileDescriptor file_;
    std::vector<std::byte> waiting_;
  };

  std::filesystem::path stem_;
  TokenType type_;
  Extent extent_;
  std::int64_t longest_sequence_;
  AppendedFile tokens_;
  AppendedFile documents_;
  std::vector<std::byte> bytes_;
};

}  // namespace scaletrain
