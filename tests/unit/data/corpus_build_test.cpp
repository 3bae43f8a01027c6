// Token files that are built: what is in them, whoever builds them and however often that was stopped.
#include "data/corpus/corpus_build.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/corpus/corpus_reader.h"
#include "data/corpus/inspection.h"
#include "data/corpus/megatron_writer.h"
#include "data/dataset.h"
#include "data/tokenizer_training.h"
#include "dataset_scene.h"
#include "packed_text.h"
#include "small_corpus.h"
#include "support/text.h"
#include "token_files.h"

using namespace scaletrain;
using namespace scaletrain::test;
namespace fs = std::filesystem;

TEST_CASE("a build holds every document of every file in the order of paths, as Megatron's description has it") {
  SmallCorpus corpus;
  const CorpusResult result = build_corpus(corpus.request("out/corpus"));
  CHECK((texts_of(corpus.folder / "out/corpus") == corpus.documents));
  CHECK(read_pair(corpus.folder / "out/corpus").code == 8);
  REQUIRE(result.outputs.size() == 1);
  CHECK(result.outputs[0].documents == std::ssize(corpus.documents));
  std::size_t tokens = 0;
  for (const std::string& text : corpus.documents) tokens += text.size();
  CHECK(result.outputs[0].tokens == static_cast<std::int64_t>(tokens));
  // Nothing else is left.
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(corpus.folder / "out"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"corpus.bin", "corpus.build.json", "corpus.idx"});
}

TEST_CASE("a built corpus gives the samples that its text gives") {
  SmallCorpus corpus;
  build_corpus(corpus.request("built/"));
  auto config = config_for(corpus.folder);
  std::vector<std::vector<Sample>> samples;
  for (const char* path : {"in", "built"}) {
    // The folder as it is, with what the build says of it.
    config.train = {source_at(corpus.folder / path)};
    const auto data = open_training_data(config, corpus.tokenizer, options(4096));
    samples.emplace_back();
    for (std::int64_t n = 0; n < data->mixture().order(0).samples_per_epoch(); n += 97)
      samples.back().push_back(read(*data, n));
  }
  CHECK((samples[0] == samples[1]));
}

TEST_CASE("a build is the same to the byte for any number of threads") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("one/corpus");
  request.split = {90, 8, 2};
  request.threads = 1;
  build_corpus(request);
  for (const int threads : {2, 3, 7}) {
    request.output = (corpus.folder / std::to_string(threads) / "corpus").string();
    request.threads = threads;
    build_corpus(request);
    for (const std::string part : {"corpus-train", "corpus-validation", "corpus-test"})
      CHECK((all_bytes(corpus.folder / std::to_string(threads) / part) == all_bytes(corpus.folder / "one" / part)));
  }
}

TEST_CASE("a build that is stopped at any batch goes on, to the bytes of one that was not") {
  SmallCorpus corpus;
  // What is told of them is found at their beginnings alone.
  corpus.folder.write("in/odd/a.txt",
                      "\x7f"
                      "ELF" +
                          words(2, 3'000'001));
  corpus.folder.write("in/odd/b.txt", "\xff" + words(3, 3'000'001) + "\xc3\xa9");
  CorpusRequest request = corpus.request("whole/corpus");
  request.split = {3, 1};
  build_corpus(request);
  request.output = (corpus.folder / "stopped/corpus").string();
  int stops = 0;
  // Each time one batch further, so that every record is gone on from.
  while (!build_until(request, 1)) {
    REQUIRE(++stops < 100);
    CHECK_FALSE(fs::exists(corpus.folder / "stopped/corpus-train.bin"));
  }
  CHECK(stops > 5);
  for (const std::string part : {"corpus-train", "corpus-validation"})
    CHECK((all_bytes(corpus.folder / "stopped" / part) == all_bytes(corpus.folder / "whole" / part)));
  CHECK_FALSE(fs::exists(corpus.folder / "stopped/.corpus.building"));
}

TEST_CASE("what was written behind the last record is cut off") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("whole");
  build_corpus(request);
  request.output = (corpus.folder / "stopped").string();
  REQUIRE_FALSE(build_until(request, 3));
  for (const char* ending : {".bin", ".documents"}) {
    const auto file = corpus.folder.path() / ".stopped.building" / ("stopped" + std::string(ending));
    std::ofstream(file, std::ios::app | std::ios::binary) << "half of what came next";
  }
  REQUIRE_FALSE(build_until(request, 1));
  CHECK(build_corpus(request).went_on);
  CHECK((all_bytes(corpus.folder / "stopped") == all_bytes(corpus.folder / "whole")));
}

