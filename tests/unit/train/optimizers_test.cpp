// Every optimizer in a whole run: interrupted and resumed, with what a resume may change of it.
#include "train_helpers.h"

using namespace scaletrain;

namespace {

// As a user writes them.
const std::vector<std::string> sections = {
    "train.optimizer={type: sgd, learning_rate: 1e-2, momentum: 0.9}",
    "train.optimizer={type: sgd, learning_rate: 1e-2, momentum: 0.9, nesterov: true}",
    "train.optimizer={type: lion, learning_rate: 1e-3, betas: [0.9, 0.99]}",
    "train.optimizer={type: lamb, learning_rate: 1e-2, epsilon: 1e-6}",
    "train.optimizer={type: lars, learning_rate: 1, momentum: 0.9, trust_coefficient: 0.02}",
    "train.optimizer={type: ademamix, learning_rate: 1e-2, alpha: 3, beta3: 0.999}",
    "train.optimizer={type: muon, learning_rate: 1e-2}",
    "train.optimizer={type: adafactor, learning_rate: 5e-2}",
};

}  // namespace

TEST_CASE("a run of any optimizer that was interrupted has the numbers of an undisturbed one to the bit") {
  for (const std::string& section : sections) {
    CAPTURE(section);
    TinyRun whole;
    CHECK(whole.run({section}) == ExitCode::finished);
    const Metrics metrics = whole.metrics();
    CHECK(metrics.steps.back().loss < metrics.steps.front().loss);
    TinyRun parts;
    CHECK(parts.run({section}, 7) == ExitCode::interrupted);
    CHECK(parts.run({section}) == ExitCode::finished);
    check_same_numbers(metrics, parts.metrics());
    CHECK(tensors_of(whole.checkpoint(12)) == tensors_of(parts.checkpoint(12)));
  }
}

TEST_CASE("the slow mean of AdEMAMix grows over the run, or over the steps that the config names") {
  const std::string section = "train.optimizer={type: ademamix, learning_rate: 1e-2, beta3: 0.99, slow_warmup: ";
  TinyRun of_run;
  of_run.run({section + "auto}"});
  TinyRun as_many;
  as_many.run({section + "12}"});
  check_same_numbers(of_run.metrics(), as_many.metrics());
  TinyRun shorter;
  shorter.run({section + "6}"});
  CHECK(shorter.metrics().steps.back().loss != of_run.metrics().steps.back().loss);
}

TEST_CASE("a resume may change an optimizer's numbers, but not what it remembers") {
  TinyRun run;
  run.run({sections[0]}, 3);
  CHECK(contains(message_of<UserError>([&] { run.prepare(run.config({sections[2]})); }), "train.optimizer.type"));
  CHECK(contains(message_of<UserError>([&] { run.prepare(run.config({"train.optimizer={type: sgd}"})); }),
                 "train.optimizer.momentum"));
  run.prepare(run.config({"train.optimizer={type: sgd, learning_rate: 1e-2, momentum: 0.5}"}));
  CHECK(run.noticed("this resume changes train.optimizer.momentum: 0.9 in the checkpoint, 0.5 now"));
  run.prepare(run.config({sections[1]}));
  CHECK(run.noticed("this resume changes train.optimizer.nesterov: "));
}

TEST_CASE("a resume may change a momentum, and neither begin nor end one") {
  const auto sgd = [](const std::string& momentum) {
    return "train.optimizer={type: sgd, learning_rate: 1e-2, momentum: " + momentum + "}";
  };
  // By the other momentum from the step behind the checkpoint on: as a run of it goes on from the same state.
  TinyRun changed;
  CHECK(changed.run({sgd("0.9")}, 6) == ExitCode::interrupted);
  TinyRun kept;
  CHECK(kept.run({sgd("0.9")}) == ExitCode::finished);
  CHECK(changed.run({sgd("0.5")}) == ExitCode::finished);
  const auto steps = [](const TinyRun& run) { return run.metrics().steps; };
  for (std::size_t i = 0; i < 7; ++i) CHECK(steps(changed).at(i).loss == steps(kept).at(i).loss);
  CHECK(steps(changed).at(7).loss != steps(kept).at(7).loss);
  const auto refusal = [](TinyRun& run, const std::string& section) {
    return message_of<UserError>([&] { run.prepare(run.config({section})); });
  };
  CHECK(contains(refusal(changed, sgd("0")), "train.optimizer.momentum"));
  TinyRun none;
  CHECK(none.run({sgd("0")}, 3) == ExitCode::interrupted);
  CHECK(contains(refusal(none, sgd("0.9")), "train.optimizer.momentum"));
  // Muon remembers by any of them.
  TinyRun muon;
  CHECK(muon.run({"train.optimizer={type: muon, learning_rate: 1e-2}"}, 3) == ExitCode::interrupted);
  CHECK(muon.run({"train.optimizer={type: muon, learning_rate: 1e-2, momentum: 0}"}, 2) == ExitCode::interrupted);
  CHECK(muon.noticed("this resume changes train.optimizer.momentum: 0.95 in the checkpoint, 0 now"));
}
