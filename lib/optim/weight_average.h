// An exponential moving average of the weights that are trained: of each a state of the parameter store, behind the
// optimizer's own, so that it is divided among replicas, offloaded, saved and loaded as those are.
//
// The average of update 1 is what that update made; that of every later one is
//   average + (1 - decay) · (weights - average),
// in the type of the masters. A step that is skipped leaves it as it is. Frozen parameters have none: their average is
// themselves. Source: Polyak and Juditsky 1992, in the exponential form of Tarvainen and Valpola 2017; PyTorch's
// torch.optim.swa_utils has the same (AveragedModel with get_ema_multi_avg_fn).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "config/config.h"
#include "store/param_store.h"

namespace scaletrain {

class WeightAverage {
 public:
  // The state's name in the store and in checkpoints (average_state of checkpoint/state_name.h).
  static constexpr std::string_view state_name = average_state_name;

  explicit WeightAverage(const EmaConfig& config) : config_(config) {}

  // From here on the store's next updates are followed by the average's; `number`: of the optimizer's update that
  // comes, from 1. The store's last state is the average. end(): they are no more.
  void begin(Backend& backend, Stream& stream, ParamStore& store, std::int64_t number) const;
  static void end(ParamStore& store) { store.follow_updates({}); }
  // The averages take the places of the weights, and those theirs: for an evaluation, after which a second call brings
  // everything back, to the bit. No unit may be acquired, nobody else may read masters or states (a save), and in
  // between nothing may be saved.
  static void swap(Backend& backend, Stream& stream, ParamStore& store);

 private:
  EmaConfig config_;
};

// What a store of training holds of each element: the optimizer's states and, where it is asked for, the average.
std::vector<std::string> training_states(const TrainConfig& config);

}  // namespace scaletrain
