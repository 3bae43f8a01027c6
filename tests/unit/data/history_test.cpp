#include "data/order/history.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

using namespace scaletrain;

namespace {

using Samples = std::vector<std::int64_t>;

// One source of endless size whose identity is the description's hash.
DataDescription data_of(std::uint64_t hash) {
  return {.hash = hash, .sources = {{.identity = hash, .samples_per_epoch = 1 << 20}}};
}

ConsumptionHistory started(std::int64_t global_batch = 4, std::int64_t context = 8) {
  ConsumptionHistory history;
  history.continue_with(data_of(1), context, global_batch);
  return history;
}

// Another program's: a list of segments, without what was read of each source.
nlohmann::json as_of_version_1(const ConsumptionHistory& history) {
  nlohmann::json segments = history.to_json().at("segments");
  for (nlohmann::json& segment : segments) segment.erase("tokens");
  return segments;
}

MixSource source_of(std::uint64_t identity, std::int64_t samples, double weight = 1.0,
                    std::optional<std::int64_t> cap = std::nullopt) {
  return {.identity = identity, .samples_per_epoch = samples, .weight = weight, .cap = cap};
}

// A source of these parts: what their files hold, and their samples.
MixSource filed_source(std::uint64_t identity,
                       const std::vector<std::pair<std::vector<std::uint64_t>, std::int64_t>>& parts,
                       std::optional<std::int64_t> cap = std::nullopt) {
  MixSource source = source_of(identity, 0, 1.0, cap);
  for (const auto& [files, samples] : parts) {
    source.parts.push_back({.files = files, .samples = samples});
    source.samples_per_epoch += samples;
  }
  return source;
}

// A run over sources of which every sample is counted.
struct CountedRun {
  ConsumptionHistory history;
  std::uint64_t hash = 0;
  std::map<std::uint64_t, std::vector<std::int64_t>> read{};  // indices, by identity

  void go_on(const std::vector<MixSource>& sources, std::int64_t steps, std::int64_t batch = 4) {
    history.continue_with({.hash = ++hash, .sources = sources}, 8, batch);
    train(steps);
  }
  void train(std::int64_t steps) {
    const MixTurns turns(history.mix(), std::vector<std::string>(history.mix().sources.size(), "source"));
    for (std::int64_t step = 0; step < steps; ++step) {
      for (const std::int64_t sample : history.batch()) {
        const MixTurns::Turn turn = turns.turn(sample);
        read[history.mix().sources[static_cast<std::size_t>(turn.source)].identity].push_back(turn.index);
      }
      history.consume_batch(8 * history.segments().back().global_batch);
    }
  }
  // Written to a manifest and read back.
  void resume() { history = ConsumptionHistory::from_json(nlohmann::json::parse(history.to_json().dump()), "m"); }
  // Of every source the samples 0, 1, 2 ... once each, whatever the mixes were.
  void check_nothing_repeated_or_skipped() const {
    for (const auto& [source, indices] : read) {
      const auto identity = source;  // Clang 14 lets no lambda capture a binding
      CAPTURE(identity);
      for (std::size_t i = 0; i < indices.size(); ++i) REQUIRE(indices[i] == static_cast<std::int64_t>(i));
    }
  }
};

}  // namespace

