// What is told of records that are skipped and of text that looks like none.
#include "data/tokens/text_notes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dataset_scene.h"
#include "packed_text.h"
#include "support/text.h"

using namespace scaletrain;
using namespace scaletrain::test;

namespace {

// What a text that comes in pieces of this size is noted for, of a file "f".
std::string odd_text(const std::string& text, std::size_t piece) {
  OddTextScan scan("f");
  for (std::size_t at = 0; at < text.size(); at += piece) scan.take(std::string_view(text).substr(at, piece));
  TextNotes notes;
  scan.finish(notes);
  std::string out;
  for (const std::string& line : notes.lines("n")) out += line + "\n";
  return out;
}

// A source of one JSONL file with six bad records among two good ones.
struct BadRecords {
  TempFolder folder;
  DataConfig config = config_for(folder);
  std::string messages;

  BadRecords() {
    folder.write("d/a.jsonl",
                 "{\"text\":\"good\"}\n{\"body\":\"x\",\"id\":1}\n[1]\n\n{\"text\":3}\n{\"text\":\"cut\nnonsense\n"
                 "{}\n{\"text\":\"fine\"}\n");
    config.train = {source_at(folder / "d")};
  }
  std::unique_ptr<TrainingData> open() {
    messages.clear();
    DataOptions o = options(4);
    o.report = [this](const std::string& message) { messages += message + "\n"; };
    return open_training_data(config, ByteTokenizer(), o);
  }
};

}  // namespace

TEST_CASE("text that is no UTF-8 is told with the byte, however it is cut into pieces") {
  const std::string good = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
  for (const std::size_t piece : {1, 2, 3, 4, 5, 100}) {
    CHECK(odd_text(good, piece).empty());
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string place = "(f at byte " + std::to_string(10 * i) + ")";
      std::string text;
      for (std::size_t k = 0; k < i; ++k) text += good.substr(0, 10);  // "z" left out: ten bytes
      CHECK(contains(odd_text(text + "\xff" + good, piece), "1 that is no UTF-8 " + place));
      CHECK(contains(odd_text(text + "\xc3(" + good, piece), "1 that is no UTF-8 " + place));
      CHECK(contains(odd_text(text + "\xf0\x9f\x98", piece), "1 that is no UTF-8 " + place));
    }
  }
}

TEST_CASE("NUL, UTF-16 and what programs and archives begin with are told, and once for each file") {
  for (const std::size_t piece : {1, 7, 5000}) {
    CHECK(odd_text(std::string("one\0two", 7), piece) ==
          "notice: n: not all of it looks like text in UTF-8: 1 that holds NUL (f at byte 3)\n");
    std::string wide = "\xff\xfe";
    std::string without_mark;
    for (int i = 0; i < 3000; ++i) without_mark += std::string("words  \n"[i % 8] == '\n' ? "\n\0" : "e\0", 2);
    for (const std::string& text : {wide + without_mark, without_mark})
      CHECK(odd_text(text, piece) ==
            "notice: n: not all of it looks like text in UTF-8: 1 that looks like UTF-16 (f)\n");
    CHECK(contains(odd_text("\x7f"
                            "ELF\x02\x01",
                            piece),
                   "1 that looks like a program (f)"));
    CHECK(contains(odd_text(gzipped("text"), piece), "1 that looks like gzip without .gz (f)"));
    CHECK(contains(odd_text("PK\x03\x04...", piece), "1 that looks like a zip archive (f)"));
    CHECK(contains(odd_text("%PDF-1.4", piece), "1 that looks like a PDF (f)"));
    CHECK(odd_text("", piece).empty());
  }
}

TEST_CASE("text whose first lines are JSON objects is told, however it is cut into pieces, and prose is not") {
  const auto is_told = [](const std::string& text, std::size_t piece) {
    OddTextScan scan("f");
    for (std::size_t at = 0; at < text.size(); at += piece) scan.take(std::string_view(text).substr(at, piece));
    TextNotes notes;
    scan.finish(notes);
    CHECK(notes.lines("n").empty());  // where it was said to be text
    const auto lines = notes.lines("n", "do this");
    if (!lines.empty())
      CHECK(lines == std::vector<std::string>{
                         "notice: n: a file is read as text, but its first lines are JSON objects (f): do this"});
    return !lines.empty();
  };
  const std::string record = "{\"text\": \"" + std::string(9000, 'x') + "\"}";
  for (const std::size_t piece : {1, 7, 5000}) {
    CHECK(is_told(record + "\n" + record + "\nanything", piece));
    CHECK(is_told("\r\n \n" + record + "\r\n\n\t" + record + "\r\n", piece));
    CHECK(is_told("{\"a\": 1}", piece));
    CHECK(is_told("{\"a\": 1}\n\n", piece));
    CHECK_FALSE(is_told("", piece));
    CHECK_FALSE(is_told("\n\n", piece));
    CHECK_FALSE(is_told("prose\n" + record, piece));
    CHECK_FALSE(is_told(record + "\nprose", piece));
    CHECK_FALSE(is_told("{\n  \"indented\": 1\n}\n", piece));
    CHECK_FALSE(is_told("[1]\n[2]\n", piece));
    CHECK_FALSE(is_told("{\"cut\": \"here", piece));
    CHECK_FALSE(is_told("{braces} of prose\n", piece));
  }
  // Of a line that is longer than what is held of it.
  const std::string book = "{\"text\": \"" + std::string(3u << 20, 'x') + "\"}\n";
  CHECK(is_told(book + book, 1u << 20));
  CHECK_FALSE(is_told("{" + std::string(3u << 20, 'x'), 1u << 20));
}

