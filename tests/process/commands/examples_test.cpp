// The example configs that follow one another, by the commands that they begin with: what a newcomer copies works.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "process/tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// A folder with the configs and the quickstart's data where they look for it.
const fs::path& examples() {
  static const fs::path folder = [] {
    const fs::path source = SCALETRAIN_SOURCE_FOLDER;
    const fs::path data = source / "build" / "quickstart-data";
    REQUIRE_MESSAGE(fs::exists(data), data.string(), " is missing; scripts/test.sh makes it");
    fs::path name = workspace() / "examples";
    fs::create_directories(name / "build");
    fs::copy(source / "configs", name / "configs", fs::copy_options::recursive);
    fs::create_directory_symlink(data, name / "build" / "quickstart-data");
    return name;
  }();
  return folder;
}

// "#   scaletrain ..." of a config's head, with the lines that a backslash joins.
std::vector<std::string> commands_of(const std::string& config) {
  std::vector<std::string> commands;
  bool goes_on = false;
  for (const std::string& line : split_text(read_file(examples() / "configs" / config), '\n')) {
    if (!line.starts_with("#")) break;
    std::string text = line.substr(1);
    if (goes_on) {
      commands.back() += text;
    } else if (text.find_first_not_of(' ') != std::string::npos &&
               text.substr(text.find_first_not_of(' ')).starts_with("scaletrain ")) {
      commands.push_back(text);
    } else {
      continue;
    }
    goes_on = commands.back().ends_with("\\");
    if (goes_on) commands.back().pop_back();
  }
  return commands;
}

constexpr const char* few_steps = " --set train.steps=3 --set train.lr_schedule.warmup=1";

// By a shell, as they stand, but for so few steps.
void follow(const std::string& config, const std::string& settings = few_steps) {
  const std::vector<std::string> commands = commands_of(config);
  REQUIRE(commands.size() >= 3);
  for (std::string command : commands) {
    const std::size_t run = command.find("scaletrain run configs/");
    if (run != std::string::npos) command += settings;
    const Launch launch{.executable = "/bin/sh",
                        .arguments = {"-c", "set -e; PATH=" + fs::path(SCALETRAIN_PROGRAM).parent_path().string() +
                                                ":$PATH; " + command},
                        .directory = examples()};
    const Ended end = run_program(launch, 200.0);
    CHECK_MESSAGE(end.exit_code == 0, command, end.errors);
    CHECK_MESSAGE(end.errors.find("bug") == std::string::npos, command);
  }
}

}  // namespace

TEST_CASE("the_example_of_pretraining_runs_as_its_head_says_and_the_chat_model_that_is_made_of_it") {
  follow("pretrain.yaml", std::string(few_steps) + " --set evaluate.batches=1");
  follow("finetune-chat.yaml");
  const fs::path model = examples() / "build" / "finetuned";
  CHECK(fs::exists(model / "model.safetensors"));
  CHECK(fs::exists(model / "tokenizer.json"));
}

TEST_CASE("the_example_of_adapters_runs_as_its_head_says_behind_the_quickstart") {
  const Launch quickstart{
      .executable = SCALETRAIN_PROGRAM,
      .arguments = {"run", "configs/quickstart.yaml", "--set", "train.steps=3", "--set", "train.lr_schedule.warmup=1",
                    "--set", "evaluate.batches=1", "--set", "parallel={data: 1, tensor: 1, pipeline: 1}"},
      .directory = examples()};
  const Ended end = run_program(quickstart, 200.0);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  follow("finetune-lora.yaml");
  CHECK(fs::exists(examples() / "build" / "adapter" / "adapter_config.json"));
}

}  // namespace scaletrain
