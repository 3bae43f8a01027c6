// Tokenising by several threads, small enough for the thread sanitizer.
#include <doctest/doctest.h>

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

}  // namespace
