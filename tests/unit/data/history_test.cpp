#include "data/history.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"

using namespace scaletrain;

namespace {

using Samples = std::vector<std::int64_t>;

ConsumptionHistory started(std::int64_t global_batch = 4, std::int64_t context = 8) {
  ConsumptionHistory history;
  history.continue_with(1, context, global_batch);
  return history;
}

}  // namespace

TEST_CASE("batches follow each other without gap or repetition") {
  auto history = started();
  std::int64_t expected = 0;
  for (int step = 0; step < 10; ++step) {
    for (std::int64_t ahead = 0; ahead < 3; ++ahead) {
      const Samples batch = history.batch(ahead);
      for (std::int64_t i = 0; i < 4; ++i) CHECK(batch[static_cast<std::size_t>(i)] == expected + 4 * ahead + i);
    }
    history.consume_batch();
    expected += 4;
  }
  CHECK(history.samples_consumed() == 40);
  CHECK(history.tokens_consumed() == 320);
  CHECK(history.segments().size() == 1);
}

TEST_CASE("the same samples are trained on whatever the replicas and micro-batches") {
  for (std::int64_t size = 1; size <= 26; ++size) {
    const Samples batch = started(size).batch(2);
    for (std::int64_t replicas = 1; replicas <= size + 2; ++replicas) {
      for (const std::int64_t micro : {1, 2, 3, 4, 6, 12, 40}) {
        const std::int64_t share = (size + replicas - 1) / replicas;
        const std::int64_t count = (share + micro - 1) / micro;
        Samples all;
        std::int64_t fewest = size;
        std::int64_t most = 0;
        for (std::int64_t r = 0; r < replicas; ++r) {
          const std::size_t before = all.size();
          bool is_over = false;  // what follows a short micro-batch is empty
          bool is_full = true;
          for (std::int64_t m = 0; m < count; ++m) {
            const auto piece = micro_batch_samples(batch, replicas, r, micro, m);
            is_full = is_full && !(is_over && !piece.empty()) && static_cast<std::int64_t>(piece.size()) <= micro;
            is_over = static_cast<std::int64_t>(piece.size()) < micro;
            all.insert(all.end(), piece.begin(), piece.end());
          }
          CHECK(is_full);
          const auto own = static_cast<std::int64_t>(all.size() - before);
          fewest = std::min(fewest, own);
          most = std::max(most, own);
          CHECK_THROWS_AS(micro_batch_samples(batch, replicas, r, micro, count), BugError);
        }
        CHECK(all == batch);
        CHECK(most - fewest <= 1);
      }
    }
  }
}

TEST_CASE("another global batch goes on with the next sample") {
  auto history = started(4);
  history.consume_batch();
  CHECK(history.continue_with(1, 8, 6));
  CHECK(history.batch() == Samples{4, 5, 6, 7, 8, 9});
  history.consume_batch();
  CHECK(history.continue_with(1, 8, 6));
  CHECK(history.segments().size() == 2);
  CHECK(history.continue_with(1, 8, 2));
  CHECK(history.batch() == Samples{10, 11});
  CHECK(history.samples_consumed() == 10);
}

TEST_CASE("other data or another context enters the new mixture after as many tokens") {
  auto history = started(4, 8);
  for (int i = 0; i < 6; ++i) history.consume_batch();  // 24 samples, 192 tokens
  CHECK(history.continue_with(1, 16, 4));
  CHECK(history.batch() == Samples{12, 13, 14, 15});
  history.consume_batch();  // 256 tokens
  CHECK_FALSE(history.continue_with(2, 16, 4));
  CHECK(history.batch() == Samples{16, 17, 18, 19});
  CHECK(history.segments().size() == 3);
  CHECK(history.tokens_consumed() == 256);
}

