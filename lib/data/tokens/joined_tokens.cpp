#include "data/tokens/joined_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {
namespace {

using Piece = JoinedTokens::Piece;

// A range of one file's tokens, and where that file begins in the stream.
struct Range {
  const TokenFile& file;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t first = 0;
};

void add_by_end_token(const Range& range, std::int32_t end_of_document, std::int64_t vocab,
                      std::vector<Piece>& pieces) {
  std::vector<std::int32_t> tokens(65536);
  std::int64_t start = range.begin;
  for (std::int64_t first = range.begin; first < range.end; first += static_cast<std::int64_t>(tokens.size())) {
    const auto part = std::span(tokens).first(
        static_cast<std::size_t>(std::min(static_cast<std::int64_t>(tokens.size()), range.end - first)));
    range.file.read(first, part, vocab);
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i] != end_of_document) continue;
      const std::int64_t next = first + static_cast<std::int64_t>(i) + 1;
      pieces.push_back({range.first + start, next - start});
      start = next;
    }
  }
  if (start < range.end) pieces.push_back({range.first + start, range.end - start});
}

void add_by_index(const Range& range, std::vector<Piece>& pieces) {
  const TokenFile& file = range.file;
  std::int64_t start = range.begin;
  for (std::int64_t document = document_of(file, range.begin); start < range.end; ++document) {
    // The index was verified once, but it may have been rewritten since.
    const std::int64_t document_end = document < file.num_documents() ? file.document_end(document) : -1;
    if (document_end < start) {
      throw InputError(
          fmt::format("{}: the end of document {} changed while the file was in use", file.path().string(), document));
    }
    const std::int64_t stop = std::min(document_end, range.end);
    if (stop > start) pieces.push_back({range.first + start, stop - start});
    start = stop;
  }
}

}  // namespace

JoinedTokens::JoinedTokens(std::vector<std::unique_ptr<TokenFile>> files) : files_(std::move(files)) {
  SCALETRAIN_CHECK(!files_.empty());
  first_token_.push_back(0);
  first_document_.push_back(0);
  for (const auto& file : files_) {
    SCALETRAIN_CHECK(file->num_tokens() > 0);
    first_token_.push_back(checked_add(first_token_.back(), file->num_tokens()));
    first_document_.push_back(checked_add(first_document_.back(), file->num_documents()));
  }
}

const TokenFile* JoinedTokens::first_without_index() const {
  const auto found = std::find_if(files_.begin(), files_.end(), [](const auto& file) { return file->one_document(); });
  return found == files_.end() ? nullptr : found->get();
}

std::size_t JoinedTokens::file_of(std::int64_t token) const {
  SCALETRAIN_CHECK(token >= 0 && token < num_tokens());
  const auto next = std::upper_bound(first_token_.begin(), first_token_.end(), token);
  return static_cast<std::size_t>(next - first_token_.begin()) - 1;
}

std::int64_t JoinedTokens::document_end(std::int64_t document) const {
  SCALETRAIN_CHECK(document >= 0 && document < num_documents());
  const auto next = std::upper_bound(first_document_.begin(), first_document_.end(), document);
  const auto file = static_cast<std::size_t>(next - first_document_.begin()) - 1;
  return first_token_[file] + files_[file]->document_end(document - first_document_[file]);
}

void JoinedTokens::read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab) const {
  if (out.empty()) return;
  for (std::size_t file = file_of(first); !out.empty(); ++file) {
    const auto count = static_cast<std::size_t>(std::min(std::ssize(out), first_token_[file + 1] - first));
    files_[file]->read(first - first_token_[file], out.first(count), vocab);
    out = out.subspan(count);
    first = first_token_[file + 1];
  }
}

std::vector<Piece> JoinedTokens::pieces_between(std::int64_t begin, std::int64_t end,
                                                std::optional<std::int32_t> end_of_document, std::int64_t vocab) const {
  std::vector<Piece> pieces;
  for (std::size_t file = begin < end ? file_of(begin) : 0; begin < end; ++file) {
    const std::int64_t stop = std::min(end, first_token_[file + 1]);
    const std::int64_t first = first_token_[file];
    const Range range{.file = *files_[file], .begin = begin - first, .end = stop - first, .first = first};
    if (range.file.one_document() && end_of_document)
      add_by_end_token(range, *end_of_document, vocab, pieces);
    else
      add_by_index(range, pieces);
    begin = stop;
  }
  return pieces;
}

}  // namespace scaletrain
