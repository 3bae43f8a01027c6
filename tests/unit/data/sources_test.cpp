// What stands behind the paths of a config: files of one source, folders, and what a start reads of them.
#include "data/sources.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/source_files.h"
#include "dataset_scene.h"
#include "support/bytes_read.h"
#include "token_files.h"

using namespace scaletrain;
using namespace scaletrain::test;

namespace {

// Files of `length` tokens each: file f holds f, f, ...
void write_short_files(const TempFolder& folder, int count, int length, bool with_index) {
  for (int f = 0; f < count; ++f) {
    const std::vector<int> tokens(static_cast<std::size_t>(length), f);
    const std::string stem = "short/" + std::to_string(100 + f);
    folder.write(stem + ".bin", with_index ? packed<std::uint16_t>(tokens) : llmc_file(tokens, false));
    if (with_index) folder.write(stem + ".idx", megatron_index({{length}}, 8, 2));
  }
}

std::int64_t unmasked(const Sample& sample) {
  return std::count_if(sample.targets.begin(), sample.targets.end(), [](std::int32_t t) { return t >= 0; });
}

// Of the process: what is named below the folder.
int open_descriptors_below(const std::filesystem::path& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry.path(), gone).string().starts_with(folder.string()) ? 1 : 0;
  }
  return count;
}

int mappings_below(const std::filesystem::path& folder) {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) count += line.find(folder.string()) != std::string::npos ? 1 : 0;
  return count;
}

// Of one epoch.
std::int64_t all_sample_tokens(const TrainingData& data) {
  std::int64_t total = 0;
  for (std::int64_t n = 0; n < data.mixture().order(0).samples_per_epoch(); ++n) total += data.sample_tokens(n);
  return total;
}

}  // namespace

TEST_CASE("short files of one source are packed into samples, and only real tokens are counted") {
  const TempFolder folder;
  write_short_files(folder, 60, 17, false);
  auto config = config_for(folder);
  config.train = {source_at(folder / "short")};
  const IdsTokenizer tokenizer(257, std::nullopt);
  const auto data = open_training_data(config, tokenizer, options(64));
  const std::int64_t samples = data->mixture().order(0).samples_per_epoch();
  REQUIRE(samples == 16);  // 60 * 17 tokens, the first of which is no target, by 64
  std::set<std::vector<std::int32_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::map<std::int32_t, int> inputs;
    std::vector<std::int32_t> order;
    std::int64_t tokens = 0;
    for (std::int64_t n = epoch * samples; n < (epoch + 1) * samples; ++n) {
      const Sample s = read(*data, n);
      CHECK(data->sample_tokens(n) == unmasked(s));
      tokens += data->sample_tokens(n);
      for (std::size_t i = 0; i < s.inputs.size(); ++i) {
        if (s.targets[i] >= 0) ++inputs[s.inputs[i]];
        order.push_back(s.inputs[i]);
        // A file is a document: it begins where the tokens change.
        const bool begins = std::count(s.starts.begin(), s.starts.end(), static_cast<std::int32_t>(i)) > 0;
        if (i > 0 && s.targets[i - 1] >= 0 && s.targets[i] >= 0) CHECK(begins == (s.inputs[i] != s.inputs[i - 1]));
      }
    }
    CHECK(tokens == 60 * 17 - 1);
    // All of each file, but the last token of the file that came last, which predicts nothing.
    int all = 0;
    for (int f = 0; f < 60; ++f) {
      CHECK((inputs[f] == 17 || inputs[f] == 16));
      all += inputs[f];
    }
    CHECK(all == 60 * 17 - 1);
    orders.insert(order);
  }
  CHECK(orders.size() == 3);
}

TEST_CASE("a source of many token files needs no more descriptors and mappings than one of few") {
  constexpr int count = 150;  // pairs of files
  const TempFolder folder;
  write_short_files(folder, count, 17, true);
  auto config = config_for(folder);
  config.train = {source_at(folder.path() / "short")};
  const ByteTokenizer tokenizer;
  const auto data = open_training_data(config, tokenizer, options(64));
  std::map<std::int32_t, int> tokens;
  for (std::int64_t n = 0; n < data->mixture().order(0).samples_per_epoch(); ++n) {
    const Sample sample = read(*data, n);
    for (std::size_t i = 0; i < sample.inputs.size(); ++i)
      if (sample.targets[i] >= 0) ++tokens[sample.inputs[i]];
    REQUIRE(open_descriptors_below(folder.path()) <= kMostOpenMaps);
    REQUIRE(mappings_below(folder.path()) <= kMostOpenMaps);
  }
  CHECK(tokens.size() == count);
  for (const auto& entry : tokens) CHECK(entry.second >= 16);
}

