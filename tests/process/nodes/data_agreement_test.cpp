// Processes of a run whose hosts hold other files under one path. The path here leads through the folder that a process
// was started in, so that one config means two files.
#include <doctest/doctest.h>

#include "agents.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const Settings through_own_folder = {"data.train=[{path: /proc/self/cwd/train.txt}]", "parallel.data=2"};

// Of a host whose copy was cut short.
fs::path folder_of_other_host() {
  const std::string whole = read_file(workspace() / "train.txt");
  workspace().write("other-host/train.txt", whole.substr(0, whole.size() / 2));
  return workspace() / "other-host";
}

Launch launch_in(const fs::path& folder, const std::string& run, const Settings& more,
                 std::vector<std::pair<std::string, std::string>> environment) {
  Settings settings = through_own_folder;
  settings.insert(settings.end(), more.begin(), more.end());
  Launch launch = layout_launch(run, settings);
  launch.arguments.at(1) = (workspace() / "config.yaml").string();
  launch.directory = folder;
  launch.environment.insert(launch.environment.begin(), environment.begin(), environment.end());
  return launch;
}

void check_refused(const std::string& run, Program& first, Program& other) {
  const Ended other_end = other.wait(ranks_patience);
  const Ended first_end = first.wait(ranks_patience);
  CHECK_MESSAGE(first_end.exit_code == 3, first_end.errors);
  CHECK_MESSAGE(other_end.exit_code == 3, other_end.errors);
  CHECK_MESSAGE(first_end.says("rank 1 on host"), first_end.errors);
  CHECK(first_end.says("data.train.0: /proc/self/cwd/train.txt has "));
  CHECK(newest_step(layout_folder(run)) == 0);
  check_nothing_left(run);
}

}  // namespace

TEST_CASE("launched_ranks_that_find_other_data_under_one_path_take_no_step") {
  const auto launch = [](const fs::path& folder, const std::string& rank) {
    return launch_in(folder, "other-data-launched", {},
                     {{"RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", rank}, {"LOCAL_WORLD_SIZE", "2"}});
  };
  Program first(launch(workspace().path(), "0"));
  Program other(launch(folder_of_other_host(), "1"));
  check_refused("other-data-launched", first, other);

  // With the copy mended the same command trains.
  Program again(launch(workspace().path(), "0"));
  Program mended(launch(workspace().path(), "1"));
  CHECK_MESSAGE(again.wait(ranks_patience).exit_code == 0, again.errors());
  CHECK(mended.wait(ranks_patience).exit_code == 0);
  check_same_losses("other-data-launched");
}

TEST_CASE("agents_of_nodes_that_hold_other_data_under_one_path_take_no_step") {
  const auto launch = [](const fs::path& folder, const std::string& node) {
    return launch_in(folder, "other-data-nodes", {"launch.interface=lo"},
                     {{"SLURM_JOB_ID", "other-data"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_PROCID", node},
                      {"SLURM_NODEID", node},
                      {"SLURM_LOCALID", "0"}});
  };
  Program first(launch(workspace().path(), "0"));
  Program other(launch(folder_of_other_host(), "1"));
  check_refused("other-data-nodes", first, other);
}

}  // namespace scaletrain
