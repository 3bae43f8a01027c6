// Eight ranks of which one dies at any system call of a save. Long: for scripts/soak.sh (--no-skip).
//   SCALETRAIN_SOAK_STRIDE  only every so many-th call (1)
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "storage.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int struck_step = 3;
constexpr int other_rank = 1;  // has tensors of its own to write

std::vector<std::string> eight_ranks(bool background) {
  return {"parallel.data=2",
          "parallel.tensor=2",
          "parallel.pipeline=2",
          "parallel.stage_layers=[1, 0]",
          "train.micro_batch=1",
          "supervise.max_restarts=1",
          std::string("checkpoint.background=") + (background ? "true" : "false")};
}

StorageFault fault_of(int rank, bool background) {
  return {.save = struck_step, .below = "checkpoints", .settings = eight_ranks(background), .rank = rank, .once = true};
}

std::string after_kill_of_one(const std::string& name, const StorageFault& fault, const Trajectory& whole) {
  const fs::path run = run_of_step(name, struck_step - 1);
  const Ended end = go_on(name, fault);
  if (end.exit_code != 0) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
  if (!end.says("killed by signal 9")) return "nobody was killed\n" + end.errors;
  if (trajectory_of(run).steps != whole.steps) return "other losses than undisturbed";
  for (const int step : {fault_steps - 1, fault_steps})
    if (!verifies(checkpoint(run, step))) return "step " + std::to_string(step) + " does not verify";
  return left_behind(run, "");
}

void check_kills(bool background) {
  const char* const text = std::getenv("SCALETRAIN_SOAK_STRIDE");
  const long stride = text == nullptr ? 1 : std::max(1L, std::atol(text));
  const std::vector<std::string> settings = eight_ranks(background);
  const fs::path run = run_of_step("eight-undisturbed", struck_step - 1);
  const Ended end = go_on("eight-undisturbed", {.settings = settings});
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const Trajectory whole = trajectory_of(run);
  int kills = 0;
  for (const int rank : {0, other_rank}) {
    const std::vector<StorageCall> calls = calls_of_save(fault_of(rank, background));
    CHECK(calls.size() >= (rank == 0 ? 30u : 5u));
    for (const StorageCall& call : calls) {
      if (call.number % stride != 0) continue;
      StorageFault fault = fault_of(rank, background);
      fault.action = "kill-before";
      fault.at = call.number;
      const std::string problem = after_kill_of_one("eight", fault, whole);
      CHECK_MESSAGE(problem.empty(), "rank ", rank, " before call ", call.number, " ", call.kind, " ", call.path, ": ",
                    problem);
      ++kills;
    }
  }
  std::cout << kills << " kills of one of eight ranks at a call of a save in the " << (background ? "back" : "fore")
            << "ground" << std::endl;
}

TEST_CASE("one_of_eight_ranks_killed_at_any_system_call_of_a_save_costs_nothing" * doctest::skip()) {
  check_kills(false);
}

TEST_CASE("one_of_eight_ranks_killed_at_any_system_call_of_a_save_in_the_background_costs_nothing" * doctest::skip()) {
  check_kills(true);
}

}  // namespace
}  // namespace scaletrain
