#include "data/block_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "data/dataset.h"

namespace scaletrain {
namespace {

struct Piece {
  std::int64_t token = 0;
  std::int64_t length = 0;
};

// The documents of a file that has no index, from their end tokens in [begin, end).
std::vector<Piece> pieces_by_end_token(const BlockRequest& request, std::int64_t begin, std::int64_t end) {
  if (!request.end_of_document) return {{begin, end - begin}};
  std::vector<Piece> pieces;
  std::vector<std::int32_t> tokens(65536);
  std::int64_t start = begin;
  for (std::int64_t first = begin; first < end; first += static_cast<std::int64_t>(tokens.size())) {
    const auto part = std::span(tokens).first(
        static_cast<std::size_t>(std::min(static_cast<std::int64_t>(tokens.size()), end - first)));
    request.file->read(first, part, request.vocab);
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i] != *request.end_of_document) continue;
      const std::int64_t next = first + static_cast<std::int64_t>(i) + 1;
      pieces.push_back({start, next - start});
      start = next;
    }
  }
  if (start < end) pieces.push_back({start, end - start});
  return pieces;
}

std::vector<Piece> pieces_by_index(const TokenFile& file, std::int64_t begin, std::int64_t end) {
  std::vector<Piece> pieces;
  std::int64_t start = begin;
  for (std::int64_t document = document_of(file, begin); start < end; ++document) {
    // The index was checked when the file was opened, but it may have been rewritten since.
    const std::int64_t document_end = document < file.num_documents() ? file.document_end(document) : -1;
    if (document_end < start) {
      throw InputError(
          fmt::format("{}: the end of document {} changed while the file was in use", file.path().string(), document));
    }
    const std::int64_t stop = std::min(document_end, end);
    if (stop > start) pieces.push_back({start, stop - start});
    start = stop;
  }
  return pieces;
}

}  // namespace

BlockStream make_block_stream(const BlockRequest& request) {
  const TokenFile& file = *request.file;
  const std::int64_t begin = request.table->starts[static_cast<std::size_t>(request.block)];
  std::int64_t end = request.table->end(request.block);
  // A block that ends inside a document has one target more, the next block's first token. The document's piece then
  // stays at the stream's end, before that token.
  bool fixed_end = false;
  if (end < file.num_tokens() && file.document_end(document_of(file, end - 1)) > end) {
    ++end;
    fixed_end = true;
  }
  const std::vector<Piece> pieces =
      file.one_document() ? pieces_by_end_token(request, begin, end) : pieces_by_index(file, begin, end);
  const auto count = static_cast<std::int64_t>(pieces.size());
  const std::int64_t movable = count - (fixed_end ? 1 : 0);
  BlockStream stream;
  stream.file = &file;
  stream.token.reserve(pieces.size());
  stream.position.reserve(pieces.size() + 1);
  std::int64_t position = 0;
  const auto append = [&](const Piece& piece) {
    stream.token.push_back(piece.token);
    stream.position.push_back(position);
    position += piece.length;
  };
  if (movable > 0) {
    const KeyedPermutation order(request.key, movable);
    for (std::int64_t i = 0; i < movable; ++i) append(pieces[static_cast<std::size_t>(order.forward(i))]);
  }
  if (fixed_end) append(pieces.back());
  stream.position.push_back(position);
  return stream;
}

void fill_sample(std::span<const std::int32_t> tokens, std::span<const std::int64_t> starts, const SampleRules& rules,
                 const SampleBuffers& out) {
  const std::size_t context = out.inputs.size();
  SCALETRAIN_CHECK_EQ(out.targets.size(), context);
  SCALETRAIN_CHECK(tokens.size() >= 2 && tokens.size() <= context + 1);
  const std::size_t num_targets = tokens.size() - 1;
  for (std::size_t i = 0; i < context; ++i) {
    out.inputs[i] = i < tokens.size() ? tokens[i] : rules.padding;
    out.targets[i] = i < num_targets ? tokens[i + 1] : kMaskedTarget;
  }
  if (out.document_starts != nullptr) out.document_starts->assign(1, 0);
  for (const std::int64_t start : starts) {
    if (start <= 0) continue;
    const auto position = static_cast<std::size_t>(start);
    SCALETRAIN_CHECK_LT(position, tokens.size());
    if (!rules.loss_across) out.targets[position - 1] = kMaskedTarget;
    if (out.document_starts != nullptr && position < context) {
      out.document_starts->push_back(static_cast<std::int32_t>(start));
    }
  }
}

void read_window(const BlockStream& stream, std::int64_t window, const SampleRules& rules, const SampleBuffers& out) {
  const auto context = static_cast<std::int64_t>(out.inputs.size());
  const std::int64_t first = window * context;
  const std::int64_t end = std::min(first + context + 1, stream.length());
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(end - first));
  std::vector<std::int64_t> starts;
  const auto next = std::upper_bound(stream.position.begin(), stream.position.end(), first);
  auto piece = static_cast<std::size_t>(next - stream.position.begin()) - 1;
  for (std::int64_t position = first; position < end; ++piece) {
    const std::int64_t offset = position - stream.position[piece];
    const std::int64_t stop = std::min(end, stream.position[piece + 1]);
    if (offset == 0) starts.push_back(position - first);
    stream.file->read(stream.token[piece] + offset,
                      std::span(tokens).subspan(static_cast<std::size_t>(position - first),
                                                static_cast<std::size_t>(stop - position)),
                      rules.vocab);
    position = stop;
  }
  fill_sample(tokens, starts, rules, out);
}

}  // namespace scaletrain
