// The loop that executes a schedule on one rank: the only place where instructions become calls. It knows units, memory
// and handles; not the model's kind, the data's origin or the optimizer.
//
// Transfers run beside the compute: what arrives is waited for right before its use, what leaves when its memory is
// needed again, or at the end of the step; each by itself. In which order they are posted is the plan's business
// (plan/activation_plan.h).
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "backend/mirrored_buffer.h"
#include "base/process/work_count.h"
#include "infer/stage_memory.h"
#include "nn/transformer.h"
#include "parallel/schedule/execution.h"
#include "store/param_store.h"

namespace scaletrain {

// Where micro-batches come from. fill() writes the positions, and ids, targets and documents where their spans are not
// empty: only the model's ends need ids and targets, and nothing is to be read for a stage that needs none of them. It
// returns the unmasked targets (0 where none are wanted). A stage asks for a micro-batch once for each of its chunks,
// and at most once for its ids, and for its targets.
class MicroBatchSource {
 public:
  struct Filled {
    std::int64_t target_tokens = 0;
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
    std::uint64_t seed = 0;            // of the run
    WorkCount* work = nullptr;         // of finished passes through units, and of transfers that have come through
  };

  explicit StageExecutor(const Parts& parts);
  // Waits for the stream, whose work uses this object's memory. After a failure the communicators must have been
  // aborted (AbortOnException), or it waits for peers.
  ~StageExecutor();
  StageExecutor(const StageExecutor&) = delete;
  StageExecutor& operator=(const StageExecutor&) = delete;

  // For the memory of this executor's stage: made once, run at every step.
  // first_trained: of the step whose schedule it is.
  ExecutionOrder order_of(std::span<const ScheduleStep> steps, int first_trained = 0) const;

  // What the optimizer_step instruction does: called where the schedule has it, when no unit is acquired and what is
  // issued to the stream finds reduced gradients. sums() are the step's when the stream has run what was issued before:
  // who wants them waits for it, which the host does once in a step.
  using OptimizerStep = std::function<void()>;

  // Runs the instructions of one step. Transfers on a single stage are bugs here.
  // loss_gradient is the plan's constant, times the loss scale where there is one. Without an optimizer_step the
  // gradients are left for the caller to look at, and sums() may be read. further: the sums go on from those of the
  // part of the step that was run before, which nobody need have waited for. After an exception the executor is of no
  // more use.
  enum class SumsOf { this_part, further };
  void train(const ExecutionOrder& order, MicroBatchSource& source, double loss_gradient,
             const OptimizerStep& optimizer_step = {}, SumsOf sums_of = SumsOf::this_part);
  // Runs a part of an evaluation, and goes on with the sums of the parts before: in how many parts it is cut changes no
  // bit. Touches neither gradients nor anything that outlives it.
  ExecutionResult evaluate(const ExecutionOrder& order, MicroBatchSource& source, const ExecutionResult& before = {});
  // The same, for the sum of the losses of each sample by itself: losses[micro-batch · B + sample], of all that the
  // schedule executes; zero on a stage without the head. `losses` holds as many numbers, and what it held is forgotten.
  void evaluate_samples(const ExecutionOrder& order, MicroBatchSource& source, std::int64_t num_micro_batches,
                        const MirroredBuffer& losses, std::span<double> sums);

  // Of the step or the part of an evaluation that was last under way, as the host has them.
  ExecutionResult sums() const;
  // The host counts these itself: no wait.
  std::int64_t target_tokens() const { return target_tokens_; }

 private:
  // Which of so many places are free.
  class FreeList {
   public:
    explicit FreeList(std::int64_t count = 0);
    bool empty() const { return free_.empty(); }
    std::int64_t take();
    void add(std::int64_t place) { free_.push_back(place); }

   private:
    std::vector<std::int64_t> free_;
  };

  struct WorkKey {
    std::int64_t chunk = 0;
    MicroBatch micro_batch;
    auto operator<=>(const WorkKey&) const = default;
  };

