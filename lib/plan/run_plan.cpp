#include "plan/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "config/keys.h"
#include "optim/optimizer.h"

namespace scaletrain {

namespace {

// The degree to go on with where it does not fit is the best guess.
std::int64_t resolve_data_degree(const ParallelConfig& parallel, std::optional<std::int64_t> world,
                                 std::vector<std::string>& problems) {
  const std::int64_t others = checked_mul(parallel.tensor, parallel.pipeline);
  if (parallel.data) {
    const std::int64_t product = checked_mul(others, *parallel.data);
    if (world && *world != product)
      problems.push_back(
          fmt::format("parallel: data {} x tensor {} x pipeline {} = {} ranks, but the world has {}; "
                      "change a degree, or set parallel.data: auto",
                      *parallel.data, parallel.tensor, parallel.pipeline, product, *world));
    return *parallel.data;
  }
  const std::int64_t available = world.value_or(others);
  if (available < 1) throw UserError(fmt::format("a world of {} ranks: at least 1 is expected", available));
  if (available % others != 0) {
    problems.push_back(
        fmt::format("parallel.data: auto needs a world that tensor {} x pipeline {} = {} divides, "
                    "but the world has {} ranks",
                    parallel.tensor, parallel.pipeline, others, available));
    return 1;
  }
  return available / others;
}

// A schedule is a list of instructions: far more micro-batches than any run has would be a mistake in the config, and a
// list that fills the memory.
constexpr std::int64_t max_micro_batches = 1 << 16;

// Everything that does not fit is named at once, behind the problems found before.
void check_fits(const Config& config, const ModelSpec& model, std::int64_t data, std::vector<std::string> problems) {
  const auto& parallel = config.parallel;
  if (model.heads % parallel.tensor != 0)
    problems.push_back(
        fmt::format("parallel.tensor: {} does not divide model.heads: {}", parallel.tensor, model.heads));
  if (model.kv_heads % parallel.tensor != 0 && parallel.tensor % model.kv_heads != 0)
    problems.push_back(fmt::format("parallel.tensor: {} neither divides model.kv_heads: {} nor is a multiple of it",
                                   parallel.tensor, model.kv_heads));
  const std::int64_t virtual_stages = checked_mul(parallel.pipeline, parallel.chunks);
  if (parallel.chunks > 1 && parallel.schedule != ScheduleKind::interleaved)
    problems.push_back(
        fmt::format("parallel.chunks: {} chunks per stage, but parallel.schedule is {}, which has one; set "
                    "parallel.schedule: interleaved or parallel.chunks: 1",
                    parallel.chunks, to_text(parallel.schedule)));
  if (parallel.stage_layers) {
    try {
      given_stages(model.layers, *parallel.stage_layers, virtual_stages);
    } catch (const UserError& error) {
      problems.emplace_back(error.what());
    }
  } else if (virtual_stages > model.layers) {
    problems.push_back(
        fmt::format("parallel.pipeline: {} stages x {} chunks need as many layers, but model.layers is {}; use fewer, "
                    "or say in parallel.stage_layers which stage has none (embedding or head alone)",
                    parallel.pipeline, parallel.chunks, model.layers));
  }
  const std::int64_t per_slot = checked_mul(config.train.micro_batch, data);
  if (config.train.global_batch % per_slot != 0) {
    problems.push_back(fmt::format("train.global_batch: {} is no multiple of train.micro_batch {} x {} replicas = {}",
                                   config.train.global_batch, config.train.micro_batch, data, per_slot));
  } else if (config.train.global_batch / per_slot > max_micro_batches) {
    problems.push_back(
        fmt::format("train.global_batch: {} is {} micro-batches per replica and step, and at most {} are "
                    "supported; raise train.micro_batch or parallel.data",
                    config.train.global_batch, config.train.global_batch / per_slot, max_micro_batches));
  }
  if (problems.empty()) return;
  std::string text = problems.front();
  for (std::size_t i = 1; i < problems.size(); ++i) text += "\n" + problems[i];
  throw UserError(text);
}

std::vector<StageBlocks> make_stages(const Config& config, const ModelSpec& model) {
  const std::int64_t virtual_stages = checked_mul(config.parallel.pipeline, config.parallel.chunks);
  if (config.parallel.stage_layers) return given_stages(model.layers, *config.parallel.stage_layers, virtual_stages);
  // Matrix products per token, in units of one block's: the head's is V·C, the embedding's lookup none.
  const std::int64_t gated = model.activation == ActivationKind::swiglu ? 3 : 2;
  const double attention =
      static_cast<double>(2 * model.heads + 2 * model.kv_heads) * static_cast<double>(model.head_size * model.hidden);
  const double block = attention + static_cast<double>(gated) * static_cast<double>(model.ffn_hidden * model.hidden);
  const double head = static_cast<double>(model.vocab) * static_cast<double>(model.hidden) / block;
  return split_stages(model.layers, virtual_stages, 0.0, head);
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

ShardLayout PhasePlan::layout(Rank rank) const {
  const MeshPosition position = mesh.position_of(rank);
  const std::vector<int> units = units_of_stage(position.pipeline);
  return {table, units, mesh, position};
}

std::vector<ScheduleStep> PhasePlan::schedule(Rank rank) const {
  return make_stage_schedule(schedule_kind, mesh.degree(Axis::pipeline), num_micro_batches, chunks,
                             Stage(mesh.position_of(rank).pipeline));
}

ActivationPlan PhasePlan::activations(Rank rank) const {
  const MeshPosition position = mesh.position_of(rank);
  const Transformer local(model, tensor_part(rank));
  std::vector<std::vector<int>> units;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) units.push_back(units_of_chunk(position.pipeline, chunk));
  return make_activation_plan(local, std::move(units), micro_batch, compute, schedule_depth(schedule(rank)));
}

TensorPart PhasePlan::tensor_part(Rank rank) const {
  return {.degree = mesh.degree(Axis::tensor), .rank = mesh.position_of(rank).tensor, .sequence = sequence};
}

GroupFacts PhasePlan::group_facts() const {
  return {.kv_heads = model.kv_heads, .tied = model.tie_embeddings};
}

ParamStore::Options PhasePlan::store_options(DType masters) const {
  return {.slot_names = optimizer_slots, .gradients = true, .dtype = masters, .zero = zero, .sequence = sequence};
}

MemoryPlan PhasePlan::memory(Rank rank, std::size_t backend_workspace) const {
  const ShardLayout shard = layout(rank);
  const StoreBytes store = store_bytes(table, shard, store_options(masters()));
  const ActivationPlan activation = activations(rank);
  MemoryPlan memory;
  memory.items = {
      {"master weights", store.masters},
      {"gathered weights", store.gathered},
      {"gradients", store.gradients},
      {"gradient staging", store.gradient_staging},
      {"optimizer state", store.slots},
      {"saved activations", activation.saved_bytes},
      {"boundaries between units", activation.boundary_bytes},
      {"weight-gradient work", activation.work_total_bytes},
      {"scratch", activation.scratch.bytes},
      {"batches", activation.batch_bytes},
      {"communication staging", communication_staging(rank)},
      {"kernel workspace", backend_workspace},
  };
  // Masters stay f32: a narrower compute form is a second copy of what layers may read, gathered or whole.
  if (compute != masters())
    memory.items.insert(memory.items.begin() + 1,
                        {"weights in compute precision", (zero.shard_parameters ? store.gathered : store.masters) /
                                                             size_of(masters()) * size_of(compute)});
  return memory;
}

std::vector<SavePiece> PhasePlan::save_plan(Rank rank) const {
  return make_save_plan(table, layout(rank), optimizer_slots, masters());
}

const PhasePlan& RunPlan::phase_at(std::int64_t step) const {
  SCALETRAIN_CHECK(!phases.empty());
  for (const PhasePlan& phase : phases)
    if (step < phase.first_step + phase.num_steps) return phase;
  return phases.back();
}

RunPlan make_run_plan(const Config& config, std::int64_t vocab, std::optional<std::int64_t> world) {
  std::vector<std::string> problems;
  const std::int64_t data = resolve_data_degree(config.parallel, world, problems);
  PhasePlan phase;
  phase.model = make_model_spec(config.model, config.model.vocab.value_or(vocab));
  check_fits(config, phase.model, data, std::move(problems));
  phase.num_steps = config.train.num_steps(config.model.context);
  phase.mesh = Mesh(data, config.parallel.tensor, config.parallel.pipeline);
  phase.sequence = config.parallel.sequence && config.parallel.tensor > 1;
  phase.zero = ZeroPolicy::of_stage(config.parallel.zero);
  phase.table = make_param_table(phase.model, config.model.init);
  phase.schedule_kind = config.parallel.schedule;
  phase.chunks = config.parallel.chunks;
  phase.stages = make_stages(config, phase.model);
  phase.global_batch = config.train.global_batch;
  phase.num_micro_batches = config.train.global_batch / checked_mul(config.train.micro_batch, data);
  phase.micro_batch = {config.train.micro_batch, config.model.context};
  phase.compute = compute_type_of(config.precision.compute);
  const auto optimizer = make_optimizer(config.train.optimizer);
  phase.optimizer_slots.assign(optimizer->slot_names().begin(), optimizer->slot_names().end());
  phase.loss_gradient = 1.0 / static_cast<double>(checked_mul(config.train.global_batch, config.model.context));
  RunPlan plan;
  plan.phases.push_back(std::move(phase));
  return plan;
}

}  // namespace scaletrain
