#include "plan/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/backend.h"
#include "backend/cuda_module.h"
#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "config/keys/keys.h"
#include "config/layout_rules.h"
#include "config/phases.h"
#include "nn/finetune.h"
#include "nn/lora.h"
#include "optim/optimizer.h"
#include "optim/weight_average.h"
#include "plan/hosts.h"
#include "plan/longest_wait.h"
#include "plan/size_limits.h"
#include "plan/stage_work.h"
#include "store/device_communicator.h"
#include "store/staged_communicator.h"

namespace scaletrain {

namespace {

// How a replica's largest share of the batch is cut: as few micro-batches as the config's size allows, of as even
// sizes as may be. Every replica runs as many; what it has no samples for stays empty.
struct BatchCut {
  std::int64_t count = 0;    // micro-batches per replica and step
  std::int64_t samples = 0;  // room in each
};
BatchCut cut_batch(const TrainConfig& train, std::int64_t replicas) {
  return {.count = micro_batches_of_replica(train, replicas), .samples = samples_of_micro_batch(train, replicas)};
}

// What the user should know of a batch that does not divide; empty if it does.
std::string padding_notice(const TrainConfig& train, std::int64_t replicas) {
  const BatchCut cut = cut_batch(train, replicas);
  const std::int64_t room = replicas * cut.count * cut.samples;
  std::string text;
  if (cut.samples != train.micro_batch)
    text = fmt::format("train.micro_batch: {} used in place of {}, to divide the {} of a replica evenly",
                       cut.samples == 1 ? "1 sample is" : fmt::format("{} samples are", cut.samples), train.micro_batch,
                       ceil_div(train.global_batch, replicas));
  if (room == train.global_batch) return text;
  const double idle = 100.0 * static_cast<double>(room - train.global_batch) / static_cast<double>(room);
  if (!text.empty()) text += "; ";
  return text + fmt::format(
                    "train.global_batch: {} leave {} of {} places empty ({} x {} x {}): {:.1f} % of the work is "
                    "idle",
                    counted(train.global_batch, "sample"), room - train.global_batch, room,
                    counted(replicas, "replica"), counted(cut.count, "micro-batch", "es"),
                    counted(cut.samples, "sample"), idle);
}

// Everything that does not fit is named at once.
void check_fits(const Config& config, std::int64_t data, const std::optional<WorldSize>& world) {
  std::string text;
  for (const LayoutProblem& problem : layout_problems(config, data, world))
    text += (text.empty() ? "" : "\n") + problem.text;
  if (!text.empty()) throw UserError(text);
}

std::vector<StageBlocks> make_stages(const ParallelConfig& parallel, const PhasePlan& phase) {
  if (parallel.stage_layers) return given_stages(*parallel.stage_layers);
  // Blocks that differ are divided by what they cost where stages have one chunk; else by their number.
  if (const std::vector<double> costs = block_costs(phase); !costs.empty() && parallel.chunks == 1)
    return split_stages(costs, parallel.pipeline, end_costs(phase));
  return split_stages(phase.model.layers, parallel.pipeline, parallel.chunks, end_costs(phase));
}

// What activations are stored in.
DType compute_type_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
    case Precision::tf32:
      return DType::f32;
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16:
      return DType::f16;
  }
  SCALETRAIN_CHECK(false);
}

}  // namespace

std::vector<int> PhasePlan::units_of_chunk(std::int64_t pipeline_rank, std::int64_t chunk) const {
  const StageBlocks& blocks = stages[static_cast<std::size_t>(chunk * mesh.degree(Axis::pipeline) + pipeline_rank)];
  std::vector<int> units;
  if (blocks.embedding) units.push_back(0);
  for (std::int64_t i = 0; i < blocks.count; ++i) units.push_back(narrow<int>(1 + blocks.first + i));
  if (blocks.head) units.push_back(narrow<int>(1 + model.layers));
  return units;
}

std::vector<int> PhasePlan::units_of_stage(std::int64_t pipeline_rank) const {
  std::vector<int> units;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::vector<int> more = units_of_chunk(pipeline_rank, chunk);
    units.insert(units.end(), more.begin(), more.end());
  }
  return units;
}

