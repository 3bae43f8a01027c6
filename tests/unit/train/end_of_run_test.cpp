#include "train/end_of_run.h"

#include "train_helpers.h"

using namespace scaletrain;

namespace {

void tell(EndOfRun& end, ExitCode code, const std::string& reason) {
  end.tell(code, reason, [](const std::string& text) { FAIL_CHECK(text); });
}

}  // namespace

TEST_CASE("a run that failed has one end line with code, reason and the last step") {
  TinyRun run;
  EndOfRun end(run.paths.metrics(), [] { return true; });
  struct Crash {};
  run.hooks.entered = [](std::int64_t step, bool) {
    if (step == 3) throw Crash();
  };
  CHECK_THROWS_AS(run.run(), Crash);
  CHECK(run.metrics().ends.empty());
  tell(end, ExitCode::diverged, "the loss is\nnot finite");
  tell(end, ExitCode::peer, "told before");
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.ends.size() == 1);
  CHECK(metrics.ends[0].step == 3);
  CHECK(metrics.ends[0].code == 5);
  CHECK(metrics.ends[0].reason == "the loss is\nnot finite");
  CHECK_FALSE(metrics.ends[0].wall_time.empty());
}

TEST_CASE("each start has an end of its own, and one that the worker told is not told again") {
  TinyRun run;
  EndOfRun first(run.paths.metrics(), [] { return true; });
  CHECK(run.run({}, 7) == ExitCode::interrupted);
  CHECK(run.metrics().ends.empty());  // whoever supervises knows whether the run has ended
  tell(first, ExitCode::interrupted, "");
  EndOfRun second(run.paths.metrics(), [] { return true; });
  tell(second, ExitCode::input, "no line was written by this start");
  EndOfRun third(run.paths.metrics(), [] { return true; });
  CHECK(run.run() == ExitCode::finished);
  tell(third, ExitCode::finished, "");
  tell(third, ExitCode::peer, "a worker was lost behind its end");
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.ends.size() == 3);
  CHECK(metrics.ends[0].step == 7);
  CHECK(metrics.ends[0].code == 75);
  CHECK(metrics.ends[0].reason == "interrupted");
  CHECK(metrics.ends[1].step == 7);
  CHECK(metrics.ends[1].code == 3);
  CHECK(metrics.ends[2].step == 12);
  CHECK(metrics.ends[2].code == 0);
  CHECK(metrics.ends[2].reason == "finished");
}

TEST_CASE("a start that failed before its first line does not make the next one a restart") {
  TinyRun run;
  open_run_folder(run.paths);
  EndOfRun end(run.paths.metrics(), [] { return true; });
  tell(end, ExitCode::input, "the data is damaged");
  REQUIRE(run.metrics().ends.size() == 1);
  CHECK(run.metrics().ends[0].step == 0);
  CHECK(run.run() == ExitCode::finished);
  CHECK(run.metrics().starts.size() == 1);
  CHECK(run.metrics().restarts.empty());
}

TEST_CASE("who has lost the run tells no end") {
  TinyRun run;
  open_run_folder(run.paths);
  EndOfRun end(run.paths.metrics(), [] { return false; });
  tell(end, ExitCode::peer, "the lock was lost");
  CHECK_FALSE(std::filesystem::exists(run.paths.metrics()));
}

TEST_CASE("a restart says why the training before it ended") {
  TinyRun run;
  CHECK(run.run({}, 7) == ExitCode::interrupted);
  StartPoint start = run.prepare(run.config());
  start.cause = "rank 3: worker 12 was killed by signal 9";
  CHECK(run.train(start, 2) == ExitCode::interrupted);
  CHECK(run.run() == ExitCode::finished);
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.restarts.size() == 2);
  CHECK(metrics.restarts[0].cause == "rank 3: worker 12 was killed by signal 9");
  CHECK(metrics.restarts[1].cause == "the run was started again");
}
