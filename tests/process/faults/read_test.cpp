// Storage that cannot be read when a run starts again is not a damaged checkpoint: the run stops, and nothing is
// quarantined, passed over or begun anew.
#include <doctest/doctest.h>

#include "storage.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Both processes read: the agent verifies and chooses (`run`), the worker loads.
std::vector<SweepCase> read_cases_of(
    const std::string& command, const std::string& action,
    const std::function<std::string(const std::string&, const StorageFault&, const StorageCall&)>& test) {
  // The save that ends the trace begins by making its folder.
  const std::string kinds = "open,read,mkdir";
  std::vector<SweepCase> cases;
  for (const StorageCall& call : calls_of_resume(command, kinds)) {
    if (call.kind == "mkdir" || !call.is_on("/checkpoints")) continue;
    const StorageFault fault{.action = action, .at = call.number, .kinds = kinds, .command = command};
    cases.push_back({command + ", " + action + " at " + std::to_string(call.number) + " " + call.kind + " " + call.path,
                     [=](const std::string& name) { return test(name, fault, call); }});
  }
  return cases;
}

std::string read_refused(const std::string& name, const StorageFault& fault, const StorageCall& call) {
  const fs::path run = run_of_step(name, 2);
  const auto before = snapshot(run / "checkpoints");
  const std::string metrics = read_file(run / "metrics.jsonl");
  const Ended end = go_on(name, fault);
  if (end.exit_code != 3) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
  if (!end.says((run / call.path.substr(1)).string())) return "does not name it\n" + end.errors;
  if (!end.says("Input/output error")) return "does not say why\n" + end.errors;
  if (snapshot(run / "checkpoints") != before) return "the checkpoints were changed\n" + end.errors;
  if (read_file(run / "metrics.jsonl").find("\"step\":3,") != std::string::npos)
    return "a step was made\n" + end.errors;
  return {};
}

std::string read_is_repeated(const std::string& name, const StorageFault& fault, const StorageCall&) {
  const fs::path run = run_of_step(name, 2);
  const Ended end = go_on(name, fault);
  if (end.exit_code != 0) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
  return problem_of(run, {3, 4});
}

TEST_CASE("a_checkpoint_that_cannot_be_read_now_stops_the_run_with_3_and_nothing_is_quarantined") {
  for (const std::string command : {"run", "worker"}) {
    const std::vector<SweepCase> cases = read_cases_of(command, "EIO", read_refused);
    MESSAGE(command << ": " << cases.size() << " calls struck");
    CHECK(cases.size() > 5);
    for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
  }
}

TEST_CASE("an_interrupted_read_of_a_checkpoint_is_made_again") {
  for (const std::string command : {"run", "worker"}) {
    std::vector<SweepCase> cases = read_cases_of(command, "EINTR", read_is_repeated);
    // Listing a folder has no second try: the run stops, and nothing is lost.
    std::erase_if(cases, [](const SweepCase& one) { return one.text.ends_with("/checkpoints"); });
    CHECK(cases.size() > 5);
    for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
  }
}

}  // namespace
}  // namespace scaletrain
