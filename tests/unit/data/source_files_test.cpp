// Which files a path stands for: folders with folders below, patterns, links.
#include "data/source_files.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "data/dataset.h"
#include "data/order/history.h"
#include "data/parquet/parquet_file.h"
#include "dataset_scene.h"
#include "packed_text.h"
#include "support/text.h"
#include "token_files.h"

using namespace scaletrain;
using namespace scaletrain::test;

namespace {

SourceSpec spec_of(const std::filesystem::path& path) {
  return {
      .key = "data.train.0", .path = path.string(), .type = SourceKind::automatic, .field = "text", .separator = {}};
}

// Their paths below the folder, and what was reported.
struct Found {
  std::vector<std::string> names;
  std::string messages;
};
Found found_by(const TempFolder& folder, const std::string& path, const SourceFiles* only = nullptr) {
  Found found;
  const auto files = find_files(
      spec_of(folder / path), [&found](const std::string& message) { found.messages += message + "\n"; }, only);
  for (const FoundFile& file : files) found.names.push_back(file.path.lexically_relative(folder.path()).string());
  return found;
}

using Names = std::vector<std::string>;

void write_tree(const TempFolder& folder) {
  for (const char* name : {"d/b.txt", "d/a/z.txt", "d/a/deep/er/y.jsonl", "d/a.txt", "d/c/x.txt", "d/.hidden/w.txt",
                           "d/a/.v.txt", "d/c/x.md"})
    folder.write(name, "text");
}

}  // namespace

TEST_CASE("a folder's files and those below come in the order of their paths, without what is hidden") {
  const TempFolder folder;
  write_tree(folder);
  // '.' is before '/', byte by byte.
  CHECK(found_by(folder, "d").names ==
        Names{"d/a.txt", "d/a/deep/er/y.jsonl", "d/a/z.txt", "d/b.txt", "d/c/x.md", "d/c/x.txt"});
  CHECK(found_by(folder, "d").messages.empty());
}

TEST_CASE("patterns stand for names and for folders below") {
  const TempFolder folder;
  write_tree(folder);
  CHECK(found_by(folder, "d/*.txt").names == Names{"d/a.txt", "d/b.txt"});
  CHECK(found_by(folder, "d/?.txt").names == Names{"d/a.txt", "d/b.txt"});
  CHECK(found_by(folder, "d/[b-z].txt").names == Names{"d/b.txt"});
  CHECK(found_by(folder, "d/*/*.txt").names == Names{"d/a/z.txt", "d/c/x.txt"});
  CHECK(found_by(folder, "d/**/*.txt").names == Names{"d/a.txt", "d/a/z.txt", "d/b.txt", "d/c/x.txt"});
  CHECK(found_by(folder, "*/**/deep/**").names == Names{"d/a/deep/er/y.jsonl"});
  CHECK(found_by(folder, "d/**/**/x.*").names == Names{"d/c/x.md", "d/c/x.txt"});
  CHECK(found_by(folder, "d/.h*/*").names == Names{"d/.hidden/w.txt"});
  CHECK(found_by(folder, "d/a/.*").names == Names{"d/a/.v.txt"});
  CHECK(contains(message_of<InputError>([&] { found_by(folder, "d/*.csv"); }),
                 "data.train.0.path: " + (folder / "d/*.csv").string() + ": no file matches"));
  CHECK(contains(message_of<UserError>([&] { found_by(folder, "nowhere/*.csv"); }),
                 "there is no folder " + (folder / "nowhere").string()));
}

TEST_CASE("a path that is there is no pattern, whatever its name") {
  const TempFolder folder;
  folder.write("d/a[1].txt", "text");
  folder.write("d/a1.txt", "text");
  CHECK(found_by(folder, "d/a[1].txt").names == Names{"d/a[1].txt"});
  folder.write("e*/x.txt", "text");
  folder.write("ef/x.txt", "text");
  CHECK(found_by(folder, "e*").names == Names{"e*/x.txt"});
}