UnitsByChunk PhasePlan::units_by_chunk(std::int64_t pipeline_rank) const {
  UnitsByChunk units;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) units.push_back(units_of_chunk(pipeline_rank, chunk));
  return units;
}

ShardLayout PhasePlan::layout(Rank rank) const {
  const MeshPosition position = mesh.position_of(rank);
  const std::vector<int> units = units_of_stage(position.pipeline);
  return {table, units, mesh, position};
}

std::vector<ScheduleStep> PhasePlan::schedule(Rank rank) const {
  return schedule(rank, num_micro_batches, table.first_trained_unit());
}

std::int64_t PhasePlan::micro_batches_of(std::int64_t batch) const {
  SCALETRAIN_CHECK(batch >= 1 && batch <= global_batch);
  return ceil_div(ceil_div(batch, mesh.degree(Axis::data)), micro_batch.samples);
}

std::vector<ScheduleStep> PhasePlan::schedule(Rank rank, std::int64_t micro_batches, int first_trained) const {
  return make_stage_schedule(schedule_kind, mesh.degree(Axis::pipeline), micro_batches, chunks,
                             Stage(mesh.position_of(rank).pipeline), lowest_backward(first_trained));
}

std::int64_t PhasePlan::lowest_backward(int first_trained) const {
  std::int64_t lowest = 0;
  for (const StageBlocks& blocks : stages) {
    if (blocks.head || first_trained < 1 + blocks.first + blocks.count) break;
    ++lowest;
  }
  return lowest;
}

void PhasePlan::compute_on(const Backend& backend) {
  compute_on(backend.space(), backend.row_alignment(), backend.attention_workspace());
}

void PhasePlan::compute_on(Space space_of_device, std::int64_t row_alignment,
                           const AttentionWorkspace& workspace_of_attention) {
  space = space_of_device;
  scratch_rows = ScratchRows::aligned_to(row_alignment);
  attention_workspace = workspace_of_attention;
  if (space == Space::device) packed_bytes = nullptr;  // its kernels read weights as they are
}

Transformer PhasePlan::transformer(Rank rank) const {
  // Kernels that keep the gradients of scores know no documents and no dropout: who computes in their place has no use
  // of the memory.
  const bool is_unused = (document_attention == DocumentAttention::within || model.dropout.attention > 0) &&
                         attention_workspace.keeps_scores;
  return Transformer(model, tensor_part(rank), recompute, scratch_rows,
                     is_unused ? AttentionWorkspace{.most = 0} : attention_workspace);
}

ActivationPlan PhasePlan::activations(Rank rank) const {
  return activations(rank, schedule_depth(schedule(rank)));
}

ActivationPlan PhasePlan::activations(Rank rank, const ScheduleDepth& depth) const {
  return activations(rank, depth, micro_batch.tokens);
}

ActivationPlan PhasePlan::activations(Rank rank, const ScheduleDepth& depth, std::int64_t context) const {
  return make_activation_plan(transformer(rank), units_by_chunk(mesh.position_of(rank).pipeline),
                              {micro_batch.samples, context}, compute, depth, document_attention,
                              table.first_trained_unit());
}

// Kernels that have a limit for their workspace may take more of it for shorter samples.
std::size_t PhasePlan::shorter_arena_bytes(Rank rank, const ScheduleDepth& depth) const {
  std::size_t bytes = 0;
  for (const std::int64_t context : shorter_contexts)
    bytes = std::max(bytes, activations(rank, depth, context).arena_bytes);
  return bytes;
}

std::size_t PhasePlan::shorter_arena_bytes(Rank rank) const {
  return shorter_contexts.empty() ? 0 : shorter_arena_bytes(rank, schedule_depth(schedule(rank)));
}

TensorPart PhasePlan::tensor_part(Rank rank) const {
  return {.degree = mesh.degree(Axis::tensor), .rank = mesh.position_of(rank).tensor, .sequence = sequence};
}

