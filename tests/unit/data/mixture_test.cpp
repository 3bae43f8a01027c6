#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/numbers/philox.h"
#include "data/order/sampler.h"
#include "data/stream_cache.h"
#include "support/philox_below.h"
#include "support/processor_time.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

using Place = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // part, block, window

SourceShape source(std::vector<PartShape> parts, double weight = 1.0, std::optional<double> epochs = std::nullopt) {
  return {std::move(parts), weight, epochs, "source"};
}

// One part of `samples` samples, with blocks of `per_block`.
SourceShape plain(std::int64_t samples, std::int64_t per_block, double weight,
                  std::optional<double> epochs = std::nullopt) {
  return source({{samples / per_block, samples % per_block}}, weight, epochs);
}

}  // namespace

TEST_CASE("each sample of a source comes exactly once per epoch, in another order each time") {
  const std::int64_t context = 4;
  const std::int64_t per_block = 8;
  const std::vector<std::vector<PartShape>> shapes = {{{0, 1}},
                                                      {{0, 7}},
                                                      {{1, 0}},
                                                      {{1, 1}},
                                                      {{5, 3}},
                                                      {{3, 2}, {0, 5}, {2, 0}, {0, 0}, {1, 7}},
                                                      {{0, 1}, {0, 2}, {0, 3}}};
  for (const auto& parts : shapes) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Mixture mixture({source(parts)}, context, seed, per_block * context);
      const std::int64_t samples = mixture.order(0).samples_per_epoch();
      std::vector<std::vector<Place>> epochs;
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<Place> order;
        std::set<Place> places;
        for (std::int64_t i = 0; i < samples; ++i) {
          const SampleLocation at = mixture.locate(epoch * samples + i);
          REQUIRE(at.epoch == epoch);
          REQUIRE(at.position == i);
          order.emplace_back(at.part, at.block, at.window);
          const PartShape& part = parts[static_cast<std::size_t>(at.part)];
          REQUIRE((at.block >= 0 && at.block < part.full_blocks + (part.last_samples > 0 ? 1 : 0)));
          REQUIRE((at.window >= 0 && at.window < (at.block < part.full_blocks ? per_block : part.last_samples)));
        }
        places.insert(order.begin(), order.end());
        REQUIRE(static_cast<std::int64_t>(places.size()) == samples);
        epochs.push_back(std::move(order));
      }
      if (samples >= 40) {  // 40! orders: equal ones would be no chance
        CHECK(epochs[0] != epochs[1]);
        CHECK(epochs[1] != epochs[2]);
        const Mixture other({source(parts)}, context, seed + 1000, per_block * context);
        std::vector<Place> order;
        for (std::int64_t i = 0; i < samples; ++i) {
          const SampleLocation at = other.locate(i);
          order.emplace_back(at.part, at.block, at.window);
        }
        CHECK(order != epochs[0]);
      }
    }
  }
}

TEST_CASE("samples are drawn from a few blocks at a time, all of them in use from the start") {
  const std::int64_t per_block = 8;
  const Mixture mixture({source({{50, 3}, {20, 5}})}, 4, 9, 4 * per_block);
  const std::int64_t samples = mixture.order(0).samples_per_epoch();
  const std::int64_t stretch = per_block * kShuffledBlocks;
  std::map<std::pair<std::int64_t, std::int64_t>, std::set<std::int64_t>> stretches_of_block;
  for (std::int64_t first = 0; first < samples; first += stretch) {
    std::set<std::pair<std::int64_t, std::int64_t>> blocks;
    std::set<std::pair<std::int64_t, std::int64_t>> early;
    for (std::int64_t i = first; i < std::min(first + stretch, samples); ++i) {
      const SampleLocation at = mixture.locate(i);
      blocks.emplace(at.part, at.block);
      if (i < first + stretch / 4) early.emplace(at.part, at.block);
      stretches_of_block[{at.part, at.block}].insert(first);
    }
    CHECK(static_cast<std::int64_t>(blocks.size()) <=
          kShuffledBlocks + 3);  // its ends cut blocks, short ones lie between
    if (first + stretch <= samples) CHECK(static_cast<std::int64_t>(early.size()) > kShuffledBlocks / 2);
  }
  CHECK(stretches_of_block.size() == 72);
  for (const auto& block : stretches_of_block) CHECK(block.second.size() <= 2);
}

