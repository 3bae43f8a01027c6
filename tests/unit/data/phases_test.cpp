// A run that reads its sources by other weights and in shorter samples from some step on. Every token of the files is
// another number, so that counting them tells what was read.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/order/history.h"
#include "data/tokens/tokenizer.h"
#include "dataset_scene.h"
#include "token_files.h"

using namespace scaletrain;
using namespace scaletrain::test;

namespace {

constexpr std::int64_t longest_samples = 64;

struct PhasePart {
  std::int64_t context = longest_samples;
  std::int64_t batch = 1;
  std::int64_t steps = 1;
  std::vector<double> weights = {};
};

// Two files: one document of 2,000 tokens from 0 on; 40 documents of 25 to 64 from 10,000 on.
struct CountedTokens {
  CountedTokens() {
    std::vector<int> tokens(2000);
    std::iota(tokens.begin(), tokens.end(), 0);
    folder.write("a.bin", llmc_file(tokens, false));
    std::vector<std::vector<int>> documents;
    std::vector<int> others;
    for (int i = 0; i < 40; ++i) {
      documents.push_back({25 + i});
      for (int k = 0; k < 25 + i; ++k) others.push_back(10000 + static_cast<int>(others.size()));
    }
    folder.write("b.bin", packed<std::uint16_t>(others));
    folder.write("b.idx", megatron_index(documents, 8, 2));
    second_tokens = static_cast<std::int64_t>(others.size());
    config = config_for(folder);
    config.tokenizer.type = TokenizerKind::ids;
    config.train = {source_at(folder.path() / "a.bin", 2.0), source_at(folder.path() / "b.bin")};
  }

  std::unique_ptr<TrainingData> open() const {
    const auto tokenizer = make_tokenizer(config.tokenizer, 65000);
    DataOptions opened = options(longest_samples);
    opened.vocab = 65000;
    return open_training_data(config, *tokenizer, opened);
  }

  TempFolder folder;
  DataConfig config;
  std::int64_t second_tokens = 0;
};

void enter_part(TrainingData& data, ConsumptionHistory& history, const PhasePart& part) {
  history.continue_with(data.description({.context = part.context, .weights = part.weights}), part.context, part.batch);
  data.enter(history.mix(), part.context);
}

// One step's samples, in order. Each sample's targets follow its inputs in the files, but for documents' ends.
std::vector<Sample> read_step(const TrainingData& data, ConsumptionHistory& history) {
  std::vector<Sample> samples;
  std::int64_t tokens = 0;
  for (const std::int64_t number : history.batch()) {
    samples.push_back(read(data, number));
    const auto& targets = samples.back().targets;
    const std::int64_t own = std::count_if(targets.begin(), targets.end(), [](auto target) { return target >= 0; });
    CHECK(data.sample_tokens(number) == own);
    tokens += own;
  }
  history.consume_batch(tokens);
  return samples;
}

// How often each token was a target.
using TargetCounts = std::map<std::int32_t, std::int64_t>;
void count_targets(const std::vector<Sample>& samples, TargetCounts& counts) {
  for (const Sample& sample : samples)
    for (const std::int32_t target : sample.targets)
      if (target >= 0) ++counts[target];
}

const std::vector<PhasePart> mixed_parts = {{16, 3, 9},         {64, 2, 5, {1, 3}}, {8, 7, 8}, {32, 1, 11, {0, 1}},
                                            {16, 2, 6, {1, 0}}, {16, 5, 4, {3, 1}}, {64, 2, 4}};

}  // namespace

TEST_CASE("shorter samples are the pieces of the longest ones, in their order") {
  const CountedTokens scene;
  const auto whole = scene.open();
  const auto cut = scene.open();
  ConsumptionHistory of_whole;
  ConsumptionHistory of_cut;
  const std::vector<double> alone = {0, 1};
  enter_part(*whole, of_whole, {64, 1, 0, alone});
  enter_part(*cut, of_cut, {16, 4, 0, alone});
  for (int window = 0; window < 60; ++window) {  // more than an epoch
    const Sample expected = read_step(*whole, of_whole).front();
    const std::vector<Sample> pieces = read_step(*cut, of_cut);
    std::vector<std::int32_t> inputs;
    std::vector<std::int32_t> targets;
    for (const Sample& piece : pieces) {
      inputs.insert(inputs.end(), piece.inputs.begin(), piece.inputs.end());
      targets.insert(targets.end(), piece.targets.begin(), piece.targets.end());
    }
    CHECK(targets == expected.targets);
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (targets[i] >= 0) CHECK(inputs[i] == expected.inputs[i]);
  }
}