TEST_CASE("a file's end is a document's end, for the loss as well") {
  const TempFolder folder;
  write_short_files(folder, 60, 17, true);
  auto config = config_for(folder);
  config.train = {source_at(folder / "short")};
  config.documents.loss_across = false;
  ValidationConfig set;
  set.path = config.train[0].path;
  const auto data = open_training_data(config, ByteTokenizer(), options(64));
  const auto validation = open_validation_set(set, config, ByteTokenizer(), options(64), "v");
  REQUIRE(validation->num_samples() == 16);
  for (const bool is_training : {true, false}) {
    std::int64_t targets = 0;
    for (std::int64_t n = 0; n < 16; ++n) {
      const Sample s = is_training ? read(*data, n) : read(*validation, n);
      targets += unmasked(s);
      for (std::size_t i = 0; i < s.inputs.size(); ++i)
        if (s.targets[i] >= 0) CHECK(s.targets[i] == s.inputs[i]);
    }
    CHECK(targets == 60 * 16);
  }
  // Masked as a document's first is no padding: the model has read it.
  CHECK(all_sample_tokens(*data) == 60 * 17 - 1);
}

TEST_CASE("blocks go over the ends of files, and the tokens of samples are counted without reading them") {
  const TempFolder folder;
  // One and a half blocks each: counting in base 65521, with an index and without.
  const int tokens = static_cast<int>(kBlockTokens * 3 / 2);
  std::vector<int> values(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i % 65521);
  folder.write("d/a.bin", packed<std::uint16_t>(values));
  folder.write("d/a.idx", megatron_index({{1'000'000}, {tokens - 1'000'000}}, 8, 2));
  folder.write("d/b.bin", llmc_file(values, false));
  folder.write("d/c.bin", packed<std::uint16_t>(values));
  folder.write("d/c.idx", megatron_index({{tokens}}, 8, 2));
  auto config = config_for(folder);
  config.train = {source_at(folder / "d")};
  const IdsTokenizer tokenizer(65536, std::nullopt);
  const std::int64_t context = 4096;
  const auto data =
      open_training_data(config, tokenizer, {.vocab = 65536, .context = context, .seed = 1, .report = {}});
  const std::int64_t samples = data->mixture().order(0).samples_per_epoch();
  // Four and a half blocks; a block that ends with a document leaves one target out.
  CHECK(samples == 4 * 512 + 256);
  std::int64_t targets = 0;
  for (std::int64_t n = 0; n < samples; ++n) {
    const Sample s = read(*data, n);
    if (data->sample_tokens(n) != unmasked(s)) FAIL("another number of tokens than was read: sample " << n);
    targets += unmasked(s);
    for (std::size_t i = 0; i < s.targets.size(); ++i) {
      const bool begins = std::count(s.starts.begin(), s.starts.end(), static_cast<std::int32_t>(i) + 1) > 0;
      if (s.targets[i] >= 0 && i + 1 < s.targets.size() && !begins && s.targets[i] != (s.inputs[i] + 1) % 65521)
        FAIL("a target that does not follow its input");
    }
  }
  CHECK(targets <= std::int64_t{3} * tokens - 1);
  CHECK(targets >= std::int64_t{3} * tokens - 5);
}

TEST_CASE("what needs the ends of documents is refused for a file that does not say where they are") {
  const TempFolder folder;
  const auto path = folder.write("l.bin", llmc_file({1, 2, 9, 3, 9, 4, 5, 6, 9, 7}, false));
  auto config = config_for(folder);
  config.documents.loss_across = false;
  config.train = {source_at(path)};
  ValidationConfig set;
  set.path = path.string();
  const auto open_both = [&](std::optional<std::int32_t> end_of_document) {
    const IdsTokenizer tokenizer(10, end_of_document);
    const DataOptions small{.vocab = 10, .context = 5, .seed = 1, .report = {}};
    open_training_data(config, tokenizer, small);
    open_validation_set(set, config, tokenizer, small, "data.validation.0");
  };
  const std::string words = "data.documents.loss_across: false needs to know where documents end, and " +
                            path.string() +
                            " of data.train.0 (llm.c token file) does not say: name the token that ends a document in "
                            "data.tokenizer.end_of_document";
  CHECK_THROWS_WITH_AS(open_both(std::nullopt), doctest::Contains(words.c_str()), UserError);
  CHECK_NOTHROW(open_both(9));
  folder.write("m.bin", packed<std::uint16_t>({1, 2, 3, 4}));
  folder.write("m.idx", megatron_index({{2}, {2}}, 8, 2));
  config.train = {source_at(folder / "m.bin")};
  CHECK_THROWS_WITH_AS(open_both(std::nullopt), doctest::Contains("l.bin of data.validation.0"), UserError);
  set.path = config.train[0].path;
  CHECK_NOTHROW(open_both(std::nullopt));
  set.path = path.string();
  config.documents.loss_across = true;
  CHECK_NOTHROW(open_both(std::nullopt));
  config.documents.attention = DocumentAttention::within;
  CHECK_THROWS_WITH_AS(open_both(std::nullopt),
                       doctest::Contains("data.documents.attention: within needs to know where documents end, and "),
                       UserError);
  CHECK_NOTHROW(open_both(9));
}

