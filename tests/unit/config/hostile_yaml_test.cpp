#include <doctest/doctest.h>

#include <string>

#include "config/yaml/yaml_tree.h"
#include "config_helpers.h"
#include "support/processor_time.h"
#include "support/temp_folder.h"

using namespace scaletrain;

namespace {
std::string repeated(std::string_view part, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += part;
  return out;
}

// The report, with a promise that it came fast and is short.
std::string fast_errors(const std::string& text) {
  const double start = processor_seconds();
  std::string report = errors_of(text);
  const double seconds = processor_seconds() - start;
  // Against work that grows faster than the text. The bar of one second is measured on the real program
  // (tests/process): sanitizers slow this one.
  CHECK(seconds < 10.0);
  CHECK(report.size() < 20000);
  return report;
}
}  // namespace

TEST_CASE("deep nesting is refused with its place") {
  CHECK(contains(fast_errors("a: " + repeated("[", 100000)), "c.yaml:1:68: more than 64 levels"));
  CHECK(contains(fast_errors(repeated("{a: ", 100000)), "c.yaml:1:257: more than 64 levels"));
  CHECK(contains(fast_errors(repeated("- ", 40000)), "c.yaml:1:129: more than 64 levels"));
  CHECK(contains(fast_errors(repeated("? ", 40000)), "c.yaml:1:"));
  std::string stairs;
  for (std::size_t i = 0; i < 1300; ++i) stairs += std::string(i, ' ') + "a:\n";
  CHECK(contains(fast_errors(stairs), "c.yaml:65:65: more than 64 levels"));
  std::string lists;
  for (std::size_t i = 0; i < 1300; ++i) lists += std::string(i, ' ') + "-\n";
  CHECK(contains(fast_errors(lists), "more than 64 levels"));
}

TEST_CASE("brackets in text are no nesting") {
  const std::string brackets = repeated("[{", 200);
  CHECK(errors_of(kLeast + "run: {name: \"" + brackets.substr(0, 200) + "\"}") == "accepted");
  CHECK(errors_of("# " + brackets + "\n" + kLeast) == "accepted");
  CHECK(errors_of(kLeast + "run:\n  directory: x" + brackets + "\n") == "accepted");
  CHECK(contains(errors_of(kLeast + "run:\n  directory: |\n    " + brackets + "\n  name: ok\n"), "run.directory"));
}

TEST_CASE("alias bombs, anchors, tags and merge keys are refused with their places") {
  std::string bomb = "a0: &a0 [x, x]\n";
  for (int i = 1; i < 30; ++i)
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + repeated(" *a" + std::to_string(i - 1), 2) + "\n";
  const std::string report = fast_errors(bomb);
  CHECK(contains(report, "c.yaml:1:5: anchors"));
  CHECK(contains(report, "c.yaml:2:9: aliases"));
  CHECK(contains(errors_of("run: {seed: !!int 3}\n"), "c.yaml:1:13: tags"));
  CHECK(contains(errors_of("run: !foo {seed: 3}\n"), "c.yaml:1:6: tags"));
  CHECK(contains(errors_of("run:\n  <<: {seed: 3}\n"), "c.yaml:2:3: merge keys"));
}

TEST_CASE("a duplicate key is refused and names the first") {
  const std::string report = errors_of("train:\n  steps: 1\n  steps: 2\nrun: {name: a, name: b}\ntrain: {steps: 3}\n");
  CHECK(contains(report, "c.yaml:3:3: duplicate key \"steps\"; it stands first at line 2, column 3"));
  CHECK(contains(report, "c.yaml:4:16: duplicate key \"name\""));
  CHECK(contains(report, "c.yaml:5:1: duplicate key \"train\""));
}

TEST_CASE("bytes that are no text are refused with line and column") {
  CHECK(contains(errors_of("run:\n  name: a\xFF"
                           "b\n"),
                 "c.yaml:2:10: byte 0xff is not valid UTF-8"));
  CHECK(contains(errors_of(std::string("run:\n  name: a\0b\n", 17)), "c.yaml:2:10: control byte 0x00"));
  CHECK(contains(errors_of("run: {name: a}\n\x04\ntrain: {steps: 1}\n"), "c.yaml:2:1: control byte 0x04"));
  CHECK(contains(errors_of("run: {name: a}\r\rtrain: {}\n"), "c.yaml:1:15: control byte 0x0d"));
  CHECK(contains(errors_of(std::string("\xFF\xFEr\0u\0", 6)), "c.yaml:1:1: byte 0xff"));
  CHECK(contains(errors_of(std::string("r\0u\0n\0", 6)), "c.yaml:1:2: control byte 0x00"));
  CHECK(contains(errors_of(kLeast + "run: {name: \"a\\0b\"}\n"), "c.yaml:3:13: run.name: a control byte 0x00"));
  CHECK(contains(errors_of(kLeast + "run: {name: \"a\\nb\"}\n"), "run.name: a control byte 0x0a"));
}

