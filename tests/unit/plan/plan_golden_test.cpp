// What `scaletrain check` prints, against reviewed files. SCALETRAIN_UPDATE_GOLDEN=1 in the environment rewrites them:
// a decision to be reviewed like an interface.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "plan/describe.h"
#include "plan_helpers.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

void check_golden(const std::string& name, const Config& config, std::int64_t vocab) {
  CAPTURE(name);
  // The kernels' workspace and the memory depend on the machine; the plan itself does not.
  constexpr std::uint64_t memory = 64ull << 30;
  const std::string text =
      describe_plan(config, make_run_plan(config, vocab, std::nullopt), {.machine_memory = memory}).text;
  const std::filesystem::path path = std::filesystem::path(SCALETRAIN_GOLDEN) / "plans" / (name + ".txt");
  if (std::getenv("SCALETRAIN_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  CHECK(text == TempFolder::read(path));
}

}  // namespace

TEST_CASE("the printed plan of one rank and of eight is what was reviewed") {
  Config config = tiny_config();
  check_golden("tiny_one_rank", config, 61);
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  check_golden("tiny_eight_ranks", config, 61);
}

TEST_CASE("the printed plan of Llama 405b on 16,384 ranks is what was reviewed") {
  Config config = preset_config("llama-405b");
  config.parallel.data = 128;
  config.parallel.tensor = 8;
  config.parallel.pipeline = 16;
  config.parallel.zero = 1;
  config.train.global_batch = 2048;
  config.train.micro_batch = 1;
  check_golden("llama_405b_16384_ranks", config, 128256);
}

}  // namespace scaletrain