TEST_CASE("batches follow each other without gap or repetition") {
  auto history = started();
  std::int64_t expected = 0;
  for (int step = 0; step < 10; ++step) {
    for (std::int64_t ahead = 0; ahead < 3; ++ahead) {
      const Samples batch = history.batch(ahead);
      for (std::int64_t i = 0; i < 4; ++i) CHECK(batch[static_cast<std::size_t>(i)] == expected + 4 * ahead + i);
    }
    history.consume_batch(32);
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
  history.consume_batch(32);
  CHECK(history.continue_with(data_of(1), 8, 6));
  CHECK(history.batch() == Samples{4, 5, 6, 7, 8, 9});
  history.consume_batch(32);
  CHECK(history.continue_with(data_of(1), 8, 6));
  CHECK(history.segments().size() == 2);
  CHECK(history.continue_with(data_of(1), 8, 2));
  CHECK(history.batch() == Samples{10, 11});
  CHECK(history.samples_consumed() == 10);
}

TEST_CASE("other data goes on with the next number, and numbers no sample twice") {
  auto history = started(4, 8);
  for (int i = 0; i < 6; ++i) history.consume_batch(32);
  CHECK_FALSE(history.continue_with(data_of(2), 8, 4));
  CHECK(history.mix().first_sample == 24);
  CHECK(history.batch() == Samples{24, 25, 26, 27});
  history.consume_batch(32);
  CHECK(history.segments().size() == 2);
  CHECK(history.tokens_consumed() == 224);
}

TEST_CASE("a source that joins is read from its beginning, and the one before goes on where it was") {
  CountedRun run;
  run.go_on({source_of(1, 1000)}, 100);
  run.resume();
  run.go_on({source_of(1, 1000), source_of(2, 240, 1.0, 240)}, 200);
  CHECK(run.read[1].size() == 400 + 560);
  CHECK(run.read[2].size() == 240);
  run.check_nothing_repeated_or_skipped();
}

TEST_CASE("a capped source alone has all that was not read of it") {
  CountedRun run;
  run.go_on({source_of(1, 1000)}, 100);
  run.go_on({source_of(2, 240, 1.0, 240)}, 60);
  CHECK(run.read[2].size() == 240);
  run.check_nothing_repeated_or_skipped();
  const MixTurns turns(run.history.mix(), {"source"});
  CHECK(turns.end() == run.history.next_sample());
}

TEST_CASE("weights, caps, order and batch may change in a row, a source may leave and come back") {
  CountedRun run;
  run.go_on({source_of(1, 90, 0.7), source_of(2, 50, 0.3, 100), source_of(3, 11, 0.4)}, 25);
  run.resume();
  run.go_on({source_of(3, 11, 0.1), source_of(1, 90, 0.9)}, 13,
            6);  // without the second, in another order, with another batch
  CHECK(run.history.mix().absent.size() == 1);
  const std::size_t left_at = run.read[2].size();
  run.resume();
  run.go_on({source_of(4, 7, 3.0)}, 5);  // none of them
  CHECK(run.history.mix().absent.size() == 3);
  run.go_on({source_of(4, 7, 3.0), source_of(2, 50, 0.3, 60), source_of(1, 90, 0.7), source_of(3, 11, 0.4)}, 0);
  run.resume();
  run.resume();
  run.train(40);
  CHECK(run.history.mix().absent.empty());
  CHECK(run.read[2].size() > left_at);
  CHECK(run.read[2].size() <= 60);
  run.check_nothing_repeated_or_skipped();
  // Keys of permutations stay with their sources, and no two have the same.
  std::map<std::uint64_t, std::int64_t> orders;
  for (const MixSource& source : run.history.mix().sources) orders[source.identity] = source.order;
  CHECK(orders == std::map<std::uint64_t, std::int64_t>{{1, 0}, {2, 1}, {3, 2}, {4, 3}});
}

TEST_CASE("sources of equal content are counted each for itself") {
  CountedRun run;
  run.go_on({source_of(1, 10, 1.0, 10), source_of(1, 10, 3.0)}, 8);
  run.go_on({source_of(1, 10, 1.0, 10), source_of(1, 10, 3.0), source_of(1, 10)}, 1);
  REQUIRE(run.history.mix().sources.size() == 3);
  CHECK(run.history.mix().sources[0].taken == 8);
  CHECK(run.history.mix().sources[1].taken == 24);
  CHECK(run.history.mix().sources[2].taken == 0);
  CHECK(run.history.mix().sources[2].order == 2);
}

TEST_CASE("a lowered cap that is passed already ends a source") {
  CountedRun run;
  run.go_on({source_of(1, 10), source_of(2, 10)}, 10);
  run.go_on({source_of(1, 10, 1.0, 15), source_of(2, 10)}, 5);
  CHECK(run.read[1].size() == 20);
  CHECK(run.read[2].size() == 40);
  run.go_on({source_of(1, 10, 1.0, 15)}, 0);
  CHECK(MixTurns(run.history.mix(), {"source"}).end() == run.history.next_sample());
}

TEST_CASE("what was skipped counts as read when the mix changes") {
  CountedRun run;
  run.go_on({source_of(1, 100)}, 2);
  run.history.skip(8, 12);
  run.go_on({source_of(1, 100), source_of(2, 100)}, 0);
  CHECK(run.history.mix().first_sample == 20);
  CHECK(run.history.mix().sources[0].taken == 20);
  CHECK(run.history.tokens_consumed() == 64);
}

TEST_CASE("another context goes on at as large a part of the epoch") {
  ConsumptionHistory history;
  history.continue_with({.hash = 1, .sources = {source_of(1, 100)}}, 8, 5);
  for (int i = 0; i < 25; ++i) history.consume_batch(40);
  CHECK(history.continue_with({.hash = 1, .sources = {source_of(1, 50)}}, 16, 5));
  CHECK(history.mix().sources[0].taken == 63);  // an epoch of 50 and a quarter of one
}

TEST_CASE("a history of an older program goes on with the same data, and refuses other") {
  auto history = started(4);
  history.consume_batch(30);  // with padding
  const auto old = [&] { return ConsumptionHistory::from_json(as_of_version_1(history), "manifest"); };
  CHECK(old().tokens_consumed() == 32);
  CHECK(old().batch() == history.batch());
  ConsumptionHistory same = old();
  CHECK(same.continue_with(data_of(1), 8, 4));
  CHECK(same.mix() == history.mix());
  CHECK(same.batch() == history.batch());
  // From then on it is counted.
  CHECK_FALSE(same.continue_with({.hash = 5, .sources = {source_of(1, 1 << 20), source_of(7, 9)}}, 8, 4));
  CHECK(same.mix().sources[0].taken == 4);
  ConsumptionHistory other = old();
  CHECK_THROWS_WITH_AS(other.continue_with(data_of(2), 8, 4), doctest::Contains("Restore data.train as it was"),
                       InputError);
}

TEST_CASE("a history that went back goes on behind what it left, also in a mix that it did not know") {
  CountedRun run;
  run.go_on({source_of(1, 100)}, 5);
  const ConsumptionHistory restored = run.history;
  run.go_on({source_of(2, 100), source_of(1, 100)}, 3);
  ConsumptionHistory left = restored;
  left.go_on_like(run.history, 32);
  CHECK(left.mix() == run.history.mix());
  CHECK(left.batch() == run.history.batch());
  CHECK(left.samples_consumed() == 20);
  CHECK(ConsumptionHistory::from_json(left.to_json(), "m") == left);
}

TEST_CASE("skipped samples are never trained on and all others once") {
  auto history = started(4);
  history.consume_batch(32);
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
    history.consume_batch(32);
  }
  CHECK(seen == Samples{4, 5, 10, 11, 12, 13, 14, 19, 20, 21, 22, 23});
  // Ranges ahead survive a change of the batch.
  history.skip(30, 2);
  history.continue_with(data_of(1), 8, 8);
  CHECK(history.batch() == Samples{24, 25, 26, 27, 28, 29, 32, 33});
}

