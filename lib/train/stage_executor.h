// The loop that executes a schedule on one rank: the only place where instructions become calls. It knows units, memory
// and handles; not the model's kind, the data's origin or the optimizer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "infer/stage_memory.h"
#include "nn/transformer.h"
#include "parallel/param_store.h"
#include "parallel/schedule.h"

namespace scaletrain {

// Where micro-batches come from. fill() writes ids, targets and positions and returns the unmasked targets and the
// global number of the first sample.
class MicroBatchSource {
 public:
  struct Filled {
    std::int64_t target_tokens = 0;
    std::int64_t first_sample = 0;
  };
  virtual ~MicroBatchSource() = default;
  virtual Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) = 0;
};

// Sums over the executed micro-batches.
struct ExecutionResult {
  double loss_sum = 0.0;  // over unmasked target tokens
  std::int64_t target_tokens = 0;
};

class StageExecutor {
 public:
  struct Parts {
    Backend& backend;
    Stream& stream;
    const Transformer& model;
    ParamStore& store;
    StageMemory& memory;
    Communicator* tensor = nullptr;    // null: a degree of one
    Communicator* pipeline = nullptr;  // null: a single stage
    // Counts finished pieces of work; a supervisor that sees it stand still knows of a hang. May be null.
    std::atomic<std::uint64_t>* progress = nullptr;
  };

  explicit StageExecutor(const Parts& parts) : parts_(parts) {}

  // What the optimizer_step instruction does: called where the schedule has it, with the step's sums, when the stream
  // has run everything before it and no unit is acquired.
  using OptimizerStep = std::function<void(const ExecutionResult&)>;

  // Runs the instructions of one step (or one evaluation). Transfers, recomputation and snapshots need what a single
  // stage in the foreground does not have: they are a bug here. loss_gradient is the plan's constant. Without an
  // optimizer_step the gradients are left for the caller to look at.
  ExecutionResult run(std::span<const ScheduleStep> steps, MicroBatchSource& source, Phase phase, double loss_gradient,
                      const OptimizerStep& optimizer_step = {});

 private:
  // A micro-batch under way.
  struct InFlight {
    MicroBatch micro_batch;
    std::int64_t slot = 0;
    std::int64_t work_set = -1;  // which of the plan's work regions, between backward_input and backward_weight
    BatchContext batch;
    std::vector<Saved> saved;  // by unit of the stage
    std::vector<WeightWork> work;
  };

  void acquire_chunk();
  void release_chunk();
  void forward(MicroBatch micro_batch);
  void backward(MicroBatch micro_batch, Opcode op);
  void backward_weight(MicroBatch micro_batch);
  InFlight& find(MicroBatch micro_batch);
  void retire(MicroBatch micro_batch);
  std::int64_t free_slot() const;
  std::int64_t free_work_set() const;
  UnitRun begin(const Unit& unit, const BatchContext& batch, bool with_gradients);
  void end(const Unit& unit);
  void tick();

  Parts parts_;
  std::vector<InFlight> in_flight_;
  MicroBatchSource* source_ = nullptr;
  Phase phase_ = Phase::train;
  double loss_gradient_ = 0.0;
  ExecutionResult result_;
};

}  // namespace scaletrain
