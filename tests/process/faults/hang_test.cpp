// Storage that never answers.
#include <doctest/doctest.h>

#include "storage.h"

namespace scaletrain {

namespace fs = std::filesystem;

TEST_CASE("a save whose storage never answers is told of, ended after ten heartbeats, and made by the next start") {
  const std::string name = "hung-storage";
  const fs::path run = run_of_step(name, 2);
  const Ended end = go_on(name, {.action = "hang",
                                 .at = 1,
                                 .save = 3,
                                 .kinds = "sync",
                                 .below = "checkpoints",
                                 .settings = {"supervise.heartbeat=1s"}});
  CHECK_MESSAGE(end.exit_code == 4, end.errors);
  // The library waits for a lock on the file instead.
  CHECK_MESSAGE(end.says("rank 0 has been in flock of "), end.errors);
  CHECK(end.says("the storage does not answer"));
  CHECK_MESSAGE(end.says("while nobody computed, read or wrote anything for "), end.errors);
  CHECK(read_file(run / "logs" / "rank-00000.log").find("taken for hung by the agent") != std::string::npos);
  const Ended again = go_on(name);
  CHECK_MESSAGE(again.exit_code == 0, again.errors);
  CHECK(problem_of(run, {3, 4}) == "");
}

}  // namespace scaletrain