TEST_CASE("a byte order mark and Windows line ends are fine") {
  CHECK(errors_of("\xEF\xBB\xBF" + kLeast) == "accepted");
  CHECK(errors_of("data:\r\n  train:\r\n    - path: x\r\ntrain:\r\n  steps: 200\r\n") == "accepted");
}

TEST_CASE("an open quote or bracket is reported where it was opened") {
  CHECK(contains(errors_of("run:\n  name: \"abc\ntrain:\n  steps: 3\n  x: \"y\"\n"),
                 "c.yaml:2:9: the quote \" opened here is not closed on its line"));
  CHECK(contains(errors_of("run:\n  name: 'it''s\n"), "c.yaml:2:9: the quote '"));
  CHECK(
      contains(errors_of("data:\n  train: [{path: x}\ntrain:\n  steps: 3\n"), "c.yaml:2:10: the bracket opened here"));
}

TEST_CASE("tabs, second documents, directives and odd keys are refused") {
  CHECK(contains(errors_of("run:\n\tname: a\n"), "c.yaml:2:1: a tab in the indentation"));
  CHECK(contains(errors_of(kLeast + "---\nrun: {name: b}\n"), "c.yaml:3:1: a second YAML document"));
  CHECK(contains(errors_of("%YAML 1.2\n---\n" + kLeast), "c.yaml:1:1: YAML directives"));
  CHECK(errors_of("---\n" + kLeast) == "accepted");
  CHECK(contains(errors_of("? [a, b]\n: 3\n"), "a list or a mapping as a key"));
  CHECK(contains(errors_of("null: 3\n"), "an empty key"));
  CHECK(contains(errors_of("a: b: c\n"), "c.yaml:1:5: not valid YAML"));
}

TEST_CASE("huge texts and lists are refused shortly and fast") {
  const std::string huge(900000, 'x');
  const std::string report = fast_errors(kLeast + "run: {name: " + huge + ", seed: " + huge.substr(0, 100000) + "}\n");
  CHECK(contains(report, "run.name: 900000 bytes of text; at most 4096 are allowed"));
  CHECK(report.size() < 1000);
  CHECK(fast_errors("run: {seed: " + huge + "}\n").size() < 1000);
  CHECK(fast_errors("run: {" + huge + ": 1}\n").size() < 2000);
  CHECK(fast_errors(huge + ": 1\n").size() < 2000);
  CHECK(contains(fast_errors("a: [" + repeated("1,", 400000) + "]\n"), "more than 100000 values"));
  CHECK(contains(fast_errors("a: [" + repeated("1,", 45000) + "]\n"), "unknown key \"a\""));
  CHECK(contains(fast_errors(repeated("a: 1\n", 20000)), "more errors"));
  std::string many;
  for (int i = 0; i < 30000; ++i) many += "key" + std::to_string(i) + ": 1\n";
  CHECK(contains(fast_errors(many), "and 29902 more errors"));  // 100 shown, and steps and data are missing
}

TEST_CASE("a file beyond 1 MiB is refused before it is read") {
  const TempFolder folder;
  const auto file = folder.write("big.yaml", kLeast + std::string((1 << 20) + 1, '#'));
  CHECK_THROWS_AS(load_config(file, {}), UserError);
  CHECK(contains(errors_of(std::string((1 << 20) + 1, '#')), "c.yaml:1:1: 1.00 MiB of YAML; a config is at most"));
  CHECK_THROWS_AS(load_config(folder / "none.yaml", {}), UserError);
  CHECK_THROWS_AS(load_config(folder.path(), {}), UserError);
  CHECK_THROWS_AS(load_config("/dev/zero", {}), UserError);
}

TEST_CASE("random bytes and torn configs end in a report, never in a crash") {
  const std::string pieces[] = {"[",    "{",   "}",   "]",     ":", ": ",    "- ", "\n",  "  ",   "\"",
                                "'",    "a",   "run", "train", "#", "|",     ">",  "&a",  "*a",   "!t",
                                "${X}", "$${", ",",   "? ",    "%", "---\n", "0",  "1.5", "null", "\t"};
  std::uint64_t state = 1;
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 3 == 0 ? kLeast : std::string();
    for (int i = 0; i < 24; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text += pieces[(state >> 33) % std::size(pieces)];
    }
    CHECK(!errors_of(text).empty());
    CHECK(!errors_of(kLeast, {text}).empty());
    CHECK(!errors_of(kLeast, {"run=" + text}).empty());
  }
}
