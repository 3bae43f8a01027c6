// What builds leave behind, and what those that come later make of it.
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/corpus/corpus_build.h"
#include "data/corpus/inspection.h"
#include "data/source_files.h"
#include "small_corpus.h"
#include "support/text.h"

using namespace scaletrain;
using namespace scaletrain::test;
namespace fs = std::filesystem;

TEST_CASE("a build that replaces others leaves no part of them, and nothing that no build has made goes") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("out");
  request.split = {80, 10, 10};
  build_corpus(request);
  corpus.folder.write("out-mine.bin", "mine");
  corpus.folder.write("out.idx", "mine");
  REQUIRE(fs::exists(corpus.folder / "out-test.bin"));
  request.split = {90, 10};
  request.overwrites = true;
  build_corpus(request);
  for (const char* const ending : {".bin", ".idx", ".build.json"}) {
    CAPTURE(ending);
    CHECK(fs::exists(corpus.folder / (std::string("out-validation") + ending)));
    CHECK_FALSE(fs::exists(corpus.folder / (std::string("out-test") + ending)));
  }
  CHECK(fs::exists(corpus.folder / "out-mine.bin"));
  CHECK(fs::exists(corpus.folder / "out.idx"));
  // Also where the build itself is there already.
  request.split = {80, 10, 10};
  build_corpus(request);
  corpus.folder.write("out-test.keep", "mine");
  const std::string test = (corpus.folder / "out-test").string();
  for (const char* const ending : {".bin", ".idx", ".build.json"}) fs::rename(test + ending, test + ending + ".old");
  request.split = {90, 10};
  build_corpus(request);
  for (const char* const ending : {".bin", ".idx", ".build.json"}) fs::rename(test + ending + ".old", test + ending);
  request.overwrites = false;
  CHECK(build_corpus(request).was_there);
  CHECK(fs::exists(test + ".bin"));
  request.overwrites = true;
  CHECK(build_corpus(request).was_there);
  CHECK_FALSE(fs::exists(test + ".bin"));
  CHECK_FALSE(fs::exists(test + ".build.json"));
  CHECK(fs::exists(test + ".keep"));
}

TEST_CASE("a build whose unfinished files were cut begins anew, and says so") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("whole");
  build_corpus(request);
  request.output = (corpus.folder / "out").string();
  for (const char* const ending : {"out.bin", "out.documents"}) {
    CAPTURE(ending);
    request.overwrites = true;
    request.appends_end = !request.appends_end;
    REQUIRE_FALSE(build_until(request, 7));
    fs::resize_file(corpus.folder / ".out.building" / ending, 1);
    std::vector<std::string> told;
    request.report = [&told](const std::string& text) { told.push_back(text); };
    const CorpusResult result = build_corpus(request);
    CHECK_FALSE(result.went_on);
    REQUIRE(told.size() == 1);
    CHECK(contains(told[0], "what an earlier build has left there was cut: built anew"));
    request.report = {};
  }
  CHECK((all_bytes(corpus.folder / "out") == all_bytes(corpus.folder / "whole")));
}

TEST_CASE("what a build that has failed leaves is in no other build's way") {
  SmallCorpus corpus;
  std::string lines;
  for (std::size_t i = 0; i < 16'000; ++i) lines += i == 13'000 ? "nonsense\n" : json_line(words(i, 60));
  corpus.folder.write("in/b.jsonl", lines);
  CorpusRequest request = corpus.request("out");
  CHECK_THROWS_AS(build_corpus(request), BadRecordError);
  REQUIRE(fs::exists(corpus.folder / ".out.building"));
  // The line is mended.
  lines.replace(lines.find("nonsense\n"), 9, json_line("mended"));
  corpus.folder.write("in/b.jsonl", lines);
  CHECK_FALSE(build_corpus(request).went_on);
  request.output = (corpus.folder / "other").string();
  build_corpus(request);
  CHECK((all_bytes(corpus.folder / "out") == all_bytes(corpus.folder / "other")));
}

TEST_CASE("builds of one output that begin and end together hinder each other, and never more") {
  SmallCorpus corpus;
  corpus.folder.write("one.txt", words(1, 50));
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const std::string name = "race-" + std::to_string(round);
    std::atomic<int> num_built{0};
    std::vector<std::string> problems(3);
    std::vector<std::thread> builders;
    builders.reserve(problems.size());
    for (std::string& problem : problems)
      builders.emplace_back([&] {
        CorpusRequest request = corpus.request(name);
        request.sources = {(corpus.folder / "one.txt").string()};
        try {
          build_corpus(request);
          ++num_built;
        } catch (const std::exception& error) {
          problem = error.what();
        }
      });
    for (std::thread& builder : builders) builder.join();
    CHECK(num_built > 0);
    for (const std::string& problem : problems)
      CHECK_MESSAGE((problem.empty() || contains(problem, "another process builds there now")), problem);
    CHECK(fs::exists(corpus.folder / (name + ".build.json")));
    CHECK_FALSE(fs::exists(corpus.folder / ("." + name + ".building")));
  }
  for (const auto& entry : fs::directory_iterator(corpus.folder.path()))
    CHECK_FALSE(contains(entry.path().filename().string(), ".left-"));
}