TEST_CASE("a skipped range that begins at the next sample moves it") {
  auto history = started(2);
  history.skip(0, 3);
  CHECK(history.next_sample() == 3);
  CHECK(history.batch() == Samples{3, 4});
  history.consume_batch(32);
  history.skip(4, 2);  // 4 was trained on already
  CHECK(history.batch() == Samples{6, 7});
}

TEST_CASE("a history read back gives the same next batch") {
  auto history = started(4);
  history.consume_batch(32);
  history.skip(5, 2);
  history.continue_with(data_of(0xfedcba9876543210ull), 16, 3);
  history.consume_batch(32);
  const auto again = ConsumptionHistory::from_json(nlohmann::json::parse(history.to_json().dump()), "manifest");
  CHECK(again == history);
  CHECK(again.batch(2) == history.batch(2));
  CHECK(ConsumptionHistory::from_json(ConsumptionHistory().to_json(), "manifest").segments().empty());
}

TEST_CASE("a damaged history is an input error that names the segment") {
  auto history = started(4);
  history.consume_batch(32);
  history.skip(5, 2);
  const nlohmann::json good = history.to_json();
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    CAPTURE(key);
    CAPTURE(value.dump());
    nlohmann::json bad = good;
    bad["segments"][0][key] = value;
    CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(bad, "manifest"), doctest::Contains("manifest: segment 0"),
                         InputError);
  };
  refused("context", 0);
  refused("context", "8");
  refused("global_batch", -4);
  refused("first_sample", -1);
  refused("count", -1);
  refused("count", 1.5);
  refused("tokens", -1);
  refused("tokens", 33);
  refused("count", std::int64_t{1} << 62);
  refused("data_hash", "xyz");
  refused("skipped", 3);
  refused("skipped", nlohmann::json::array({nlohmann::json::array({1})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({-1, 2})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({5, 0})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({5, 4}), nlohmann::json::array({8, 1})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({5, std::numeric_limits<std::int64_t>::max()})}));
  refused("skipped", nlohmann::json::array({nlohmann::json::array({5, std::numeric_limits<std::uint64_t>::max()})}));
  for (const char* key : {"context", "global_batch", "first_sample", "count", "tokens", "data_hash", "skipped"}) {
    nlohmann::json bad = good;
    bad["segments"][0].erase(key);
    CHECK_THROWS_AS(ConsumptionHistory::from_json(bad, "manifest"), InputError);
  }
  nlohmann::json far = good;
  far["segments"][0]["first_sample"] = (std::int64_t{1} << 61) - 3;
  far["segments"][0]["skipped"] = nlohmann::json::array();
  CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(far, "manifest"),
                       doctest::Contains("segment 0: its next sample is number 2305843009213693953"), InputError);
  CHECK_THROWS_AS(ConsumptionHistory::from_json(nlohmann::json::object(), "manifest"), InputError);
  CHECK_THROWS_AS(ConsumptionHistory::from_json(nlohmann::json::array({1}), "manifest"), InputError);
}

