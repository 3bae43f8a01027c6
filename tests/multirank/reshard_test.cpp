// Every ordered pair out of a dozen layouts, there and back: a run that is saved on one, goes on on the other, and
// comes back, has the losses of one rank that was never interrupted. In halves each layout goes to the next one. On the
// plan, the store and the checkpoint's own calls; the same with a run's folder, data and manifest is
// tests/unit/train/reshard_test.cpp.
#include <doctest/doctest.h>

#include <filesystem>

#include "checkpoint/load.h"
#include "checkpoint/save/save.h"
#include "support/models/optimizer_kinds.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"
#include "support/temp_folder.h"

using namespace scaletrain;

namespace {

const std::vector<TestLayout>& dozen() {
  static const std::vector<TestLayout> all = {
      {"one rank", 1, 1, 1, 0},
      {"data 2, zero 0", 2, 1, 1, 0},
      {"data 3, zero 1", 3, 1, 1, 1},
      {.name = "data 4 in pairs, zero 3", .data = 4, .tensor = 1, .pipeline = 1, .zero = 3, .zero_group = 2},
      {"tensor 2, sequence shards", 1, 2, 1, 0, ScheduleKind::one_f_one_b, 1, true},
      {"tensor 4", 1, 4, 1, 0},
      {"pipeline 3, gpipe", 1, 1, 3, 0, ScheduleKind::gpipe},
      {"pipeline 2, two chunks", 1, 1, 2, 0, ScheduleKind::interleaved, 2},
      {"data 2, tensor 2, zero 2", 2, 2, 1, 2},
      {"data 2, pipeline 2, zb-h1, zero 3", 2, 1, 2, 3, ScheduleKind::zb_h1},
      {"tensor 2, pipeline 2, 1f1b", 1, 2, 2, 0},
      {"data 2, tensor 2, pipeline 2, two chunks, zero 1, sequence shards", 2, 2, 2, 1, ScheduleKind::interleaved, 2,
       true},
  };
  return all;
}

struct Kind {
  bool llama = false;
  bool tied = true;
  bool qk_norm = false;   // and heads wider than hidden in all, and biases on query, key and value
  bool adapters = false;  // alone are trained, and saved
  bool gemma = false;
  OptimizerKind optimizer = OptimizerKind::adamw;
  bool in_8_bits = false;  // moments, of a model whose rows divide into blocks on every layout
  TestBackend backend = TestBackend::cpu;
  double tolerance = 1e-5;  // of a loss, relative: DESIGN's for the type
};

// Two key/value heads, sizes that nothing divides.
Config config_of(const TestLayout& layout, const Kind& kind) {
  Config config = tiny_config({.layers = 5, .ffn_hidden = 29, .vocab = 41});
  config.run.seed = 11;
  config.model.tie_embeddings = kind.tied;
  if (kind.llama) make_llama(config.model);
  if (kind.gemma) make_gemma(config.model);
  if (kind.qk_norm) {
    config.model.qk_norm = config.model.qkv_bias.emplace(true);
    config.model.head_dim = 6;
  }
  if (kind.in_8_bits) {
    config.model.hidden = config.model.ffn_hidden = 128;
    config.train.optimizer.state = OptimizerStateType::int8;
  }
  if (kind.adapters) config.finetune.lora = LoraConfig{.rank = 3, .alpha = 6.0};
  if (compute_type_of(kind.backend) == DType::f16) config.precision.loss_scale = 1024;
  config.train.steps = 50;
  config.train.lr_schedule.warmup = 10;
  config.train.optimizer.learning_rate = 1e-3;
  config.train.optimizer.type = kind.optimizer;
  if (kind.optimizer == OptimizerKind::muon) config.train.optimizer.momentum = 0.9;
  lay_out(config, layout);
  return config;
}

constexpr std::int64_t steps_per_leg = 2;

struct Leg {
  std::filesystem::path from;  // empty: from the start
  std::filesystem::path to;    // the folder to save in; empty: not saved
  std::int64_t steps = steps_per_leg;
};

struct LegResult {
  std::vector<double> losses;
  std::filesystem::path saved;
  GlobalTensors loaded, masters;  // as it began, if it was loaded, and as it ended
  std::string problem;
};

void save(RankTrainer& trainer, Rank rank, KeyValueStore& store, std::int64_t step, const std::filesystem::path& to,
          LegResult& result) {
  const PhasePlan& plan = trainer.plan();
  SaveRequest request;
  request.folder = to;
  request.manifest.step = step;
  request.manifest.history = "[]";
  request.group.rank = rank;
  request.group.world = plan.mesh.world();
  request.group.store = plan.mesh.world() > 1 ? &store : nullptr;
  request.group.attempt = 1;
  request.group.deadline = 60.0;
  request.group.plan_of = [&plan](Rank of) { return plan.save_plan(of); };
  const SaveResult saved = save_checkpoint(trainer.settled_store(), request);
  if (rank == Rank(0)) result.saved = saved.path;
}

LegResult train_leg(const Config& config, TestBackend backend, const Leg& leg) {
  const PhasePlan plan = make_test_plan(config, backend);
  const auto world_size = static_cast<std::size_t>(plan.mesh.world());
  std::vector<std::vector<double>> losses(world_size);
  LegResult result;
  TensorAssembler loaded(plan.table);
  TensorAssembler masters(plan.table);
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld& world) {
    RankTrainer trainer(config, plan, rank, groups, backend);
    std::int64_t step = 0;
    if (!leg.from.empty()) {
      const Checkpoint checkpoint(leg.from, OpenCheck::none);
      for (const Parameter& parameter : plan.table.parameters())
        if (parameter.in_base && checkpoint.manifest().find(parameter.name) != nullptr)
          throw std::runtime_error(parameter.name + " is in a checkpoint of adapters");
      checkpoint.load(trainer.settled_store(), trainer.stream(), true);
      step = checkpoint.manifest().step;
      trainer.continue_at(step);
      loaded.add(trainer.settled_store(), StateKind::master);
    }
    for (std::int64_t i = 0; i < leg.steps; ++i)
      losses[static_cast<std::size_t>(rank.value())].push_back(trainer.step().outcome.loss);
    const auto store = world.make_store();
    if (!leg.to.empty()) save(trainer, rank, *store, step + leg.steps, leg.to, result);
    masters.add(trainer.settled_store(), StateKind::master);
  });
  result.losses = losses.front();
  for (const auto& other : losses)
    if (other != result.losses) result.problem = "ranks disagree about the losses";
  for (const TensorAssembler* assembled : {&loaded, &masters})
    if (assembled == &masters || !leg.from.empty()) result.problem += assembled->problem();
  result.loaded = loaded.tensors();
  result.masters = masters.tensors();
  return result;
}

