// data.train[].split: documents that are held out of a source as a validation set.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/corpus/corpus_build.h"
#include "data/corpus/corpus_reader.h"
#include "data/dataset.h"
#include "data/size_estimate.h"
#include "data/source_check.h"
#include "dataset_scene.h"
#include "support/text.h"

using namespace scaletrain;
using namespace scaletrain::test;
namespace fs = std::filesystem;

namespace {

constexpr int kSplitDocuments = 400;
constexpr double kHeldOutShare = 0.1;

std::string split_document(int i) {
  return fmt::format("document {} of many, {}\n", i, std::string(static_cast<std::size_t>(i % 7), 'x'));
}

// The same documents, in another order and in a file of another kind.
struct SplitScene {
  TempFolder folder;
  ByteTokenizer tokenizer;
  fs::path text;
  fs::path lines;

  SplitScene() {
    std::string all;
    std::string jsonl;
    for (int i = 0; i < kSplitDocuments; ++i) {
      all += split_document(i) + "----\n";
      std::string escaped = split_document(kSplitDocuments - 1 - i);
      escaped.replace(escaped.size() - 1, 1, "\\n");
      jsonl += "{\"text\": \"" + escaped + "\"}\n";
    }
    text = folder.write("all.txt", all);
    lines = folder.write("all.jsonl", jsonl);
  }

  DataConfig config(const fs::path& path) const {
    DataConfig out = config_for(folder);
    out.train = {source_at(path)};
    if (path == text) out.train[0].separator = "----";
    out.train[0].split = HoldOutConfig{.validation = kHeldOutShare, .name = "web"};
    add_held_out_sets(out);
    return out;
  }

