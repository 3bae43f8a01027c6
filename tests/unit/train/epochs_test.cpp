// train.epochs: a run as long as so many times all samples of its data.
#include <optional>

#include "train/run_length.h"
#include "train_helpers.h"

namespace scaletrain {
namespace {

// 10 samples of b.txt, in steps of 4; of train.txt there are 251.
const std::string kShortData = "data.train=[{path: b.txt}]";
const std::string kCappedData = "data.train=[{path: b.txt, epochs: 1}]";

std::string log_of_epochs(const TinyRun& run) {
  return TempFolder::read(run.paths.folder / "logs" / "rank-00000.log");
}

std::size_t steps_taken(const TinyRun& run) {
  return run.metrics().steps.size();
}

TEST_CASE("a run in epochs is the run of as many steps, to the bit") {
  TinyRun steps;
  steps.run({kShortData, "train.steps=5"});
  TinyRun epochs;
  CHECK(epochs.run({kShortData, "train.epochs=2"}) == ExitCode::finished);
  check_same_numbers(epochs.metrics(), steps.metrics());
  CHECK(contains(log_of_epochs(epochs), "train.epochs: 2 times 10 samples make 5 steps of 4 samples"));
  CHECK(contains(log_of_epochs(epochs), "this run = 2.00 epochs"));
}

TEST_CASE("a part of an epoch is as many of its samples, in whole steps") {
  TinyRun run;
  CHECK(run.run({kShortData, "train.epochs=1.5"}) == ExitCode::finished);
  CHECK(steps_taken(run) == 4);
  TinyRun least;
  CHECK(least.run({kShortData, "train.epochs=0.001", "train.lr_schedule.warmup=1"}) == ExitCode::finished);
  CHECK(steps_taken(least) == 1);
}

TEST_CASE("an epoch of several sources is all their samples, whatever their weights") {
  TinyRun run;
  CHECK(run.run({"data.train=[{path: b.txt, weight: 3}, {path: a.txt}]", "train.epochs=1"}) == ExitCode::finished);
  CHECK(steps_taken(run) == 8);  // 10 and 19 samples
  CHECK(contains(log_of_epochs(run), "train.epochs: 1 times 29 samples make 8 steps of 4 samples"));
  CHECK(contains(log_of_epochs(run), "this run = 2.40 epochs"));
  CHECK(contains(log_of_epochs(run), "this run = 0.42 epochs"));
}

TEST_CASE("a complete run in epochs goes on with more of them, and as another would have been") {
  TinyRun run;
  run.run({kShortData, "train.epochs=2"});
  const LoadedConfig same = run.config({kShortData, "train.epochs=2"});
  const auto complete = already_complete(run.prepare(same), same.config);
  REQUIRE(complete.has_value());
  CHECK(contains(*complete, "step 5, and 20 samples, 2 epochs of its data, are trained on; raise train.epochs"));
  CHECK(run.run({kShortData, "train.epochs=3"}) == ExitCode::finished);
  CHECK(steps_taken(run) == 8);
  TinyRun whole;
  whole.run({kShortData, "train.steps=5"});
  whole.run({kShortData, "train.steps=8"});
  check_same_numbers(run.metrics(), whole.metrics());
  // Other units tell the same run.
  CHECK(run.run({kShortData, "train.steps=9"}) == ExitCode::finished);
  CHECK(steps_taken(run) == 9);
}

TEST_CASE("a run in epochs that was interrupted ends as if it had not been") {
  TinyRun whole;
  whole.run({kShortData, "train.epochs=3"});
  TinyRun run;
  CHECK(run.run({kShortData, "train.epochs=3"}, 3) == ExitCode::interrupted);
  CHECK(run.run({kShortData, "train.epochs=3"}) == ExitCode::finished);
  check_same_numbers(run.metrics(), whole.metrics());
}

TEST_CASE("epochs are trained to their end when the batch changes at a resume") {
  TinyRun run;
  run.run({kShortData, "train.epochs=2"}, 3);  // 12 of 20 samples
  CHECK(run.run({kShortData, "train.epochs=2", "train.global_batch=2"}) == ExitCode::finished);
  CHECK(steps_taken(run) == 3 + 4);
}

TEST_CASE("a folder that gains files makes a run in epochs longer") {
  TinyRun run;
  run.folder.write("web/1.txt", sample_text(150, 3));
  const std::string web = "data.train=[{path: web}]";
  run.run({web, "train.epochs=2"}, 3);
  run.folder.write("web/2.txt", sample_text(150, 4));
  CHECK(run.run({web, "train.epochs=2"}) == ExitCode::finished);
  CHECK(steps_taken(run) == 10);  // 40 samples
}

TEST_CASE("epoch caps that leave the samples leave a run its whole steps, and others refuse it") {
  TinyRun run;
  CHECK(run.run({kCappedData, "train.epochs=1"}) == ExitCode::finished);
  CHECK(steps_taken(run) == 2);
  TinyRun other;
  const std::string refusal = message_of<UserError>([&] { other.run({kCappedData, "train.epochs=1.5"}); });
  CHECK(contains(refusal, "the 4 steps from here on need 16 samples and the epoch caps leave 10"));
  CHECK(contains(refusal, "reduce train.epochs"));
}

TEST_CASE("a warm-up longer than the epochs is refused once their steps are known") {
  TinyRun run;
  CHECK(message_of<UserError>([&] {
          run.run({kShortData, "train.epochs=1", "train.lr_schedule.warmup=4"});
        }) ==
        "train.lr_schedule.warmup: warm-up of 4 steps exceeds the run's 3 steps; lower it, leave it out (auto) or "
        "raise train.epochs");
  TinyRun automatic;
  CHECK(automatic.run({kShortData, "train.epochs=10", "train.lr_schedule.warmup=auto"}) == ExitCode::finished);
  CHECK(automatic.metrics().steps.front().learning_rate == 1e-2);  // 25 steps: one of warm-up
}

TEST_CASE("documents that a source holds out are evaluated on, and a resume goes on with the same") {
  const auto prepare = [](TinyRun& run) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "----\n" + sample_text(60, static_cast<unsigned>(i)) + "\n";
    run.folder.write("web.txt", text);
  };
  const std::vector<std::string> settings = {
      "data.train=[{path: web.txt, separator: '----', split: {validation: 20%, name: held}}]",
      "early_stop={metric: validation/held/loss, patience: 9}", "train.steps=8"};
  TinyRun whole;
  prepare(whole);
  CHECK(whole.run(settings) == ExitCode::finished);
  std::int64_t held = 0;
  for (const EvaluationRecord& evaluation : whole.metrics().evaluations) held += evaluation.dataset == "held" ? 1 : 0;
  CHECK(held == 2);
  TinyRun run;
  prepare(run);
  CHECK(run.run(settings, 5) == ExitCode::interrupted);
  CHECK(run.run(settings) == ExitCode::finished);
  check_same_numbers(run.metrics(), whole.metrics());
}

TEST_CASE("steps of epochs are counted in whole batches") {
  CHECK(steps_of_epochs(1.1, 10, 0, std::nullopt, 1) == 11);  // not the 12 of 11.000000000000002
  CHECK(steps_of_epochs(1.0, 10, 12, std::nullopt, 4) == 0);
  CHECK(steps_of_epochs(2.0, 10, 4, std::nullopt, 4) == 4);
  CHECK(steps_of_epochs(1.0, 10, 0, 10, 4) == 2);
  CHECK(steps_of_epochs(1.0, 10, 0, 11, 4) == 2);
  CHECK(steps_of_epochs(1.0, 10, 0, 12, 4) == 3);
  CHECK(steps_of_epochs(1.0, 10, 0, 9, 4) == 3);
  // Less than a batch is not shortened to nothing: that step is refused. A run that has trained ends.
  CHECK(steps_of_epochs(1.0, 3, 0, 3, 4) == 1);
  CHECK(steps_of_epochs(2.0, 4, 4, 5, 8) == 0);
  CHECK(contains(message_of<UserError>([] { steps_of_epochs(1e6, std::int64_t{1} << 50, 0, std::nullopt, 4); }),
                 "more than can be counted"));
}

}  // namespace
}  // namespace scaletrain
