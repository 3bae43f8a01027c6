// A save whose name is taken by a checkpoint of an abandoned branch: the two change places in one call, or one after
// the other where the file system cannot do that. Kills and failures at the calls around it.
#include <doctest/doctest.h>

#include <algorithm>

#include "storage.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int replaced = 3;

// The newest checkpoint is that of step 2, of generation 1; that of step 3 is of generation 0, from before it.
fs::path branched_run(const std::string& name) {
  fs::path run = run_of_step(name, replaced - 1);
  fs::copy(checkpoint(undisturbed_steps(), replaced), checkpoint(run, replaced), fs::copy_options::recursive);
  nlohmann::json manifest = open_manifest(checkpoint(run, replaced - 1));
  manifest["generation"] = 1;
  seal_manifest(checkpoint(run, replaced - 1), manifest);
  return run;
}

bool is_new(const fs::path& run) {
  const fs::path manifest = checkpoint(run, replaced) / "manifest.json";
  return fs::exists(manifest) && open_manifest(manifest.parent_path()).at("generation") == 2;
}

// The calls from shortly before the name changes hands to shortly after.
std::vector<StorageCall> calls_around_commit(bool no_exchange) {
  const std::string name = "branch-traced";
  const fs::path run = branched_run(name);
  const fs::path trace = workspace() / "branch-trace.txt";
  fs::remove(trace);
  const Ended end = go_on(name, {.save = replaced, .no_exchange = no_exchange}, trace);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(is_new(run));
  CHECK(hidden_names(run, ".abandoned-step-00000003").size() == 1);
  std::vector<StorageCall> calls = read_trace(trace, run);
  const auto is_rename = [](const StorageCall& call) { return call.kind == "rename"; };
  const auto first = std::find_if(calls.begin(), calls.end(), is_rename);
  REQUIRE(first != calls.end());
  constexpr long before = 3;
  constexpr long after = 12;
  const long number = first->number;
  std::erase_if(calls,
                [&](const StorageCall& call) { return call.number < number - before || call.number > number + after; });
  return calls;
}

std::string killed(const std::string& name, const StorageFault& fault) {
  const fs::path run = branched_run(name);
  if (const Ended end = go_on(name, fault); end.exit_code != 4) return end.errors;
  const bool committed = is_new(run);
  if (!fault.no_exchange && !verifies(checkpoint(run, replaced))) return "no checkpoint under the name";
  if (!verifies(checkpoint(run, replaced - 1))) return "the older checkpoint does not verify";
  const Ended again = go_on(name);
  if (again.exit_code != 0) return again.errors;
  if (!again.says("resuming from " + checkpoint(run, committed ? replaced : replaced - 1).string()))
    return again.errors;
  if (std::string problem = problem_of_steps(run, {3, 4}); !problem.empty()) return problem;
  return left_behind(run, ".abandoned-");
}

std::string refused(const std::string& name, const StorageFault& fault) {
  const fs::path run = branched_run(name);
  const Ended end = go_on(name, fault);
  if (end.exit_code != 0) return end.errors;
  const bool failed = has_failed_save(run, replaced);
  if (!failed && !is_new(run)) return "another checkpoint than the one that was saved has its name\n" + end.errors;
  if (std::string problem = problem_of_steps(run, failed ? std::vector{2, 4} : std::vector{3, 4}); !problem.empty())
    return problem;
  return left_behind(run, ".abandoned-");
}

using Test = std::string (*)(const std::string& name, const StorageFault& fault);

std::vector<SweepCase> cases_of(const std::string& action, bool no_exchange, Test test) {
  std::vector<SweepCase> cases;
  for (const StorageCall& call : calls_around_commit(no_exchange)) {
    const StorageFault fault{.action = action, .at = call.number, .save = replaced, .no_exchange = no_exchange};
    cases.push_back({action + (no_exchange ? " without exchange at " : " at ") + std::to_string(call.number) + " " +
                         call.kind + " " + call.path,
                     [=](const std::string& name) { return test(name, fault); }});
  }
  return cases;
}

TEST_CASE("a_kill_while_a_checkpoint_takes_the_name_of_an_abandoned_one_loses_neither_the_newest_nor_a_step") {
  for (const bool no_exchange : {false, true}) {
    for (const std::string& problem : sweep(cases_of("kill-before", no_exchange, killed))) FAIL_CHECK(problem);
  }
}

TEST_CASE("an_error_while_a_checkpoint_takes_the_name_of_an_abandoned_one_is_a_failed_save_or_none") {
  // EIO-after: the call took place and its answer was lost.
  for (const char* const action : {"EIO", "EIO-after"}) {
    for (const bool no_exchange : {false, true}) {
      for (const std::string& problem : sweep(cases_of(action, no_exchange, refused))) FAIL_CHECK(problem);
    }
  }
}

}  // namespace
}  // namespace scaletrain