TEST_CASE("shards beside the file that they were merged to are not read again") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("out/corpus");
  fs::create_directories(corpus.folder / "out");
  request.shards = 2;
  for (request.shard = 0; request.shard < 2; ++request.shard) build_corpus(request);
  const auto files = [&](std::vector<std::string>* told) {
    std::vector<std::string> names;
    const SourceSpec spec{"data.train.0", (corpus.folder / "out").string(), SourceKind::automatic, "text", {}};
    for (const FoundFile& file : find_files(spec, [told](const std::string& text) {
           if (told != nullptr) told->push_back(text);
         }))
      names.push_back(file.path.filename().string());
    return names;
  };
  CHECK(files(nullptr) == std::vector<std::string>{"corpus-00000-of-00002.bin", "corpus-00001-of-00002.bin"});
  merge_corpus(request.output, false);
  std::vector<std::string> told;
  CHECK(files(&told) == std::vector<std::string>{"corpus.bin"});
  REQUIRE(told.size() == 1);
  CHECK(contains(told[0], "corpus-00000-of-00002.bin and 1 more like it were merged to a file that lies beside them"));
  // Of another build they are files of their own.
  request.appends_end = false;
  request.overwrites = true;
  request.shard = 0;
  build_corpus(request);
  CHECK(files(nullptr) == std::vector<std::string>{"corpus-00000-of-00002.bin", "corpus.bin"});
}

TEST_CASE("a folder with files of kinds that cannot be read is verified all the same, and names them") {
  SmallCorpus corpus;
  corpus.folder.write("mixed/a.txt", "one");
  corpus.folder.write("mixed/b.npz", "no text");
  corpus.folder.write("mixed/c.jsonl", "{\"text\": 1}\n");
  const Inspection all = verify_data((corpus.folder / "mixed").string(), {});
  REQUIRE(all.files.size() == 3);
  CHECK_FALSE(all.files[0].problem.has_value());
  CHECK(contains(all.files[1].problem.value_or(""),
                 "PATH: " + (corpus.folder / "mixed/b.npz").string() + " looks like no text, JSONL or token file"));
  CHECK(contains(all.files[2].problem.value_or(""), "expected a string"));
}

TEST_CASE("inspect counts documents, characters and tokens of text, whatever it lies in and however many read it") {
  const TempFolder folder;
  const std::string lines = "{\"text\": \"h\\u00e9llo\"}\n\n{\"text\": \"\"}\n{\"text\": \"€uro\"}\n";
  folder.write("d/a.jsonl", lines);
  folder.write("d/b.jsonl.gz", gzipped(lines));
  folder.write("d/c.txt", "one\n--\ntwo\n");
  const ByteTokenizer tokenizer;
  InspectionOptions options;
  std::uint64_t read = 0;
  std::uint64_t all = 0;
  for (const int threads : {1, 3}) {
    options.threads = threads;
    options.tokenizer = nullptr;
    options.separator.reset();
    const Inspection plain = inspect_data((folder / "d").string(), options, [&](std::uint64_t bytes, std::uint64_t of) {
      read = bytes;
      all = of;
    });
    REQUIRE(plain.files.size() == 3);
    for (const InspectedFile& file : plain.files) CHECK_FALSE(file.tokens);
    for (const std::size_t i : {0, 1}) {
      CHECK(plain.files[i].documents == 2);
      CHECK(plain.files[i].characters == 5 + 4);
    }
    CHECK(plain.files[2].documents == 1);
    CHECK(plain.files[2].characters == 11);
    CHECK(read == all);
    CHECK(all == plain.files[0].bytes + plain.files[1].bytes + plain.files[2].bytes);
    options.tokenizer = &tokenizer;
    options.separator = "--";
    const Inspection counted = inspect_data((folder / "d").string(), options);
    CHECK(counted.files[0].tokens == 6 + 6 + 2);  // bytes of UTF-8, and an end of each document
    CHECK(counted.files[2].documents == 2);
    CHECK(counted.files[2].characters == 8);
    CHECK(counted.files[2].tokens == 8 + 2);
  }
}

TEST_CASE("inspect says what a file is whose records are bad, and that they are") {
  const TempFolder folder;
  const auto file = folder.write("a.jsonl", "{\"text\": \"x\"}\n{\"body\": 1}\n");
  const Inspection strict = inspect_data(file.string(), {});
  CHECK(strict.files.at(0).kind == "JSONL");
  CHECK_FALSE(strict.files[0].documents);
  CHECK(contains(strict.files[0].problem.value_or(""), "a.jsonl:2: the key \"text\" is missing"));
  const Inspection lenient = inspect_data(file.string(), {.on_bad_record = BadRecordPolicy::skip});
  CHECK(lenient.files.at(0).documents == 1);
  CHECK(lenient.notes.num_skipped() == 1);
}
