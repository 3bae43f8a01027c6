// log.tensorboard: what TensorBoard shows of a run, whatever has become of it meanwhile.
#include <doctest/doctest.h>

#include <csignal>

#include "support/event_file_reader.h"
#include "tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double tensorboard_patience = 60.0;

// One value per step and tag, and those of metrics.jsonl.
void check_shown_as_in_metrics(const fs::path& run) {
  const Trajectory expected = trajectory_of(run);
  auto shown = EventFileReader::shown(run / "tensorboard");
  for (const char* tag : {"loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu", "step_seconds"}) {
    CAPTURE(tag);
    CHECK(shown[tag].size() == expected.steps.size());
    for (const auto& entry : shown[tag]) {
      const std::int64_t step = entry.first;
      CHECK_MESSAGE(entry.second.size() == 1, "step ", step);
    }
  }
  for (const auto& entry : expected.steps) {
    const long step = entry.first;
    CHECK_MESSAGE(shown["loss"][step] == std::vector<float>{std::stof(entry.second)}, "step ", step);
  }
  std::size_t evaluations = 0;
  for (const auto& entry : expected.evaluations) {
    const auto& [step, dataset] = entry.first;
    CHECK(shown["validation/" + dataset + "/loss"][step] == std::vector<float>{std::stof(entry.second)});
    ++evaluations;
  }
  for (const auto& [tag, values] : shown)
    if (tag.starts_with("validation/")) evaluations -= values.size();
  CHECK(evaluations == 0);
}

}  // namespace

TEST_CASE("tensorboard_shows_each_step_once_after_a_kill_and_after_going_back_to_an_older_checkpoint") {
  const fs::path run = workspace() / "seen";
  const auto arguments = workspace().training("seen", {"log.tensorboard=true", "supervise.max_restarts=0"});
  {
    Program agent(slowed(workspace().launch(arguments), 1.0, tensorboard_patience));
    REQUIRE(wait_until([&] { return newest_step(run) >= 50; }, tensorboard_patience));
    ::kill(agent.pid(), SIGKILL);
    agent.wait(tensorboard_patience);
  }
  const Ended resumed = workspace().run(arguments);
  REQUIRE_MESSAGE(resumed.exit_code == 0, resumed.errors);
  CHECK(trajectory_of(run).last_step() == tiny_steps);
  check_shown_as_in_metrics(run);
  // Of steps beyond which another branch begins, and a shorter one: what the run trains no more is not shown.
  auto back = workspace().training("seen", {"log.tensorboard=true", "train.steps=190"});
  back.insert(back.end(), {"--resume", checkpoint(run, 180).string()});
  const Ended again = workspace().run(back);
  REQUIRE_MESSAGE(again.exit_code == 0, again.errors);
  CHECK(trajectory_of(run).last_step() == 190);
  check_shown_as_in_metrics(run);
}

TEST_CASE("a_folder_for_tensorboard_that_cannot_be_made_ends_the_start_and_without_the_key_there_is_none") {
  const fs::path run = workspace() / "unseen";
  workspace().write("unseen/tensorboard", "a file");
  const std::vector<std::string> short_run = {"train.steps=20"};
  const Ended refused = workspace().run(workspace().training("unseen", {"log.tensorboard=true", short_run.front()}));
  CAPTURE(refused.errors);
  CHECK(refused.exit_code == 3);
  CHECK(refused.says((run / "tensorboard").string()));
  fs::remove(run / "tensorboard");
  CHECK(workspace().run(workspace().training("unseen", short_run)).exit_code == 0);
  CHECK_FALSE(fs::exists(run / "tensorboard"));
}

}  // namespace scaletrain