TEST_CASE("the hash of a source of several files says that they are laid end to end, that of one file is as it was") {
  const TempFolder folder;
  folder.write("one/a.bin", llmc_file({1, 2, 3, 4}, false));
  folder.write("two/a.bin", llmc_file({1, 2, 3, 4}, false));
  folder.write("two/b.bin", llmc_file({5, 6, 7, 8}, false));
  const auto identity = [&](const std::string& name) {
    auto config = config_for(folder);
    config.train = {source_at(folder / name)};
    std::uint64_t found = 0;
    DataOptions o = options(4);
    o.opened = [&found](const SourceContent& content) { found = content.identity; };
    open_training_data(config, IdsTokenizer(257, std::nullopt), o);
    return found;
  };
  // What a checkpoint of an older version has: the hash of the number of tokens and the identity, file by file.
  const auto before = [&](const std::vector<std::string>& files) {
    std::vector<std::uint64_t> numbers;
    for (const std::string& file : files) {
      const auto opened = open_token_file(folder / file);
      numbers.push_back(static_cast<std::uint64_t>(opened->num_tokens()));
      numbers.push_back(opened->identity());
    }
    return hash_bytes(std::as_bytes(std::span(numbers)));
  };
  CHECK(identity("one") == before({"one/a.bin"}));
  CHECK(identity("two") != before({"two/a.bin", "two/b.bin"}));
}

TEST_CASE("a folder is read with its sub-folders in the order of paths, each file by its kind") {
  const TempFolder folder;
  folder.write("d/b.jsonl", "{\"text\":\"B\"}\n");
  folder.write("d/a.txt", "A");
  folder.write("d/README", "R");
  folder.write("d/.hidden", "H");
  folder.write("d/sub/x.txt", "X");
  folder.write("d/c.bin", packed<std::uint16_t>({67, 256}));
  folder.write("d/c.idx", megatron_index({{2}}, 8, 2));
  const auto config = config_for(folder);
  ValidationConfig set;
  set.path = (folder / "d").string();
  const auto data = open_validation_set(set, config, ByteTokenizer(), options(6), "data.validation.0");
  REQUIRE(data->num_samples() == 2);
  CHECK(read(*data, 0).inputs == std::vector<std::int32_t>{'R', 256, 'A', 256, 'B', 256});
  CHECK(read(*data, 1).inputs == std::vector<std::int32_t>{'X', 256, 'C', 256, 256, 256});
  CHECK(read(*data, 1).targets == std::vector<std::int32_t>{256, 'C', 256, -1, -1, -1});
}

TEST_CASE("a link to nothing that came after the start is left for the next one") {
  const TempFolder folder;
  folder.write("d/a.txt", "AB");
  std::filesystem::create_symlink(folder / "nothing", folder / "d" / "b.txt");
  const std::string path = (folder / "d").string();
  const SourceSpec spec{
      .key = "data.train.0", .path = path, .type = SourceKind::automatic, .field = "", .separator = {}};
  const SourceFiles only{.key = spec.key, .path = hash_text(path), .names = {hash_text("a.txt")}};
  std::string messages;
  const Reporter report = [&](const std::string& m) { messages += m; };
  CHECK(find_files(spec, report, &only).size() == 1);
  CHECK(messages.find("data.train.0.path: 1 file came to " + path) != std::string::npos);
  CHECK_THROWS_WITH_AS(find_files(spec, report), doctest::Contains("b.txt: a link that leads to no file"), InputError);
}