GroupFacts PhasePlan::group_facts() const {
  return {.kv_heads = model.kv_heads, .tied = model.tie_embeddings, .control = space == Space::device};
}

ParamStore::Options PhasePlan::store_options() const {
  return store_options(compute);
}

ParamStore::Options PhasePlan::store_options(DType computed_in) const {
  return {.state_names = optimizer_states,
          .gradients = true,
          .dtype = accumulator_type(computed_in),
          .compute = computed_in,
          .packed_bytes = packed_bytes,
          .reduce = reduce,
          .zero = zero,
          .second_gradients = gradient_noise.has_value(),
          .sequence = sequence,
          .offload = offload};
}

MemoryPlan PhasePlan::memory(Rank rank, std::size_t backend_workspace) const {
  const std::vector<ScheduleStep> steps = schedule(rank);
  return memory(rank, backend_workspace, schedule_depth(steps), traffic(rank, steps));
}

MemoryPlan PhasePlan::memory(Rank rank, std::size_t backend_workspace, const ScheduleDepth& depth,
                             const RankTraffic& traffic) const {
  const ShardLayout shard = layout(rank);
  const StoreBytes store = store_bytes(table, shard, store_options());
  const ActivationPlan activation = activations(rank, depth);
  const std::size_t shorter = shorter_arena_bytes(rank, depth);
  const std::size_t beyond = shorter > activation.arena_bytes ? shorter - activation.arena_bytes : 0;
  MemoryPlan memory;
  memory.items = {
      {offload ? "master weights, on the host" : "master weights", store.masters, offload},
      {"weights in compute precision", store.computed},
      {"packed weights", store.packed},
      {"gathered weights", store.gathered},
      {"gradients", store.gradients},
      {"gradient staging", store.gradient_staging},
      {offload ? "optimizer state, on the host" : "optimizer state", store.states, offload},
      {"saved activations", activation.saved_bytes},
      {"activations between layers", activation.boundary_bytes},
      {"deferred weight gradients", activation.work_total_bytes},
      {"scratch", activation.scratch.bytes + beyond},
      {"batches", activation.batch_bytes},
      {"communication staging", traffic.staging + transfer_staging(activation, rank), !is_host_accessible(space)},
      {"kernel workspace", backend_workspace, is_host_accessible(space)},
  };
  if (gradient_noise) memory.items.push_back({"gradients of half a batch", store.second_gradients});
  const auto of_update = make_optimizer(optimizer);
  const std::size_t update_bytes = of_update->workspace_bytes(table, shard, store_options());
  if (update_bytes > 0) memory.items.push_back({of_update->workspace_name(), update_bytes});
  if (const std::size_t bytes = of_update->host_bytes(table, shard, store_options()); bytes > 0)
    memory.items.push_back(
        {of_update->workspace_name() + ", on the host", bytes + (is_host_accessible(space) ? 0 : update_bytes), true});
  if (offload) memory.items.push_back({"staging of offloaded state", store.state_staging});
  // Of every stage, if of one: not all are in a group that sums.
  if (is_direct()) {
    memory.items.push_back({"sums between GPUs", device_staging(rank)});
    memory.items.push_back({"connections between GPUs", device_connections(rank)});
  }
  if (!is_host_accessible(space)) memory.items.push_back({process_memory, cuda_process_bytes(is_direct())});
  if (const std::size_t bytes = pinned_staging(); bytes > 0) memory.items.push_back({"pinned staging", bytes, true});
  if (background_saves) memory.items.push_back({"checkpoint staging", checkpoint_staging(rank), true});
  return memory;
}

std::vector<SavePiece> PhasePlan::save_plan(Rank rank) const {
  return make_save_plan(table, layout(rank), optimizer_states, masters());
}