TEST_CASE("a byte order mark and records without text are told") {
  const std::string marked = "\xef\xbb\xbfprose\n";
  const std::string told =
      "notice: n: not all of it looks like text in UTF-8: 1 that begins with a byte order mark, which is read as text "
      "(f)";
  for (const std::size_t piece : {1, 2, 100}) {
    OddTextScan scan("f");
    for (std::size_t at = 0; at < marked.size(); at += piece) scan.take(std::string_view(marked).substr(at, piece));
    TextNotes notes;
    scan.finish(notes);
    CHECK(notes.lines("n") == std::vector<std::string>{told});
  }
  // Known to a scan that goes on behind it.
  OddTextScan first("f");
  first.take(marked + std::string(5000, 'x'));
  OddTextScan second("f", 5009);
  second.restore(first.state(), "state");
  TextNotes later;
  second.finish(later);
  CHECK(later.lines("n") == std::vector<std::string>{told});

  const TempFolder folder;
  DataConfig config = config_for(folder);
  const std::filesystem::path file =
      folder.write("a.jsonl", "{\"text\": \"\"}\n{\"text\": \"words\"}\n{\"text\": \"\"}\n");
  config.train = {source_at(file)};
  std::vector<std::string> messages;
  DataOptions o = options(4);
  o.report = [&messages](const std::string& message) { messages.push_back(message); };
  open_training_data(config, ByteTokenizer(), o);
  CHECK(std::count(messages.begin(), messages.end(),
                   "notice: data.train.0: " + file.string() + ": 2 records hold no text and are no documents (" +
                       file.string() + ")") == 1);
}

TEST_CASE("a scan that goes on from a place knows that the text began with JSON") {
  const std::string text = "{\"a\": 1}\n{\"a\": 2}\n";
  OddTextScan first("f");
  first.take(text);
  OddTextScan second("f", text.size());
  second.restore(first.state(), "state");
  second.take("prose\n");
  TextNotes notes;
  second.finish(notes);
  CHECK(notes.lines("n", "do this").size() == 1);
  OddTextScan other("f", 100);
  other.take(text);
  TextNotes none;
  other.finish(none);
  CHECK(none.empty());
}