TEST_CASE("a temporary name that goes while a folder is looked at is none of its files") {
  const TempFolder folder;
  folder.write("d/a.txt", "AB");
  const std::string path = (folder / "d").string();
  const SourceSpec spec{
      .key = "data.train.0", .path = path, .type = SourceKind::automatic, .field = "", .separator = {}};
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    for (int i = 0; !is_done; ++i) {
      const std::string name = "d/" + std::to_string(i) + ".part";
      folder.write(name, "half");
      std::filesystem::remove(folder / name);
    }
  });
  std::string problem;
  try {
    for (int i = 0; i < 2000; ++i) CHECK_FALSE(find_files(spec, {}).empty());
  } catch (const InputError& error) {
    problem = error.what();
  }
  is_done = true;
  other.join();
  CHECK(problem.empty());
}

TEST_CASE("a folder's pipes are reported and a link to nothing is refused by name") {
  const TempFolder folder;
  folder.write("d/a.txt", "AB");
  folder.write("d/sub/x.txt", "X");
  folder.write("d/sub2/x.txt", "X");
  folder.write("elsewhere.txt", "CD");
  std::filesystem::create_symlink(folder / "elsewhere.txt", folder / "d" / "b.txt");
  REQUIRE(::mkfifo((folder / "d" / "pipe").c_str(), 0600) == 0);
  const auto config = config_for(folder);
  ValidationConfig set;
  set.path = (folder / "d").string();
  std::string messages;
  DataOptions o = options(6);
  o.report = [&](const std::string& m) { messages += m + "\n"; };
  const auto data = open_validation_set(set, config, ByteTokenizer(), o, "--data");
  CHECK(messages.find("--data PATH: " + (folder / "d" / "pipe").string() + " is neither a file nor a folder") !=
        std::string::npos);
  // A link to a file is that file.
  CHECK(read(*data, 0).inputs == std::vector<std::int32_t>{'A', 'B', 256, 'C', 'D', 256});
  std::filesystem::remove(folder / "elsewhere.txt");
  CHECK_THROWS_WITH_AS(open_validation_set(set, config, ByteTokenizer(), o, "--data"),
                       doctest::Contains("d/b.txt: a link that leads to no file"), InputError);
}

TEST_CASE("a source shorter than one sample is reported, one that fills a sample is not") {
  const TempFolder folder;
  auto config = config_for(folder);
  std::string messages;
  DataOptions o = options(4);
  o.report = [&](const std::string& m) { messages += m + "\n"; };
  // Three bytes and the end of the document: three targets of four.
  config.train = {source_at(folder.write("long.txt", "abcd")), source_at(folder.write("short.txt", "abc"))};
  open_training_data(config, ByteTokenizer(), o);
  CHECK(messages.find("data.train.1: " + (folder / "short.txt").string() + " holds 4 tokens; a sample of 4 needs 5") !=
        std::string::npos);
  CHECK(messages.find("data.train.0:") == std::string::npos);
}

TEST_CASE("what the config asks for and no file can give is refused by its key") {
  const TempFolder folder;
  const ByteTokenizer tokenizer;
  const auto text = folder.write("a.txt", "text");
  const auto lines = folder.write("a.jsonl", "{\"text\":\"x\"}");
  const auto refused = [&](const SourceConfig& source, const std::string& words) {
    auto config = config_for(folder);
    config.train = {source_at(text), source};
    CHECK_THROWS_WITH_AS(open_training_data(config, tokenizer, options(4)), doctest::Contains(words.c_str()),
                         UserError);
  };
  auto source = source_at(lines);
  source.separator = "%";
  refused(source, "data.train.1.separator");
  source = source_at(text);
  source.separator = "two\nlines";
  refused(source, "data.train.1.separator: one line is expected, without its end");
  source = source_at(text);
  source.field = "body";
  refused(source, "data.train.1.field");
  refused(source_at(folder / "absent"), "data.train.1.path");
  refused(source_at(folder.write("a.xz", "x")), "data.train.1.type");
  std::filesystem::create_directories(folder / "empty");
  auto config = config_for(folder);
  config.train = {source_at(text), source_at(folder / "empty")};
  CHECK_THROWS_WITH_AS(open_training_data(config, tokenizer, options(4)), doctest::Contains("data.train.1.path"),
                       InputError);
  config.train.clear();
  CHECK_THROWS_WITH_AS(open_training_data(config, tokenizer, options(4)), doctest::Contains("data.train"), UserError);
  config.train = {source_at(text)};
  CHECK_THROWS_WITH_AS(open_training_data(config, IdsTokenizer(300, 1), options(4)),
                       doctest::Contains("token files only"), UserError);
  config.train = {source_at(folder.write("none.txt", ""))};
  CHECK_THROWS_WITH_AS(open_training_data(config, tokenizer, options(4)), doctest::Contains("data.train.0"),
                       InputError);
}

