#include "data/dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/order/history.h"
#include "dataset_scene.h"
#include "token_files.h"

using namespace scaletrain;
using namespace scaletrain::test;

TEST_CASE("an epoch of one document gives each token once as input and each but the first once as target") {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 203; ++i) text.push_back(static_cast<char>(i));
  auto config = config_for(folder);
  config.train = {source_at(folder.write("a.txt", text))};
  const ByteTokenizer tokenizer;
  const auto data = open_training_data(config, tokenizer, options(10));
  const std::int64_t samples = data->mixture().order(0).samples_per_epoch();
  REQUIRE(data->source_tokens() == std::vector<std::int64_t>{204});
  REQUIRE(samples == 21);  // 203 targets
  std::map<std::int32_t, int> targets;
  bool masked_seen = false;
  for (std::int64_t n = 0; n < samples; ++n) {
    const Sample s = read(*data, n);
    CHECK(s.starts == std::vector<std::int32_t>{0});
    for (std::size_t i = 0; i < 10; ++i) {
      if (s.targets[i] == kMaskedTarget) {
        masked_seen = true;
        continue;
      }
      ++targets[s.targets[i]];
      CHECK(s.targets[i] == (s.inputs[i] == 202 ? 256 : s.inputs[i] + 1));
    }
  }
  CHECK(masked_seen);
  CHECK(targets.size() == 203);
  for (const auto& [token, count] : targets) {
    CHECK(token != 0);
    CHECK(count == 1);
  }
}

TEST_CASE("documents stay whole and in sequence, and come in another order each epoch") {
  const TempFolder folder;
  // Document d is d+1 times the byte d, so that its place and length are known.
  std::string lines;
  std::size_t tokens = 0;
  for (int d = 0; d < 40; ++d) {
    lines += "{\"text\":\"" + std::string(static_cast<std::size_t>(d + 1), static_cast<char>('0' + d)) + "\"}\n";
    tokens += static_cast<std::size_t>(d) + 2;
  }
  // '0' + 44 is a backslash: stay below.
  auto config = config_for(folder);
  config.train = {source_at(folder.write("a.jsonl", lines))};
  const ByteTokenizer tokenizer;
  const auto data = open_training_data(config, tokenizer, options(16));
  const std::int64_t samples = data->mixture().order(0).samples_per_epoch();
  std::vector<std::vector<Sample>> epochs(2);
  for (std::int64_t e = 0; e < 2; ++e) {
    std::map<std::int32_t, int> counts;
    std::size_t inputs = 0;
    for (std::int64_t n = 0; n < samples; ++n) {
      const Sample s = read(*data, e * samples + n);
      epochs[static_cast<std::size_t>(e)].push_back(s);
      for (std::size_t i = 0; i < 16; ++i) {
        if (s.targets[i] == kMaskedTarget) continue;
        ++inputs;
        ++counts[s.inputs[i]];
        const bool start = std::count(s.starts.begin(), s.starts.end(), static_cast<std::int32_t>(i)) > 0;
        // Within a document a byte is followed by itself or the end; a document begins exactly behind an end.
        if (s.inputs[i] != 256) CHECK((s.targets[i] == s.inputs[i] || s.targets[i] == 256));
        if (i > 0) CHECK(start == (s.inputs[i - 1] == 256));
      }
    }
    CHECK(inputs == tokens - 1);  // the block's last token predicts nothing
    for (int d = 0; d < 40; ++d) {
      const int missing = (d + 1) - counts['0' + d];
      CHECK((missing == 0));
    }
    CHECK(counts[256] == 39);
  }
  CHECK(epochs[0] != epochs[1]);
}

