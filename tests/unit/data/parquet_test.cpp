// Text in Parquet files, which tests/golden/parquet/make_parquet.py has written by pyarrow.
#include "data/parquet/parquet_file.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "data/corpus/corpus_build.h"
#include "data/corpus/inspection.h"
#include "data/source_check.h"
#include "data/tokens/text_notes.h"
#include "data/tokens/text_reader.h"
#include "data/tokens/token_cache.h"
#include "dataset_scene.h"
#include "support/text.h"

using namespace scaletrain;
using namespace scaletrain::test;
namespace fs = std::filesystem;

namespace {

const fs::path kParquetFiles = fs::path(SCALETRAIN_SOURCE_FOLDER) / "tests/golden/parquet";

// As make_parquet.py has it.
std::string parquet_document(int i) {
  std::string text = fmt::format("row {}: ", i);
  for (int k = 0; k < i % 5; ++k) text += "l\xc3\xa4uft ";
  return text + std::string(static_cast<std::size_t>(i % 3), '\n');
}
std::vector<std::string> parquet_documents(int modulus = 100) {
  std::vector<std::string> all;
  all.reserve(100);
  for (int i = 0; i < 100; ++i) all.push_back(parquet_document(i % modulus));
  return all;
}

// The documents of what is in the cache for the file.
struct ParquetReading {
  TempFolder folder;
  std::vector<std::string> told;

  std::vector<std::string> read(const fs::path& file, const std::string& field,
                                BadRecordPolicy policy = BadRecordPolicy::fail, int threads = 1) {
    const TextSource source{
        .files = {{file, TextKind::parquet}}, .field = field, .separator = {}, .on_bad_record = policy};
    const ByteTokenizer tokenizer;
    ContentRecord record({.source = folder.path(), .folders = {}});
    const std::vector<FileContent> contents = contents_of(source, record);
    const Reporter report = [this](const std::string& text) { told.push_back(text); };
    const auto tokens = open_token_cache({source, contents, tokenizer, record, report, "a source", threads},
                                         folder / ("cache-" + std::to_string(threads)));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens->num_tokens()));
    tokens->read(0, ids, 257);
    std::vector<std::string> documents;
    std::string one;
    for (const std::int32_t id : ids) {
      if (id != ByteTokenizer::kEndOfDocument) {
        one.push_back(static_cast<char>(id));
        continue;
      }
      documents.push_back(one);
      one.clear();
    }
    return documents;
  }
};

bool skips_for_want_of_parquet() {
  if (!has_parquet_module()) MESSAGE("built without Parquet: nothing is tested");
  return !has_parquet_module();
}

TEST_CASE("a Parquet file that changes while it is read is told as such") {
  if (skips_for_want_of_parquet()) return;
  const TempFolder folder;
  const TextFile file{folder / "a.parquet", TextKind::parquet};
  fs::copy_file(kParquetFiles / "plain.parquet", file.path);
  const TextSource source{.files = {file}, .field = "text", .separator = {}, .on_bad_record = BadRecordPolicy::skip};
  TextNotes notes;
  Hasher hasher;
  bool changes = false;
  const UseRow use = [&](std::string_view, const LinePlace&) {
    if (changes) fs::last_write_time(file.path, fs::file_time_type::clock::now() + std::chrono::hours(1));
  };
  read_rows(file, source, 0, use, notes, {.hasher = &hasher});
  changes = true;
  CHECK(contains(message_of<InputError>([&] { read_rows(file, source, 0, use, notes, {.hasher = &hasher}); }),
                 "a.parquet: the file changed while it was read"));
}

TEST_CASE("each row of a text column of Parquet is a document, however it is stored") {
  if (skips_for_want_of_parquet()) return;
  ParquetReading reading;
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    const auto read = [&](const char* file, const char* field) {
      return reading.read(kParquetFiles / file, field, BadRecordPolicy::fail, threads);
    };
    CHECK(read("plain.parquet", "text") == parquet_documents());
    CHECK(read("kinds.parquet", "large") == parquet_documents());
    CHECK(read("kinds.parquet", "raw") == parquet_documents());
    CHECK(read("kinds.parquet", "few") == parquet_documents(3));
    CHECK(read("required.parquet", "text") == parquet_documents());
    CHECK(read("none.parquet", "text").empty());
    CHECK(read("many.parquet", "text").size() == 50'000);
  }
}