  // The documents of a run's samples, each once.
  template <class Data>
  std::multiset<std::string> documents_of(const Data& data, std::int64_t samples) const {
    std::string all;
    for (std::int64_t n = 0; n < samples; ++n)
      for (const std::int32_t target : read(data, n).targets)
        if (target != kMaskedTarget) all.push_back(byte(target));
    return split_up(byte(read(data, 0).inputs[0]) + all);
  }
  std::multiset<std::string> training(const DataConfig& config) const {
    const auto data = open_training_data(config, tokenizer, options(100'000));
    return documents_of(*data, data->mixture().order(0).samples_per_epoch());
  }
  std::multiset<std::string> held_out(const DataConfig& config) const {
    const auto set =
        open_validation_set(config.validation.at(0), config, tokenizer, options(64), validation_key(config, 0));
    return documents_of(*set, set->num_samples());
  }

  static char byte(std::int32_t token) {
    return token == ByteTokenizer::kEndOfDocument ? '|' : static_cast<char>(token);
  }
  static std::multiset<std::string> split_up(const std::string& all) {
    std::multiset<std::string> documents;
    std::string one;
    for (const char c : all) {
      if (c != '|') {
        one.push_back(c);
        continue;
      }
      documents.insert(one);
      one.clear();
    }
    CHECK(one.empty());
    return documents;
  }
};

std::multiset<std::string> expected_part(std::size_t part) {
  std::multiset<std::string> documents;
  for (int i = 0; i < kSplitDocuments; ++i)
    if (part_of_document(document_hash(split_document(i)), {90, 10}) == part) documents.insert(split_document(i));
  return documents;
}

TEST_CASE("a document is held out by what it is, in text as in JSONL, and trained on otherwise") {
  const SplitScene scene;
  CHECK(expected_part(1).size() > 20);
  CHECK(expected_part(1).size() < 60);
  for (const fs::path& path : {scene.text, scene.lines}) {
    CAPTURE(path.string());
    const DataConfig config = scene.config(path);
    CHECK(scene.training(config) == expected_part(0));
    CHECK(scene.held_out(config) == expected_part(1));
  }
}

TEST_CASE("what a source holds out is what `data build --split` puts aside") {
  const SplitScene scene;
  CorpusRequest request;
  request.sources = {scene.lines.string()};
  request.tokenizer = &scene.tokenizer;
  request.output = (scene.folder.path() / "built").string();
  request.split = {90, 10};
  build_corpus(request);
  for (const char* const part : {"train", "validation"}) {
    CAPTURE(part);
    DataConfig built = config_for(scene.folder);
    built.train = {source_at(scene.folder.path() / (std::string("built-") + part + ".bin"))};
    CHECK(scene.training(built) == expected_part(std::string(part) == "train" ? 0 : 1));
  }
}

TEST_CASE("a source that holds documents out is another one than the source of all") {
  const SplitScene scene;
  DataConfig all = scene.config(scene.lines);
  all.train[0].split.reset();
  DataConfig more = scene.config(scene.lines);
  more.train[0].split->validation = 0.2;
  std::set<std::uint64_t> hashes;
  for (const DataConfig& config : {all, scene.config(scene.lines), more})
    hashes.insert(open_training_data(config, scene.tokenizer, options(64))->hash());
  CHECK(hashes.size() == 3);
  // A larger share holds out what the smaller one does, and more.
  const auto fewer = scene.held_out(scene.config(scene.lines));
  const auto most = scene.held_out(more);
  CHECK(std::includes(most.begin(), most.end(), fewer.begin(), fewer.end()));
}

TEST_CASE("what documents cannot be held out of is refused by the key") {
  const SplitScene scene;
  const fs::path alone = scene.folder.write("one.txt", "a text without a separator is one document");
  const DataConfig one = scene.config(alone);
  const std::string nothing = message_of<InputError>([&] {
    scene.training(one);
    scene.held_out(one);
  });
  CHECK(
      contains(nothing, "data.train.0.split: " + alone.string() + ": no document falls to the 10 % that are held out"));
  CHECK(contains(nothing, "without a separator a file of text is one"));
  const DataConfig line = scene.config(scene.folder.write("one.jsonl", "{\"text\": \"a\"}\n"));
  const std::string no_record = message_of<InputError>([&] {
    scene.training(line);
    scene.held_out(line);
  });
  CHECK(contains(no_record, "choose another share, or name more records"));
  CHECK_FALSE(contains(no_record, "separator"));

  CorpusRequest request;
  request.sources = {scene.lines.string()};
  request.tokenizer = &scene.tokenizer;
  request.output = (scene.folder.path() / "built").string();
  build_corpus(request);
  const DataConfig tokens = scene.config(scene.folder.path() / "built.bin");
  const std::string refusal = message_of<UserError>([&] { scene.training(tokens); });
  CHECK(contains(refusal, "data.train.0.split: "));
  CHECK(contains(refusal, "built.bin holds tokens"));
  CHECK(contains(refusal, "scaletrain data build --split 99,1"));
  const std::vector<InputProblem> problems = source_problems(tokens);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].key == "data.train.0.split");
}

TEST_CASE("what a source is estimated to hold is without the documents that it holds out") {
  const SplitScene scene;
  SourceConfig source = scene.config(scene.text).train[0];
  const auto estimated = [&source] { return estimate_tokens(source, TokenizerConfig(), 257)->tokens; };
  const std::uint64_t trained = estimated();
  source.split.reset();
  CHECK(trained == estimated() * 9 / 10);
}

TEST_CASE("bad records of a source that holds documents out are told once") {
  const SplitScene scene;
  const fs::path path = scene.folder.write("bad.jsonl", TempFolder::read(scene.lines) + "{\"body\": 1}\n");
  DataConfig config = scene.config(path);
  config.on_bad_record = BadRecordPolicy::skip;
  std::vector<std::string> told;
  DataOptions asked = options(64);
  asked.report = [&told](const std::string& text) { told.push_back(text); };
  open_training_data(config, scene.tokenizer, asked);
  open_validation_set(config.validation[0], config, scene.tokenizer, asked, validation_key(config, 0));
  CHECK(std::count_if(told.begin(), told.end(),
                      [](const std::string& text) { return contains(text, "without the field"); }) == 1);
}

}  // namespace
