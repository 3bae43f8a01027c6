#include "data/block_reader.h"

#include <algorithm>

#include "base/error.h"
#include "data/dataset.h"

namespace scaletrain {

BlockStream make_block_stream(const BlockRequest& request) {
  const BlockTable& table = *request.table;
  const std::int64_t begin = table.starts[static_cast<std::size_t>(request.block)];
  // A block that ends inside a document has one target more, the next block's first token. The document's piece then
  // stays at the stream's end, before that token.
  const bool fixed_end = ends_within_document(*request.tokens, table, request.block);
  const std::int64_t end = table.end(request.block) + (fixed_end ? 1 : 0);
  const std::vector<JoinedTokens::Piece> pieces =
      request.tokens->pieces_between(begin, end, request.end_of_document, request.vocab);
  const auto count = static_cast<std::int64_t>(pieces.size());
  const std::int64_t movable = count - (fixed_end ? 1 : 0);
  BlockStream stream;
  stream.tokens = request.tokens;
  stream.token.reserve(pieces.size());
  stream.position.reserve(pieces.size() + 1);
  std::int64_t position = 0;
  const auto append = [&](const JoinedTokens::Piece& piece) {
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
    if (out.document_starts != nullptr && !rules.joins_documents && position < context) {
      out.document_starts->push_back(static_cast<std::int32_t>(start));
    }
  }
}

namespace {

// Behind the block's last target: a piece of its last window that holds none.
void fill_empty(const SampleRules& rules, const SampleBuffers& out) {
  std::fill(out.inputs.begin(), out.inputs.end(), rules.padding);
  std::fill(out.targets.begin(), out.targets.end(), kMaskedTarget);
  if (out.document_starts != nullptr) out.document_starts->assign(1, 0);
}

}  // namespace

void read_window(const BlockStream& stream, std::int64_t window, const SampleRules& rules, const SampleBuffers& out) {
  const auto context = static_cast<std::int64_t>(out.inputs.size());
  const std::int64_t first = window * context;
  const std::int64_t end = std::min(first + context + 1, stream.length());
  if (end - first < 2) return fill_empty(rules, out);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(end - first));
  std::vector<std::int64_t> starts;
  const auto next = std::upper_bound(stream.position.begin(), stream.position.end(), first);
  auto piece = static_cast<std::size_t>(next - stream.position.begin()) - 1;
  for (std::int64_t position = first; position < end; ++piece) {
    const std::int64_t offset = position - stream.position[piece];
    const std::int64_t stop = std::min(end, stream.position[piece + 1]);
    if (offset == 0) starts.push_back(position - first);
    stream.tokens->read(stream.token[piece] + offset,
                        std::span(tokens).subspan(static_cast<std::size_t>(position - first),
                                                  static_cast<std::size_t>(stop - position)),
                        rules.vocab);
    position = stop;
  }
  fill_sample(tokens, starts, rules, out);
}

}  // namespace scaletrain
