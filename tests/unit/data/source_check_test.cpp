#include "data/source_check.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/corpus/corpus_build.h"
#include "data/tokens/bpe/byte_spelling.h"
#include "dataset_scene.h"
#include "packed_text.h"
#include "support/bytes_read.h"
#include "support/refused_files.h"
#include "support/temp_folder.h"
#include "support/text.h"
#include "token_files.h"

using namespace scaletrain;
using namespace scaletrain::test;

namespace {

DataConfig reading(const std::filesystem::path& path, SourceKind type = SourceKind::automatic) {
  SourceConfig source;
  source.path = path.string();
  source.type = type;
  DataConfig config;
  config.train = {source};
  config.cache = (path.parent_path() / "cache").string();
  return config;
}

// "data.train.0.path: what is wrong", of the one problem there is; "" of none.
std::string problem_of(const DataConfig& config) {
  const std::vector<InputProblem> problems = source_problems(config);
  if (problems.empty()) return {};
  CHECK(problems.size() == 1);
  return problems.front().key + (problems.front().is_config ? " (config): " : ": ") + problems.front().message;
}

}  // namespace

TEST_CASE("an empty folder and empty files are told by the key of the path, with what helps") {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "none" / "below");
  folder.write("hollow/a.txt", "");
  folder.write("hollow/b.txt", "");
  const auto empty = folder.write("empty.txt", "");
  const std::string none = problem_of(reading(folder / "none"));
  CHECK(none.starts_with("data.train.0.path: " + (folder / "none").string() + ": the folder holds no file"));
  CHECK(contains(none, "no file; put text, JSONL or token files into it"));
  CHECK(contains(problem_of(reading(folder / "hollow")), "all of its 2 files are empty; give it text"));
  CHECK(contains(problem_of(reading(empty)), "data.train.0.path: " + empty.string() + ": the file is empty"));
  // A file that holds something is enough.
  folder.write("hollow/c.txt", "x");
  CHECK(problem_of(reading(folder / "hollow")).empty());
}

TEST_CASE("a folder for tokenised text that cannot be there is told where there is text") {
  const TempFolder folder;
  const auto text = folder.write("a.txt", "words");
  DataConfig config = reading(text);
  CHECK(problem_of(config).empty());
  CHECK_FALSE(std::filesystem::exists(*config.cache));
  config.cache = text.string();
  CHECK(problem_of(config) == "data.cache: " + text.string() +
                                  ": creating the folder failed: Not a directory; tokenised text is kept there: name "
                                  "another folder, here or in SCALETRAIN_CACHE");
  DataConfig tokens = reading(folder.write("a.bin", llmc_file({1, 2, 3}, false)));
  tokens.tokenizer.type = TokenizerKind::ids;
  tokens.cache = text.string();
  CHECK(problem_of(tokens).empty());
}

TEST_CASE("each source is told by its own key, and paths that lead nowhere are left to the config") {
  const TempFolder folder;
  DataConfig config = reading(folder / "nowhere");
  config.train.push_back(config.train.front());
  config.train.back().path = folder.write("empty.txt", "").string();
  ValidationConfig held;
  held.name = "held";
  held.path = folder.write("archive.xz", "x").string();
  config.validation = {held};
  const auto problems = source_problems(config);
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].key == "data.train.1.path");
  CHECK_FALSE(problems[0].is_config);
  CHECK(problems[1].key == "data.validation.0.type");
  CHECK(problems[1].is_config);
}

TEST_CASE("a file that the system does not let be opened is told before anything reads it") {
  const TempFolder folder;
  const auto file = folder.write("a.txt", "text");
  const FileLease lease(file);
  if (!lease) return;
  const std::string problem = problem_of(reading(file));
  CHECK(problem.starts_with("data.train.0.path: " + file.string()));
  CHECK(contains(problem, "have the system let this user read it"));
}