std::size_t PhasePlan::pinned_staging() const {
  if (is_host_accessible(space)) return 0;
  // Each context has its own.
  std::int64_t tokens = micro_batch.tokens;
  for (const std::int64_t context : shorter_contexts) tokens += context;
  const std::int64_t numbers =
      checked_mul(batches_ahead, num_batch_tensors(document_attention) * checked_mul(micro_batch.samples, tokens));
  const auto contexts = static_cast<std::int64_t>(1 + shorter_contexts.size());
  const std::int64_t samples = has_dropout(model) ? checked_mul(batches_ahead, micro_batch.samples * contexts) : 0;
  return host_access_pieces * host_access_piece_bytes + static_cast<std::size_t>(numbers) * size_of(DType::i32) +
         static_cast<std::size_t>(samples) * size_of(DType::i64);
}

// Of the groups that transfer a device's memory: the stretch of each that has collectives, and of a pipeline a bundle
// for each that a stage sends or receives at one time, at most, and those that are copied meanwhile. One that was sent
// is waited for when its buffer is used next.
std::size_t PhasePlan::transfer_staging(const ActivationPlan& activation, Rank rank) const {
  if (is_host_accessible(space)) return 0;
  std::size_t bytes = 0;
  if (mesh.degree(Axis::pipeline) > 1) {
    const std::size_t bundles = static_cast<std::size_t>(activation.num_buffers) + activation.inputs.size() +
                                activation.gradient_inputs.size() + activation.gradient_outputs.size() +
                                staged_copies_ahead;
    bytes = bundles * static_cast<std::size_t>(activation.bundle.num_elements()) * size_of(compute);
  }
  for (const GroupKind kind : group_kinds)
    if (kind != GroupKind::pipeline && !is_control(kind) && group_of(mesh, kind, rank, group_facts()))
      bytes += staged_stretch_bytes;
  return bytes;
}

bool PhasePlan::is_direct() const {
  return may_be_direct && !is_host_accessible(space) && mesh.world() > 1;
}

std::size_t PhasePlan::device_staging(Rank rank) const {
  if (!is_direct()) return 0;
  std::size_t bytes = 0;
  for (const GroupKind kind : group_kinds)
    if (kind != GroupKind::pipeline && !is_control(kind) && group_of(mesh, kind, rank, group_facts()))
      bytes += device_stretch_bytes;
  return bytes;
}

std::size_t PhasePlan::device_connections(Rank rank) const {
  if (!is_direct()) return 0;
  std::size_t bytes = 0;
  for (const GroupKind kind : group_kinds) {
    if (is_control(kind)) continue;
    const auto group = group_of(mesh, kind, rank, group_facts());
    if (!group) continue;
    bytes += network_bytes({.name = group->name, .ranks = group->members, .calls = device_calls(kind, chunks > 1)},
                           group->index, ranks_per_host);
  }
  return bytes;
}

std::size_t PhasePlan::checkpoint_staging(Rank rank) const {
  return background_saves ? saved_bytes(table, layout(rank), optimizer_states, masters()) : 0;
}

const PhasePlan& RunPlan::phase_at(std::int64_t step) const {
  SCALETRAIN_CHECK(!phases.empty());
  for (const PhasePlan& phase : phases)
    if (step < phase.first_step + phase.num_steps) return phase;
  return phases.back();
}

namespace {

// A tensor rank holds whole blocks of a row, whatever their number: blocks are the same on every layout.
void check_blocks(const ParamTable& table, std::int64_t tensor) {
  const auto parameters = table.parameters();
  if (std::none_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.state_block > 0; }))
    throw UserError(
        "train.optimizer.state: int8 has no effect: no matrix that is trained has rows that divide into blocks of 16 "
        "to 256 elements on every layout; remove the key");
  const Parameter* const cut = table.cut_by(tensor);
  if (cut == nullptr) return;
  throw UserError(fmt::format(
      "parallel.tensor: {} ranks would cut blocks of train.optimizer.state: int8: of {} the rows of {} are in "
      "blocks of {}, and a rank's part of a row must consist of them: set parallel.tensor to a smaller "
      "power of two, or, in a new run, train.optimizer.state to fp32",
      tensor, cut->name, cut->shape[1], cut->state_block));
}