  // A micro-batch in one chunk, from its forward to the last part of its backward; in an evaluation until its output
  // has been sent.
  struct InFlight {
    std::int64_t buffer = 0;
    std::int64_t work_set = -1;  // which of the plan's work regions, between backward_input and backward_weight
    std::int64_t input = -1;     // index into the plan's inputs; -1: none
    std::optional<Ticket> send;
    BatchContext batch;
    std::vector<Saved> saved;  // by unit of the chunk
    std::vector<WeightWork> work;
  };

  // A received bundle (an activation or a gradient) until its use.
  struct PendingReceive {
    std::int64_t buffer = 0;       // index into the plan's inputs, or gradient_inputs
    std::optional<Ticket> ticket;  // nothing: handed over in place
  };
  using PendingReceives = std::map<WorkKey, PendingReceive>;

  // A gradient on its way out.
  struct PendingSend {
    WorkKey key;
    std::int64_t buffer = 0;  // index into the plan's gradient_outputs
    std::optional<Ticket> ticket;
  };

  // Targets that were read together with the ids, for the chunk of this stage that holds the head.
  struct ReadTargets {
    std::vector<std::int32_t> values;
    std::int64_t num_unmasked = 0;
  };

  void begin(const ExecutionResult& sums);
  View sample_losses(MicroBatch micro_batch) const;
  View loss_sum() const { return loss_sum_.device(0, DType::f64, {1}); }
  void run(const ExecutionOrder& order, MicroBatchSource& source, const OptimizerStep& optimizer_step);
  void execute(const ExecutedInstruction& executed, const OptimizerStep& optimizer_step);
  void finish();
  void prefetch(int unit);
  void forward(const WorkKey& key, int next_unit);
  void fill(const WorkKey& key, InFlight& micro);
  void add_host_batch();
  HostBatch& free_host_batch();
  void backward(const WorkKey& key, const ExecutedInstruction& executed);
  void backward_weight(const WorkKey& key, const ExecutedInstruction& executed);
  Bundle outgoing_gradient(const WorkKey& key, int first_trained);
  void finish_reductions();

  void post(const Instruction& transfer);
  Ticket post(const Instruction& transfer, const Bundle& bundle);
  void wait(Ticket& ticket);
  std::int64_t take_received(PendingReceives& pending, const WorkKey& key);

  InFlight& find(const WorkKey& key);
  void retire(const WorkKey& key);
  std::int64_t free_buffer(std::int64_t chunk);
  std::int64_t free_gradient_output();
  void complete_first_send();

  const std::vector<int>& units_of(std::int64_t chunk) const;
  const Unit& unit_at(int index) const { return *parts_.model.units()[static_cast<std::size_t>(index)]; }
  bool holds_embedding(std::int64_t chunk) const;
  bool holds_head(std::int64_t chunk) const;
  Bundle input_bundle(std::int64_t buffer) const;
  Bundle gradient_bundle(std::int64_t buffer) const;
  Bundle output_of(const InFlight& micro) const;
  UnitRun unit_run(const InFlight& micro, const UnitWeights& weights, const UnitGradients* gradients) const;
  void copy(const Bundle& from, const Bundle& to);
  void tick();

  Parts parts_;
  std::size_t units_per_work_set_ = 0;
  bool holds_both_ends_ = false;        // in two chunks
  std::vector<FreeList> free_buffers_;  // by chunk
  FreeList work_sets_;
  FreeList inputs_;
  FreeList gradient_inputs_;
  FreeList gradient_outputs_;
  std::map<WorkKey, InFlight> in_flight_;
  std::vector<std::deque<MicroBatch>> senders_;  // by chunk: of an evaluation's micro-batches, oldest first
  PendingReceives activations_;
  PendingReceives gradients_;
  std::deque<PendingSend> pending_sends_;  // oldest first
  std::vector<std::int64_t> chunks_to_reduce_;
  std::map<MicroBatch, ReadTargets> read_targets_;
  std::deque<HostBatch> host_batches_;  // the one that was filled longest ago is the first
  MicroBatchSource* source_ = nullptr;
  Mode mode_ = Mode::train;
  double loss_gradient_ = 0.0;
  std::int64_t target_tokens_ = 0;
  MirroredBuffer loss_sum_;  // one number
  // Of an evaluation of samples: [micro-batches, B]; lent to it for as long as it runs.
  const MirroredBuffer* sample_losses_ = nullptr;
};

}  // namespace scaletrain
