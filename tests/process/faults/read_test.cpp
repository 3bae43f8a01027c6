// Storage that cannot be read when a run starts again is not a damaged checkpoint: the run stops, and nothing is set
// aside, passed over or begun anew.
#include <doctest/doctest.h>

#include "storage.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> checkpoints_of(const fs::path& run) {
  return snapshot(run / "checkpoints");
}

// Both processes read: the agent verifies and chooses (`run`), the worker loads.
std::vector<SweepCase> cases_of(const std::string& command, const std::string& action) {
  std::vector<SweepCase> cases;
  for (const StorageCall& call : calls_of_resume(command, "open,read")) {
    const StorageFault fault{.action = action, .at = call.number, .kinds = "open,read", .command = command};
    cases.push_back({command + ", " + action + " at " + std::to_string(call.number) + " " + call.kind + " " + call.path,
                     [=](const std::string& name) -> std::string {
                       const fs::path run = run_of_step(name, 2);
                       const auto before = checkpoints_of(run);
                       const Ended end = go_on(name, fault);
                       if (action == "EINTR") {
                         if (end.exit_code != 0)
                           return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
                         return problem_of(run, {3, 4});
                       }
                       if (end.exit_code != 3) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
                       if (!end.says((run / call.path.substr(1)).string())) return "does not name it\n" + end.errors;
                       if (checkpoints_of(run) != before) return "the checkpoints were changed\n" + end.errors;
                       const Ended again = go_on(name);
                       if (again.exit_code != 0) return again.errors;
                       return problem_of(run, {3, 4});
                     }});
  }
  return cases;
}

TEST_CASE("a_checkpoint_that_cannot_be_read_now_stops_the_run_with_3_and_nothing_is_set_aside") {
  for (const char* command : {"run", "worker"}) {
    for (const char* action : {"EIO", "ESTALE"}) {
      const std::vector<SweepCase> cases = cases_of(command, action);
      MESSAGE(command << ": " << cases.size() << " calls struck");
      CHECK(cases.size() >= 3);
      for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
    }
  }
}

TEST_CASE("an_interrupted_read_of_a_checkpoint_is_made_again") {
  for (const char* command : {"run", "worker"}) {
    for (const std::string& problem : sweep(cases_of(command, "EINTR"))) FAIL_CHECK(problem);
  }
}

}  // namespace
}  // namespace scaletrain