TEST_CASE(
    "of a folder's files that cannot be read the first is told with its reason, a few by name and all by number") {
  const TempFolder folder;
  for (const char* name : {"a", "b", "d", "e", "f"}) folder.write("one/" + std::string(name) + ".bin", "no tokens");
  folder.write("one/c.bin", llmc_file({1, 2, 3}, false));
  const std::string problem = problem_of(reading(folder / "one"));
  CHECK(problem.starts_with("data.train.0.path: " + (folder / "one" / "a.bin").string()));
  CHECK(contains(problem, "; and 4 more files of this folder cannot be read: b.bin, d.bin, e.bin ..."));
  for (const char* name : {"d", "e", "f"}) std::filesystem::remove(folder / "one" / (std::string(name) + ".bin"));
  CHECK(contains(problem_of(reading(folder / "one")), "; and 1 more file of this folder cannot be read: b.bin"));
  std::filesystem::remove(folder / "one" / "b.bin");
  CHECK_FALSE(contains(problem_of(reading(folder / "one")), "more file"));
}

TEST_CASE("files that the system does not let be opened are counted too") {
  const TempFolder folder;
  const FileLease first(folder.write("two/a.txt", "text"));
  const FileLease second(folder.write("two/b.txt", "text"));
  if (!first || !second) return;
  const std::string problem = problem_of(reading(folder / "two"));
  CHECK(contains(problem, "; and 1 more file of this folder cannot be read: b.txt"));
  CHECK(contains(problem, "have the system let this user read it"));
}

TEST_CASE("token files are told by their headers, text where ids are expected by the key") {
  const TempFolder folder;
  CHECK(contains(problem_of(reading(folder.write("no.bin", "no tokens"))), "not a token file"));
  const auto short_of = folder.write("short.bin", llmc_file({1, 2, 3}, false).substr(0, 1026));
  CHECK(problem_of(reading(short_of)).starts_with("data.train.0.path: " + short_of.string()));
  CHECK(contains(problem_of(reading(folder.write("none.bin", llmc_file({}, false)))), "the file is empty"));
  DataConfig ids = reading(folder.write("a.txt", "text"));
  ids.tokenizer.type = TokenizerKind::ids;
  CHECK(contains(problem_of(ids), "reads token files only; name token files, or set data.tokenizer.type: bytes"));
  DataConfig apart = reading(folder.write("whole.bin", llmc_file({1, 2, 3}, false)));
  apart.tokenizer.type = TokenizerKind::ids;
  CHECK(problem_of(apart).empty());
  apart.documents.loss_across = false;
  CHECK(problem_of(apart).starts_with("data.documents.loss_across (config): false needs to know"));
  apart.documents = {.attention = DocumentAttention::within};
  CHECK(problem_of(apart).starts_with("data.documents.attention (config): within needs to know"));
}

TEST_CASE("looking at many files leaves off when it is interrupted or its time is over, and judges nothing unseen") {
  const TempFolder folder;
  for (int i = 0; i < 100; ++i) folder.write("many/" + std::to_string(i) + ".txt", "");
  const DataConfig config = reading(folder / "many");
  REQUIRE(source_problems(config).size() == 1);
  CHECK(source_problems(config, {.seconds = 0.0}).empty());
  // At any file: while the folder is listed, while kinds are told, while files are opened.
  for (const int last : {0, 1, 50, 150, 250, 300}) {
    CAPTURE(last);
    int asked = 0;
    CHECK(source_problems(config, {.interrupted = [&] { return asked++ >= last; }}).empty());
    CHECK(asked <= last + 5);
  }
}