TEST_CASE("a mix that changes at a resume reads each source on from where it was left, by its content") {
  const TempFolder folder;
  std::string a;
  std::string b;
  for (int i = 0; i < 1500; ++i) a.push_back(static_cast<char>('a' + i * i % 23));
  for (int i = 0; i < 159; ++i) b.push_back(static_cast<char>('A' + i * i % 19));
  const ByteTokenizer tokenizer;
  const auto opened = [&](std::vector<SourceConfig> sources) {
    auto config = config_for(folder);
    config.train = std::move(sources);
    return open_training_data(config, tokenizer, options(16));
  };
  const auto path_a = folder.write("a.txt", a);
  const auto path_b = folder.write("b.txt", b);
  const auto capped_b = [&] {
    SourceConfig source = source_at(path_b);
    source.epochs = 1.0;
    return source;
  };
  ConsumptionHistory history;
  const auto train = [&](const TrainingData& data, int steps) {
    std::vector<Sample> samples;
    for (int step = 0; step < steps; ++step) {
      for (const std::int64_t sample : history.batch()) samples.push_back(read(data, sample));
      history.consume_batch(4 * 16);
    }
    return samples;
  };
  const auto enter = [&](TrainingData& data) {
    history = ConsumptionHistory::from_json(history.to_json(), "manifest");
    history.continue_with(data.description(), 16, 4);
    data.enter(history.mix());
  };
  // What a reads alone, and b alone in the second place, never interrupted.
  std::vector<Sample> all_of_a;
  std::vector<Sample> all_of_b;
  const auto alone = opened({source_at(path_a)});
  for (std::int64_t n = 0; n < 60; ++n) all_of_a.push_back(read(*alone, n));
  const auto both = opened({source_at(path_a, 1e-4), source_at(path_b)});
  for (std::int64_t n = 0; all_of_b.size() < 10; ++n)
    if (both->mixture().locate(n).source == 1) all_of_b.push_back(read(*both, n));
  REQUIRE(both->mixture().order(1).samples_per_epoch() == 10);

  enter(*alone);
  std::vector<Sample> of_a = train(*alone, 5);
  // The file was moved, and stands second.
  const auto moved = folder.write("elsewhere.txt", a);
  std::filesystem::remove(path_a);
  const auto mixed = opened({capped_b(), source_at(moved)});
  enter(*mixed);
  std::vector<Sample> of_b;
  for (const Sample& sample : train(*mixed, 8)) {
    const bool is_of_b = std::any_of(sample.inputs.begin(), sample.inputs.end(),
                                     [](std::int32_t token) { return token >= 'A' && token < 'A' + 19; });
    (is_of_b ? of_b : of_a).push_back(sample);
  }
  CHECK(of_b == all_of_b);
  REQUIRE(of_a.size() == 20 + 22);
  CHECK(std::equal(of_a.begin(), of_a.end(), all_of_a.begin()));
}

TEST_CASE("loss_across: false masks the first token of each document as a target, and only that") {
  const TempFolder folder;
  folder.write("m.bin", packed<std::uint16_t>({10, 11, 12, 20, 21, 30, 31, 32, 33, 40}));
  folder.write("m.idx", megatron_index({{3}, {2}, {}, {4}, {1}}, 8, 2));
  const ByteTokenizer tokenizer;
  auto config = config_for(folder);
  ValidationConfig set;
  set.name = "v";
  set.path = (folder / "m.bin").string();
  const auto across = open_validation_set(set, config, tokenizer, options(4), "data.validation.0");
  config.documents.loss_across = false;
  const auto within = open_validation_set(set, config, tokenizer, options(4), "data.validation.0");
  REQUIRE(across->num_samples() == 3);
  CHECK(across->num_tokens() == 10);
  CHECK(read(*across, 0) == Sample{{10, 11, 12, 20}, {11, 12, 20, 21}, {0, 3}});
  CHECK(read(*across, 1) == Sample{{21, 30, 31, 32}, {30, 31, 32, 33}, {0, 1}});
  CHECK(read(*across, 2) == Sample{{33, 40, 256, 256}, {40, -1, -1, -1}, {0, 1}});
  CHECK(read(*within, 0) == Sample{{10, 11, 12, 20}, {11, 12, -1, 21}, {0, 3}});
  CHECK(read(*within, 1) == Sample{{21, 30, 31, 32}, {-1, 31, 32, 33}, {0, 1}});
  CHECK(read(*within, 2) == Sample{{33, 40, 256, 256}, {-1, -1, -1, -1}, {0, 1}});

  // The same in training: 10 tokens in one block of permuted documents.
  config.train = {source_at(folder / "m.bin")};
  const auto training = open_training_data(config, tokenizer, options(4));
  std::multiset<std::int32_t> targets;
  for (std::int64_t n = 0; n < 3; ++n) {
    for (const std::int32_t target : read(*training, n).targets) {
      if (target >= 0) targets.insert(target);
    }
  }
  CHECK(targets == std::multiset<std::int32_t>{11, 12, 21, 31, 32, 33});
}

