#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "shared_data.h"
#include "support/temp_folder.h"

using namespace scaletrain;

namespace {

std::filesystem::path corpus(const std::string& name) {
  return shared_data("text/" + name);
}

}  // namespace

TEST_CASE("a real text comes back byte for byte through cache and windows") {
  if (!is_shared_data_present("text/tinyshakespeare.txt")) return;
  const auto path = corpus("tinyshakespeare.txt");
  const TempFolder folder;
  DataConfig config;
  config.cache = folder.path().string();
  ValidationConfig set;
  set.path = path.string();
  const ByteTokenizer tokenizer;
  const auto data =
      open_validation_set(set, config, tokenizer, {.vocab = 257, .context = 1000, .seed = 1, .report = {}}, "v");
  std::string text;
  std::vector<std::int32_t> inputs(1000);
  std::vector<std::int32_t> targets(1000);
  std::vector<std::int32_t> starts;
  for (std::int64_t n = 0; n < data->num_samples(); ++n) {
    data->read_sample(n, inputs, targets, starts);
    text += tokenizer.decode(inputs);
  }
  CHECK(text == TempFolder::read(path));
}

TEST_CASE("an epoch of a real JSONL corpus holds each byte as often as the corpus") {
  if (!is_shared_data_present("text/sentences.jsonl")) return;
  const TempFolder folder;
  // A third of it, which is more than a block.
  const std::string all = TempFolder::read(corpus("sentences.jsonl"));
  const auto path = folder.write("sentences.jsonl", all.substr(0, all.find('\n', all.size() / 3) + 1));
  DataConfig config;
  config.cache = folder.path().string();
  SourceConfig source;
  source.path = path.string();
  config.train = {source};
  const ByteTokenizer tokenizer;
  const std::int64_t context = 512;
  const auto data = open_training_data(config, tokenizer, {.vocab = 257, .context = context, .seed = 1, .report = {}});
  const std::int64_t samples = data->mixture().order(0).samples_per_epoch();
  std::map<std::int32_t, std::int64_t> counts;
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(context));
  std::vector<std::int32_t> targets(inputs.size());
  std::vector<std::int32_t> starts;
  std::int64_t num_targets = 0;
  for (std::int64_t n = 0; n < samples; ++n) {
    data->read_sample(n, inputs, targets, starts);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] < 0) continue;
      ++num_targets;
      ++counts[targets[i]];
    }
  }
  // Each block of 2 Mi tokens loses at most its first token and what lies behind the last target.
  const std::int64_t tokens = data->source_tokens()[0];
  const std::int64_t blocks = tokens / kBlockTokens + 1;
  CHECK(num_targets <= tokens - 1);
  CHECK(num_targets >= tokens - 2 * blocks);
  const auto lines = TempFolder::read(path);
  const auto documents = std::count(lines.begin(), lines.end(), '\n');
  CHECK(counts[256] <= documents);
  CHECK(counts[256] >= documents - blocks - 1);
}