TEST_CASE("shards, in any number, are merged to the bytes of a build without them") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("whole/corpus");
  request.split = {4, 1, 1};
  build_corpus(request);
  for (const std::int64_t shards : {2, 3, 16}) {
    const std::string output = (corpus.folder / std::to_string(shards) / "corpus").string();
    request.output = output;
    request.shards = shards;
    for (std::int64_t shard = shards; shard-- > 0;) {
      request.shard = shard;
      if (shard == 0)
        CHECK(contains(message_of<InputError>([&] { merge_corpus(output, false); }), "one is missing: 0"));
      build_corpus(request);
    }
    merge_corpus(output, false);
    for (const std::string part : {"corpus-train", "corpus-validation", "corpus-test"})
      CHECK((all_bytes(corpus.folder / std::to_string(shards) / part) == all_bytes(corpus.folder / "whole" / part)));
    CHECK(merge_corpus(output, false).was_there);
  }
}

TEST_CASE("shards that are damaged, or whose parts are of two builds, are not merged") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("sharded");
  request.shards = 2;
  const auto build_shards = [&] {
    for (request.shard = 0; request.shard < 2; ++request.shard) build_corpus(request);
  };
  build_shards();
  const auto bin = corpus.folder.path() / "sharded-00001-of-00002.bin";
  std::string bytes = TempFolder::read(bin);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(bin, std::ios::binary) << bytes;
  CHECK(contains(message_of<InputError>([&] { merge_corpus(request.output, false); }),
                 "sharded-00001-of-00002: its .bin or .idx is not what was built; build the shard again"));
  // By --overwrite the build reads what is there, and finds it damaged.
  request.shard = 1;
  CHECK(build_corpus(request).was_there);
  request.overwrites = true;
  CHECK_FALSE(build_corpus(request).was_there);
  CHECK_NOTHROW(merge_corpus(request.output, false));

  request = corpus.request("split");
  request.shards = 2;
  request.split = {8, 1, 1};
  build_shards();
  // A part of another build, as somebody may copy it back.
  std::map<fs::path, std::string> kept;
  for (const auto& entry : fs::directory_iterator(corpus.folder.path()))
    if (contains(entry.path().filename().string(), "split-test-")) kept[entry.path()] = TempFolder::read(entry.path());
  REQUIRE(kept.size() == 6);
  request.split = {8, 2};
  request.overwrites = true;
  build_shards();
  for (const auto& [path, content] : kept) {
    CHECK_FALSE(fs::exists(path));
    std::ofstream(path, std::ios::binary) << content;
  }
  CHECK(contains(message_of<InputError>([&] { merge_corpus(request.output, false); }), "of another build than "));
}

TEST_CASE("an empty file that is meant to be compressed is refused wherever it stands") {
  SmallCorpus corpus;
  corpus.folder.write("zz-empty.jsonl.gz", "");
  CorpusRequest request = corpus.request("out");
  request.sources.push_back((corpus.folder / "zz-empty.jsonl.gz").string());
  CHECK(contains(message_of<InputError>([&] { build_corpus(request); }), "zz-empty.jsonl.gz"));
}

TEST_CASE("a file whose name is no UTF-8 is built") {
  SmallCorpus corpus;
  corpus.folder.write("caf\xe9.txt", "caf\xe9\n");
  CorpusRequest request = corpus.request("named");
  request.sources = {(corpus.folder / "caf\xe9.txt").string()};
  CHECK(build_corpus(request).outputs.size() == 1);
  CHECK(build_corpus(request).was_there);
}

TEST_CASE("a record of another kind is bad input") {
  SmallCorpus corpus;
  const CorpusRequest request = corpus.request("odd");
  corpus.folder.write("odd.build.json", "{\"build\": 5}");
  CHECK(contains(message_of<InputError>([&] { build_corpus(request); }), "odd.build.json: \"build\" is number"));
}