TEST_CASE("a window boundary at a document's start masks the right target") {
  const TempFolder folder;
  folder.write("m.bin", packed<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8}));
  folder.write("m.idx", megatron_index({{4}, {4}}, 8, 2));
  auto config = config_for(folder);
  config.documents.loss_across = false;
  ValidationConfig set;
  set.path = (folder / "m.bin").string();
  const auto data = open_validation_set(set, config, ByteTokenizer(), options(4), "v");
  CHECK(read(*data, 0) == Sample{{1, 2, 3, 4}, {2, 3, 4, -1}, {0}});
  CHECK(read(*data, 1) == Sample{{5, 6, 7, 8}, {6, 7, 8, -1}, {0}});
}

TEST_CASE("documents of a file without an index are found by their end token") {
  const TempFolder folder;
  const auto path = folder.write("l.bin", llmc_file({1, 2, 9, 3, 9, 4, 5, 6, 9, 7}, false));
  const IdsTokenizer tokenizer(10, 9);
  auto config = config_for(folder);
  config.documents.loss_across = false;
  ValidationConfig set;
  set.path = path.string();
  const DataOptions small{.vocab = 10, .context = 5, .seed = 1, .report = {}};
  const auto data = open_validation_set(set, config, tokenizer, small, "v");
  CHECK(read(*data, 0) == Sample{{1, 2, 9, 3, 9}, {2, 9, -1, 9, -1}, {0, 3}});
  CHECK(read(*data, 1) == Sample{{4, 5, 6, 9, 7}, {5, 6, 9, -1, -1}, {0, 4}});
  config.train = {source_at(path)};
  const auto training = open_training_data(config, tokenizer, small);
  std::set<std::vector<std::int32_t>> orders;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    std::multiset<std::int32_t> targets;
    std::vector<std::int32_t> order;
    for (std::int64_t n = 0; n < 2; ++n) {
      const Sample s = read(*training, epoch * 2 + n);
      order.insert(order.end(), s.inputs.begin(), s.inputs.end());
      for (const std::int32_t target : s.targets) {
        if (target >= 0) targets.insert(target);
      }
    }
    orders.insert(order);
    CHECK(targets == std::multiset<std::int32_t>{2, 5, 6, 9, 9, 9});
  }
  CHECK(orders.size() > 5);  // 4 documents, 2 windows: up to 48 orders
}

TEST_CASE("a document that spans blocks loses no target") {
  const TempFolder folder;
  // Two blocks and a half of one document, tokens counting in base 250 so that every pair is known by its place.
  const std::int64_t tokens = kBlockTokens * 5 / 2;
  std::vector<int> values(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i % 65521);
  folder.write("m.bin", packed<std::uint16_t>(values));
  folder.write("m.idx", megatron_index({{static_cast<int>(tokens)}}, 8, 2));
  const IdsTokenizer tokenizer(65536, std::nullopt);
  auto config = config_for(folder);
  config.train = {source_at(folder / "m.bin")};
  const std::int64_t context = 4096;
  const auto data =
      open_training_data(config, tokenizer, {.vocab = 65536, .context = context, .seed = 1, .report = {}});
  REQUIRE(data->mixture().order(0).samples_per_epoch() == 5 * 256);
  std::int64_t targets = 0;
  for (std::int64_t n = 0; n < 5 * 256; ++n) {
    const Sample s = read(*data, n);
    for (std::size_t i = 0; i < s.targets.size(); ++i) {
      if (s.targets[i] < 0) continue;
      ++targets;
      if (s.targets[i] != (s.inputs[i] + 1) % 65521) FAIL("a target that does not follow its input");
    }
  }
  CHECK(targets == tokens - 1);
}

