// A disk that is full for everything the run writes: its checkpoints, its metrics and its log.
#include <doctest/doctest.h>

#include "process/tiny_run.h"
#include "support/own_mounts.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a_disk_that_is_full_for_checkpoints_metrics_and_log_stops_no_step_and_loses_none") {
  const fs::path run = workspace() / "full";
  fs::create_directories(run);
  // Two checkpoints of 0.45 MiB fit beside metrics and logs, three do not.
  if (!mount_memory(run, 0, "size=1300k")) {
    MESSAGE("skipped: a disk that is full for everything needs the right to mount");
    return;
  }
  const Ended end = workspace().run(workspace().training("full"));
  INFO(end.errors);
  CHECK(end.exit_code == 3);  // the last state could not be kept
  CHECK(end.says("No space left on device"));
  CHECK(end.says("step " + std::to_string(tiny_steps) + "/" + std::to_string(tiny_steps)));
  CHECK(hidden_names(run, ".saving-").empty());
  const std::vector<std::string> names = checkpoint_names(run);
  REQUIRE(names.size() >= 2);
  CHECK(names.size() < 10);
  for (const std::string& name : names)
    CHECK(workspace().run({"checkpoint", "verify", (run / "checkpoints" / name).string()}).exit_code == 0);
  REQUIRE(::mount("none", run.c_str(), "tmpfs", MS_REMOUNT, "size=64m") == 0);
  const Ended again = workspace().run(workspace().training("full"));
  CHECK_MESSAGE(again.exit_code == 0, again.errors);
  CHECK(again.says("resuming from " + (run / "checkpoints" / names.back()).string()));
  CHECK(trajectory_of(run).steps == trajectory_of(undisturbed_run()).steps);
  CHECK(trajectory_of(run).evaluations == trajectory_of(undisturbed_run()).evaluations);
  ::umount(run.c_str());
}

}  // namespace
}  // namespace scaletrain
