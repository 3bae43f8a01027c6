// What the command line and the schema say, against reviewed files. SCALETRAIN_UPDATE_GOLDEN=1 in the environment
// rewrites them: a decision to be reviewed like an interface.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "support/program.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

void check_golden(const std::string& name, const std::vector<std::string>& arguments) {
  CAPTURE(name);
  const Ended ended = run_program({.executable = SCALETRAIN_PROGRAM, .arguments = arguments});
  CHECK(ended.exit_code == 0);
  const std::filesystem::path path =
      std::filesystem::path(SCALETRAIN_SOURCE_FOLDER) / "tests" / "golden" / "cli" / (name + ".txt");
  if (std::getenv("SCALETRAIN_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << ended.output;
  CHECK(ended.output == TempFolder::read(path));
  for (const std::string& line : split_text(ended.output, '\n')) CHECK_MESSAGE(line.size() <= 80, line);
}

}  // namespace

TEST_CASE("the help of every command is what was reviewed, in lines of at most 80 columns") {
  check_golden("help", {"--help"});
  for (const std::string command :
       {"run", "check", "schema", "plot", "metrics", "evaluate", "generate", "checkpoint", "data", "completion"})
    check_golden("help-" + command, {command, "--help"});
  for (const std::string command : {"list", "inspect", "verify", "export"})
    check_golden("help-checkpoint-" + command, {"checkpoint", command, "--help"});
  for (const std::string command : {"build", "merge", "inspect", "verify", "train-tokenizer"})
    check_golden("help-data-" + command, {"data", command, "--help"});
}

TEST_CASE("every key, its default and its meaning are what was reviewed") {
  check_golden("schema", {"schema"});
}

}  // namespace scaletrain