TEST_CASE("the samples depend on seed and data, not on how or when they are read") {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i * i) + " ";
  auto config = config_for(folder);
  config.train = {source_at(folder.write("a.txt", text), 0.7),
                  source_at(folder.write("b.txt", text.substr(0, 9999)), 0.3)};
  const ByteTokenizer tokenizer;
  const auto first = open_training_data(config, tokenizer, options(32));
  const auto second = open_training_data(config, tokenizer, options(32));
  const auto other_seed = open_training_data(config, tokenizer, options(32, 2));
  CHECK(first->hash() == second->hash());
  std::vector<Sample> walk;
  for (std::int64_t n = 0; n < 3000; ++n) walk.push_back(read(*first, n));
  int equal = 0;
  for (std::int64_t n = 2999; n >= 0; n -= 7) {
    CHECK(read(*second, n) == walk[static_cast<std::size_t>(n)]);
    equal += read(*other_seed, n) == walk[static_cast<std::size_t>(n)] ? 1 : 0;
  }
  CHECK(equal < 20);
  // Several readers at once.
  std::vector<int> wrong(4, 0);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      int& count = wrong[static_cast<std::size_t>(t)];
      threads.emplace_back([&first, &walk, &count, t] {
        for (std::int64_t n = t; n < 3000; n += 5)
          count += read(*first, n) == walk[static_cast<std::size_t>(n)] ? 0 : 1;
      });
    }
  }
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("the data hash sees content, weights, caps and tokenizer, but not paths") {
  const TempFolder folder;
  const ByteTokenizer tokenizer;
  auto config = config_for(folder);
  config.train = {source_at(folder.write("a.txt", "some text"))};
  const auto hash = [&] { return open_training_data(config, tokenizer, options(4))->hash(); };
  const std::uint64_t original = hash();
  config.train[0].path = folder.write("renamed.txt", "some text").string();
  CHECK(hash() == original);
  folder.write("renamed.txt", "same text");
  CHECK(hash() != original);
  config.train[0].path = (folder / "a.txt").string();
  config.train[0].weight = 2.0;
  CHECK(hash() != original);
  config.train[0].weight = 1.0;
  config.train[0].epochs = 2.0;
  CHECK(hash() != original);
}

TEST_CASE("a token beyond the model's vocabulary is found when its sample is read") {
  const TempFolder folder;
  const auto path = folder.write("l.bin", llmc_file({1, 2, 3, 300, 4, 5}, false));
  auto config = config_for(folder);
  config.train = {source_at(path)};
  const IdsTokenizer tokenizer(257, std::nullopt);
  const auto data = open_training_data(config, tokenizer, options(5));
  CHECK_THROWS_WITH_AS(read(*data, 0), doctest::Contains("l.bin: token 3"), InputError);
}

namespace {

// Of letters of its own, none like its neighbour, so that each window is told from every other.
std::string numbered_words(char first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text.push_back(first);
    for (int digit = 0; digit < 4; ++digit) text.push_back(static_cast<char>('0' + (i >> (2 * digit)) % 4));
  }
  return text;
}

// As a run that goes on from what `history` has read.
auto open_where(ConsumptionHistory& history, const DataConfig& config) {
  static const ByteTokenizer tokenizer;
  const std::vector<MixSource> read = history.sources_read();
  DataOptions o = options(16);
  o.read = read;
  auto data = open_training_data(config, tokenizer, o);
  history.continue_with(data->description(), 16, 4);
  data->enter(history.mix());
  return data;
}

}  // namespace

TEST_CASE("a folder that gains a file goes on: old samples are not repeated, new ones are read in this epoch") {
  const TempFolder folder;
  folder.write("d/m.txt", numbered_words('a', 100));
  folder.write("d/p.txt", numbered_words('b', 60));
  auto config = config_for(folder);
  config.train = {source_at(folder / "d")};
  const ByteTokenizer tokenizer;
  ConsumptionHistory history;
  std::vector<SourceContent> contents;
  const auto open = [&](const std::vector<SourceContent>& known = {}) {
    const std::vector<MixSource> read = history.sources_read();
    DataOptions o = options(16);
    o.read = read;
    o.known = known;
    contents.clear();
    o.opened = [&contents](SourceContent content) { contents.push_back(std::move(content)); };
    auto data = open_training_data(config, tokenizer, o);
    history = ConsumptionHistory::from_json(history.to_json(), "manifest");
    history.continue_with(data->description(), 16, 4);
    data->enter(history.mix());
    return data;
  };
  std::vector<std::vector<std::int32_t>> windows;  // inputs, as they were read
  const auto train = [&](const TrainingData& data, int steps) {
    for (int step = 0; step < steps; ++step) {
      for (const std::int64_t sample : history.batch()) windows.push_back(read(data, sample).inputs);
      history.consume_batch(4 * 16);
    }
  };
  const auto first = open();
  const std::int64_t old_samples = first->mixture().order(0).samples_per_epoch();
  REQUIRE(old_samples == 51);
  train(*first, 6);

  // Between the others by its name. What holds the same is the same, whatever it is called.
  folder.write("d/n.txt", numbered_words('c', 90));
  std::filesystem::rename(folder / "d/m.txt", folder / "d/z.txt");
  const auto second = open();
  const std::int64_t samples = second->mixture().order(0).samples_per_epoch();
  CHECK(samples == 51 + 29);
  CHECK(second->mixture().counts(history.next_sample()) == std::vector<std::int64_t>{24});
  CHECK(contents[0].tokens == 501 + 301 + 451);
  CHECK(second->source_tokens() == std::vector<std::int64_t>{contents[0].tokens});
  train(*second, 2);

  // A restart: once more from the files, and by what another process has found.
  const std::vector<SourceContent> known = contents;
  const auto third = open(known);
  CHECK(history.segments().size() == 2);
  CHECK(contents[0].identity == known[0].identity);
  train(*third, 12);
  REQUIRE(windows.size() == 80);

  const std::set<std::vector<std::int32_t>> different(windows.begin(), windows.end());
  CHECK(different.size() == windows.size());
  // All that was to be read was: each letter stands in the inputs, but for what is nobody's input, a stream's last.
  std::map<std::int32_t, int> counts;
  for (const auto& window : windows)
    for (const std::int32_t token : window) ++counts[token];
  CHECK(counts['a'] == 100);
  CHECK(counts['b'] == 60);
  CHECK(counts['c'] == 90);
  // The next epoch has all of them, in an order of its own.
  train(*third, 20);
  std::sort(windows.begin(), windows.begin() + 80);
  const std::set<std::vector<std::int32_t>> next(windows.begin() + 80, windows.end());
  CHECK(next.size() == 80);
}

