// What READMEs promise. The table of faults in tests/process names tests: each must exist, or the table tells of
// protection that is gone. The project's own is short, and what it begins with works.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <string>
#include <vector>

#include "base/text.h"
#include "process/tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const fs::path& tests_folder() {
  static const fs::path folder = fs::path(SCALETRAIN_SOURCE_FOLDER) / "tests";
  return folder;
}

std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression); at != std::sregex_iterator(); ++at)
    found.push_back((*at)[1]);
  return found;
}

// A name that is broken into several literals is one name.
std::string joined(const std::string& literals) {
  return std::regex_replace(literals, std::regex("\"\\s*\""), "");
}

struct Sources {
  std::vector<std::string> names;  // of test cases
  std::vector<std::string> files;  // without their endings
};

Sources sources() {
  Sources all;
  for (const auto& entry : fs::recursive_directory_iterator(tests_folder())) {
    if (entry.path().extension() != ".cpp") continue;
    all.files.push_back(entry.path().stem().string());
    for (const std::string& literals :
         matches(read_file(entry.path()), "TEST_CASE\\(\\s*\"((?:[^\"\\n]|\"\\s*\")*)\"\\s*[)*]"))
      all.names.push_back(joined(literals));
  }
  return all;
}

// "beginning...", "_ending", or a whole name.
bool is_name(const std::string& quoted, const std::string& name) {
  const std::size_t dots = quoted.rfind("...");
  if (dots != std::string::npos && dots + 3 == quoted.size()) return name.rfind(quoted.substr(0, dots), 0) == 0;
  if (quoted.front() == '_') return name.find(quoted) != std::string::npos;
  return name == quoted;
}

bool any_is(const std::vector<std::string>& names, const std::string& quoted) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return is_name(quoted, name); });
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Of every key of the schema that says so "key: what is not supported yet", in small letters.
std::vector<std::string> not_supported_yet(const std::string& schema) {
  const std::string mark = "    not supported yet: ";
  std::vector<std::string> entries;
  std::string key;
  bool is_within = false;
  for (const std::string& line : split_text(lower(schema), '\n')) {
    if (!line.starts_with(" ")) {
      key = line;
      is_within = false;
    } else if (line.starts_with(mark)) {
      entries.push_back(key + ": " + line.substr(mark.size()));
      is_within = true;
    } else if (is_within) {
      entries.back() += line.substr(3);
    }
  }
  return entries;
}

}  // namespace

TEST_CASE("every_test_that_the_table_of_faults_names_exists") {
  const std::string readme = read_file(tests_folder() / "process" / "README.md");
  const std::size_t table = readme.find("## Every fault and its test");
  REQUIRE(table != std::string::npos);
  const std::string text = readme.substr(table);
  const Sources known = sources();
  REQUIRE(known.names.size() > 500);
  std::size_t tests = 0;
  // Shorter ones are the cases of a test: *missing-file*.
  for (const std::string& quoted : matches(text, "\\*([a-z_][a-z0-9_ ,.'-]{11,})\\*")) {
    if (quoted.find_first_of("_ ") == std::string::npos) continue;
    ++tests;
    CHECK_MESSAGE(any_is(known.names, quoted), quoted, " is named in tests/process/README.md and is no test case");
  }
  CHECK(tests > 60);
  for (const std::string& quoted : matches(text, "`(?:[a-z]+/)*([a-z0-9_]+_(?:test|fuzz))`"))
    CHECK_MESSAGE(any_is(known.files, quoted), quoted, " is named in tests/process/README.md and is no file of tests");
}

TEST_CASE("what_the_readme_calls_not_yet_the_schema_calls_so_too") {
  const std::vector<std::string> missing = not_supported_yet(workspace().run({"schema"}).output);
  REQUIRE(missing.size() > 5);
  const std::string readme = read_file(tests_folder().parent_path() / "README.md");
  const std::size_t table = readme.find("| | works | not yet |");
  REQUIRE(table != std::string::npos);
  std::size_t features = 0;
  for (const std::string& row : split_text(readme.substr(table, readme.find("\n\n", table) - table), '\n')) {
    const std::vector<std::string> columns = split_text(row, '|');
    REQUIRE(columns.size() == 5);
    if (columns[3].starts_with("--") || columns[3] == " not yet ") continue;
    if (columns[1] == " commands ") continue;  // no keys: see below
    for (const std::string& feature : split_text(columns[3], ',')) {
      const std::vector<std::string> words = matches(lower(feature), "([a-z0-9]+)");
      if (words.empty()) continue;
      ++features;
      const bool is_missing = std::any_of(missing.begin(), missing.end(), [&](const std::string& entry) {
        return std::all_of(words.begin(), words.end(),
                           [&](const std::string& word) { return entry.find(word) != std::string::npos; });
      });
      CHECK_MESSAGE(is_missing, feature);
    }
  }
  CHECK(features > 4);
}

TEST_CASE("the_commands_that_the_readme_calls_working_exist_and_those_it_calls_not_yet_do_not") {
  const std::string readme = read_file(tests_folder().parent_path() / "README.md");
  const std::size_t row = readme.find("| commands |");
  REQUIRE(row != std::string::npos);
  const std::vector<std::string> columns = split_text(readme.substr(row, readme.find('\n', row) - row), '|');
  REQUIRE(columns.size() == 5);
  const auto help_of = [](const std::string& command) {
    std::vector<std::string> words = split_text(command, ' ');
    words.emplace_back("--help");
    return workspace().run(words);
  };
  const std::vector<std::string> works = matches(columns[2], "`([^`]+)`");
  const std::vector<std::string> missing = matches(columns[3], "`([^`]+)`");
  CHECK(works.size() > 8);
  CHECK(missing.size() >= 1);
  for (const std::string& command : works) CHECK_MESSAGE(help_of(command).exit_code == 0, command);
  for (const std::string& command : missing)
    CHECK_MESSAGE(workspace().run(split_text(command, ' ')).says("is not supported yet"), command);
}

TEST_CASE("the_readme_is_short_its_prose_narrow_and_its_code_fits_a_terminal") {
  const std::vector<std::string> lines = split_text(read_file(tests_folder().parent_path() / "README.md"), '\n');
  CHECK(lines.size() <= 201);  // the last one is empty
  std::size_t code = 0;
  bool is_code = false;
  for (const std::string& line : lines) {
    if (line.starts_with("```")) is_code = !is_code;
    if (!is_code && !line.starts_with("|")) CHECK_MESSAGE(line.size() <= 140, line);
    if (!is_code) continue;
    ++code;
    CHECK_MESSAGE(line.size() <= 80, line);
  }
  CHECK(code > 50);
}

TEST_CASE("the_config_that_the_readme_begins_with_is_a_run") {
  const std::string readme = read_file(tests_folder().parent_path() / "README.md");
  const std::string begin = "```yaml\n# my.yaml\n";
  const std::size_t from = readme.find(begin);
  REQUIRE(from != std::string::npos);
  const std::size_t to = readme.find("\n```", from);
  workspace().write("my.yaml", readme.substr(from + 8, to - from - 7));
  for (const char* folder : {"build/quickstart-data/train", "build/quickstart-data/held-out"}) {
    fs::create_directories(workspace() / folder);
    fs::copy_file(workspace() / "train.txt", workspace() / folder / "text.txt");
  }
  const Ended end = workspace().run({"check", "my.yaml"});
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK_MESSAGE(end.errors.empty(), end.errors);
  CHECK(end.output.find("200 of 32 samples") != std::string::npos);
}

}  // namespace scaletrain
