// One optimizer step of one rank, and evaluations between them: the schedule through the executor, the norm and the
// decision, the update. What the trainer, the benchmark and the equivalence tests all run on.
//
// Decisions are taken from one sum over the world, so that every rank takes the same: the gradient's norm, the loss,
// the token count, and the votes that ride along.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "backend/mirrored_buffer.h"
#include "base/process/work_count.h"
#include "optim/gradient_noise.h"
#include "optim/gradient_norm.h"
#include "optim/optimizer.h"
#include "optim/step_scalars.h"
#include "optim/weight_average.h"
#include "plan/run_plan.h"
#include "store/rank_groups.h"
#include "train/step/stage_executor.h"

namespace scaletrain {

class StepRunner {
 public:
  struct Parts {
    const PhasePlan& plan;
    Rank rank;
    Backend& backend;
    Stream& stream;
    const Transformer& model;
    ParamStore& store;
    Optimizer& optimizer;
    StageMemory& memory;
    const RankGroups& groups;
    WorkCount* work = nullptr;  // of executed instructions
  };

  // What a rank wants after this step; any rank's wish is everyone's.
  struct Votes {
    bool interrupted = false;
    bool save = false;
  };
  // Asked as late as it can be, right before the ranks agree: a wish of the step's last moment is one of this step.
  using AskVotes = std::function<Votes()>;
  // Called right before the optimizer changes master weights and its states: returns when nobody reads them any more.
  using BeforeUpdate = std::function<void()>;

  struct Result {
    StepOutcome outcome;
    std::int64_t target_tokens = 0;  // of the global batch
    Votes votes;                     // of all ranks
    // Of a step in halves that was not skipped, where they can be told apart.
    std::optional<NoiseMeasurement> noise{};
  };

  explicit StepRunner(const Parts& parts);

  // source: this replica's micro-batches. After it the store's gradients are those of the whole batch (held ranges),
  // and the parameters are updated (or, with outcome.skip, as before).
  // micro_batches: of a step with fewer than the plan's, on each replica; 0: as many. context: tokens of a sample, the
  // plan's (0) or one of its shorter ones.
  Result step(MicroBatchSource& source, const StepSettings& settings, const AskVotes& votes = {},
              const BeforeUpdate& before_update = {}, std::int64_t micro_batches = 0, std::int64_t context = 0);

  // A half of a step's batch.
  struct Half {
    MicroBatchSource& source;
    std::int64_t samples = 0;  // halves_of() the batch (optim/gradient_noise.h)
  };
  // The same step in two parts, each with reductions of its own, whose sum is the gradient: so that the noise of the
  // gradient can be measured. The plan's store has second gradients. Its bits are those of a step of other
  // micro-batches.
  Result step_in_halves(const std::array<Half, 2>& halves, const StepSettings& settings, const AskVotes& votes = {},
                        const BeforeUpdate& before_update = {});

  // Sums over all micro-batches of all replicas: every replica runs num_micro_batches of its own (some may be empty).
  // Gradients and parameters stay as they are. They run in parts of bounded length: a schedule's size, and the time to
  // make one, do not grow with the set.
  struct EvaluationSums {
    double loss_sum = 0.0;
    std::int64_t target_tokens = 0;
    bool is_given_up = false;  // the sums are of no use
  };
  // wants_to_stop: asked before each part; where one rank says yes, all give the evaluation up. Empty: nobody is
  // asked.
  EvaluationSums evaluate(MicroBatchSource& source, std::int64_t num_micro_batches,
                          const std::function<bool()>& wants_to_stop = {});

  // The sum of the losses of every sample by itself, of all replicas: sums[(k · replicas + replica) · B + sample] of
  // micro-batch k of a replica. All ranks get the same; false: given up, and the sums are of no use.
  bool evaluate_samples(MicroBatchSource& source, std::int64_t num_micro_batches, std::span<double> sums,
                        const std::function<bool()>& wants_to_stop = {});

  // The averages of train.ema and the weights change places, until the next call: for evaluations in between, and
  // nothing else. before_update: as for a step.
  void swap_average(const BeforeUpdate& before_update = {});

  // Returns when all ranks have come here, or one of them is gone. Before all end for a reason that all have seen: who
  // ends first would otherwise take from the others the time to say so.
  void wait_for_all();

 private:
  // Of steps with shorter samples: in the memory of the others.
  struct Shorter {
    Shorter(const Parts& parts, ActivationPlan plan);
    StageMemory memory;
    StageExecutor executor;
  };
  StageExecutor& executor_for(std::int64_t context);
  // What the schedule's optimizer_step means. halves: where there are, the squares of both (which the stream has been
  // given to sum) are summed over the ranks together with the step's numbers.
  Result update(const StepSettings& settings, const AskVotes& votes, const BeforeUpdate& before_update,
                std::array<HalfGradient, 2>* halves = nullptr);
  // Of steps that train nothing before this unit.
  const ExecutionOrder& training_order(std::int64_t num_micro_batches, int first_trained);
  const ExecutionOrder& evaluation_part(std::int64_t num_micro_batches);

  Parts parts_;
  GradientSquares squares_;  // before the executor, which waits for what writes them
  StageExecutor executor_;
  std::map<std::int64_t, std::unique_ptr<Shorter>> shorter_;  // by context
  StageExecutor* training_executor_ = &executor_;             // of the step under way
  std::optional<WeightAverage> average_;
  std::map<std::pair<std::int64_t, int>, ExecutionOrder> training_;  // by the micro-batches and the first unit trained
  std::map<std::int64_t, ExecutionOrder> evaluation_;                // by the number of micro-batches
  std::optional<MirroredBuffer> sample_losses_;  // of an evaluation part; none before one asks for them
  std::size_t sample_losses_bytes_ = 0;
};

}  // namespace scaletrain
