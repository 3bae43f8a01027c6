// Internal to lib/data: the permuted documents of one block, and the windows cut from them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/order/sampler.h"
#include "data/tokens/joined_tokens.h"

namespace scaletrain {

// The stream that a block's windows are cut from: its documents (or the pieces of them that lie in the block) in their
// order of one epoch. Does not own the tokens.
struct BlockStream {
  const JoinedTokens* tokens = nullptr;
  std::vector<std::int64_t> token;     // first token of each piece, in the source
  std::vector<std::int64_t> position;  // first position of each piece in the stream; one more: the stream's length
  std::int64_t length() const { return position.back(); }
};

struct BlockRequest {
  const JoinedTokens* tokens = nullptr;
  const BlockTable* table = nullptr;
  std::int64_t block = 0;
  std::int64_t context = 0;
  std::int64_t vocab = 0;
  std::optional<std::int32_t> end_of_document;  // finds the documents of files that have no index
  PhiloxKey key;
};

BlockStream make_block_stream(const BlockRequest& request);

// Where a sample goes, and how it is cut.
struct SampleBuffers {
  std::span<std::int32_t> inputs;
  std::span<std::int32_t> targets;
  std::vector<std::int32_t>* document_starts = nullptr;
};

struct SampleRules {
  std::int64_t vocab = 0;
  bool loss_across = true;
  bool joins_documents = false;  // a sample of text tells of none but its first, as if it held no other
  std::int32_t padding = 0;      // stands behind the last token; never a target
};

// Fills a sample from tokens (at most inputs.size() + 1, at least 2) and the ascending positions in them at which
// documents begin.
void fill_sample(std::span<const std::int32_t> tokens, std::span<const std::int64_t> starts, const SampleRules& rules,
                 const SampleBuffers& out);

void read_window(const BlockStream& stream, std::int64_t window, const SampleRules& rules, const SampleBuffers& out);

}  // namespace scaletrain
