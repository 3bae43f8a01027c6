// The update of the parameters from their gradients. What an optimizer remembers per element lives in the states of the
// parameter store, under the names that it declares here; what changes from step to step is in the step scalars. What
// it needs of whole tensors (their norms, or all of them) it asks the ranks for itself, and declares what that takes of
// calls and of memory, so that the plan foretells it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/config.h"
#include "parallel/param_table.h"
#include "store/group_call.h"
#include "store/param_store.h"

namespace scaletrain {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Per-element state, zero at the start: ParamStore::Options::state_names, and the names in a checkpoint.
  virtual std::span<const std::string> state_names() const = 0;
  // By its place among them, the state that a parameter has no use of: ParamTable::leave_out_states. It may be there,
  // as zeros. -1: there is none.
  virtual int absent_state(const Parameter&) const { return -1; }
  // Whether factors stand for what is absent (Parameter::has_factors).
  virtual bool keeps_factors() const { return false; }
  // Numbers (f64) that step() sums over the ranks of a pipeline stage (sum_over_stage), once, before all else. Pure: of
  // a rank of this layout.
  virtual std::int64_t num_summed_over_stage(const ParamTable&, const ShardLayout&) const { return 0; }
  // Numbers (f64) that step() sums over all ranks (sum_over_world), once: 0 where each element is updated by itself.
  virtual std::int64_t num_summed(const ParamTable&) const { return 0; }

  // Calls that step() makes behind that sum, in their order; and bytes of the device's memory that it needs beside the
  // store's. Both pure: of a rank whose store is made with these options.
  virtual std::vector<GroupCall> calls(const ParamTable&, const ShardLayout&, const ParamStore::Options&) const {
    return {};
  }
  virtual std::size_t workspace_bytes(const ParamTable&, const ShardLayout&, const ParamStore::Options&) const {
    return 0;
  }
  // What these bytes hold, as the plan calls them; empty where there are none.
  virtual std::string workspace_name() const { return {}; }

  // The same of the host's memory, pinned in part: images of what is on the device are not counted.
  virtual std::size_t host_bytes(const ParamTable&, const ShardLayout&, const ParamStore::Options&) const { return 0; }

  // Of the products of matrices in a step of the rank, in the compute type, for the plan of its time. Pure.
  virtual double product_flops(const ParamTable&, const ShardLayout&, const ParamStore::Options&) const { return 0; }

  // Allocates what a step needs, which the first one does otherwise. The store must outlive the steps.
  virtual void prepare(Backend& backend, const ParamStore& store) = 0;
  // Issues what the next step() reads of masters and gradients as they now are, and its way to the host, where there is
  // something; needs prepare(). Who then waits for the stream, as for the gradient's norm, before step(), with the same
  // masters and gradients, spares step() a wait of its own; without this call step() does all itself.
  virtual void issue_sums(Stream&) {}
  // Updates every range of the store, which must have been made with these state names, and then tells it, so that
  // cached compute forms are dropped and replicas gather each other's pieces: no unit may be acquired. Parameters that
  // join later than this update (Parameter::joins_after, ParamStore::updates) stay as they are, and so does their
  // state; those that have joined on the way count their updates from there for the bias correction, each by itself, as
  // PyTorch's AdamW counts the steps of a group that was added (`step` has that of those trained from the start).
  // AdEMAMix's schedules count the run's. With step.skip nothing changes of parameters and states. Gradients are the
  // optimizer's from here on: it may write into them. The stream must have run what the call before has issued. One
  // thread at a time; all ranks make the same calls.
  virtual void step(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) = 0;
};

// Weight decay is on the parameters that the table says decay. States have the names of PyTorch's where it has them:
//   adamw     exp_avg, exp_avg_sq
//   sgd       momentum_buffer; none where the momentum is 0
//   lion      exp_avg
//   lamb      exp_avg, exp_avg_sq
//   lars      momentum_buffer; none where the momentum is 0
//   ademamix  exp_avg, exp_avg_slow, exp_avg_sq
//   muon      exp_avg, exp_avg_sq; of the matrices that it orthogonalises exp_avg, its momentum, alone
//   adafactor variance; of matrices its factors, by rows and by columns
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config);

}  // namespace scaletrain