TEST_CASE("no token is read twice in an epoch, whatever the phases are, and few are passed over") {
  const CountedTokens scene;
  const auto data = scene.open();
  ConsumptionHistory history;
  TargetCounts counts;
  std::int64_t samples = 0;
  std::int64_t changes = 0;  // tokens that may be passed over: less than a sample at each change of the context
  for (const PhasePart& part : mixed_parts) {
    enter_part(*data, history, part);
    changes += part.context - 1;
    for (std::int64_t i = 0; i < part.steps; ++i) {
      count_targets(read_step(*data, history), counts);
      samples += part.batch;
    }
    CHECK(history.next_sample() == samples);
  }
  for (const auto& entry : counts) REQUIRE(entry.second == 1);
  // On with both at the full context, until each epoch has ended.
  enter_part(*data, history, {64, 1, 0, {}});
  const auto taken = [&] { return data->mixture().counts(history.next_sample()); };
  const std::vector<MixSource>& sources = data->mixture().mix().sources;
  while (taken()[0] < sources[0].samples_per_epoch || taken()[1] < sources[1].samples_per_epoch) {
    const std::vector<std::int64_t> before = taken();
    const std::vector<Sample> read = read_step(*data, history);
    const std::size_t source = taken()[0] > before[0] ? 0 : 1;
    if (before[source] < sources[source].samples_per_epoch) count_targets(read, counts);
  }
  std::int64_t of_first = 0;
  std::int64_t of_second = 0;
  for (const auto& entry : counts) {
    REQUIRE(entry.second == 1);
    ++(entry.first < 10000 ? of_first : of_second);
  }
  CHECK(of_first <= 1999);
  CHECK(of_first >= 1999 - changes);
  CHECK(of_second <= scene.second_tokens - 1);
  CHECK(of_second >= scene.second_tokens - 1 - changes);
}

TEST_CASE("a phase of other weights alone passes nothing over") {
  const CountedTokens scene;
  const auto data = scene.open();
  ConsumptionHistory history;
  TargetCounts counts;
  for (const PhasePart& part :
       std::vector<PhasePart>{{16, 3, 11, {5, 1}}, {16, 2, 9, {0, 1}}, {16, 4, 8, {1, 0}}, {16, 1, 30}}) {
    enter_part(*data, history, part);
    for (std::int64_t i = 0; i < part.steps; ++i) count_targets(read_step(*data, history), counts);
  }
  // The tokens of the first pieces of the order: as many as one phase alone reads.
  const std::vector<std::int64_t> taken = data->mixture().counts(history.next_sample());
  for (const std::size_t source : {0u, 1u}) {
    const auto alone = scene.open();
    ConsumptionHistory of_alone;
    enter_part(*alone, of_alone, {16, 1, 0, source == 0 ? std::vector<double>{1, 0} : std::vector<double>{0, 1}});
    TargetCounts expected;
    for (std::int64_t i = 0; i < taken[source]; ++i) count_targets(read_step(*alone, of_alone), expected);
    TargetCounts found;
    for (const auto& entry : counts)
      if ((entry.first < 10000) == (source == 0)) found.insert(entry);
    CHECK(found == expected);
  }
}

TEST_CASE("a history that is read back goes on with the same samples, in every phase") {
  const CountedTokens scene;
  const auto data = scene.open();
  const auto again = scene.open();
  ConsumptionHistory history;
  for (const PhasePart& part : mixed_parts) {
    enter_part(*data, history, part);
    for (std::int64_t i = 0; i < part.steps; ++i) {
      ConsumptionHistory resumed = ConsumptionHistory::from_json(history.to_json(), "history");
      CHECK(resumed == history);
      enter_part(*again, resumed, part);
      CHECK(read_step(*again, resumed) == read_step(*data, history));
      CHECK(resumed == history);
    }
  }
}

TEST_CASE("phases like the run leave the history as it was, others are other data") {
  const CountedTokens scene;
  const auto data = scene.open();
  const std::uint64_t hash = data->hash();
  CHECK(data->description().hash == hash);
  CHECK(data->description({.context = 64, .weights = {2, 1}}).hash == hash);
  CHECK(data->description({.context = 64, .weights = {1, 2}}).hash != hash);
  CHECK(data->description({.context = 32, .weights = {2, 1}}).hash != hash);
  ConsumptionHistory history;
  enter_part(*data, history, {64, 4, 0, {}});
  read_step(*data, history);
  enter_part(*data, history, {64, 4, 0, {2, 1}});
  read_step(*data, history);
  CHECK(history.segments().size() == 1);
}

TEST_CASE("an epoch cap holds across phases of other contexts") {
  CountedTokens scene;
  scene.config.train[0].epochs = 0.5;
  const auto data = scene.open();
  ConsumptionHistory history;
  TargetCounts counts;
  for (const PhasePart& part : std::vector<PhasePart>{{16, 4, 5, {1, 0}}, {32, 2, 3, {1, 1}}, {64, 2, 20, {1, 1}}}) {
    enter_part(*data, history, part);
    for (std::int64_t i = 0; i < part.steps; ++i) count_targets(read_step(*data, history), counts);
  }
  const std::int64_t of_first =
      std::count_if(counts.begin(), counts.end(), [](const auto& entry) { return entry.first < 10000; });
  // Half of 32 windows; what was passed over counts as read.
  CHECK(of_first <= 16 * 64);
  CHECK(of_first >= 16 * 64 - 31 - 63);
}
