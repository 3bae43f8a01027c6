// The token files of one source laid end to end: one stream of tokens, whose documents are those of the files. A file's
// end is always a document's end. So that short files are packed into samples, however many there are.
//
// Memory: a few numbers a file. Const members may be called concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/tokens/token_file.h"

namespace scaletrain {

class JoinedTokens final : public DocumentIndex {
 public:
  // At least one file, and none of them empty.
  explicit JoinedTokens(std::vector<std::unique_ptr<TokenFile>> files);

  std::int64_t num_tokens() const override { return first_token_.back(); }
  // A file that knows no documents counts as one; pieces_between() finds those in it.
  std::int64_t num_documents() const override { return first_document_.back(); }
  std::int64_t document_end(std::int64_t document) const override;
  // Tokens [first, first + out.size()); see TokenFile::read.
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) const;

  // The first of the files whose format knows no documents, or nothing.
  const TokenFile* first_without_index() const;

  // What lies of one document within a range of tokens.
  struct Piece {
    std::int64_t token = 0;
    std::int64_t length = 0;
  };
  // All pieces of [begin, end), in order, none of them empty. In files without an index `end_of_document` ends a
  // document; without one such a file is one document. Reads the tokens of those files only.
  std::vector<Piece> pieces_between(std::int64_t begin, std::int64_t end, std::optional<std::int32_t> end_of_document,
                                    std::int64_t vocab) const;

 private:
  std::size_t file_of(std::int64_t token) const;

  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<std::int64_t> first_token_;     // of each file; one more: of all
  std::vector<std::int64_t> first_document_;  // likewise
};

}  // namespace scaletrain