TEST_CASE("skipped samples are never trained on and all others once") {
  auto history = started(4);
  history.consume_batch();
  history.skip(6, 3);   // 6 7 8
  history.skip(9, 1);   // joins
  history.skip(0, 2);   // past: nothing to skip
  history.skip(15, 4);  // 15 .. 18
  CHECK(history.segments().back().skipped == std::vector<SkippedRange>{{6, 4}, {15, 4}});
  CHECK(history.batch() == Samples{4, 5, 10, 11});
  CHECK(history.batch(1) == Samples{12, 13, 14, 19});
  Samples seen;
  for (int i = 0; i < 3; ++i) {
    const Samples batch = history.batch();
    seen.insert(seen.end(), batch.begin(), batch.end());
    history.consume_batch();
  }
  CHECK(seen == Samples{4, 5, 10, 11, 12, 13, 14, 19, 20, 21, 22, 23});
  // Ranges ahead survive a change of the batch.
  history.skip(30, 2);
  history.continue_with(1, 8, 8);
  CHECK(history.batch() == Samples{24, 25, 26, 27, 28, 29, 32, 33});
}

TEST_CASE("a skipped range that begins at the next sample moves it") {
  auto history = started(2);
  history.skip(0, 3);
  CHECK(history.next_sample() == 3);
  CHECK(history.batch() == Samples{3, 4});
  history.consume_batch();
  history.skip(4, 2);  // 4 was trained on already
  CHECK(history.batch() == Samples{6, 7});
}

TEST_CASE("a history read back gives the same next batch") {
  auto history = started(4);
  history.consume_batch();
  history.skip(5, 2);
  history.continue_with(0xfedcba9876543210ull, 16, 3);
  history.consume_batch();
  const auto again = ConsumptionHistory::from_json(nlohmann::json::parse(history.to_json().dump()), "manifest");
  CHECK(again == history);
  CHECK(again.batch(2) == history.batch(2));
  CHECK(ConsumptionHistory::from_json(ConsumptionHistory().to_json(), "manifest").segments().empty());
}

TEST_CASE("a damaged history is an input error that names the segment") {
  auto history = started(4);
  history.consume_batch();
  history.skip(5, 2);
  const nlohmann::json good = history.to_json();
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    CAPTURE(key);
    CAPTURE(value.dump());
    nlohmann::json bad = good;
    bad[0][key] = value;
    CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(bad, "manifest"), doctest::Contains("manifest: segment 0"),
                         InputError);
  };
  refused("context", 0);
  refused("context", "8");
  refused("global_batch", -4);
  refused("first_sample", -1);
  refused("count", -1);
  refused("count", 1.5);
  refused("count", std::int64_t{1} << 62);
  refused("data_hash", "xyz");
  refused("skipped", 3);
  refused("skipped", nlohmann::json::array({nlohmann::json::array({1})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({-1, 2})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({5, 0})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({5, 4}), nlohmann::json::array({8, 1})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({5, std::numeric_limits<std::int64_t>::max()})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({5, std::numeric_limits<std::uint64_t>::max()})}));
  for (const char* key : {"context", "global_batch", "first_sample", "count", "data_hash", "skipped"}) {
    nlohmann::json bad = good;
    bad[0].erase(key);
    CHECK_THROWS_AS(ConsumptionHistory::from_json(bad, "manifest"), InputError);
  }
  CHECK_THROWS_AS(ConsumptionHistory::from_json(nlohmann::json::object(), "manifest"), InputError);
  CHECK_THROWS_AS(ConsumptionHistory::from_json(nlohmann::json::array({1}), "manifest"), InputError);
}

TEST_CASE("counts that would pass the 64-bit range are caught") {
  auto history = started(4, 8);
  CHECK_THROWS_AS(history.batch(std::numeric_limits<std::int64_t>::max() / 2), BugError);
  auto json = history.to_json();
  json[0]["count"] = (std::numeric_limits<std::int64_t>::max() - 7) / 8;
  auto full = ConsumptionHistory::from_json(json, "manifest");
  CHECK_THROWS_AS(full.consume_batch(), BugError);
}
