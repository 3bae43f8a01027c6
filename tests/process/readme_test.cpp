// The table of faults in this folder's README.md names tests: each must exist, or the table tells of protection that is
// gone.
#include <doctest/doctest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "tiny_run.h"

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

}  // namespace scaletrain
