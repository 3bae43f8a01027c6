// What a run knows besides its tensors: where it is, what it has consumed, the counters of its policies. All of it is
// in every checkpoint's manifest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/format/manifest.h"
#include "data/order/history.h"
#include "optim/gradient_noise.h"
#include "optim/loss_scale.h"
#include "optim/nonfinite_policy.h"
#include "optim/spike_policy.h"
#include "train/early_stop.h"

namespace scaletrain {

// The checkpoint that --resume PATH last named for a run: its save id, and that path; empty if none was named. By these
// the same command, given again, knows that the run has already left from there.
struct Branch {
  std::string root;
  std::string path;
};

struct RunState {
  std::int64_t step = 0;     // optimizer steps taken, skipped ones included
  std::int64_t updates = 0;  // of the optimizer: steps without the skipped ones; what bias correction counts
  NonfiniteState nonfinite;
  std::optional<LossScaleState> loss_scale;          // nothing where it is not dynamic
  std::optional<GradientNoiseState> gradient_noise;  // nothing where it is not measured
  std::optional<std::int64_t> batch;  // samples of the next step; nothing where train.global_batch is not auto
  SpikeState spike;                   // empty where the policy is not asked for
  std::int64_t generation = 0;
  // Steps of it that the learning rate goes by: warmup_steps() of run_length.h. Nothing: not settled yet, or a
  // checkpoint of an older program.
  std::optional<std::int64_t> warmup;
  ConsumptionHistory history;
  EarlyStopState early_stop;
  bool is_evaluation_due = false;           // of this step: the run was asked to leave before it was made
  std::optional<std::string> best_save_id;  // the checkpoint of the best evaluation
  std::string parent_save_id;               // the newest checkpoint of this branch
  Branch branch;
  std::optional<BaseModel> base;  // of adapters; rank 0 alone knows it
};

// Fills step, tokens, generation, parent, history and scalars. is_best: the checkpoint that is about to be written is
// the best one; its save id does not exist yet, and read_state() puts it in.
void write_state(const RunState& state, bool is_best, Manifest& manifest);
// InputError naming `where` (the manifest's path) if something is missing or out of range.
RunState read_state(const Manifest& manifest, const std::string& where);
Branch branch_of(const Manifest& manifest);

}  // namespace scaletrain
