// Everything that is decided before a device is touched. Plans are pure values and functions of a rank: nothing in them
// has the size world times parameters, and nothing but this plan is executed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/host_access.h"
#include "checkpoint/save/save.h"
#include "comm/collective/tracing.h"
#include "config/config.h"
#include "nn/model_spec.h"
#include "parallel/mesh/groups.h"
#include "parallel/mesh/mesh.h"
#include "parallel/param_table.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/stage_split.h"
#include "parallel/shard_layout.h"
#include "plan/activation_plan.h"
#include "plan/memory_plan.h"
#include "store/param_store.h"

namespace scaletrain {

// One rank's traffic of one step in one group, by one collective.
struct CommunicationVolume {
  GroupKind kind = GroupKind::tensor;
  CollectiveKind collective = CollectiveKind::all_reduce;
  std::string purpose;        // "gradients", "weights", "activations" ...
  std::int64_t calls = 0;     // collectives, or messages sent
  std::int64_t elements = 0;  // sent by this rank
  std::uint64_t bytes = 0;
};

// What a rank's calls of one step come to.
struct RankTraffic {
  // Counted as direct_communicator.h sends it: of S elements over N ranks a reduce-scatter sends all but the own piece,
  // an all-gather its own piece N-1 times, an all-reduce both in turn (pieces as even as may be; a small one is sent
  // whole to every peer). Activations and weights travel in the compute type, gradients in that of
  // the masters, between replicas in that of precision.reduce.
  std::vector<CommunicationVolume> volumes;  // by group, purpose and collective
  // Bytes that the rank's communicators hold for sums under way, once each has made the largest that a step asks of it.
  std::size_t staging = 0;
};

// Numbers (f64) that a step sums over all ranks: the norm, the loss, the tokens, and the votes.
inline constexpr std::int64_t numbers_per_step = 5;
// Behind these, in a step in halves: the norms of both, and the tokens of the first.
inline constexpr std::int64_t numbers_per_halves = 3;
// And at the end of each set that they evaluate: its loss and its target tokens.
inline constexpr std::int64_t numbers_per_evaluation = 2;

// A training phase: a stretch of a run with one layout, one context and one mix. Most runs have one.
struct PhasePlan {
  std::int64_t first_step = 0;
  std::int64_t num_steps = 0;
  ModelSpec model;
  Mesh mesh;
  bool sequence = false;  // sequence shards between the tensor-parallel parts; never with a tensor degree of one
  ZeroPolicy zero;
  ParamTable table;
  ScheduleKind schedule_kind = ScheduleKind::one_f_one_b;
  std::int64_t chunks = 1;
  std::vector<StageBlocks> stages;  // virtual: pipeline degree times chunks
  std::int64_t global_batch = 0;    // samples per optimizer step
  // M, per replica and step. Where the batch does not divide, some have fewer samples than there is room for, or none:
  // data/order/history.h says which; what is missing is masked.
  std::int64_t num_micro_batches = 0;
  BatchShape micro_batch;  // at most train.micro_batch samples
  // Tokens of a sample in phases of the run that have fewer than the others, ascending. Steps of these compute in the
  // same memory, with as many samples to a micro-batch.
  std::vector<std::int64_t> shorter_contexts;
  DocumentAttention document_attention = DocumentAttention::across;
  DType compute = DType::f32;
  std::optional<DType> reduce;  // that gradients travel in between replicas; nothing: the masters' type
  // Of the memory that the ranks' devices compute in: by run.device, until a worker's backend says it.
  Space space = Space::host;
  // Where they compute in a device's memory, whether they may exchange from device to device: by launch.transport, and
  // until whoever places them knows that other ranks compute on a rank's device too.
  bool may_be_direct = false;
  std::int64_t ranks_per_host = 1;  // by launch.ranks_per_node, else as common hosts have devices
  ScratchRows scratch_rows;
  AttentionWorkspace attention_workspace;
  std::function<std::size_t(const Shape& weight)> packed_bytes;  // as the store's option
  std::vector<std::string> optimizer_states;                     // per-element state, by name; the average is the last
  std::int64_t numbers_per_update = 0;                           // that the optimizer sums over all ranks, of its own
  OptimizerConfig optimizer;
  std::optional<EmaConfig> ema;                       // of the weights
  std::optional<GradientNoiseConfig> gradient_noise;  // some steps are made in halves
  bool offload = false;                               // masters and that state lie in the host's memory
  bool background_saves = false;
  RecomputeKind recompute = RecomputeKind::none;
  std::uint64_t seed = 0;  // of the run
  // Back-propagated token losses are multiplied by this constant; the exact token count is folded into the update.
  double loss_gradient = 0.0;

