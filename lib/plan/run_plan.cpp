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

// How a replica's largest share of the batch is cut: as few micro-batches as the config's size allows, of as even
// sizes as may be. Every replica runs as many; what it has no samples for stays empty.
struct BatchCut {
  std::int64_t count = 0;    // micro-batches per replica and step
  std::int64_t samples = 0;  // room in each
};
BatchCut cut_batch(const TrainConfig& train, std::int64_t replicas) {
  const std::int64_t share = ceil_div(train.global_batch, replicas);
  const std::int64_t count = ceil_div(share, train.micro_batch);
  return {.count = count, .samples = ceil_div(share, count)};
}

// What the user should know of a batch that does not divide; empty if it does.
std::string padding_notice(const TrainConfig& train, std::int64_t replicas) {
  const BatchCut cut = cut_batch(train, replicas);
  const std::int64_t room = replicas * cut.count * cut.samples;
  std::string text;
  if (cut.samples != train.micro_batch)
    text = fmt::format("train.micro_batch: {} samples are used in place of {}, to divide the {} of a replica evenly",
                       cut.samples, train.micro_batch, ceil_div(train.global_batch, replicas));
  if (room == train.global_batch) return text;
  const double idle = 100.0 * static_cast<double>(room - train.global_batch) / static_cast<double>(room);
  if (!text.empty()) text += "; ";
  const auto count = [](std::int64_t number, const char* thing, const char* plural) {
    return fmt::format("{} {}{}", number, thing, number == 1 ? "" : plural);
  };
  return text + fmt::format(
                    "train.global_batch: {} leave {} of {} places empty ({} x {} x {}): {:.1f} % of the work is "
                    "idle",
                    count(train.global_batch, "sample", "s"), room - train.global_batch, room,
                    count(replicas, "replica", "s"), count(cut.count, "micro-batch", "es"),
                    count(cut.samples, "sample", "s"), idle);
}

bool fits_kv_heads(const ModelSpec& model, std::int64_t tensor) {
  return model.kv_heads % tensor == 0 || tensor % model.kv_heads == 0;
}

// The tensor degrees that a model can have: "1, 2, 3, 4, 6 or 12" of 12 heads.
std::string tensor_degrees_text(const ModelSpec& model) {
  constexpr std::size_t most = 16;
  std::vector<std::int64_t> degrees;
  for (std::int64_t i = 1; i <= model.heads; ++i)
    if (model.heads % i == 0 && fits_kv_heads(model, i)) degrees.push_back(i);
  if (degrees.size() > most) return fmt::format("a divisor of {}", model.kv_heads);
  std::string text;
  for (std::size_t i = 0; i < degrees.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == degrees.size() ? " or " : ", ", degrees[i]);
  return text;
}

// Everything that does not fit is named at once, behind the problems found before.
void check_fits(const Config& config, const ModelSpec& model, std::int64_t data, std::vector<std::string> problems) {
  const auto& parallel = config.parallel;
  if (model.heads % parallel.tensor != 0)
    problems.push_back(fmt::format("parallel.tensor: {} does not divide model.heads: {}; use {}", parallel.tensor,
                                   model.heads, tensor_degrees_text(model)));
  else if (!fits_kv_heads(model, parallel.tensor))
    problems.push_back(
        fmt::format("parallel.tensor: {} neither divides model.kv_heads: {} nor is a multiple of it; "
                    "use {}",
                    parallel.tensor, model.kv_heads, tensor_degrees_text(model)));
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
  if (data > config.train.global_batch) {
    problems.push_back(
        fmt::format("parallel.data: {} replicas share the {} samples of a step (train.global_batch), and some would "
                    "never have one; use fewer, or raise train.global_batch",
                    data, config.train.global_batch));
  } else if (const BatchCut cut = cut_batch(config.train, data); cut.count > max_micro_batches) {
    problems.push_back(
        fmt::format("train.global_batch: {} is {} micro-batches per replica and step, and at most {} are "
                    "supported; raise train.micro_batch or parallel.data",
                    config.train.global_batch, cut.count, max_micro_batches));
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
      {"activations between layers", activation.boundary_bytes},
      {"deferred weight gradients", activation.work_total_bytes},
      {"scratch", activation.scratch.bytes},
      {"batches", activation.batch_bytes},
      {"communication staging", communication_staging(rank)},
      {"kernel workspace", backend_workspace},
  };
  if (background_saves) memory.items.push_back({"checkpoint staging", checkpoint_staging(rank)});
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

std::size_t PhasePlan::checkpoint_staging(Rank rank) const {
  return background_saves ? saved_bytes(table, layout(rank), optimizer_slots.size(), masters()) : 0;
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
  const BatchCut cut = cut_batch(config.train, data);
  phase.num_micro_batches = cut.count;
  phase.micro_batch = {cut.samples, config.model.context};
  phase.compute = compute_type_of(config.precision.compute);
  const auto optimizer = make_optimizer(config.train.optimizer);
  phase.optimizer_slots.assign(optimizer->slot_names().begin(), optimizer->slot_names().end());
  phase.background_saves = config.checkpoint.background;
  phase.loss_gradient = 1.0 / static_cast<double>(checked_mul(config.train.global_batch, config.model.context));
  RunPlan plan;
  plan.phases.push_back(std::move(phase));
  if (std::string notice = padding_notice(config.train, data); !notice.empty())
    plan.notices.push_back(std::move(notice));
  return plan;
}

}  // namespace scaletrain