// Every tensor of a checkpoint as it is stored.
std::map<std::string, std::vector<std::byte>> bytes_of_tensors(const std::filesystem::path& path) {
  const Checkpoint checkpoint(path);
  std::map<std::string, std::vector<std::byte>> all;
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    std::vector<std::byte>& bytes = all[tensor.name];
    bytes.resize(static_cast<std::size_t>(tensor.shape.num_elements()) * size_of(tensor.dtype));
    const Box box{.first = std::vector<std::int64_t>(static_cast<std::size_t>(tensor.shape.num_dims()), 0),
                  .extent = {tensor.shape.begin(), tensor.shape.end()}};
    checkpoint.read(tensor.name, box, View(bytes.data(), tensor.dtype, tensor.shape));
  }
  return all;
}

// The losses of one leg of the undisturbed run.
std::vector<double> part_of(const std::vector<double>& losses, std::int64_t leg) {
  const auto first = losses.begin() + leg * steps_per_leg;
  return {first, first + steps_per_leg};
}

enum class Pairs { all, next };

void check_pairs(const Kind& kind, Pairs pairs) {
  const TempFolder folder;
  LayoutRun undisturbed{.config = config_of(dozen().front(), kind)};
  undisturbed.backend = kind.backend;
  undisturbed.steps = 3 * steps_per_leg;
  const LayoutOutcome one = run_layout(undisturbed);
  REQUIRE(one.problem == "");
  double worst = 0.0;
  const auto check_leg = [&](const LegResult& result, std::int64_t leg) {
    CHECK(result.problem == "");
    const double error = largest_relative(result.losses, part_of(one.losses, leg));
    CHECK(error <= kind.tolerance);
    worst = std::max(worst, error);
  };
  for (std::size_t from = 0; from < dozen().size(); ++from) {
    const Config here = config_of(dozen()[from], kind);
    CAPTURE(dozen()[from].name);
    const LegResult start =
        train_leg(here, kind.backend, {.from = {}, .to = folder / ("from-" + std::to_string(from))});
    check_leg(start, 0);
    for (std::size_t to = 0; to < dozen().size(); ++to) {
      if (to == from || (pairs == Pairs::next && to != (from + 1) % dozen().size())) continue;
      CAPTURE(dozen()[to].name);
      const Config there = config_of(dozen()[to], kind);
      const std::filesystem::path between = folder / "between";
      const LegResult away = train_leg(there, kind.backend, {.from = start.saved, .to = between});
      check_leg(away, 1);
      const LegResult back = train_leg(here, kind.backend, {.from = away.saved, .to = {}});
      check_leg(back, 2);
      // What is loaded has every bit of what was saved, also where layers compute in fewer.
      CHECK(away.loaded == start.masters);
      CHECK(back.loaded == away.masters);
      std::filesystem::remove_all(between);
    }
  }
  MESSAGE("largest difference of a loss: " << worst);
}

}  // namespace