TEST_CASE("weights in a simple ratio are honoured exactly by a short table") {
  CHECK(mix_quotas({0.7, 0.3}, {"a", "b"}) == std::vector<std::int64_t>{7, 3});
  CHECK(mix_quotas({2, 1, 1}, {"a", "b", "c"}) == std::vector<std::int64_t>{2, 1, 1});
  CHECK(mix_quotas({0.5}, {"a"}) == std::vector<std::int64_t>{1});
  CHECK(mix_quotas({1.37, 2.91, 0.055}, {"a", "b", "c"}) == std::vector<std::int64_t>{274, 582, 11});
  CHECK(mix_quotas({3, 0, 1}, {"a", "b", "c"}) == std::vector<std::int64_t>{3, 0, 1});
  CHECK(mix_quotas({1.0 / 3, 2.0 / 3}, {"a", "b"}) == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("a share that the table cannot honour is refused, naming the source") {
  CHECK_THROWS_WITH_AS(mix_quotas({1.0, 1e-6}, {"a", "data.train[1]"}), doctest::Contains("data.train[1]"), UserError);
  CHECK(mix_quotas({1.0, 1e-5}, {"a", "b"})[1] == 1);
}

TEST_CASE("every prefix holds each source within one sample of its weight") {
  std::uint64_t draw = 0;
  const PhiloxKey key{5, 6};
  for (int round = 0; round < (is_sanitized ? 8 : 60); ++round) {
    CAPTURE(round);
    const auto num = static_cast<std::size_t>(1 + philox_below(key, draw++, 12));
    std::vector<double> weights(num);
    std::vector<std::string> names(num, "source");
    for (double& weight : weights) {
      weight = 0.001 + philox_uniform(key, draw++);
      if (round % 2 == 0) weight = std::round(weight * 20 + 1);  // whole numbers, as people write them
    }
    const double sum = [&] {
      double total = 0;
      for (const double w : weights) total += w;
      return total;
    }();
    const auto quotas = mix_quotas(weights, names);
    const MixTable table = make_mix_table(quotas);
    std::vector<std::int64_t> counts(num, 0);
    // Twice through the table; the weights themselves are met as far as their quantisation allows, exactly in even
    // rounds.
    for (std::int64_t n = 1; n <= 2 * table.length(); ++n) {
      ++counts[static_cast<std::size_t>(table.slots[static_cast<std::size_t>((n - 1) % table.length())])];
      for (std::size_t i = 0; i < num; ++i) {
        // |count - n q / L| < 1 in whole numbers.
        REQUIRE(std::abs(counts[i] * table.length() - n * quotas[i]) < table.length());
        const double share = weights[i] / sum;
        if (round % 2 == 0)
          REQUIRE(std::abs(static_cast<double>(counts[i]) - static_cast<double>(n) * share) < 1.0 + 1e-6);
      }
    }
    for (std::size_t i = 0; i < num; ++i) {
      CHECK(counts[i] == 2 * quotas[i]);
      const double share = weights[i] / sum;
      CHECK(std::abs(static_cast<double>(quotas[i]) / static_cast<double>(table.length()) - share) <
            1.0 / kMaxMixTable);
    }
  }
}

TEST_CASE("a source at its cap hands its weight to the rest, sample by sample") {
  // a: 10 samples, at most two epochs; b: a cap of half an epoch; c: none.
  const std::int64_t per_block = 4;
  const Mixture mixture({plain(10, per_block, 0.5, 2.0), plain(30, per_block, 0.3, 0.5), plain(7, per_block, 0.2)}, 4,
                        1, per_block * 4);
  CHECK_FALSE(mixture.num_samples().has_value());
  std::vector<std::int64_t> counts(3, 0);
  const std::vector<double> weights = {0.5, 0.3, 0.2};
  const std::vector<std::int64_t> caps = {20, 15, 1 << 30};
  std::vector<std::int64_t> base(3, 0);
  std::int64_t stretch = 0;  // where the present weights began
  std::vector<bool> open = {true, true, true};
  std::vector<std::map<std::int64_t, int>> seen(3);
  for (std::int64_t n = 0; n < 300; ++n) {
    CAPTURE(n);
    const SampleLocation at = mixture.locate(n);
    const auto s = static_cast<std::size_t>(at.source);
    if (!std::equal(counts.begin(), counts.end(), mixture.counts(n).begin())) FAIL("counts() disagrees with a walk");
    // The k-th sample of a source is the k-th of its own order, whatever stretch it falls into.
    CHECK(at.epoch * mixture.order(at.source).samples_per_epoch() + at.position == counts[s]);
    ++counts[s];
    REQUIRE(counts[s] <= caps[s]);
    for (std::size_t i = 0; i < 3; ++i) {
      double total = 0;
      for (std::size_t j = 0; j < 3; ++j) total += open[j] ? weights[j] : 0.0;
      if (open[i]) {
        const double target = static_cast<double>(base[i]) + static_cast<double>(n + 1 - stretch) * weights[i] / total;
        CHECK(std::abs(static_cast<double>(counts[i]) - target) <= 1.0 + 1e-9);
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      if (open[i] && counts[i] == caps[i]) {
        open[i] = false;
        stretch = n + 1;
        base = counts;
      }
    }
  }
  CHECK(counts[0] == 20);
  CHECK(counts[1] == 15);
  CHECK(counts[2] == 265);
}

TEST_CASE("a mix whose sources all have caps ends, and says how to go on") {
  const Mixture mixture({plain(10, 4, 3, 1.0), plain(6, 4, 1, 1.5)}, 4, 1, 16);
  REQUIRE(mixture.num_samples() == 19);
  std::vector<std::int64_t> counts(2, 0);
  for (std::int64_t n = 0; n < 19; ++n) ++counts[static_cast<std::size_t>(mixture.locate(n).source)];
  CHECK(counts == std::vector<std::int64_t>{10, 9});
  CHECK(mixture.counts(19) == counts);
  CHECK_THROWS_WITH_AS(mixture.locate(19), doctest::Contains("train.steps"), UserError);
}

TEST_CASE("wrong weights, caps and empty sources are refused") {
  CHECK_THROWS_AS(Mixture({plain(10, 4, 0.0)}, 4, 1, 16), UserError);
  CHECK_THROWS_AS(Mixture({plain(10, 4, -1.0)}, 4, 1, 16), UserError);
  CHECK_THROWS_AS(Mixture({plain(10, 4, std::nan(""))}, 4, 1, 16), UserError);
  CHECK_THROWS_AS(Mixture({plain(10, 4, INFINITY)}, 4, 1, 16), UserError);
  CHECK_THROWS_AS(Mixture({plain(10, 4, 1.0, 0.0)}, 4, 1, 16), UserError);
  CHECK_THROWS_AS(Mixture({plain(0, 4, 1.0)}, 4, 1, 16), UserError);
}

TEST_CASE("a mix entered half-way reads on in each source's own order, wherever the source stands") {
  const auto shapes = [](const std::vector<std::uint64_t>& identities) {
    std::vector<SourceShape> all;
    for (const std::uint64_t identity : identities) {
      all.push_back(plain(static_cast<std::int64_t>(10 + 7 * identity), 4, static_cast<double>(identity)));
      all.back().identity = identity;
    }
    return all;
  };
  const auto place = [](const SampleLocation& at) {
    return std::tuple(at.epoch, at.position, at.part, at.block, at.window);
  };
  const Mixture before(shapes({1, 2, 3}), 4, 5, 16);
  Mixture after(shapes({3, 4, 1}), 4, 5, 16);
  constexpr std::int64_t entered = 53;
  const std::vector<std::int64_t> taken = before.counts(entered);
  after.enter(following_mix(before.mix(), entered, after.mix().sources));
  CHECK(after.counts(entered) == std::vector<std::int64_t>{taken[2], 0, taken[0]});
  std::vector<std::int64_t> next = after.counts(entered);
  for (std::int64_t n = entered; n < entered + 200; ++n) {
    const SampleLocation at = after.locate(n);
    const std::int64_t index = next[static_cast<std::size_t>(at.source)]++;
    if (at.source == 1) {
      CHECK(at.epoch * 38 + at.position == index);
    } else {
      REQUIRE(place(at) == place(before.order(at.source == 0 ? 2 : 0).locate(index)));
    }
  }
  CHECK(after.counts(entered + 200) == next);
  CHECK_THROWS_AS(after.locate(entered - 1), BugError);
}

TEST_CASE("files that join a source come in the rest of the epoch, every sample of it once") {
  const std::int64_t per_block = 8;
  const std::vector<PartShape> parts = {{5, 3, {1, 2}}, {0, 6, {3}}, {0, 0, {4}}, {40, 1, {5}}};
  const auto grown = [&](std::size_t count, std::uint64_t seed) {
    SourceShape shape = source({parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(count)});
    shape.identity = count;
    return Mixture({shape}, 4, seed, 4 * per_block);
  };
  // Samples read before each part but the first: some within one epoch, some at its end, some epochs later.
  const std::vector<std::vector<std::int64_t>> joins = {{1, 0, 1},   {20, 5, 30}, {43, 6, 49},  {42, 0, 0},
                                                        {86, 49, 7}, {90, 1, 70}, {30, 70, 200}};
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::vector<std::int64_t>& read = joins[seed % joins.size()];
    CAPTURE(seed);
    Mix mix;
    std::int64_t sample = 0;
    std::map<std::int64_t, std::multiset<Place>> epochs;
    std::map<std::int64_t, std::int64_t> samples;  // of each epoch
    for (std::size_t count = 1; count <= parts.size(); ++count) {
      Mixture mixture = grown(count, seed);
      mix = following_mix(mix, sample, mixture.mix().sources);
      mixture.enter(mix);
      const std::int64_t epoch_samples = mix.sources[0].samples_per_epoch;
      const std::int64_t end = count < parts.size() ? sample + read[count - 1] : sample + 4 * epoch_samples;
      for (; sample < end; ++sample) {
        const SampleLocation at = mixture.locate(sample);
        REQUIRE(epochs[at.epoch].emplace(at.part, at.block, at.window) != epochs[at.epoch].end());
        REQUIRE(static_cast<std::int64_t>(epochs[at.epoch].size()) == at.position + 1);
        samples[at.epoch] = epoch_samples;
      }
      // A start that is repeated goes on in the same place.
      Mixture again = grown(count, seed);
      again.enter(mix);
      if (count == parts.size()) CHECK(again.counts(sample) == mixture.counts(sample));
    }
    for (const auto& entry : epochs) {
      const auto epoch = entry.first;
      const auto& places = entry.second;
      CAPTURE(epoch);
      CHECK(std::set<Place>(places.begin(), places.end()).size() == places.size());
      if (epochs.contains(epoch + 1)) CHECK(static_cast<std::int64_t>(places.size()) == samples[epoch]);
    }
  }
}

TEST_CASE("files that join a source take turns with the rest of the epoch, which keeps its order") {
  const auto grown = [](std::size_t count) {
    const std::vector<PartShape> parts = {{50, 0, {1}}, {25, 0, {2}}};
    SourceShape shape = source({parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(count)});
    shape.identity = count;
    return Mixture({shape}, 4, 3, 4 * 8);
  };
  const Mixture before = grown(1);
  Mixture after = grown(2);
  after.enter(following_mix(before.mix(), 100, after.mix().sources));  // 300 are left, and 200 join
  std::int64_t old = 100;
  std::int64_t joined = 0;
  for (std::int64_t n = 100; n < 600; ++n) {
    const SampleLocation at = after.locate(n);
    if (at.part == 1) {
      ++joined;
    } else {
      const SampleLocation was = before.locate(old++);
      REQUIRE((at.block == was.block && at.window == was.window && at.epoch == was.epoch));
      const PhiloxKey key = after.order(0).document_key(0, 0, at.block);
      const PhiloxKey was_key = before.order(0).document_key(0, 0, at.block);
      REQUIRE((key.low == was_key.low && key.high == was_key.high));
    }
    REQUIRE(std::abs(joined * 5 - (n - 99) * 2) <= 5);
  }
  CHECK(old == 400);
  CHECK(joined == 200);
}

TEST_CASE("blocks are in use for the parts that joined in one epoch, not for all that ever did") {
  std::vector<PartShape> parts = {{50, 0, {1}}};
  Mixture mixture({source(parts)}, 4, 3, 4 * 8);
  const std::int64_t of_stretch = (kShuffledBlocks + 2) * 8;
  CHECK(mixture.order(0).samples_in_use() == of_stretch);
  Mix mix = mixture.mix();
  std::int64_t sample = 0;
  const auto join_at = [&](std::int64_t next) {
    sample += next;
    parts.push_back({25, 0, {parts.size() + 1}});
    Mixture grown({source(parts)}, 4, 3, 4 * 8);
    mix = following_mix(mix, sample, grown.mix().sources);
    grown.enter(mix);
    return grown.order(0).samples_in_use();
  };
  for (int epoch = 0; epoch < 5; ++epoch) CHECK(join_at(mix.sources[0].samples_per_epoch) == 2 * of_stretch);
  CHECK(join_at(1) == 3 * of_stretch);
}

TEST_CASE("of a source with many short parts too each block is made once for each stretch it lies in") {
  const std::int64_t per_block = 8;
  std::vector<PartShape> parts;
  for (std::uint64_t i = 0; i < 60; ++i) parts.push_back({1, static_cast<std::int64_t>(1 + i % 3), {i + 1}});
  const Mixture mixture({source(parts)}, 4, 9, 4 * per_block);
  const std::int64_t samples = mixture.order(0).samples_per_epoch();
  const std::int64_t stretch = per_block * kShuffledBlocks;
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> uses;  // stretch, part, block
  std::size_t most = 0;                                                 // blocks in a stretch
  std::size_t made = 0;
  StreamCache cache;
  cache.begin(mixture.order(0).samples_in_use());
  for (std::int64_t n = 0; n < samples; ++n) {
    const SampleLocation at = mixture.locate(n);
    uses.emplace(n / stretch, at.part, at.block);
    const auto of_this = uses.lower_bound({n / stretch, 0, 0});
    most = std::max(most, static_cast<std::size_t>(std::distance(of_this, uses.end())));
    const PartShape& part = parts[static_cast<std::size_t>(at.part)];
    cache.get(at, at.block < part.full_blocks ? per_block : part.last_samples, [&] {
      ++made;
      return BlockStream{};
    });
  }
  CHECK(static_cast<std::int64_t>(most) > kShuffledBlocks + 2);
  CHECK(made <= uses.size());
}

TEST_CASE("a seek equals a walk") {
  const auto make = [] {
    return Mixture({plain(50, 4, 0.7), source({{3, 1}, {2, 2}}, 0.2, 3.0), plain(9, 4, 0.1)}, 4, 77, 16);
  };
  const Mixture walked = make();
  std::vector<Place> walk;
  for (std::int64_t n = 0; n < 2000; ++n) {
    const SampleLocation at = walked.locate(n);
    walk.emplace_back(at.source * 1000 + at.part, at.block, at.epoch * 1000 + at.window);
  }
  const KeyedPermutation jumps({1, 1}, 2000);
  const Mixture sought = make();
  for (std::int64_t i = 0; i < 2000; ++i) {
    const std::int64_t n = jumps.forward(i);
    const SampleLocation at = sought.locate(n);
    REQUIRE(Place(at.source * 1000 + at.part, at.block, at.epoch * 1000 + at.window) ==
            walk[static_cast<std::size_t>(n)]);
  }
}

TEST_CASE("a mix of 10^12 tokens is entered anywhere at once") {
  // Half a million blocks of 2 Mi tokens and a hundred thousand files of half a block.
  const std::int64_t context = 1024;
  const std::int64_t per_block = samples_per_block(context);
  std::vector<PartShape> many(100'000, PartShape{0, per_block / 2});
  const Mixture mixture({source({{500'000, 17}}, 0.8), source(many, 0.2, 4.0)}, context, 3);
  const std::int64_t epoch = mixture.order(0).samples_per_epoch();
  REQUIRE(epoch * context > 1'000'000'000'000);
  const double start = processor_seconds();
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>> places;
  std::int64_t last_block = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const SampleLocation at = mixture.locate(epoch / 2000 * i);
    places.emplace(at.source, at.part, at.block, at.window + per_block * at.epoch);
    last_block = std::max(last_block, at.block);
  }
  const SampleLocation far = mixture.locate(epoch * 7);
  CHECK(far.epoch > 4);
  const double seconds = processor_seconds() - start;
  CHECK(places.size() == 2000);
  CHECK(last_block > 400'000);
  CHECK(seconds < 10);  // a fraction of one without sanitizers
  // 64-bit positions: token offsets of this source pass 2^39.
  CHECK(last_block * per_block * context > (std::int64_t{1} << 39));
}
