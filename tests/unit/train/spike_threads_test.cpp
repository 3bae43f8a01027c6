// Ranks that go back while saves are under way, small enough for a run under the thread sanitizer.
#include "spike_runs.h"

using namespace scaletrain;

TEST_CASE("ranks_that_save_in_the_background_go_back_together") {
  NoisyRun run;
  REQUIRE(
      all_are(run.run_ranks(2, {"parallel.data=2", "train.steps=26", "checkpoint.background=true", policy("rollback")}),
              ExitCode::finished));
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.restarts.size() == 1);
  CHECK(metrics.restarts[0].step == 15);
  CHECK(metrics.steps.size() == 26);
  CHECK(history_of(run.manifest(15)).segments().at(0).skipped == std::vector<SkippedRange>{{.first = 60, .count = 40}});
  for (const int rank : {0, 1}) CHECK(contains(run.log(rank), "training went back from step 25 to step 15"));
}
