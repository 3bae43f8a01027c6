// What `scaletrain check` prints, against reviewed files. SCALETRAIN_UPDATE_GOLDEN=1 in the environment rewrites them:
// a decision to be reviewed like an interface.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "plan/describe/describe.h"
#include "plan/describe/devices.h"
#include "plan_helpers.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

// The kernels' workspace and the memory depend on the machine; the plan itself does not.
constexpr std::uint64_t memory = 64ull << 30;

void check_golden(const std::string& name, const Config& config, std::int64_t vocab,
                  const MemoryBudget& budget = {.name = "this machine", .memory = memory, .peak_flops = 1e12}) {
  CAPTURE(name);
  const RunPlan plan = make_run_plan(config, vocab, std::nullopt);
  for (const bool verbose : {false, true}) {
    DescribeOptions options{.machine_memory = memory, .verbose = verbose};
    options.budget = budget;
    const std::string text = describe_plan(config, plan, options).text;
    const std::string file = name + (verbose ? "_verbose.txt" : ".txt");
    const std::filesystem::path path = std::filesystem::path(SCALETRAIN_GOLDEN) / "plans" / file;
    if (std::getenv("SCALETRAIN_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
    CHECK(text == TempFolder::read(path));
  }
}

}  // namespace

TEST_CASE("the printed plan of one rank and of eight is what was reviewed") {
  Config config = planned_config();
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
  config.run.device = DeviceKind::cuda;  // as check --device plans, in bf16
  const DeviceModel& device = *find_device("h100");
  check_golden("llama_405b_16384_ranks", config, 128256,
               {.kind = MemoryBudget::Kind::device,
                .name = std::string(device.title),
                .memory = device.memory,
                .peak_flops = *peak_flops(device, Precision::bf16)});
}

}  // namespace scaletrain
