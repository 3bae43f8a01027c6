#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "data/order/sampler.h"

namespace scaletrain {
namespace {

// The last document that ends at or before `limit`, not before `from - 1`; from - 1 if document `from` ends behind it.
// Steps outwards from `from`, because a block holds about as many documents as the one before it.
std::int64_t last_document_within(const DocumentIndex& index, std::int64_t from, std::int64_t limit) {
  std::int64_t low = from - 1;  // ends at or before the limit
  std::int64_t step = 1;
  std::int64_t high = from;
  const std::int64_t count = index.num_documents();
  while (high < count && index.document_end(high) <= limit) {
    low = high;
    high = step < count - high ? high + step : count;
    step *= 2;
  }
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    if (index.document_end(middle) <= limit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A block that ends inside a document has the next one's first token as its last target.
std::int64_t block_targets(const DocumentIndex& index, const BlockTable& table, std::int64_t block) {
  const std::int64_t tokens = table.end(block) - table.starts[static_cast<std::size_t>(block)];
  return tokens - (ends_within_document(index, table, block) ? 0 : 1);
}

}  // namespace

std::int64_t samples_per_block(std::int64_t context, std::int64_t block_tokens) {
  SCALETRAIN_CHECK(context > 0);
  return std::max<std::int64_t>(1, block_tokens / context);
}

BlockTable make_block_table(const DocumentIndex& index, std::int64_t context, std::int64_t block_tokens) {
  if (context < 2) throw UserError("model.context: training needs at least 2 tokens per sample");
  const std::int64_t full = samples_per_block(context, block_tokens);
  // The targets of a full block; its tokens are one more.
  const std::int64_t targets = checked_mul(full, context);
  BlockTable table;
  table.num_tokens = index.num_tokens();
  std::int64_t document = 0;  // the first that ends behind `start`
  for (std::int64_t start = 0; start < table.num_tokens;) {
    table.starts.push_back(start);
    const std::int64_t left = table.num_tokens - start;
    if (left - 1 <= targets) {
      const std::int64_t samples = ceil_div(left - 1, context);
      (samples == full ? table.full_blocks : table.last_samples) += samples == full ? 1 : samples;
      break;
    }
    ++table.full_blocks;
    const std::int64_t last = last_document_within(index, document, start + targets + 1);
    const std::int64_t end = last >= document ? index.document_end(last) : start;
    document = last + 1;
    // At least one target in the last window, or the block would be a sample short.
    start = end >= start + targets - context + 2 ? end : start + targets;
    SCALETRAIN_CHECK(start > table.starts.back());
  }
  return table;
}

bool ends_within_document(const DocumentIndex& index, const BlockTable& table, std::int64_t block) {
  const std::int64_t end = table.end(block);
  return end < table.num_tokens && index.document_end(document_of(index, end - 1)) > end;
}

std::int64_t window_targets(const DocumentIndex& index, const BlockTable& table, std::int64_t context,
                            std::int64_t block, std::int64_t window, std::int64_t block_tokens) {
  const bool is_full = block < table.full_blocks;
  const std::int64_t samples = is_full ? samples_per_block(context, block_tokens) : table.last_samples;
  SCALETRAIN_CHECK(window >= 0 && window < samples);
  if (window + 1 < samples) return context;
  return block_targets(index, table, block) - window * context;
}

std::int64_t all_targets(const DocumentIndex& index, const BlockTable& table) {
  std::int64_t targets = 0;
  for (std::int64_t block = 0; block < std::ssize(table.starts); ++block) targets += block_targets(index, table, block);
  return targets;
}

}  // namespace scaletrain