TEST_CASE("every line belongs to one shard, wherever the shards' shares end") {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += std::string(static_cast<std::size_t>(i % 7), ' ') + "{}" + (i % 3 ? "\n" : "\r\n\n");
  for (const std::string& text : {lines, lines + "{\"last\":1}"}) {
    const auto file = folder.write("a.jsonl", text);
    const TextSource source{{{file, TextKind::jsonl}}, "text", std::nullopt};
    struct Lines final : LineSink {
      std::vector<std::pair<std::uint64_t, std::string>> found;
      void line(std::string_view line, const LinePlace& place) override { found.emplace_back(place.offset, line); }
      void too_long(const LinePlace&, std::uint64_t) override {}
    };
    Lines whole;
    read_lines(source.files[0], {}, whole);
    REQUIRE(whole.found.size() >= 40);
    for (std::int64_t shards = 1; shards <= std::ssize(text) + 3; ++shards) {
      Lines together;
      for (std::int64_t shard = 0; shard < shards; ++shard)
        for (const CorpusPiece& piece : pieces_of_shard(source, shard, shards))
          read_lines(source.files[piece.file], piece.range, together);
      REQUIRE((together.found == whole.found));
    }
  }
}

TEST_CASE("which part a document falls to depends on its text alone, and the shares are met") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("split");
  request.split = {8, 1, 1};
  build_corpus(request);
  std::map<std::string, std::string> part_of;
  std::size_t count = 0;
  for (const std::string part : {"train", "validation", "test"}) {
    for (const std::string& text : texts_of(corpus.folder / ("split-" + part))) part_of[text] = part;
    count += texts_of(corpus.folder / ("split-" + part)).size();
  }
  CHECK(count == corpus.documents.size());
  // Other files, another order, other company: the same part.
  const auto some = words(9100, 501);
  corpus.folder.write("other/z.txt", some + "\n%\n" + words(700, 23));
  request.sources = {(corpus.folder / "other").string()};
  request.separator = "%";
  request.output = (corpus.folder / "again").string();
  build_corpus(request);
  const std::size_t all = texts_of(corpus.folder / "split-test").size();
  CHECK(all > corpus.documents.size() / 20);
  CHECK(all < corpus.documents.size() / 5);
  std::size_t found = 0;
  for (const std::string part : {"train", "validation", "test"})
    for (const std::string& text : texts_of(corpus.folder / ("again-" + part)))
      if (text == some + "\n|") ++found;
  CHECK(found == 1);
  for (const std::vector<double>& shares : {std::vector<double>{1, 0, 2}, std::vector<double>{0, 5}}) {
    std::map<std::size_t, int> counts;
    for (std::uint64_t i = 0; i < 30000; ++i) ++counts[part_of_document(document_hash(std::to_string(i)), shares)];
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double expected = 30000 * shares[i] / (shares[0] + shares[1] + (shares.size() > 2 ? shares[2] : 0.0));
      CHECK(std::abs(counts[i] - expected) <= 500);
      if (shares[i] == 0.0) CHECK(counts[i] == 0);
    }
  }
}

TEST_CASE("text with a separator, without end tokens, and JSONL by another field") {
  SmallCorpus corpus;
  corpus.folder.write("s/a.txt", "one\n---\ntwo\r\n---\r\n---\nthree");
  corpus.folder.write("s/b.jsonl", "{\"body\":\"four\",\"text\":\"no\"}\n");
  CorpusRequest request = corpus.request("s-out");
  request.sources = {(corpus.folder / "s/a.txt").string(), (corpus.folder / "s/*.jsonl").string()};
  request.separator = "---";
  request.field = "body";
  build_corpus(request);
  CHECK(texts_of(corpus.folder / "s-out") == std::vector<std::string>{"one\n|", "two\r\n|", "three|", "four|"});
  request.output += "2";
  request.appends_end = false;
  build_corpus(request);
  CHECK(texts_of(corpus.folder / "s-out2") == std::vector<std::string>{"one\n", "two\r\n", "three", "four"});
}

TEST_CASE("long documents that a separator ends are built in bounded pieces, and stopped anywhere") {
  SmallCorpus corpus;
  std::string text;
  for (std::size_t i = 0; i < 5; ++i) text += words(i, 2'100'007) + "\n---\n" + words(i, 11) + "\n---\n";
  corpus.folder.write("s/a.txt", text);
  CorpusRequest request = corpus.request("whole");
  request.sources = {(corpus.folder / "s").string()};
  request.separator = "---";
  build_corpus(request);
  CHECK(texts_of(corpus.folder / "whole").size() == 10);
  request.output = (corpus.folder / "stopped").string();
  int stop = 0;
  while (!build_until(request, ++stop)) REQUIRE(stop < 50);
  CHECK((all_bytes(corpus.folder / "stopped") == all_bytes(corpus.folder / "whole")));
}