TEST_CASE("a link that leads back is not followed, and that is said; one that leads elsewhere is") {
  const TempFolder folder;
  write_tree(folder);
  folder.write("other/o.txt", "text");
  std::filesystem::create_symlink(folder / "d", folder / "d" / "c" / "up");
  std::filesystem::create_symlink(folder / "other", folder / "d" / "elsewhere");
  const Found found = found_by(folder, "d");
  CHECK(found.names ==
        Names{"d/a.txt", "d/a/deep/er/y.jsonl", "d/a/z.txt", "d/b.txt", "d/c/x.md", "d/c/x.txt", "d/elsewhere/o.txt"});
  CHECK(contains(found.messages, (folder / "d/c/up").string() + " leads to a folder that is read under another name"));
  CHECK(found_by(folder, "d/**/*.md").names == Names{"d/c/x.md"});
}

TEST_CASE("a folder that links lead to is read once, under its own name, and many links take no time") {
  const TempFolder folder;
  folder.write("d/sub/b.txt", "text");
  std::filesystem::create_directory_symlink("sub", folder / "d" / "alias");
  const Found found = found_by(folder, "d");
  CHECK(found.names == Names{"d/sub/b.txt"});
  CHECK(contains(found.messages, (folder / "d/alias").string() + " leads to a folder that is read under another name"));
  for (int i = 0; i < 40; ++i) {
    const std::filesystem::path at = folder / "chain" / std::to_string(i);
    std::filesystem::create_directories(at);
    if (i < 39)
      for (const char* link : {"x", "y"})
        std::filesystem::create_directory_symlink(folder / "chain" / std::to_string(i + 1), at / link);
  }
  folder.write("chain/39/c.txt", "text");
  CHECK(found_by(folder, "chain/0").names.size() == 1);
}

TEST_CASE("what the files of a start were is told by their paths, not by their names alone") {
  const TempFolder folder;
  folder.write("d/a.txt", "text");
  folder.write("d/below/a.txt", "text");
  folder.write("d/below/b.txt", "text");
  for (const std::string path : {"d", "d/**"}) {
    const SourceFiles only{.key = "data.train.0",
                           .path = hash_text((folder / path).string()),
                           .names = {hash_text(name_in_source((folder / path).string(), folder / "d/a.txt"))}};
    CHECK(only.names[0] == hash_text("a.txt"));  // as records of folders without sub-folders have always named it
    const Found found = found_by(folder, path, &only);
    CHECK(found.names == Names{"d/a.txt"});
    CHECK(contains(found.messages, "2 files came to"));
  }
}

TEST_CASE("compressed files are text or JSONL by the name within, and archives and token files are refused") {
  const TempFolder folder;
  const auto kind = [&](const std::string& name) {
    return find_files(spec_of(folder.write(name, "anything")), {}).front().kind;
  };
  CHECK(kind("a.jsonl.gz") == FileKind::jsonl);
  CHECK(kind("a.ndjson.zst") == FileKind::jsonl);
  CHECK(kind("a.txt.gz") == FileKind::text);
  CHECK(kind("a.zst") == FileKind::text);
  CHECK(contains(message_of<UserError>([&] { kind("a.tar.gz"); }), "looks like no text"));
  CHECK(contains(message_of<UserError>([&] { kind("a.json.gz"); }), "or name its type"));
  CHECK(contains(message_of<UserError>([&] { kind("a.bin.zst"); }), "not compressed; unpack it"));
  CHECK(contains(message_of<UserError>([&] { kind("a.parquet.gz"); }), "not compressed again; unpack it"));
  if (has_parquet_module()) {
    CHECK(kind("a.parquet") == FileKind::parquet);
  } else {
    CHECK(contains(message_of<UserError>([&] { kind("a.parquet"); }),
                   "a.parquet is Parquet, and this program was built without what reads it: build it with "
                   "-DSCALETRAIN_PARQUET=ON, or write the file as JSONL: python3 -c"));
  }
}

