#include "train/data/data_files.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/hash.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

TEST_CASE("names of files that were noted in another order are found all the same") {
  const TempFolder folder;
  const std::vector<SourceFiles> noted = {{.key = "data.train.0", .path = 7, .names = {30, 10, 20}}};
  write_data_files(folder / "data_files.json", noted);
  const std::vector<SourceFiles> read = read_data_files(folder / "data_files.json");
  REQUIRE(read.size() == 1);
  CHECK(read.front().key == "data.train.0");
  CHECK(read.front().path == 7);
  CHECK(read.front().names == std::vector<std::uint64_t>{10, 20, 30});
}

TEST_CASE("a folder whose files are not all known is left out of the note, which is told") {
  SourceContent whole;
  whole.key = "data.train.0";
  whole.path = "corpus";
  whole.files = {{.path = "corpus/b.txt"}, {.path = "corpus/a.txt"}};
  SourceContent cut = whole;
  cut.key = "data.train.1";
  cut.path = "large";
  cut.has_all_files = false;
  SourceContent file = whole;
  file.path = "corpus/b.txt";
  file.files = {{.path = file.path}};
  std::vector<std::string> told;
  const std::vector<SourceContent> contents = {whole, cut, file};
  const auto files = files_of_folders(contents, [&told](const std::string& text) { told.push_back(text); });
  REQUIRE(files.size() == 1);
  std::vector<std::uint64_t> names = {hash_text("a.txt"), hash_text("b.txt")};
  std::sort(names.begin(), names.end());
  CHECK(files.front().names == names);
  REQUIRE(told.size() == 1);
  CHECK(told.front().starts_with("data.train.1.path: a restart after a failure will read files that come to large"));
}

}  // namespace
}  // namespace scaletrain