TEST_CASE("every_layout_continues_what_any_other_saved_and_back_tied") {
  check_pairs({}, Pairs::all);
}
TEST_CASE("every_layout_continues_what_any_other_saved_and_back_untied") {
  check_pairs({.llama = true, .tied = false}, Pairs::all);
}
TEST_CASE("every_layout_continues_what_another_saved_with_norms_of_query_and_key_and_back") {
  check_pairs({.llama = true, .tied = false, .qk_norm = true}, Pairs::next);
}
// The base, which no checkpoint has, is the same at every start.
TEST_CASE("every_layout_continues_the_adapters_that_another_saved_and_back") {
  check_pairs({.adapters = true}, Pairs::next);
  check_pairs({.llama = true, .tied = false, .adapters = true}, Pairs::next);
}
// Whose matrices have fewer states, in a flat buffer of their own.
TEST_CASE("every_layout_continues_what_another_saved_of_muon_and_back") {
  check_pairs({.llama = true,
               .tied = false,
               .optimizer = OptimizerKind::muon,
               .backend = TestBackend::reference_f64,
               .tolerance = 1e-9},
              Pairs::next);
}
// Whose matrices have factors in place of a state, of a tied tensor too.
TEST_CASE("every_layout_continues_what_another_saved_of_adafactor_and_back") {
  check_pairs({.optimizer = OptimizerKind::adafactor, .backend = TestBackend::reference_f64, .tolerance = 1e-9},
              Pairs::next);
  check_pairs({.adapters = true,
               .optimizer = OptimizerKind::adafactor,
               .backend = TestBackend::reference_f64,
               .tolerance = 1e-9},
              Pairs::next);
}
TEST_CASE("every_layout_continues_what_another_saved_of_a_gemma_and_back") {
  check_pairs({.gemma = true}, Pairs::next);
}
TEST_CASE("every_layout_continues_what_another_saved_in_halves_and_back") {
  check_pairs({.backend = TestBackend::cpu_bf16, .tolerance = 5e-3}, Pairs::next);
  check_pairs({.llama = true, .tied = false, .backend = TestBackend::cpu_f16, .tolerance = 5e-3}, Pairs::next);
}

// Codes and scales of every layout's checkpoint are those of any other that loads it and saves it again; a run that
// goes on on its own layout has the bits of one that was not interrupted. On another a rounding may make a moment the
// next number of eight bits: that element's step is then another by a hundredth.
TEST_CASE("moments_in_8_bits_go_on_to_the_bit_and_are_the_same_on_every_layout") {
  const Kind kind{.in_8_bits = true, .tolerance = 1e-4};
  check_pairs(kind, Pairs::next);
  const TempFolder folder;
  const TestLayout here = dozen().back();
  const LayoutOutcome undisturbed =
      run_layout({.config = config_of(here, kind), .backend = TestBackend::cpu, .steps = 2 * steps_per_leg});
  REQUIRE(undisturbed.problem == "");
  const LegResult start = train_leg(config_of(here, kind), TestBackend::cpu, {.from = {}, .to = folder / "start"});
  const LegResult resumed = train_leg(config_of(here, kind), TestBackend::cpu, {.from = start.saved, .to = {}});
  CHECK(resumed.losses == part_of(undisturbed.losses, 1));
  CHECK(resumed.masters == undisturbed.parameters);
  const auto bytes = bytes_of_tensors(start.saved);
  CHECK(bytes.contains("blocks.0.ffn.down.weight/exp_avg.scales"));
  for (const TestLayout& there : dozen()) {
    CAPTURE(there.name);
    const LegResult moved =
        train_leg(config_of(there, kind), TestBackend::cpu, {.from = start.saved, .to = folder / "moved", .steps = 0});
    CHECK(moved.problem == "");
    CHECK(bytes_of_tensors(moved.saved) == bytes);
    std::filesystem::remove_all(folder / "moved");
  }
}

// The state of every optimizer: to the bit on the same layout, and within the tolerance on another.
TEST_CASE("every_optimizer_goes_on_to_the_bit_and_on_another_layout_too") {
  const TestLayout here{"data 2, tensor 2, zero 2", 2, 2, 1, 2};
  const TestLayout there{"data 2, pipeline 2, zb-h1, zero 3", 2, 1, 2, 3, ScheduleKind::zb_h1};
  for (const NamedOptimizer& named : optimizers_beside_adamw()) {
    CAPTURE(named.name);
    const TempFolder folder;
    Config config = config_of(here, {});
    config.train.optimizer = named.config;
    const LayoutOutcome undisturbed =
        run_layout({.config = config, .backend = TestBackend::cpu, .steps = 2 * steps_per_leg});
    REQUIRE(undisturbed.problem == "");
    const LegResult start = train_leg(config, TestBackend::cpu, {.from = {}, .to = folder / "start"});
    CHECK(start.problem == "");
    CHECK(start.losses == part_of(undisturbed.losses, 0));
    const LegResult resumed = train_leg(config, TestBackend::cpu, {.from = start.saved, .to = {}});
    CHECK(resumed.problem == "");
    CHECK(resumed.losses == part_of(undisturbed.losses, 1));
    CHECK(resumed.masters == undisturbed.parameters);
    Config other = config_of(there, {});
    other.train.optimizer = named.config;
    const LegResult moved = train_leg(other, TestBackend::cpu, {.from = start.saved, .to = {}});
    CHECK(moved.problem == "");
    CHECK(moved.loaded == start.masters);
    CHECK(largest_relative(moved.losses, part_of(undisturbed.losses, 1)) <= Kind().tolerance);
  }
}
