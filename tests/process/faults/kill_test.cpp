// A kill at every system call of a save, its pruning included: the old checkpoint or the new one, never neither.
#include <doctest/doctest.h>

#include "storage.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int agent_exit = 4;  // the agent's, when its worker dies and no restart is left

// The run of `step` - 1 is killed in the save of `step`, then started again by the same command.
std::string after_kill_in_the_foreground(const std::string& name, const StorageFault& fault, bool is_committed) {
  const fs::path run = run_of_step(name, fault.save - 1);
  const Ended end = go_on(name, fault);
  if (end.exit_code != agent_exit) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
  const int newest = is_committed ? fault.save : fault.save - 1;
  const std::vector<std::string> names = checkpoint_names(run);
  if (names.empty() || names.back() != checkpoint(run, newest).filename()) return "not the newest checkpoint expected";
  for (const int step : {newest, newest - 1}) {
    if (step > 0 && !verifies(checkpoint(run, step))) return "step " + std::to_string(step) + " does not verify";
  }
  const Ended again = go_on(name);
  if (again.exit_code != 0)
    return "exit code of the second start " + std::to_string(again.exit_code) + "\n" + again.errors;
  if (!again.says("resuming from " + checkpoint(run, newest).string()))
    return "not resumed as expected\n" + again.errors;
  if (!has_restart_from(run, newest)) return "no line of the restart in the metrics";
  if (again.says("not usable")) return again.errors;
  return problem_of(run, {fault_steps - 1, fault_steps});
}

std::vector<SweepCase> kills_in_save(int step) {
  const std::vector<StorageCall> calls = calls_of_save(step, "");
  const long commit = commit_of(calls);
  std::vector<SweepCase> cases;
  // Between two calls nothing reaches the disk: dead before the next one is dead after this one. Tried for both only at
  // the commit and at the end.
  for (const StorageCall& call : calls) {
    for (const bool after : {false, true}) {
      if (after && call.number != commit && call.number != calls.back().number) continue;
      const StorageFault fault{.action = after ? "kill-after" : "kill-before", .at = call.number, .save = step};
      const bool is_committed = call.number > commit || (after && call.number == commit);
      cases.push_back(
          {fault.action + " " + std::to_string(call.number) + " " + call.kind + " " + call.path,
           [=](const std::string& name) { return after_kill_in_the_foreground(name, fault, is_committed); }});
    }
  }
  return cases;
}

TEST_CASE("a_kill_at_any_system_call_of_a_save_leaves_the_old_checkpoint_or_the_new_one") {
  const std::vector<SweepCase> cases = kills_in_save(3);
  MESSAGE(cases.size() << " kills");
  // Files, their syncs, the commit, the pruning of the oldest: fewer would mean that the library sees too little.
  CHECK(cases.size() > 60);
  for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
}

// Nothing older exists: the run begins again from the initial weights, or goes on from the one it has.
TEST_CASE("a_kill_at_any_system_call_of_the_first_save_costs_no_more_than_the_first_step") {
  const std::vector<StorageCall> calls = calls_of_save(1, "");
  const long commit = commit_of(calls);
  std::vector<SweepCase> cases;
  for (const StorageCall& call : calls) {
    // What no other save has: nothing older beside it. The files are written and closed as in any other.
    if (is_data_write(call) || call.kind == "close" || call.number > commit + 3) continue;
    const StorageFault fault{.action = "kill-before", .at = call.number, .save = 1};
    const bool is_committed = call.number > commit;
    cases.push_back({"kill before " + std::to_string(call.number) + " " + call.kind + " " + call.path,
                     [=](const std::string& name) -> std::string {
                       const fs::path run = run_of_step(name, 0);
                       if (const Ended end = go_on(name, fault); end.exit_code != agent_exit) return end.errors;
                       if (checkpoint_names(run).size() != (is_committed ? 1u : 0u))
                         return "not the checkpoint expected";
                       const Ended again = go_on(name);
                       if (again.exit_code != 0) return again.errors;
                       if (again.says("resuming from") != is_committed)
                         return "not resumed as expected\n" + again.errors;
                       return problem_of(run, {fault_steps - 1, fault_steps});
                     }});
  }
  CHECK(cases.size() > 10);
  for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
}

}  // namespace
}  // namespace scaletrain
