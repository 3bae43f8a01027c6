#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/numbers/philox.h"
#include "data/order/sampler.h"
#include "support/philox_below.h"
#include "support/processor_time.h"

using namespace scaletrain;

namespace {

class ListedDocuments final : public DocumentIndex {
 public:
  explicit ListedDocuments(const std::vector<std::int64_t>& lengths) {
    std::int64_t end = 0;
    for (const std::int64_t length : lengths) ends_.push_back(end += length);
  }
  std::int64_t num_tokens() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::int64_t num_documents() const override { return static_cast<std::int64_t>(ends_.size()); }
  std::int64_t document_end(std::int64_t d) const override { return ends_[static_cast<std::size_t>(d)]; }
  bool ends_at(std::int64_t token) const { return std::binary_search(ends_.begin(), ends_.end(), token); }

 private:
  std::vector<std::int64_t> ends_;
};

// Documents whose ends are a formula: about 997 tokens each, one of them as long as 40 blocks.
class FormulaDocuments final : public DocumentIndex {
 public:
  explicit FormulaDocuments(std::int64_t documents) : documents_(documents) {}
  std::int64_t num_tokens() const override { return document_end(documents_ - 1); }
  std::int64_t num_documents() const override { return documents_; }
  std::int64_t document_end(std::int64_t d) const override {
    ++probes_;
    const std::int64_t base =
        (d + 1) * 997 + static_cast<std::int64_t>(philox_below({1, 2}, static_cast<std::uint64_t>(d), 900));
    return base + (d >= documents_ / 2 ? kGiant : 0);
  }
  std::int64_t probes() const { return probes_; }
  static constexpr std::int64_t kGiant = 40 * kBlockTokens + 12345;

 private:
  std::int64_t documents_;
  mutable std::int64_t probes_ = 0;
};

// What the header promises, checked block by block. Targets of a block: its tokens but the first, and the next block's
// first if it ends within a document.
void check_table(const ListedDocuments& index, const BlockTable& table, std::int64_t context, std::int64_t full) {
  const std::int64_t tokens = index.num_tokens();
  const auto blocks = static_cast<std::int64_t>(table.starts.size());
  REQUIRE(table.num_tokens == tokens);
  if (tokens == 0) {
    REQUIRE(blocks == 0);
    return;
  }
  REQUIRE(table.starts.front() == 0);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t start = table.starts[static_cast<std::size_t>(b)];
    const std::int64_t end = table.end(b);
    REQUIRE(end > start);
    const std::int64_t targets = end - start - (end == tokens || index.ends_at(end) ? 1 : 0);
    const std::int64_t samples = (targets + context - 1) / context;
    std::int64_t counted = 0;
    for (std::int64_t window = 0; window < samples; ++window) {
      const std::int64_t here = window_targets(index, table, context, b, window, full * context);
      REQUIRE((window + 1 == samples ? here >= 1 && here <= context : here == context));
      counted += here;
    }
    REQUIRE(counted == targets);
    if (b < table.full_blocks) {
      REQUIRE(samples == full);
    } else {
      REQUIRE(b + 1 == blocks);
      REQUIRE(samples == table.last_samples);
      REQUIRE(samples < full);
    }
    // Inside a document only if none ends in the last window.
    if (end < tokens && !index.ends_at(end)) {
      REQUIRE(end == start + full * context);
      for (std::int64_t t = start + (full - 1) * context + 2; t <= start + full * context + 1; ++t)
        REQUIRE_FALSE(index.ends_at(t));
    }
  }
}

}  // namespace

TEST_CASE("blocks cover each token once, end at documents where they can, and hold equally many samples") {
  std::uint64_t draw = 0;
  const PhiloxKey key{3, 4};
  for (int round = 0; round < 600; ++round) {
    CAPTURE(round);
    std::vector<std::int64_t> lengths(1 + philox_below(key, draw++, 60));
    const std::uint64_t longest = 1 + philox_below(key, draw++, round % 3 == 0 ? 200 : 12);
    for (auto& length : lengths) length = static_cast<std::int64_t>(philox_below(key, draw++, longest + 1));
    const auto context = static_cast<std::int64_t>(2 + philox_below(key, draw++, 9));
    const auto block_tokens = static_cast<std::int64_t>(1 + philox_below(key, draw++, 60));
    const ListedDocuments index(lengths);
    check_table(index, make_block_table(index, context, block_tokens), context,
                samples_per_block(context, block_tokens));
  }
}

TEST_CASE("a file of one document is cut at fixed offsets and no target is lost") {
  const ListedDocuments index({1000});
  const BlockTable table = make_block_table(index, 10, 100);
  // 999 targets: nine blocks of 100, one of 99 (ten windows as well).
  REQUIRE(table.starts.size() == 10);
  for (std::size_t b = 0; b < 10; ++b) CHECK(table.starts[b] == static_cast<std::int64_t>(100 * b));
  CHECK(table.full_blocks == 10);
  CHECK(table.last_samples == 0);
}

TEST_CASE("a context of one token is refused") {
  CHECK_THROWS_WITH_AS(make_block_table(ListedDocuments({10}), 1), doctest::Contains("model.context"), UserError);
}

TEST_CASE("10^12 tokens are cut with one number per block and few looks at the index") {
  const FormulaDocuments index(1'003'000'000);
  REQUIRE(index.num_tokens() > 1'000'000'000'000);
  const double start = processor_seconds();
  const BlockTable table = make_block_table(index, 4096);
  const double seconds = processor_seconds() - start;
  const auto blocks = static_cast<std::int64_t>(table.starts.size());
  const std::int64_t expected = index.num_tokens() / kBlockTokens;
  CHECK(blocks >= expected);
  CHECK(blocks < expected + expected / 400);  // at most one window of 512 is lost at a cut
  CHECK(index.probes() < 40 * blocks);
  CHECK(seconds < 10);  // a tenth of one without sanitizers
  CHECK(table.starts.back() > (std::int64_t{1} << 39));
  CHECK(std::is_sorted(table.starts.begin(), table.starts.end()));
}
