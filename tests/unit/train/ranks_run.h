// A tiny run by several ranks, each a thread with the assembly that a worker process has.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/ranks/ranks.h"
#include "train_helpers.h"

namespace scaletrain {

struct RanksRun : TinyRun {
  RanksRun() {
    overrides_always = {"model.layers=2", "train.micro_batch=1", "train.optimizer.learning_rate=1e-3",
                        "train.lr_schedule.warmup=10", "checkpoint.keep=10"};
  }

  // Every rank's exit code. Rank `voter` is asked to leave in its `stop_at`th step of this start; with 0, as soon as it
  // has done any work.
  std::vector<ExitCode> run_ranks(int world_size, const std::vector<std::string>& overrides, int voter = -1,
                                  std::int64_t stop_at = 0) {
    const StartPoint start = prepare(config(overrides));
    if (before_start) before_start();
    InProcessWorld world(world_size);
    std::vector<ExitCode> codes(static_cast<std::size_t>(world_size), ExitCode::bug);
    run_threads(world, [&](Rank rank) {
      const auto store = world.make_store();
      const std::unique_ptr<std::FILE, int (*)(std::FILE*)> console(std::fopen("/dev/null", "w"), &std::fclose);
      WorkerOptions options;
      options.place.rank = rank;
      options.place.world = world_size;
      options.place.local_rank = rank.value();
      options.place.rendezvous = store.get();
      options.place.make_communicators = [&](const PhasePlan& phase, const LaunchConfig&,
                                             Backend&) -> CommunicatorFactory {
        return [&, facts = phase.group_facts()](const GroupSpec& spec) {
          auto group = make_direct_communicator(
              world.make_transport(spec.name, spec.members, rank),
              {.group_name = std::string(to_text(spec.kind)), .ranks = spec.members, .deadline = 60.0});
          return std::make_unique<FencedCommunicator>(std::move(group), memory_reach_of(spec.kind, facts));
        };
      };
      options.paths = paths;
      options.start = start;
      options.version = "test";
      options.threads = 1;
      use_backend(options);
      options.calibration_seconds = 0.01;
      options.looked_up_samples = looked_up_samples;
      options.hooks = hooks;
      if (rank_failed) options.failed = [&, rank](const std::exception_ptr&) { rank_failed(rank); };
      if (rank_entered)
        options.hooks.entered = [&](std::int64_t step, bool waiting) { rank_entered(rank, step, waiting); };
      options.console = console.get();
      std::int64_t asked = 0;
      WorkCount work{0};
      options.work = &work;
      if (rank == Rank(voter))
        options.hooks.interrupted = [&, stop_at] { return stop_at == 0 ? work > 0 : ++asked >= stop_at; };
      codes[static_cast<std::size_t>(rank.value())] = train_run(options);
    });
    return codes;
  }

  std::function<void()> before_start;  // after the run folder was prepared
  std::function<void(Rank, std::int64_t step, bool waiting)> rank_entered;
  std::function<void(Rank)> rank_failed;
};

inline bool all_are(const std::vector<ExitCode>& codes, ExitCode expected) {
  return std::all_of(codes.begin(), codes.end(), [expected](ExitCode code) { return code == expected; });
}

// The same run on another layout: the same steps, samples and losses, to rounding.
inline void check_same_losses(const Metrics& found, const Metrics& expected) {
  REQUIRE(found.steps.size() == expected.steps.size());
  for (std::size_t i = 0; i < expected.steps.size(); ++i) {
    CAPTURE(i);
    CHECK(found.steps[i].step == expected.steps[i].step);
    CHECK(found.steps[i].tokens == expected.steps[i].tokens);
    CHECK(found.steps[i].learning_rate == expected.steps[i].learning_rate);
    CHECK(std::abs(found.steps[i].loss - expected.steps[i].loss) <= 1e-5 * expected.steps[i].loss);
    CHECK(std::abs(found.steps[i].grad_norm - expected.steps[i].grad_norm) <= 1e-4 * expected.steps[i].grad_norm);
  }
  REQUIRE(found.evaluations.size() == expected.evaluations.size());
  for (std::size_t i = 0; i < expected.evaluations.size(); ++i) {
    CAPTURE(i);
    CHECK(found.evaluations[i].step == expected.evaluations[i].step);
    CHECK(found.evaluations[i].dataset == expected.evaluations[i].dataset);
    CHECK(found.evaluations[i].tokens == expected.evaluations[i].tokens);
    CHECK(std::abs(found.evaluations[i].loss - expected.evaluations[i].loss) <= 1e-5 * expected.evaluations[i].loss);
  }
}

}  // namespace scaletrain