TEST_CASE("reading Parquet may begin at any row") {
  if (skips_for_want_of_parquet()) return;
  const std::vector<std::string> all = parquet_documents();
  for (const char* const column : {"large", "raw"})
    for (const std::int64_t first : {0, 1, 16, 17, 18, 50, 99, 100}) {
      CAPTURE(first);
      std::vector<std::string> read;
      std::vector<std::int64_t> rows;
      open_parquet(kParquetFiles / "kinds.parquet", column)
          ->read(first, [&](std::int64_t row, bool, std::string_view text) {
            rows.push_back(row);
            read.emplace_back(text);
            return true;
          });
      CHECK(read == std::vector<std::string>(all.begin() + first, all.end()));
      for (std::size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] == first + static_cast<std::int64_t>(i));
    }
}

TEST_CASE("a null of Parquet is a bad record, an empty text none") {
  if (skips_for_want_of_parquet()) return;
  ParquetReading reading;
  const fs::path file = kParquetFiles / "nulls.parquet";
  const std::string refusal = message_of<BadRecordError>([&] { reading.read(file, "text"); });
  CHECK(refusal == file.string() +
                       ", row 1: \"text\" is null, expected text; mend the row, or have such rows left out "
                       "(on_bad_record: skip)");
  std::vector<std::string> expected;
  for (int i = 0; i < 100; ++i)
    if (i % 7 > 1) expected.push_back(i == 2 ? std::string("a\0b", 3) : parquet_document(i));
  CHECK(reading.read(file, "text", BadRecordPolicy::skip) == expected);
  const auto tells = [&](const std::string& part) {
    return std::any_of(reading.told.begin(), reading.told.end(),
                       [&](const std::string& text) { return contains(text, part); });
  };
  CHECK(tells("15 null in the column \"text\""));
  CHECK(tells("row 3"));
}

TEST_CASE("a column that is not there or holds no text is refused with those that there are") {
  if (skips_for_want_of_parquet()) return;
  const fs::path file = kParquetFiles / "plain.parquet";
  const auto refusal = [&](const std::string& column) {
    return message_of<InputError>([&] { open_parquet(file, column); });
  };
  CHECK(refusal("body") ==
        file.string() +
            ": there is no column \"body\"; it has \"id\", \"tags\", \"meta\", \"text\": name one of "
            "them as the field");
  CHECK(contains(refusal("id"), "the column \"id\" holds no text but INT64; it has"));
  CHECK(contains(refusal("tags"), "the column \"tags\" is nested, and text is expected"));
  CHECK(contains(refusal("meta"), "the column \"meta\" is nested"));
  // Without a run having begun.
  TempFolder folder;
  DataConfig config = config_for(folder);
  config.train = {source_at(file)};
  CHECK(source_problems(config).empty());
  config.train[0].field = "body";
  const std::vector<InputProblem> problems = source_problems(config);
  REQUIRE(problems.size() == 1);
  CHECK(contains(problems[0].message, "there is no column \"body\""));
  CHECK_FALSE(problems[0].is_config);
}