TEST_CASE("a second build of the same finds it; one of other files or options does not touch it unasked") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("out");
  CHECK_FALSE(build_corpus(request).was_there);
  const std::string before = all_bytes(corpus.folder / "out");
  CHECK(build_corpus(request).was_there);
  request.appends_end = false;
  const std::string refused = message_of<UserError>([&] { build_corpus(request); });
  CHECK(contains(refused, (corpus.folder / "out.bin").string() + ": is there"));
  CHECK(contains(refused, "--overwrite"));
  CHECK((all_bytes(corpus.folder / "out") == before));
  CHECK_FALSE(fs::exists(corpus.folder / ".out.building"));
  request.overwrites = true;
  CHECK_FALSE(build_corpus(request).was_there);
  CHECK((all_bytes(corpus.folder / "out") != before));
  // Somebody's own files.
  request.output = (corpus.folder / "own").string();
  request.overwrites = false;
  corpus.folder.write("own.idx", "mine");
  CHECK(contains(message_of<UserError>([&] { build_corpus(request); }), "own.idx: is there"));
  CHECK(TempFolder::read(corpus.folder / "own.idx") == "mine");
}

TEST_CASE("an unfinished build of other options is not thrown away unasked, and a source that has changed is told") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("out");
  REQUIRE_FALSE(build_until(request, 2));
  request.appends_end = false;
  CHECK(contains(message_of<UserError>([&] { build_corpus(request); }), "an unfinished build of other sources"));
  request.appends_end = true;
  corpus.folder.write("in/e.txt", "new");
  CHECK(contains(message_of<UserError>([&] { build_corpus(request); }), "or files that have changed"));
  fs::remove(corpus.folder / "in/e.txt");
  CHECK(build_corpus(request).went_on);
  request.output = (corpus.folder / "changing").string();
  request.progress = [&](std::uint64_t, std::uint64_t) { corpus.folder.write("in/d/0.txt.zst", zstandard("other")); };
  CHECK(contains(message_of<InputError>([&] { build_corpus(request); }), "a source has changed while it was read"));
}

TEST_CASE("bad records stop a build by file and line, or are counted, the same however it is built") {
  SmallCorpus corpus;
  std::string lines;
  for (std::size_t i = 0; i < 40'000; ++i) lines += i % 5000 == 77 ? "nonsense\n" : json_line(words(i, 60));
  corpus.folder.write("in/b.jsonl", lines);
  CorpusRequest request = corpus.request("out");
  for (const int threads : {1, 3}) {
    request.threads = threads;
    const std::string problem = message_of<InputError>([&] { build_corpus(request); });
    CHECK_MESSAGE(contains(problem, "in/b.jsonl:78: not valid JSON"), problem);
  }
  request.on_bad_record = BadRecordPolicy::skip;
  request.overwrites = true;
  const CorpusResult result = build_corpus(request);
  CHECK(result.notes.num_skipped() == 8);
  CHECK(contains(result.notes.lines("x").at(0), "in/b.jsonl:78: not valid JSON"));
  request.output = (corpus.folder / "stopped").string();
  while (!build_until(request, 1)) {
  }
  CHECK((all_bytes(corpus.folder / "stopped") == all_bytes(corpus.folder / "out")));
  CHECK(build_corpus(request).notes == result.notes);
}

TEST_CASE("damaged sources, token files and what no file would use are refused by name") {
  SmallCorpus corpus;
  CorpusRequest request = corpus.request("out");
  const std::string packed = gzipped(words(1, 3000));
  corpus.folder.write("in/c/e.txt.gz", packed.substr(0, packed.size() - 9));
  CHECK(contains(message_of<InputError>([&] { build_corpus(request); }), "in/c/e.txt.gz: at byte "));
  corpus.folder.write("in/c/e.txt.gz", packed);
  request.overwrites = true;
  CHECK_FALSE(build_corpus(request).went_on);
  request.sources = {(corpus.folder / "out.bin").string()};
  CHECK(contains(message_of<UserError>([&] { build_corpus(request); }), "holds tokens already"));
  request.sources = {(corpus.folder / "in/d").string()};
  request.field = "body";
  CHECK(contains(message_of<UserError>([&] { build_corpus(request); }), "--field: no source is JSONL"));
  request.field = "text";
  request.sources = {(corpus.folder / "in/b.jsonl").string()};
  request.separator = "-";
  CHECK(contains(message_of<UserError>([&] { build_corpus(request); }), "--separator: no source is text"));
  InspectionOptions inspected;
  inspected.separator = "-";
  CHECK(contains(message_of<UserError>([&] { inspect_data(request.sources[0], inspected); }),
                 "--separator: no source is text"));
  TokenizerTrainingRequest trained;
  trained.sources = request.sources;
  trained.options.vocab = 260;
  trained.separator = "-";
  CHECK(contains(message_of<UserError>([&] { train_tokenizer(trained); }), "--separator: no source is text"));
}

TEST_CASE("tokens have 16 bits where Megatron gives them 16, and long documents several sequences") {
  CHECK(megatron_token_type(65499) == TokenType::u16);
  CHECK(megatron_token_type(65500) == TokenType::i32);
  const TempFolder folder;
  for (const TokenType type : {TokenType::u16, TokenType::i32}) {
    MegatronWriter writer(folder / "w", type, {}, 3);
    const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6, 65499};
    for (const std::size_t length : {7, 3, 1, 0, 6}) {
      writer.append(std::span(tokens).last(length));
      writer.end_document();
    }
    writer.finish();
    const ReadPair pair = read_pair(folder / "w");
    REQUIRE(pair.documents.size() == 5);
    CHECK(pair.documents[0] == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 65499});
    CHECK(pair.documents[1] == std::vector<std::int64_t>{5, 6, 65499});
    CHECK(pair.documents[3].empty());
    CHECK(pair.documents[4].size() == 6);
    CHECK(pair.code == (type == TokenType::u16 ? 8 : 4));
    const auto opened = open_token_file(folder / "w");
    CHECK(opened->num_tokens() == 17);
    CHECK(opened->document_end(1) == 10);
    fs::remove(folder / "w.documents");
  }
}