TEST_CASE("compressed sources give the samples of their text, and are other sources than it") {
  const TempFolder folder;
  const std::string lines = "{\"text\":\"first one\"}\n{\"text\":\"second\"}\n{\"text\":\"the third of them\"}\n";
  folder.write("plain/a.jsonl", lines);
  folder.write("plain/b.txt", "words");
  folder.write("gz/a.jsonl.gz", gzipped(lines));
  folder.write("gz/b.txt.gz", gzipped("wor") + gzipped("ds"));
  folder.write("zst/a.jsonl.zst", zstandard(lines));
  folder.write("zst/b.txt.zst", zstandard("words"));
  auto config = config_for(folder);
  std::vector<std::vector<Sample>> samples;
  std::vector<std::uint64_t> identities;
  for (const char* name : {"plain", "gz", "zst"}) {
    config.train = {source_at(folder / name)};
    const auto data = open_training_data(config, ByteTokenizer(), options(7));
    samples.emplace_back();
    for (std::int64_t n = 0; n < data->mixture().order(0).samples_per_epoch(); ++n)
      samples.back().push_back(read(*data, n));
    identities.push_back(data->hash());
  }
  CHECK((samples[0] == samples[1]));
  CHECK((samples[0] == samples[2]));
  CHECK(identities[0] != identities[1]);
  CHECK(identities[1] != identities[2]);
}

TEST_CASE("what a name says of a file's packing decides what is read, so the same bytes are two contents") {
  const TempFolder folder;
  const std::string packed = gzipped("words");
  const auto named = folder.write("a.txt.gz", packed);
  const auto unnamed = folder.write("a.txt", packed);
  const ByteTokenizer tokenizer;
  const FileContent content{named, packed.size(), 1};
  const auto identity = [&](const std::filesystem::path& file) {
    return text_identity({{{file, TextKind::text, compression_of(file)}}, "text", std::nullopt}, 0, content, tokenizer);
  };
  CHECK(identity(named) != identity(unnamed));
}

TEST_CASE("text and JSONL have the identities that they had before there were other kinds of source") {
  const ByteTokenizer tokenizer;
  const FileContent content{"a", 5, 0x123456789abcdef0};
  CHECK(text_identity({{{"a.txt", TextKind::text}}, "text", std::nullopt}, 0, content, tokenizer) ==
        0x36f8f9623503413e);
  CHECK(text_identity({{{"a.txt", TextKind::text}}, "text", "---"}, 0, content, tokenizer) == 0x6fe0b0e962d8ba0e);
  CHECK(text_identity({{{"a.jsonl", TextKind::jsonl}}, "body", std::nullopt}, 0, content, tokenizer) ==
        0x5fb1690e9412369a);
}

TEST_CASE("data, samples and tokenised text of folders without sub-folders are what they have always been") {
  const TempFolder folder;
  folder.write("d/a.txt", "some text of a file\n%\nand more of it");
  folder.write("d/b.jsonl", "{\"text\":\"first\"}\n\n{\"id\":3,\"text\":\"sec\\u00e9ond\"}\n");
  folder.write("d/c.bin", packed<std::uint16_t>({1, 2, 3, 4, 5, 256, 6, 7, 8}));
  folder.write("d/c.idx", megatron_index({{2, 4}, {3}}, 8, 2));
  folder.write("d/e.bin", llmc_file({9, 8, 7, 6, 5}, false));
  auto config = config_for(folder);
  config.train = {source_at(folder / "d"), source_at(folder / "d", 2.0)};
  config.train[0].separator = "%";
  const auto data = open_training_data(config, ByteTokenizer(), options(4, 5));
  // As the program before compressed and nested sources gave them.
  CHECK(data->hash() == 0x5e8d6e7a2a09673a);
  Hasher hasher;
  for (std::int64_t n = 0; n < 60; ++n) {
    const Sample sample = read(*data, n);
    for (const auto* const part : {&sample.inputs, &sample.targets, &sample.starts})
      hasher.update(std::as_bytes(std::span(*part)));
  }
  CHECK(hasher.digest() == 0x7f5cb8a421a40d3b);
  for (const char* name : {"2f50c5329f9be363.tokens", "b6682b9191e51f8c.tokens"})
    CHECK(std::filesystem::exists(std::filesystem::path(*config.cache) / name));
  ValidationConfig set;
  set.path = (folder / "d").string();
  CHECK(open_validation_set(set, config, ByteTokenizer(), options(4, 5), "k")->hash() == 0xb85c5f28d77e78b1);
}