namespace {

// What opening the training data reads of its text, and what it says that the data holds.
struct Opening {
  std::uint64_t bytes = 0;
  std::vector<SourceContent> contents;
};

Opening open_once(const DataConfig& config, const std::vector<SourceContent>& known = {}) {
  Opening opening;
  DataOptions o = options(64);
  o.known = known;
  o.opened = [&opening](SourceContent content) { opening.contents.push_back(std::move(content)); };
  const std::uint64_t before = bytes_read();
  open_training_data(config, ByteTokenizer(), o);
  opening.bytes = bytes_read() - before;
  return opening;
}

constexpr std::size_t kCorpusBytes = 4u << 20;

}  // namespace

TEST_CASE("a start reads text that has not changed no more, and text that has") {
  const TempFolder folder;
  auto config = config_for(folder);
  config.train = {source_at(folder / "d")};
  folder.write("d/a.txt", std::string(kCorpusBytes, 'a'));
  folder.write("d/b.txt", std::string(kCorpusBytes, 'b'));
  std::this_thread::sleep_for(std::chrono::milliseconds(3100));  // younger files are not kept (content_record.h)
  const Opening first = open_once(config);
  CHECK(first.bytes > 2 * kCorpusBytes);
  const Opening second = open_once(config);
  CHECK(second.bytes < kCorpusBytes / 8);
  CHECK(second.contents[0].identity == first.contents[0].identity);
  CHECK(second.contents[0].files[1].hash == first.contents[0].files[1].hash);

  folder.write("d/b.txt", std::string(kCorpusBytes, 'c'));
  const Opening changed = open_once(config);
  CHECK(changed.bytes > kCorpusBytes);
  CHECK(changed.contents[0].identity != first.contents[0].identity);
  CHECK(changed.contents[0].files[0].hash == first.contents[0].files[0].hash);

  config.verify = DataCheck::all;
  CHECK(open_once(config).bytes > 2 * kCorpusBytes);
}

TEST_CASE("a process reads nothing that another one of its host has verified") {
  const TempFolder folder;
  auto config = config_for(folder);
  config.verify = DataCheck::all;  // whose word counts for the host's other processes as well
  config.train = {source_at(folder / "d")};
  folder.write("d/a.txt", std::string(kCorpusBytes, 'a'));
  folder.write("d/m.bin", packed<std::uint16_t>({67, 68, 256}));
  folder.write("d/m.idx", megatron_index({{3}}, 8, 2));
  const Opening first = open_once(config);
  REQUIRE(first.contents.size() == 1);
  CHECK(first.contents[0].all_bytes != 0);
  const Opening second = open_once(config, first.contents);
  CHECK(second.bytes < kCorpusBytes / 8);
  CHECK(second.contents[0].identity == first.contents[0].identity);
  CHECK(second.contents[0].tokens == first.contents[0].tokens);

  SUBCASE("where its files are others, it reads them") {
    folder.write("d/a.txt", std::string(kCorpusBytes, 'b'));
    const Opening other = open_once(config, first.contents);
    CHECK(other.bytes > kCorpusBytes);
    CHECK(other.contents[0].identity != first.contents[0].identity);
  }
  SUBCASE("where the tokenised text is not to be found, it makes it") {
    std::filesystem::remove_all(folder / "cache");
    const Opening other = open_once(config, first.contents);
    CHECK(other.bytes > kCorpusBytes);
    CHECK(other.contents[0].identity == first.contents[0].identity);
  }
}

TEST_CASE("a full check sees a token file's bytes beyond its samples") {
  const TempFolder folder;
  // Beyond 64 MiB the identity is that of samples.
  std::string file = llmc_header(36'000'000, false);
  file.resize(file.size() + 2 * 36'000'000);
  const auto path = folder.write("l.bin", file);
  auto config = config_for(folder);
  config.train = {source_at(path)};
  const Opening first = open_once(config);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(1'000'000).put('\2');
  const Opening second = open_once(config);
  CHECK(second.contents[0].identity == first.contents[0].identity);  // the limit that token_file.h states
  config.verify = DataCheck::all;
  const Opening full = open_once(config);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(1'000'000).put('\1');
  const Opening other = open_once(config);
  CHECK(full.contents[0].identity == first.contents[0].identity);
  CHECK(full.contents[0].all_bytes != other.contents[0].all_bytes);
  CHECK(full.contents[0].files[0].hash != other.contents[0].files[0].hash);
}