TEST_CASE("a Parquet file that is damaged or cut is refused, wherever that is") {
  if (skips_for_want_of_parquet()) return;
  const TempFolder folder;
  const std::string good = TempFolder::read(kParquetFiles / "kinds.parquet");
  const auto read = [&](const std::string& bytes) {
    std::vector<std::string> documents;
    open_parquet(folder.write("a.parquet", bytes), "large")->read(0, [&](std::int64_t, bool, std::string_view text) {
      documents.emplace_back(text);
      return true;
    });
    return documents;
  };
  REQUIRE(read(good) == parquet_documents());
  for (const std::string& bytes : {std::string(), std::string("PAR1"), std::string(1000, 'x'), good.substr(0, 500),
                                   good.substr(0, good.size() - 1), good.substr(100)})
    CHECK(contains(message_of<InputError>([&] { read(bytes); }), "a.parquet: the Parquet file cannot be read ("));
  // Pages have checksums, the footer behind them has none: what is wrong there and makes sense is not seen.
  std::uint32_t footer = 0;
  std::memcpy(&footer, good.data() + good.size() - 8, sizeof(footer));
  const std::size_t pages_end = good.size() - 8 - footer;
  std::size_t refused = 0;
  for (std::size_t i = 0; i < good.size(); i += 3) {
    CAPTURE(i);
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x55);
    std::optional<std::vector<std::string>> documents;
    try {
      documents = read(bytes);
    } catch (const InputError& error) {
      CHECK(contains(error.what(), "a.parquet: "));
      ++refused;
    }
    // Else it is of the other columns, or of statistics that nobody reads.
    if (documents && i < pages_end) CHECK(*documents == parquet_documents());
  }
  CHECK(refused > good.size() / 12);
}

TEST_CASE("Parquet is built to the tokens of the same JSONL, for any number of threads and after a stop") {
  if (skips_for_want_of_parquet()) return;
  const TempFolder folder;
  const ByteTokenizer tokenizer;
  std::string lines;
  for (int i = 0; i < 50'000; ++i) {
    std::string text = parquet_document(i % 50) + std::string(60, 'x');
    for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.replace(at, 1, "\\n");
    lines += "{\"text\": \"" + text + "\"}\n";
  }
  CorpusRequest request;
  request.tokenizer = &tokenizer;
  request.split = {90, 10};
  request.record_seconds = 0.0;
  const auto build = [&](const fs::path& source, const std::string& name, int threads) {
    request.sources = {source.string()};
    request.output = (folder / name).string();
    request.threads = threads;
    return build_corpus(request);
  };
  const auto bytes_of = [&](const std::string& name) {
    std::string all;
    for (const char* const ending : {"-train.bin", "-train.idx", "-validation.bin", "-validation.idx"})
      all += TempFolder::read(folder / (name + ending));
    return all;
  };
  build(folder.write("many.jsonl", lines), "jsonl", 1);
  const fs::path parquet = kParquetFiles / "many.parquet";
  for (const int threads : {1, 4}) {
    const std::string name = "parquet-" + std::to_string(threads);
    build(parquet, name, threads);
    CHECK((bytes_of(name) == bytes_of("jsonl")));
  }
  struct Stopped {};
  int batches = 0;
  request.progress = [&batches](std::uint64_t, std::uint64_t) {
    if (++batches == 2) throw Stopped();
  };
  CHECK_THROWS_AS(build(parquet, "stopped", 1), Stopped);
  request.progress = {};
  CHECK(build(parquet, "stopped", 1).went_on);
  CHECK((bytes_of("stopped") == bytes_of("jsonl")));
}

TEST_CASE("Parquet is inspected and verified") {
  if (skips_for_want_of_parquet()) return;
  InspectionOptions options;
  options.show = 1;
  const Inspection inspection = inspect_data((kParquetFiles / "plain.parquet").string(), options);
  REQUIRE(inspection.files.size() == 1);
  CHECK(inspection.files[0].kind == "Parquet");
  CHECK(inspection.files[0].documents == 100);
  options.field = "none";
  const Inspection other = inspect_data((kParquetFiles / "plain.parquet").string(), options);
  CHECK(contains(other.files.at(0).problem.value_or(""), "there is no column \"none\""));
  options.field = "text";
  CHECK(inspection.files[0].shown == std::vector<std::string>{"\"row 0: \""});
  CHECK(verify_data((kParquetFiles / "plain.parquet").string(), options).files[0].documents == 100);
  const Inspection nulls = verify_data((kParquetFiles / "nulls.parquet").string(), options);
  CHECK(contains(nulls.files[0].problem.value_or(""), "row 1: \"text\" is null"));
}

}  // namespace
