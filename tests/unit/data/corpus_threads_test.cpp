// Tokenising by several threads, small enough for the thread sanitizer.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/corpus/corpus_build.h"
#include "data/tokens/token_cache.h"
#include "support/temp_folder.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

std::string lines_of(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += i % 1000 == 500
                 ? "nonsense\n"
                 : "{\"text\": \"" + std::to_string(i) + std::string(static_cast<std::size_t>(i % 200), 'x') + "\"}\n";
  return lines;
}

TEST_CASE("threads that tokenise share nothing that another writes") {
  const TempFolder folder;
  const ByteTokenizer tokenizer;
  folder.write("in/a.jsonl", lines_of(40'000));
  folder.write("in/b.txt", std::string(5 << 20, 'y'));
  CorpusRequest request;
  request.sources = {(folder / "in").string()};
  request.tokenizer = &tokenizer;
  request.on_bad_record = BadRecordPolicy::skip;
  request.split = {9, 1};
  std::string first;
  for (const int threads : {1, 4}) {
    request.threads = threads;
    request.output = (folder / ("out" + std::to_string(threads))).string();
    CHECK(build_corpus(request).notes.num_skipped() == 40);
    const std::string bytes = TempFolder::read(request.output + "-train.bin");
    if (first.empty()) first = bytes;
    CHECK((bytes == first));
  }
  TextSource source;
  source.files = {{folder / "in/a.jsonl", TextKind::jsonl}, {folder / "in/b.txt", TextKind::text}};
  source.on_bad_record = BadRecordPolicy::skip;
  ContentRecord record({.source = folder.path(), .folders = {}});
  const std::vector<FileContent> contents = contents_of(source, record);
  CHECK(open_token_cache({source, contents, tokenizer, record, {}, "", 4}, folder / "cache")->num_documents() ==
        39'961);
}

TEST_CASE("an error among several threads is the first in the text, and nothing is left waiting") {
  const TempFolder folder;
  const ByteTokenizer tokenizer;
  folder.write("a.jsonl", lines_of(40'000));
  CorpusRequest request;
  request.sources = {(folder / "a.jsonl").string()};
  request.tokenizer = &tokenizer;
  request.threads = 4;
  request.output = (folder / "out").string();
  CHECK(contains(message_of<InputError>([&] { build_corpus(request); }), "a.jsonl:501: not valid JSON"));
}

std::string records_of(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += i % 1000 == 500 ? "{\"prompt\": 1}\n"
                             : "{\"prompt\": \"" + std::to_string(i) +
                                   std::string(static_cast<std::size_t>(i % 90), 'x') + "\", \"completion\": \"y\"}\n";
  return lines;
}

TEST_CASE("instructions tokenised by several threads are packed in the order of their lines") {
  const TempFolder folder;
  const ByteTokenizer tokenizer;
  TextSource source;
  source.files = {{folder.write("a.jsonl", records_of(20'000)), TextKind::jsonl},
                  {folder.write("b.jsonl", records_of(3)), TextKind::jsonl},
                  {folder.write("c.jsonl", records_of(4'600)), TextKind::jsonl}};
  source.on_bad_record = BadRecordPolicy::skip;
  source.instructions = InstructionRules{.records = RecordKind::prompt_completion, .context = 64};
  source.part = DocumentPart{.held_out = 0.25, .is_held_out = false};
  ContentRecord record({.source = folder.path(), .folders = {}});
  const std::vector<FileContent> contents = contents_of(source, record);
  std::string first;
  std::vector<std::string> first_told;
  for (const int threads : {1, 4}) {
    std::vector<std::string> told;
    std::uint64_t last_read = 0;
    const Reporter report = [&told](const std::string& line) { told.push_back(line); };
    const CacheRequest request{source,
                               contents,
                               tokenizer,
                               record,
                               report,
                               "a",
                               threads,
                               [&](const auto&, std::uint64_t bytes, std::uint64_t) {
                                 CHECK(bytes >= last_read);
                                 last_read = bytes;
                               }};
    const auto packed = open_token_cache(request, folder / ("cache" + std::to_string(threads)));
    CHECK(last_read == contents[0].bytes + contents[1].bytes + contents[2].bytes);
    told.erase(told.begin());  // which names the folder
    const std::string bytes = TempFolder::read(packed->path());
    CHECK(bytes.size() > 1'000'000);
    if (first.empty()) {
      first = bytes;
      first_told = told;
      const auto is_skipped = [](const std::string& line) { return contains(line, "25 bad records were skipped"); };
      CHECK(std::count_if(told.begin(), told.end(), is_skipped) == 1);
    }
    CHECK((bytes == first));
    CHECK(told == first_told);
  }
  source.on_bad_record = BadRecordPolicy::fail;
  const CacheRequest fails{source, contents, tokenizer, record, {}, "a", 4};
  CHECK(contains(message_of<InputError>([&] { open_token_cache(fails, folder / "fails"); }), "a.jsonl:501: "));
}

}  // namespace