TEST_CASE("a damaged mix is an input error that names the source") {
  CountedRun run;
  run.go_on({source_of(1, 10), source_of(2, 10, 2.0, 7)}, 2);
  run.go_on({source_of(2, 10, 2.0, 7)}, 0);
  const nlohmann::json good = run.history.to_json();
  CHECK(ConsumptionHistory::from_json(good, "manifest") == run.history);
  const auto refused = [&](const char* list, const char* key, const nlohmann::json& value, const char* named) {
    CAPTURE(key);
    CAPTURE(value.dump());
    nlohmann::json bad = good;
    bad["mix"][list][0][key] = value;
    CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(bad, "manifest"), doctest::Contains(named), InputError);
  };
  for (const auto& [list, named] : {std::pair{"sources", "mix: source 0"}, {"absent", "mix: absent source 0"}}) {
    refused(list, "identity", "1", named);
    refused(list, "order", -1, named);
    refused(list, "samples_per_epoch", 0, named);
    refused(list, "weight", -1.0, named);
    refused(list, "weight", "1", named);
    refused(list, "weight", 1.1e12, named);
    refused(list, "cap", 0, named);
    refused(list, "taken", -1, named);
    refused(list, "taken", std::numeric_limits<std::int64_t>::max(), named);
  }
  refused("absent", "order", 1, "two sources have order 1");
  nlohmann::json bad = good;
  bad["mix"]["first_sample"] = 100;
  CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(bad, "manifest"), doctest::Contains("first_sample 100"),
                       InputError);
  bad = good;
  bad["version"] = 4;
  CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(bad, "manifest"), doctest::Contains("written by a newer program"),
                       InputError);
}