TEST_CASE("inspect says what files are, and verify names each that is damaged") {
  SmallCorpus corpus;
  build_corpus(corpus.request("in/z/corpus"));
  InspectionOptions options;
  options.tokenizer = &corpus.tokenizer;
  options.show = 2;
  const Inspection seen = inspect_data((corpus.folder / "in").string(), options);
  REQUIRE(seen.files.size() == 13);
  CHECK(seen.files[0].kind == "text");
  CHECK(seen.files[0].shown.size() == 1);
  CHECK(seen.files[0].documents == 1);
  CHECK(seen.files[0].characters == 4'500'001);
  CHECK(seen.files[0].tokens == 4'500'002);  // bytes, and the document's end
  CHECK(seen.files[1].documents == 1499);    // without the empty one; not only those that are shown
  CHECK(seen.files[1].kind == "JSONL");
  CHECK(seen.files[1].shown == std::vector<std::string>{"\"" + words(0, 1) + "\"", "\"" + words(1, 38) + "\""});
  CHECK(seen.files[2].kind == "JSONL in gzip");
  const InspectedFile& built = seen.files.back();
  CHECK(built.kind == "Megatron token file");
  CHECK(built.documents == std::ssize(corpus.documents));
  CHECK(built.dtype == "uint16");
  CHECK(built.tokenizer == "bytes (bytes, 257 tokens, end of document 256)");
  CHECK(built.shown[1] == "\"" + words(0, 1) + "<|endoftext|>\"");

  const auto problems = [&] {
    std::map<std::string, std::string> found;
    for (const InspectedFile& file : verify_data((corpus.folder / "in").string(), options).files)
      if (file.problem) found[file.path.filename().string()] = *file.problem;
    return found;
  };
  CHECK(problems().empty());
  CHECK(verify_data((corpus.folder / "in/b.jsonl").string(), options).files[0].documents == 1499);
  // One bit of the tokens, which no index knows of.
  const auto bin = corpus.folder / "in/z/corpus.bin";
  std::string bytes = TempFolder::read(bin);
  bytes[1'000'001] = static_cast<char>(bytes[1'000'001] ^ 1);
  std::ofstream(bin, std::ios::binary) << bytes;
  const std::string packed = TempFolder::read(corpus.folder / "in/d/3.txt.zst");
  corpus.folder.write("in/d/3.txt.zst", packed.substr(0, packed.size() / 2));
  corpus.folder.write("in/f.jsonl", "{\"text\":1}\n");
  const auto found = problems();
  REQUIRE(found.size() == 3);
  CHECK(contains(found.at("corpus.bin"), "its bytes are not those that were built"));
  CHECK(contains(found.at("3.txt.zst"), "it ends within a Zstandard frame"));
  CHECK(contains(found.at("f.jsonl"), "f.jsonl:1: \"text\" is number, expected a string"));
}