  // The plan learns what its ranks compute on: a backend, or what there is to know of one before it is made.
  void compute_on(const Backend& backend);
  void compute_on(Space space_of_device, std::int64_t row_alignment, const AttentionWorkspace& workspace_of_attention);

  // The table's units that a pipeline rank holds, ascending.
  std::vector<int> units_of_stage(std::int64_t pipeline_rank) const;
  std::vector<int> units_of_chunk(std::int64_t pipeline_rank, std::int64_t chunk) const;
  UnitsByChunk units_by_chunk(std::int64_t pipeline_rank) const;
  ShardLayout layout(Rank rank) const;
  // Of steps with all micro-batches that train all that is ever trained.
  std::vector<ScheduleStep> schedule(Rank rank) const;
  // Of a step of so many samples, at most global_batch: M where it has that.
  std::int64_t micro_batches_of(std::int64_t batch) const;
  // The same of a step with fewer micro-batches, or one that trains nothing before this unit.
  std::vector<ScheduleStep> schedule(Rank rank, std::int64_t micro_batches, int first_trained) const;
  // The virtual stage that holds the unit: as make_schedule() is told.
  std::int64_t lowest_backward(int first_trained) const;
  // The rank's part of the model, as it trains.
  Transformer transformer(Rank rank) const;
  ActivationPlan activations(Rank rank) const;
  ActivationPlan activations(Rank rank, const ScheduleDepth& depth) const;
  // Of steps with so many tokens to a sample.
  ActivationPlan activations(Rank rank, const ScheduleDepth& depth, std::int64_t context) const;
  // Of the memory that activations of the shorter contexts' steps lie in, which is that of the others; 0: there are
  // none.
  std::size_t shorter_arena_bytes(Rank rank, const ScheduleDepth& depth) const;
  std::size_t shorter_arena_bytes(Rank rank) const;
  MemoryPlan memory(Rank rank, std::size_t backend_workspace) const;
  // The same for other steps than schedule(rank), or for those at hand: to make one stage's takes the orders of all.
  MemoryPlan memory(Rank rank, std::size_t backend_workspace, const ScheduleDepth& depth,
                    const RankTraffic& traffic) const;
  // Of masters, gradients and optimizer state: f32, with the f64 reference f64.
  DType masters() const { return accumulator_type(compute); }
  // How the rank's store is made, but for its groups. computed_in: by a backend of another type than the plan's.
  ParamStore::Options store_options() const;
  ParamStore::Options store_options(DType computed_in) const;
  TensorPart tensor_part(Rank rank) const;
  GroupFacts group_facts() const;
  // What the rank asks of its groups in one optimizer step (communication/step_calls.h), added up.
  RankTraffic traffic(Rank rank, const std::vector<ScheduleStep>& steps) const;
  std::vector<CommunicationVolume> communication(Rank rank) const { return traffic(rank, schedule(rank)).volumes; }
  // What the rank writes of a checkpoint, and into which files.
  std::vector<SavePiece> save_plan(Rank rank) const;
  // Pinned memory of the host, at most, through which a rank and its device's memory exchange values: batches on their
  // way, and pieces of what is loaded or saved (backend/host_access.h). 0 where the device's memory is the host's.
  std::size_t pinned_staging() const;
  // Of the device's memory, what its groups sum by where ranks may exchange from device to device; 0 elsewhere.
  std::size_t device_staging(Rank rank) const;
  // And what is connected for it, about: what NCCL takes.
  std::size_t device_connections(Rank rank) const;
  // Host memory that its checkpoints are copied to and written from in the background; 0 if they are not.
  std::size_t checkpoint_staging(Rank rank) const;
  std::size_t transfer_staging(const ActivationPlan& activation, Rank rank) const;
  // Whether ranks may exchange from device to device.
  bool is_direct() const;
};

// Where a device has memory of its own, micro-batches that the host has filled and it has not copied yet, at most: the
// host may be so many passes ahead of it.
inline constexpr std::int64_t batches_ahead = 16;

struct RunPlan {
  std::vector<PhasePlan> phases;
  std::vector<std::string> notices;  // for the user: what is planned and perhaps not meant
  const PhasePlan& phase_at(std::int64_t step) const;
};

// `vocab`: the tokenizer's size, used where the config says auto. `world`: the ranks there are; nothing: what the
// degrees say. UserError where the degrees do not fit the world, the heads, the layers or the batch
// (config/layout_rules.h), one line each.
RunPlan make_run_plan(const Config& config, std::int64_t vocab, std::optional<std::int64_t> world);

}  // namespace scaletrain