TEST_CASE("a stored weight too small for any mix is an input error that names the source") {
  CountedRun run;
  run.go_on({source_of(1, 10), source_of(2, 10, 2.0, 7)}, 2);
  nlohmann::json bad = run.history.to_json();
  bad["mix"]["sources"][1]["weight"] = 1e-9;
  CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(bad, "manifest"),
                       doctest::Contains("manifest: mix: source 1: the weight 1e-09 is a share of 1e-09"), InputError);
  // That of a source that has all it may take means nothing.
  bad["mix"]["sources"][1]["taken"] = 7;
  CHECK_NOTHROW(ConsumptionHistory::from_json(bad, "manifest"));
}

TEST_CASE("a mix that is damaged so that it does not fit the data is an input error, whichever path meets it") {
  CountedRun run;
  run.go_on({filed_source(1, {{{7, 8}, 30}}), source_of(2, 10)}, 4, 5);
  const std::vector<MixSource> sources = {filed_source(1, {{{7, 8}, 30}}), source_of(2, 10)};
  const nlohmann::json good = run.history.to_json();
  const auto go_on = [&](const nlohmann::json& value, std::uint64_t hash, const std::vector<MixSource>& data) {
    ConsumptionHistory history = ConsumptionHistory::from_json(value, "m");
    history.continue_with({.hash = hash, .sources = data}, 8, 5);
    return history;
  };
  CHECK(go_on(good, 1, sources) == run.history);
  // The data's hash is the same, and the sources are not.
  const auto refused = [&](const std::vector<MixSource>& data, const char* named) {
    CAPTURE(named);
    CHECK_THROWS_WITH_AS(go_on(good, 1, data), doctest::Contains(named), InputError);
  };
  refused({sources[0]}, "sources: 2 in the checkpoint and 1 now");
  refused({sources[0], source_of(2, 11)}, "source 1: samples per epoch: 10 in the checkpoint and 11 now");
  refused({filed_source(1, {{{7}, 20}, {{8}, 10}}), sources[1]}, "source 0: parts: 1 in the checkpoint and 2 now");
  nlohmann::json bad = good;
  nlohmann::json part = bad["mix"]["sources"][0]["parts"][0];
  bad["mix"]["sources"][0]["parts"][0]["samples"] = 12;
  part["samples"] = 18;
  bad["mix"]["sources"][0]["parts"].push_back(part);
  CHECK_THROWS_WITH_AS(go_on(bad, 1, {filed_source(1, {{{7, 8}, 10}, {{7, 8}, 20}}), sources[1]}),
                       doctest::Contains("source 0: samples of part 0: 12 in the checkpoint and 10 now"), InputError);
  // Other data: a source of more parts than its namesake is another one.
  const ConsumptionHistory other = go_on(bad, 2, sources);
  CHECK(other.mix().sources.at(0).taken == 0);
  CHECK(other.mix().sources.at(1).taken == 10);
  CHECK(other.mix().absent.size() == 1);
  // More epochs of one sample than there can be of 30.
  bad = good;
  nlohmann::json& source = bad["mix"]["sources"][0];
  source["samples_per_epoch"] = 1;
  source["parts"][0]["samples"] = 1;
  source["taken"] = std::int64_t{1} << 61;
  CHECK_THROWS_WITH_AS(go_on(bad, 2, sources), doctest::Contains("30 samples an epoch are more than a run can count"),
                       InputError);
}