RunPlan plan_run(const Config& config, std::int64_t vocab, std::optional<std::int64_t> world) {
  const auto size = world ? std::optional(WorldSize{.ranks = *world}) : std::nullopt;
  // Nothing known of the ranks: one replica. Where they do not fit, the others are judged for one.
  const std::int64_t data = data_degree(config.parallel, size).value_or(1);
  check_fits(config, data, size);
  PhasePlan phase;
  phase.model = make_model_spec(config.model, config.model.vocab.value_or(vocab));
  phase.model.loss = {.label_smoothing = config.train.label_smoothing, .z_loss = config.train.z_loss};
  phase.num_steps = config.train.num_steps(config.model.context).value_or(0);
  phase.mesh = Mesh(data, config.parallel.tensor, config.parallel.pipeline, config.parallel.zero_group.value_or(data));
  phase.sequence = config.parallel.sequence && config.parallel.tensor > 1;
  phase.zero = ZeroPolicy::of_stage(config.parallel.zero);
  if (config.parallel.zero_reduce == ZeroReduceKind::step) phase.zero.shard_gradients = false;
  phase.table = make_param_table(phase.model, config.model.init);
  if (config.finetune.lora) {
    phase.model.lora = make_lora_spec(phase.table, *config.finetune.lora);
    phase.table = with_adapters(phase.table, phase.model.lora);
  }
  freeze_parameters(phase.table, config.finetune);
  scale_learning_rates(phase.table, config.finetune);
  scale_weight_decays(phase.table, config.finetune);
  phase.compute = compute_type_of(config.compute_precision());
  phase.table.hold_frozen_in(phase.compute);  // layers read nothing else, and no update needs more
  if (config.train.optimizer.state == OptimizerStateType::int8) {
    phase.table.hold_states_in_blocks();
    check_blocks(phase.table, config.parallel.tensor);
  }
  phase.schedule_kind = config.parallel.schedule;
  phase.chunks = config.parallel.chunks;
  phase.recompute = config.train.recompute;
  phase.seed = config.run.seed;
  phase.stages = make_stages(config.parallel, phase);
  phase.global_batch = config.train.global_batch;
  const BatchCut cut = cut_batch(config.train, data);
  phase.num_micro_batches = cut.count;
  phase.micro_batch = {cut.samples, config.model.context};
  phase.shorter_contexts = shorter_contexts(config);
  phase.document_attention =
      config.data.documents.are_told_apart() ? DocumentAttention::within : DocumentAttention::across;
  if (config.precision.reduce == Precision::bf16) phase.reduce = DType::bf16;
  phase.packed_bytes = [type = phase.compute](const Shape& weight) { return cpu_packed_bytes(weight, type); };
  if (config.run.device == DeviceKind::cuda)
    phase.compute_on(Space::device, cuda_row_alignment, cuda_attention_workspace);
  phase.may_be_direct = may_use_nccl(config.launch.transport);
  phase.ranks_per_host = config.launch.ranks_per_node.value_or(common_host);
  phase.optimizer = config.train.optimizer;
  const auto optimizer = make_optimizer(config.train.optimizer);
  phase.table.leave_out_states([&](const Parameter& parameter) { return optimizer->absent_state(parameter); },
                               optimizer->keeps_factors());
  phase.numbers_per_update = optimizer->num_summed(phase.table);
  phase.optimizer_states = training_states(config.train);
  phase.ema = config.train.ema;
  phase.gradient_noise = config.log.gradient_noise;
  phase.offload = config.train.optimizer.offload == OffloadKind::host;
  phase.background_saves = config.checkpoint.background;
  phase.loss_gradient = 1.0 / static_cast<double>(checked_mul(config.train.global_batch, config.model.context));
  RunPlan plan;
  plan.phases.push_back(std::move(phase));
  if (std::string notice = padding_notice(config.train, data); !notice.empty())
    plan.notices.push_back(std::move(notice));
  return plan;
}

}  // namespace

RunPlan make_run_plan(const Config& config, std::int64_t vocab, std::optional<std::int64_t> world) {
  return within_size_limits(config, [&] { return plan_run(config, vocab, world); });
}

}  // namespace scaletrain
