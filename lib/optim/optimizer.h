// The update of the parameters from their gradients. What an optimizer remembers per element lives in the states of the
// parameter store, under the names that it declares here; what changes from step to step is in the step scalars.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"
#include "config/config.h"
#include "store/param_store.h"

namespace scaletrain {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Per-element state, zero at the start: ParamStore::Options::state_names, and the names in a checkpoint.
  virtual std::span<const std::string> state_names() const = 0;

  // Allocates what a step needs, which the first one does otherwise.
  virtual void prepare(Backend& backend) = 0;
  // Updates every range of the store, which must have been made with these state names, and then tells it, so that
  // cached compute forms are dropped and replicas gather each other's pieces: no unit may be acquired. With step.skip
  // nothing changes. The stream must have run what the call before has issued. One thread at a time.
  virtual void step(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) = 0;
};

// adamw: states "exp_avg", "exp_avg_sq" (the names of PyTorch's state). sgd: no states. Weight decay is on the
// parameters that the table says decay.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config);

}  // namespace scaletrain