TEST_CASE("looking at the data reads the beginnings of files and no more") {
  const TempFolder folder;
  for (int i = 0; i < 20; ++i) folder.write("many/" + std::to_string(i) + ".txt", std::string(100'000, 'x'));
  const DataConfig config = reading(folder / "many");
  source_problems(config);
  const std::uint64_t before = bytes_read();
  CHECK(problem_of(config).empty());
  CHECK(bytes_read() - before < 20 * 4096);
}

TEST_CASE("a first record without the field is told before anything reads it, with the fields that are there") {
  const TempFolder folder;
  folder.write("d/a.jsonl", "");
  const auto file = folder.write("d/b.jsonl.gz", gzipped("\n \n{\"id\": 1, \"body\": \"x\"}\n{\"text\": \"y\"}\n"));
  DataConfig config = reading(folder / "d");
  CHECK(problem_of(config) == "data.train.0.path: " + file.string() +
                                  ":3: the key \"text\" is missing; the line has \"body\", \"id\": name one of them as "
                                  "the field; mend the line, or have such lines left out (on_bad_record: skip)");
  config.on_bad_record = BadRecordPolicy::skip;
  CHECK(problem_of(config).empty());
  config.on_bad_record = BadRecordPolicy::fail;
  config.train[0].field = "body";
  CHECK(problem_of(config).empty());
  config.train[0].field = "id";
  CHECK(contains(problem_of(config), ":3: \"id\" is number, expected a string"));
  // One is enough: what stands further inside is told by whoever reads it.
  config.train[0] = reading(folder.write("c.jsonl", "{\"text\": \"x\"}\nnonsense\n")).train[0];
  CHECK(problem_of(config).empty());
  config.train[0].path = folder.write("e.jsonl", "nonsense").string();
  CHECK(contains(problem_of(config), "e.jsonl:1: not valid JSON"));
}

TEST_CASE("JSON that is one array is told with what makes lines of it") {
  const TempFolder folder;
  const std::string rows = "[{\"text\": \"x\"},\n {\"text\": \"y\"}]\n";
  CHECK(contains(problem_of(reading(folder.write("rows.json", "\n " + rows))),
                 "rows.json is an array of JSON, and records stand in lines: jq -c '.[]' " +
                     (folder / "rows.json").string() + " > " + (folder / "rows.jsonl").string() + " makes them"));
  CHECK_FALSE(contains(problem_of(reading(folder.write("one.json", "{\"text\": []}\n"))), "jq"));
  DataConfig config = reading(folder.write("rows.jsonl", rows));
  for (const RecordKind records : {RecordKind::text, RecordKind::prompt_completion}) {
    config.train[0].records = records;
    const std::string problem = problem_of(config);
    CHECK_MESSAGE(contains(problem, ":1: "), problem);
    CHECK_MESSAGE(contains(problem, "; jq -c '.[]' makes such lines of a file that is an array"), problem);
  }
}

TEST_CASE("tokens that another tokenizer has made are refused where their ids mean others") {
  const TempFolder folder;
  const auto write = [&](const std::string& name, const nlohmann::json& tokenizer) {
    folder.write(name + "/tokenizer.json", tokenizer.dump());
    return TokenizerConfig{.type = TokenizerKind::bpe, .path = (folder / name).string(), .end_of_document = {}};
  };
  nlohmann::json json = nlohmann::json::parse(byte_tokenizer_json());
  const TokenizerConfig own = write("own", json);
  nlohmann::json fewer_tokens = json;
  fewer_tokens["added_tokens"] = nlohmann::json::array();
  fewer_tokens["model"]["vocab"].erase(kByteEndName);
  nlohmann::json unmarked_end = json;
  unmarked_end["added_tokens"][0]["special"] = false;
  const TokenizerConfig unmarked = write("unmarked", unmarked_end);
  nlohmann::json added = json["added_tokens"][0];
  added["id"] = 257;
  added["content"] = "<|new|>";
  json["added_tokens"].push_back(added);
  const TokenizerConfig extended = write("extended", json);
  std::swap(json["model"]["vocab"]["a"], json["model"]["vocab"]["b"]);
  const TokenizerConfig other = write("other", json);
  CorpusRequest request;
  request.sources = {folder.write("in.txt", "abcabc").string()};
  const auto tokenizer = make_tokenizer(own, std::nullopt);
  request.tokenizer = tokenizer.get();
  request.tokenizer_name = "own";
  request.output = (folder / "built").string();
  build_corpus(request);

  DataConfig config = reading(folder / "built.bin");
  const auto told_by_start = [&] {
    std::string told;
    DataOptions o = options(4);
    o.report = [&told](const std::string& message) { told += message; };
    open_training_data(config, *make_tokenizer(config.tokenizer, std::nullopt), o);
    return told;
  };
  // One with more tokens, one whose flags are others, and the bytes that it spells are as good.
  for (const TokenizerConfig& same : {own, extended, unmarked, TokenizerConfig()}) {
    config.tokenizer = same;
    CHECK(problem_of(config).empty());
    CHECK(told_by_start().empty());
  }
  const auto is_refused = [&] {
    const std::string words = "built.bin was made with the tokenizer own (bpe ";
    const std::string problem = problem_of(config);
    CHECK(problem.starts_with("data.train.0.path (config): "));
    CHECK_MESSAGE(contains(problem, words), problem);
    CHECK_MESSAGE(contains(problem, "whose ids mean other tokens; name its tokenizer, or build the file again"),
                  problem);
    // A run that has begun with it goes on, and is told.
    std::string told;
    const auto hear = [&told](const std::string& message) { told += message; };
    CHECK(source_problems(config, {.has_begun = [] { return true; }, .report = hear}).empty());
    CHECK(told.starts_with("notice: data.train.0.path: "));
    CHECK(contains(told, words));
    CHECK(contains(told_by_start(), words));
  };
  config.tokenizer = other;
  is_refused();
  config.tokenizer = write("fewer", fewer_tokens);  // cannot be all of them
  config.tokenizer.end_of_document = 0;
  is_refused();
  // By a record of a build that did not say what its ids are, the kinds alone are known to differ.
  const std::filesystem::path record = folder / "built.build.json";
  const nlohmann::json whole = nlohmann::json::parse(TempFolder::read(record));
  nlohmann::json before = whole;
  before["tokenizer"].erase("ids");
  folder.write("built.build.json", before.dump());
  config.tokenizer = {};
  is_refused();
  config.tokenizer = other;
  CHECK(problem_of(config).empty());
  CHECK(contains(told_by_start(), "whose ids may mean other tokens"));
  // Of a record that cannot be read nothing is known, which is told; of none nothing.
  before["tokenizer"]["ids"] = 5;
  folder.write("built.build.json", before.dump());
  CHECK(problem_of(config).empty());
  CHECK(contains(told_by_start(), "built.bin is not known: "));
  std::filesystem::remove(record);
  CHECK(problem_of(config).empty());
  CHECK(told_by_start().empty());
}

TEST_CASE("a first record that holds no conversation, or no prompt, is told before anything reads it") {
  const TempFolder folder;
  const auto text = folder.write("a.jsonl", "{\"text\": \"x\"}\n");
  DataConfig config = reading(text);
  config.train[0].records = RecordKind::prompt_completion;
  CHECK(contains(problem_of(config), "data.train.0.path: " + text.string() + ":1: "));
  config.train[0].path = folder.write("b.jsonl", "{\"prompt\": \"one\", \"completion\": \"two\"}\n").string();
  CHECK(problem_of(config).empty());
}

TEST_CASE("of a long first record nothing is told before it is read, and little of the file is") {
  const TempFolder folder;
  const auto file = folder.write("a.jsonl", "{\"body\": \"" + std::string(16u << 20, 'x') + "\"}\n");
  const DataConfig config = reading(file);
  const std::uint64_t before = bytes_read();
  CHECK(problem_of(config).empty());
  CHECK(bytes_read() - before < (5u << 20));
}

TEST_CASE("text that may be JSONL, and JSON that is not read, are told to who wants to hear of them") {
  const TempFolder folder;
  folder.write("d/a", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n");
  folder.write("d/b.txt", "prose");
  folder.write("d/meta.json", "{\n}");
  DataConfig config = reading(folder / "d");
  std::vector<std::string> told;
  const LookLimits limits{.report = [&told](const std::string& line) { told.push_back(line); }};
  CHECK(source_problems(config, limits).empty());
  const std::string path = (folder / "d").string();
  const std::vector<std::string> expected = {
      "data.train.0.path: " + path +
          "/meta.json is JSON, but no lines of JSON, beside files that are read, and is not read",
      "notice: data.train.0: " + path + ": a file is read as text, but its first lines are JSON objects (" + path +
          "/a): type: jsonl reads a document of each line, type: text says that text is meant"};
  CHECK(told == expected);
  told.clear();
  folder.write("damaged/a.txt.gz", "no gzip");
  config.train[0].path = (folder / "damaged").string();
  CHECK(source_problems(config, limits).empty());
  config.train[0].type = SourceKind::text;
  config.train[0].path = path + "/a";
  CHECK(source_problems(config, limits).empty());
  CHECK(told.empty());
}