TEST_CASE("files that join a source are read in the epoch that is being read, and its cap counts for them") {
  // 25 of 30 samples read, then 12 join.
  CountedRun run;
  run.go_on({filed_source(1, {{{7, 8}, 30}})}, 5, 5);
  run.go_on({filed_source(2, {{{7, 8}, 30}, {{9}, 12}}, 84)}, 0);
  const MixSource& source = run.history.mix().sources.at(0);
  CHECK(source.taken == 25);
  CHECK(source.parts.at(1).epoch == 0);
  CHECK(source.parts.at(1).position == 25);
  CHECK(MixTurns(run.history.mix(), {"source"}).end() == 25 + 17 + 42);
  CHECK(run.history.mix().absent.empty());

  // At the end of the second epoch, of which a cap would let nothing be left.
  CountedRun all;
  all.go_on({filed_source(1, {{{7, 8}, 30}}, 60)}, 12, 5);
  all.go_on({filed_source(2, {{{7, 8}, 30}, {{9}, 12}}, 84)}, 0);
  const MixSource& again = all.history.mix().sources.at(0);
  CHECK(again.parts.at(1).epoch == 1);
  CHECK(again.parts.at(1).position == 30);
  CHECK(again.taken == 42 + 30);
  CHECK(MixTurns(all.history.mix(), {"source"}).end() == 60 + 12);
}

TEST_CASE("a source that lost a file, or whose files changed, is another one") {
  CountedRun run;
  run.go_on({filed_source(1, {{{7, 8}, 30}})}, 5, 5);
  run.go_on({filed_source(2, {{{7}, 20}, {{9}, 10}})}, 0);
  CHECK(run.history.mix().sources.at(0).taken == 0);
  CHECK(run.history.mix().sources.at(0).parts.at(1).position == 0);
  REQUIRE(run.history.mix().absent.size() == 1);
  CHECK(run.history.mix().absent.at(0).taken == 25);
}

TEST_CASE("another context leaves as much of an epoch that files joined as there was") {
  CountedRun run;
  run.go_on({filed_source(1, {{{7, 8}, 30}})}, 5, 5);
  run.go_on({filed_source(2, {{{7, 8}, 30}, {{9}, 12}})}, 1, 5);  // 30 of 42
  run.history.continue_with({.hash = 9, .sources = {filed_source(2, {{{7, 8}, 15}, {{9}, 6}})}}, 16, 5);
  const MixSource& source = run.history.mix().sources.at(0);
  CHECK(source.taken == 15);
  CHECK(source.parts.at(1).position == 13);  // 12.5 of 15
  const auto read = ConsumptionHistory::from_json(run.history.to_json(), "manifest");
  CHECK(read == run.history);
}

TEST_CASE("files are given to the parts in which the run knows them, by what they hold") {
  using Parts = std::vector<std::vector<std::size_t>>;
  MixSource small = filed_source(1, {{{7, 8}, 30}});
  small.taken = 5;
  MixSource large = filed_source(2, {{{8, 7}, 30}, {{9}, 12}});
  large.taken = 40;
  MixSource unread = filed_source(3, {{{1}, 3}});
  const std::vector<MixSource> known = {small, large, unread};
  CHECK(parts_of_sources({{7, 8}}, {}) == std::vector<Parts>{{{0, 1}}});
  // Renamed, so that they stand in another order.
  CHECK(parts_of_sources({{9, 7, 8}}, known) == std::vector<Parts>{{{2, 1}, {0}}});
  CHECK(parts_of_sources({{8, 7}}, known) == std::vector<Parts>{{{1, 0}}});
  // More files; the source with most of them goes on, and one only.
  CHECK(parts_of_sources({{5, 9, 7, 8, 4}}, known) == std::vector<Parts>{{{3, 2}, {1}, {0, 4}}});
  CHECK(parts_of_sources({{7, 8, 5}, {7, 8, 5}}, known) == std::vector<Parts>{{{0, 1}, {2}}, {{0, 1, 2}}});
  // The same files go before more of them, wherever they stand.
  CHECK(parts_of_sources({{7, 8, 5}, {7, 8}}, known) == std::vector<Parts>{{{0, 1, 2}}, {{0, 1}}});
  // One is not there; one was never read; one stands twice.
  CHECK(parts_of_sources({{7, 9, 5}}, known) == std::vector<Parts>{{{0, 1, 2}}});
  CHECK(parts_of_sources({{1, 2}}, known) == std::vector<Parts>{{{0, 1}}});
  CHECK(parts_of_sources({{7, 7, 8}}, known) == std::vector<Parts>{{{0, 2}, {1}}});
}