TEST_CASE("sub-folders of a run's folder join it like files that were added, and what was read stays read") {
  const TempFolder folder;
  folder.write("d/a.txt", std::string(200, 'a'));
  auto config = config_for(folder);
  config.train = {source_at(folder / "d")};
  const auto before = open_training_data(config, ByteTokenizer(), options(4));
  ConsumptionHistory history;
  REQUIRE(history.continue_with(before->description(), 4, 1));
  for (int i = 0; i < 20; ++i) history.consume_batch(4);
  folder.write("d/below/b.txt", std::string(40, 'b'));
  DataOptions o = options(4);
  const std::vector<MixSource> read_before = history.sources_read();
  o.read = read_before;
  const auto after = open_training_data(config, ByteTokenizer(), o);
  CHECK_FALSE(history.continue_with(after->description(), 4, 1));
  const MixSource& source = history.mix().sources.at(0);
  CHECK(source.taken == 20);
  REQUIRE(source.parts.size() == 2);
  CHECK(source.parts[1].samples == 10);
}

TEST_CASE("a JSON file beside data of another kind is passed over and told by name; JSONL under its name is not") {
  const TempFolder folder;
  const std::string meta = "{\n  \"license\": \"none\"\n}\n";
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  folder.write("d/meta.json", meta);
  folder.write("d/part.jsonl", lines);
  Found found = found_by(folder, "d");
  CHECK(found.names == Names{"d/part.jsonl"});
  CHECK(found.messages == "data.train.0.path: " + (folder / "d/meta.json").string() +
                              " is JSON, but no lines of JSON, beside files that are read, and is not read\n");
  folder.write("d/below/info.json.gz", gzipped("{\"one\": \"line\"}\n"));
  folder.write("d/z.json", "[1,\n2]");
  found = found_by(folder, "d");
  CHECK(found.names == Names{"d/part.jsonl"});
  CHECK(found.messages == "data.train.0.path: " + (folder / "d/below/info.json.gz").string() +
                              " and 2 more like it are JSON, but no lines of JSON, beside files that are read, and are "
                              "not read\n");
  CHECK(found_by(folder, "d/*.jsonl").messages.empty());
  // What may be data is never left out.
  const std::string record = "{\"text\": \"one\"}\n";
  for (const auto& file :
       {std::pair("e/lines.json", lines), std::pair("e/lines.json.gz", gzipped(lines + meta)),
        std::pair("e/document.json", record), std::pair("e/chat.json", std::string("{\"messages\": []}\n")),
        std::pair("e/array.json", std::string("\n[ {\"instruction\": \"say\"},\n")),
        std::pair("e/bom.json", "\xEF\xBB\xBF" + lines), std::pair("e/nan.json", "{\"score\": NaN}\n" + lines),
        std::pair("e/long.json", "{\"text\": \"" + std::string(3u << 20, 'a') + "\"}\n" + lines)}) {
    const TempFolder other;
    other.write("e/part.jsonl", lines);
    const auto data = other.write(file.first, file.second);
    const std::string problem = message_of<UserError>([&] { found_by(other, "e"); });
    const bool is_array = data.filename() == "array.json";
    CHECK_MESSAGE(contains(problem, data.string() + (is_array ? " is an array of JSON" : " looks like no text")),
                  problem);
    CHECK_MESSAGE(contains(problem, "with a pattern the files that are meant"), problem);
  }
  // Where nothing else tells what the folder is for, as before.
  folder.write("f/meta.json", meta);
  CHECK(contains(message_of<UserError>([&] { found_by(folder, "f"); }), "looks like no text"));
  folder.write("f/README", "text");
  folder.write("f/LICENSE.txt", "text");
  CHECK(contains(message_of<UserError>([&] { found_by(folder, "f"); }), "looks like no text"));
  folder.write("f/a.txt", "text");
  CHECK(found_by(folder, "f").names == Names{"f/LICENSE.txt", "f/README", "f/a.txt"});
}
