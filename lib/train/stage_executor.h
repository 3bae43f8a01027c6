// The loop that executes a schedule on one rank: the only place where instructions become calls. It knows units, memory
// and handles; not the model's kind, the data's origin or the optimizer.
//
// Transfers run beside the compute: what arrives is waited for right before its use, what leaves when its memory is
// needed again, or at the end of the step. In which order they are posted is the plan's business
// (plan/activation_plan.h).
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
// global number of the first sample. A stage asks for a micro-batch once for each of its chunks.
class MicroBatchSource {
 public:
  struct Filled {
    std::int64_t target_tokens = 0;
    std::int64_t first_sample = 0;
  };
  virtual ~MicroBatchSource() = default;
  virtual Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) = 0;
};

// Sums over the executed micro-batches; zero on a stage without the head.
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
    Communicator* pipeline = nullptr;  // null: a single stage; peers are stages
    // Counts finished pieces of work and transfers that have come through; a supervisor that sees it stand still knows
    // of a hang. May be null.
    std::atomic<std::uint64_t>* progress = nullptr;
  };

  explicit StageExecutor(const Parts& parts) : parts_(parts) {}

  // What the optimizer_step instruction does: called where the schedule has it, with the step's sums, when the stream
  // has run everything before it, gradients are reduced and no unit is acquired.
  using OptimizerStep = std::function<void(const ExecutionResult&)>;

  // Runs the instructions of one step (or one evaluation, which touches neither gradients nor anything that outlives
  // it). Recomputation, snapshots, and transfers on a single stage are bugs here. loss_gradient is the plan's constant.
  // Without an optimizer_step the gradients are left for the caller to look at. After an exception the executor is of
  // no more use.
  ExecutionResult run(std::span<const ScheduleStep> steps, MicroBatchSource& source, Phase phase, double loss_gradient,
                      const OptimizerStep& optimizer_step = {});

 private:
  // A transfer call under way; index into posted_.
  using Posting = std::size_t;
  struct Posted {
    Ticket ticket;
    bool is_done = false;
  };

  // A micro-batch in one chunk, from its forward to the last part of its backward; in an evaluation until its output
  // has been sent.
  struct Flight {
    MicroBatch micro_batch;
    std::int64_t chunk = 0;
    std::int64_t slot = 0;
    std::int64_t work_set = -1;  // which of the plan's work regions, between backward_input and backward_weight
    std::int64_t input = -1;     // index into the plan's inputs; -1: none
    std::optional<Posting> send;
    bool only_sends = false;
    BatchContext batch;
    std::vector<Saved> saved;  // by unit of the chunk
    std::vector<WeightWork> work;
  };

  // A received bundle (an activation or a gradient) until its use.
  struct Arrival {
    Opcode op = Opcode::receive_activation;
    MicroBatch micro_batch;
    std::int64_t chunk = 0;
    std::int64_t buffer = 0;         // index into the plan's inputs, or gradient_inputs
    std::optional<Posting> posting;  // nothing: handed over in place
  };

  // A gradient on its way out.
  struct Departure {
    MicroBatch micro_batch;
    std::int64_t chunk = 0;
    std::int64_t buffer = 0;  // index into the plan's gradient_outputs
    std::optional<Posting> posting;
  };

  void start(std::span<const ScheduleStep> steps, MicroBatchSource& source, Phase phase, double loss_gradient);
  void execute(const ScheduleStep& step, const OptimizerStep& optimizer_step);
  void finish();
  int first_unit_of(const Instruction& instruction) const;
  int first_unit_after(std::span<const ScheduleStep> order, std::size_t step) const;
  void prefetch(int unit);
  void forward(MicroBatch micro_batch, std::int64_t chunk);
  void backward(MicroBatch micro_batch, std::int64_t chunk, Opcode op);
  void backward_weight(MicroBatch micro_batch, std::int64_t chunk);
  Bundle outgoing_gradient(MicroBatch micro_batch, std::int64_t chunk);
  void finish_reductions();

  void post(std::span<const Instruction> transfers);
  Transfer prepare(const Instruction& instruction, Posting posting);
  void wait(Posting posting);
  Arrival take_arrival(Opcode op, MicroBatch micro_batch, std::int64_t chunk);

  Flight& find(MicroBatch micro_batch, std::int64_t chunk);
  void retire(MicroBatch micro_batch, std::int64_t chunk);
  std::int64_t free_slot(std::int64_t chunk);
  std::int64_t free_work_set() const;
  std::int64_t free_input();
  std::int64_t free_gradient_input() const;
  std::int64_t free_gradient_output();
  bool retire_sender(std::int64_t chunk);

  const std::vector<int>& units_of(std::int64_t chunk) const;
  const Unit& unit_at(int index) const { return *parts_.model.units()[static_cast<std::size_t>(index)]; }
  bool holds_embedding(std::int64_t chunk) const;
  bool holds_head(std::int64_t chunk) const;
  Bundle output_of(const Flight& flight) const;
  UnitRun unit_run(const Flight& flight, const UnitWeights& weights, const UnitGradients* gradients) const;
  void copy(const Bundle& from, const Bundle& to);
  void tick();

  Parts parts_;
  std::vector<Posted> posted_;
  std::vector<Flight> flights_;
  std::vector<Arrival> arrivals_;
  std::int64_t gradient_in_use_ = -1;  // index into the plan's gradient_inputs: of the backward under way
  std::vector<Departure> departures_;
  std::vector<std::int64_t> contributions_left_;  // by chunk: backwards that add to its gradients, still to come
  std::vector<std::int64_t> chunks_to_reduce_;
  int next_unit_ = -1;  // whose weights the work behind the step under way uses first; -1: none's
  MicroBatchSource* source_ = nullptr;
  Phase phase_ = Phase::train;
  double loss_gradient_ = 0.0;
  ExecutionResult result_;
};

}  // namespace scaletrain