TEST_CASE("a history that does not know the files of its sources learns them when it goes on") {
  CountedRun run;
  run.go_on({filed_source(1, {{{7, 8}, 30}})}, 2, 5);
  nlohmann::json old = run.history.to_json();
  old["version"] = 2;
  for (nlohmann::json& source : old["mix"]["sources"]) source.erase("parts");
  ConsumptionHistory history = ConsumptionHistory::from_json(old, "manifest");
  CHECK(history.mix().sources.at(0).parts.empty());
  CHECK(history.continue_with({.hash = 1, .sources = {filed_source(1, {{{7, 8}, 30}})}}, 8, 5));
  CHECK(history == run.history);
  // The same source in another mix, too.
  ConsumptionHistory other = ConsumptionHistory::from_json(old, "manifest");
  other.continue_with({.hash = 2, .sources = {filed_source(4, {{{3}, 9}}), filed_source(1, {{{7, 8}, 30}})}}, 8, 5);
  CHECK(other.mix().sources.at(1).taken == 10);
  CHECK(other.mix().sources.at(1).parts.at(0).files == std::vector<std::uint64_t>{7, 8});
}

TEST_CASE("damaged parts of a source are an input error that names them") {
  CountedRun run;
  run.go_on({filed_source(1, {{{7, 8}, 30}})}, 5, 5);
  run.go_on({filed_source(2, {{{7, 8}, 30}, {{9}, 12}})}, 1, 5);
  const nlohmann::json good = run.history.to_json();
  CHECK(ConsumptionHistory::from_json(good, "manifest") == run.history);
  const auto refused = [&](std::size_t part, const char* key, const nlohmann::json& value, const char* named) {
    CAPTURE(key);
    CAPTURE(value.dump());
    nlohmann::json bad = good;
    bad["mix"]["sources"][0]["parts"][part][key] = value;
    CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(bad, "manifest"), doctest::Contains(named), InputError);
  };
  refused(0, "files", "123", "part 0: files is no row of numbers");
  refused(0, "files", 7, "part 0");
  refused(0, "samples", -1, "part 0");
  refused(0, "samples", 43, "part 0: 43 samples do not fit into an epoch of 42");
  refused(0, "position", 1, "part 0: it cannot have joined at sample 1 of epoch 0");
  refused(1, "samples", 11, "parts: 41 samples, of 42 of an epoch");
  refused(1, "position", 31, "part 1: it cannot have joined at sample 31 of epoch 0");
  refused(1, "position", 27, "part 1: it cannot have joined");
  refused(1, "epoch", 1, "part 1: it cannot have joined");
  refused(1, "epoch", -1, "part 1");
  nlohmann::json bad = good;
  bad["mix"]["sources"][0]["parts"] = 3;
  CHECK_THROWS_WITH_AS(ConsumptionHistory::from_json(bad, "manifest"), doctest::Contains("parts: a list"), InputError);
}

TEST_CASE("counts that would pass the 64-bit range are caught") {
  auto history = started(4, 8);
  CHECK_THROWS_AS(history.batch(std::numeric_limits<std::int64_t>::max() / 2), BugError);
  auto json = history.to_json();
  const std::int64_t most = (std::numeric_limits<std::int64_t>::max() - 7) / 8;
  json["segments"][0]["count"] = most;
  json["segments"][0]["tokens"] = most * 8;
  auto full = ConsumptionHistory::from_json(json, "manifest");
  CHECK_THROWS_AS(full.consume_batch(32), BugError);
}