TEST_CASE("JSONL under a name of text is told by every start, with what reads it, but where text is said to be meant") {
  const TempFolder folder;
  for (const char* name : {"d/a.bak", "d/b"}) folder.write(name, "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  folder.write("d/c.txt", "prose");
  DataConfig config = config_for(folder);
  config.train = {source_at(folder / "d")};
  const auto told = [&config] {
    std::vector<std::string> notices;
    DataOptions o = options(4);
    o.report = [&notices](const std::string& message) {
      if (message.starts_with("notice: ")) notices.push_back(message);
    };
    open_training_data(config, ByteTokenizer(), o);
    return notices;
  };
  const std::vector<std::string> expected = {
      "notice: data.train.0: " + (folder / "d").string() +
      ": 2 files are read as text, but their first lines are JSON objects (" + (folder / "d/a.bak").string() + "; " +
      (folder / "d/b").string() + "): type: jsonl reads a document of each line, type: text says that text is meant"};
  CHECK(told() == expected);
  CHECK(told() == expected);
  config.train[0].type = SourceKind::text;
  CHECK(told().empty());
  config.train[0].path = (folder / "d/b").string();
  config.train[0].type = SourceKind::jsonl;
  CHECK(told().empty());
}

TEST_CASE("notes are counted by kind, name the first places, and come back from JSON") {
  TextNotes notes;
  for (int i = 0; i < 5; ++i) notes.add_skipped(BadRecordError("not valid JSON", "a:" + std::to_string(i)));
  TextNotes later;
  later.add_skipped(BadRecordError("no JSON object", "b:1"));
  later.add_skipped(BadRecordError("not valid JSON", "b:2"));
  later.add_odd("that holds NUL", "b at byte 3");
  later.add_json_lines("c");
  notes.add(later);
  CHECK(notes.lines("n") ==
        std::vector<std::string>{"n: 7 bad records were skipped: 1 no JSON object (b:1), 6 not "
                                 "valid JSON (a:0; a:1; a:2; ...)",
                                 "notice: n: not all of it looks like text in UTF-8: 1 that holds NUL (b at byte 3)"});
  CHECK(TextNotes::from_json(notes.to_json(), "x") == notes);
  CHECK_THROWS_AS(TextNotes::from_json(nlohmann::json::parse(R"({"skipped":{},"odd":[]})"), "x"), InputError);
}

TEST_CASE("a bad record stops the start by file and line, and a missing field is told with those that are there") {
  BadRecords scene;
  const std::string problem = message_of<InputError>([&] { scene.open(); });
  CHECK(problem == (scene.folder / "d/a.jsonl").string() +
                       ":2: the key \"text\" is missing; the line has \"body\", \"id\": name one of them as the "
                       "field; mend the line, or have such lines left out (on_bad_record: skip)");
}

TEST_CASE("bad records are skipped where the config says so, counted by reason, told now and by every later start") {
  BadRecords scene;
  scene.config.on_bad_record = BadRecordPolicy::skip;
  const auto data = scene.open();
  CHECK(data->source_tokens().at(0) == 10);
  const std::string file = (scene.folder / "d/a.jsonl").string();
  const std::string told = "data.train.0: " + (scene.folder / "d").string() +
                           ": 6 bad records were skipped: 1 no JSON object (" + file + ":3: ";
  CHECK(contains(scene.messages, told));
  CHECK(contains(scene.messages, "1 no text in the field \"text\" (" + file + ":5: "));
  CHECK(contains(scene.messages, "2 not valid JSON (" + file + ":6: "));
  CHECK(contains(scene.messages, "2 without the field \"text\" (" + file + ":2: "));
  CHECK(contains(scene.messages, "tokenising"));
  scene.open();
  CHECK(contains(scene.messages, told));
  CHECK_FALSE(contains(scene.messages, "tokenising"));
}

TEST_CASE("skipping is another content, and does not change what has no bad records to skip") {
  BadRecords scene;
  scene.folder.write("d/a.jsonl", "{\"text\":\"good\"}\n");
  const std::uint64_t strict = scene.open()->hash();
  scene.config.on_bad_record = BadRecordPolicy::skip;
  CHECK(scene.open()->hash() != strict);
  scene.config.train = {source_at(scene.folder.write("t.txt", "text that is read whole"))};
  const std::uint64_t text = scene.open()->hash();
  scene.config.on_bad_record = BadRecordPolicy::fail;
  CHECK(scene.open()->hash() == text);
}

TEST_CASE("tokenised text whose notes are gone is made again where records may have been skipped") {
  BadRecords scene;
  scene.config.on_bad_record = BadRecordPolicy::skip;
  scene.open();
  for (const auto& entry : std::filesystem::directory_iterator(*scene.config.cache))
    if (entry.path().extension() == ".notes") std::filesystem::remove(entry.path());
  scene.open();
  CHECK(contains(scene.messages, "tokenising"));
  CHECK(contains(scene.messages, "6 bad records were skipped"));
}

TEST_CASE("a line too long for a record is skipped whole, and the next one read") {
  BadRecords scene;
  scene.config.on_bad_record = BadRecordPolicy::skip;
  scene.folder.write("d/a.jsonl",
                     "{\"text\":\"" + std::string((64u << 20) + 1, 'x') + "\"}\n{\"text\":\"kept\"}\nnonsense\n");
  CHECK(scene.open()->source_tokens().at(0) == 5);
  CHECK(contains(scene.messages, "1 too long (" + (scene.folder / "d/a.jsonl").string() + ":1: the line is longer"));
  CHECK(contains(scene.messages, "a.jsonl:3: not valid JSON"));
}

TEST_CASE("odd text of a source is told in one notice, at every start") {
  const TempFolder folder;
  folder.write("d/a.txt", "caf\xe9");
  folder.write("d/b.txt", std::string("a\0b", 3));
  folder.write("d/c.jsonl", "{\"text\":\"a\\u0000b\"}\n");
  folder.write("d/e.txt.gz", gzipped("\xff\xfe"
                                     "a"));
  DataConfig config = config_for(folder);
  config.train = {source_at(folder / "d")};
  for (int i = 0; i < 2; ++i) {
    std::vector<std::string> notices;
    DataOptions o = options(4);
    o.report = [&](const std::string& message) {
      if (contains(message, "notice:")) notices.push_back(message);
    };
    open_training_data(config, ByteTokenizer(), o);
    REQUIRE(notices.size() == 1);
    CHECK(contains(notices[0], "notice: data.train.0: " + (folder / "d").string()));
    CHECK(contains(notices[0], "1 that is no UTF-8 (" + (folder / "d/a.txt").string() + " at byte 3)"));
    CHECK(contains(notices[0], "2 that holds NUL (" + (folder / "d/b.txt").string() + " at byte 1; "));
    CHECK(contains(notices[0], "c.jsonl:1)"));
    CHECK(contains(notices[0], "1 that looks like UTF-16 (" + (folder / "d/e.txt.gz").string() + ")"));
  }
}