TEST_CASE("files that hold nothing may join a folder and change nothing that is read") {
  const TempFolder folder;
  folder.write("d/m.txt", numbered_words('a', 100));
  auto config = config_for(folder);
  config.train = {source_at(folder / "d")};
  ConsumptionHistory history;
  const auto first = open_where(history, config);
  history.consume_batch(64);
  folder.write("d/a.txt", "");
  const auto second = open_where(history, config);
  CHECK(history.next_sample() == 4);
  for (std::int64_t sample = 4; sample < 100; ++sample) CHECK(read(*second, sample) == read(*first, sample));
}

TEST_CASE("what a range of samples trains on is what its samples do, across epochs, sources and files that joined") {
  const TempFolder folder;
  folder.write("d/m.txt", numbered_words('a', 100));
  folder.write("b.txt", numbered_words('b', 20));
  auto config = config_for(folder);
  config.train = {source_at(folder / "d"), source_at(folder / "b.txt", 0.5)};
  config.train[0].epochs = 2.5;
  config.train[1].epochs = 3.0;
  ConsumptionHistory history;
  const auto check = [&](const TrainingData& data) {
    const std::int64_t all = data.mixture().num_samples().value();
    REQUIRE(all - history.next_sample() > 60);
    std::int64_t padded = 0;
    for (std::int64_t first = history.next_sample(); first < all; first += 7) {
      std::vector<std::int64_t> tokens(2);
      for (std::int64_t end = first; end <= all; ++end) {
        const std::vector<TokenBounds> exact = data.tokens_between(first, end, all);
        const std::vector<TokenBounds> bounds = data.tokens_between(first, end, 0);
        for (std::size_t source = 0; source < 2; ++source) {
          CHECK(exact[source] == TokenBounds{tokens[source], tokens[source]});
          CHECK(bounds[source].least <= tokens[source]);
          CHECK(bounds[source].most >= tokens[source]);
        }
        if (end == all) continue;
        const std::int64_t of_sample = data.sample_tokens(end);
        tokens[static_cast<std::size_t>(data.mixture().locate(end).source)] += of_sample;
        padded += of_sample < 16 ? 1 : 0;
      }
    }
    CHECK(padded > 0);
  };
  check(*open_where(history, config));
  for (int step = 0; step < 4; ++step) history.consume_batch(64);
  folder.write("d/a.txt", numbered_words('c', 51));
  const auto grown = open_where(history, config);
  REQUIRE(history.mix().sources[0].parts.size() == 2);
  check(*grown);
  // Whole epochs are counted without looking at a sample.
  const auto alone = [&] {
    config.train.pop_back();
    config.train[0].epochs = 1e12;
    history = {};
    return open_where(history, config);
  }();
  const std::int64_t samples = alone->mixture().order(0).samples_per_epoch();
  const std::int64_t tokens = alone->source_tokens()[0] - 1;
  CHECK(alone->tokens_between(0, 3 * samples, 0)[0] == TokenBounds{3 * tokens, 3 * tokens});
  CHECK(alone->tokens_between(0, alone->mixture().num_samples().value(), 0)[0].least > tokens);
}
