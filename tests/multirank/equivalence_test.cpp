// Any layout, the same numbers: every row of equivalence_rows.h in single precision, and in halves, ranks as threads
// with the CPU backend, against one rank. Tolerances are those of DESIGN section 4.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "equivalence_rows.h"
#include "reduced_in_bf16.h"
#include "traffic.h"

using namespace scaletrain;
using namespace scaletrain::equivalence;

namespace {

constexpr double gradient_tolerance = 1e-5;
constexpr std::size_t num_parts = 2;  // each a test of its own, so that two processors have work

LayoutRun first_gradients(LayoutRun run) {
  run.config.train.optimizer.type = OptimizerKind::sgd;
  run.config.train.optimizer.weight_decay = 0.0;
  run.config.train.clip_norm.reset();
  run.steps = 2;
  return run;
}

// Ten, or what SCALETRAIN_SOAK_STEPS says: what drifts is seen in ten, how far it drifts in more.
LayoutRun several_steps(LayoutRun run) {
  const char* const steps = std::getenv("SCALETRAIN_SOAK_STEPS");
  run.steps = steps == nullptr ? 10 : std::stoll(steps);
  return run;
}

struct Baseline {
  LayoutRun run;  // that of the gradients
  LayoutOutcome gradients;
  LayoutOutcome steps;
};

Baseline run_baseline(const LayoutRun& run) {
  return {.run = first_gradients(run),
          .gradients = run_layout(first_gradients(run)),
          .steps = run_layout(several_steps(run))};
}

const Baseline& baseline_for(const Row& row, std::map<std::string, Baseline>& known) {
  const auto [entry, is_new] = known.try_emplace(baseline_key(row));
  if (is_new) entry->second = run_baseline(baseline_of(row));
  return entry->second;
}

// A key's bias adds the same to all scores of a query, which softmax does not see: its gradient is zero, and what
// single precision leaves of it is rounding alone, some 1e-9 of all gradients, which differs from layout to layout. It
// is held against zero, on the scale of the gradient of the same map's weight, instead of against another run's
// rounding. Where keys are rotated it adds something else to each.
constexpr const char* zero_gradient = "attention.key.bias";
bool is_zero_by_design(const std::string& tensor, const ModelConfig& model) {
  return model.position == PositionKind::learned && tensor.find(zero_gradient) != std::string::npos;
}

double norm_of(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double beside_its_weight(const GlobalTensors& gradients, std::string bias) {
  const double size = norm_of(gradients.at(bias));
  return size / norm_of(gradients.at(bias.replace(bias.find("bias"), std::string::npos, "weight")));
}

TensorDifference gradient_difference(const GlobalTensors& gradients, GlobalTensors expected, const ModelConfig& model) {
  std::erase_if(expected, [&](const auto& entry) { return is_zero_by_design(entry.first, model); });
  TensorDifference largest = largest_difference(gradients, expected);
  for (const auto& entry : gradients) {
    if (!is_zero_by_design(entry.first, model)) continue;
    const double error = beside_its_weight(gradients, entry.first);
    if (!(error <= largest.error)) largest = {error, entry.first};
  }
  return largest;
}

// The first thing that is wrong with the calls of a run of several equal steps, the first ones; empty if nothing is.
std::string traffic_problem(const LayoutOutcome& outcome, std::size_t steps) {
  const PhasePlan& plan = outcome.plan;
  std::string difference = compare_traces(rank_traces(plan.mesh, plan.group_facts(), outcome.traces));
  if (!difference.empty()) return difference;
  for (std::size_t rank = 0; rank < outcome.traces.size(); ++rank) {
    const RankWork first_step{.updates = 0};
    const auto order = collective_order(plan, Rank(static_cast<std::int64_t>(rank)), {&first_step, 1});
    const Trace& trace = outcome.step_traces[rank];
    const std::string who = "rank " + std::to_string(rank);
    const std::size_t count = trace.records.size() / steps;
    // A single rank asks nobody.
    if ((count == 0 && plan.mesh.world() > 1) || trace.records.size() % steps != 0)
      return who + ": " + std::to_string(trace.records.size()) + " calls in " + std::to_string(steps) + " steps";
    for (std::size_t i = count; i < trace.records.size(); ++i)
      if (trace.records[i] != trace.records[i - count])
        return who + ": call " + std::to_string(i) + " is another one than in the step before";
    const std::string misplaced = order_problem(order, trace, steps);
    if (!misplaced.empty()) return who + ": " + misplaced;
    // The plan's volumes are those of steps that all has joined.
    if (plan.table.first_trained_unit(0) != plan.table.first_trained_unit()) continue;
    const auto found = traced_traffic(trace, 0, count);
    const auto planned = planned_traffic(plan, Rank(static_cast<std::int64_t>(rank)));
    if (found != planned)
      return who + ": sent " + scaletrain::text(found) + "but planned were " + scaletrain::text(planned);
  }
  return {};
}

// The largest difference that any row had, for people who want to know how far the tolerance is.
struct Worst {
  double error = 0.0;
  std::string where = "nowhere";
  void add(double other, const std::string& name) {
    if (other <= error) return;
    error = other;
    where = name;
  }
};

struct WorstOfAll {
  Worst gradient, loss, norm;
};

// How far a tensor is from what is exact, relative.
double distance(const GlobalTensors& tensors, const GlobalTensors& exact, const std::string& tensor) {
  const std::vector<double>& expected = exact.at(tensor);
  std::vector<double> difference = tensors.at(tensor);
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[i];
  return norm_of(difference) / norm_of(expected);
}

// What single precision leaves of a gradient whose terms nearly cancel (that of Gemma's key norms, of a few numbers) is
// up to the kernels of the processor, on one rank as on many. Where the two differ by more than the tolerance, ranks
// must be no further from float64, by more than a factor of two, than one rank is. base: the run of one rank, which is
// what is exact in float64: the same layout would have its errors there too.
void check_against_exact(const GlobalTensors& gradients, const GlobalTensors& one, LayoutRun base) {
  base.backend = TestBackend::reference_f64;
  const LayoutOutcome exact = run_layout(base);
  REQUIRE(exact.problem == "");
  for (const auto& entry : one) {
    CAPTURE(entry.first);
    if (is_zero_by_design(entry.first, base.config.model)) {
      CHECK(beside_its_weight(gradients, entry.first) <= gradient_tolerance);
      continue;
    }
    const TensorDifference difference =
        gradient_difference({entry}, {{entry.first, gradients.at(entry.first)}}, base.config.model);
    if (difference.error <= gradient_tolerance) continue;
    const double of_one = distance(one, exact.gradients, entry.first);
    CAPTURE(of_one);
    CHECK(distance(gradients, exact.gradients, entry.first) <= std::max(gradient_tolerance, 2 * of_one));
  }
}

// `run` (one row's) against one rank.
void check_run(const std::string& name, const LayoutRun& run, const Tolerance& tolerance, const Baseline& one,
               WorstOfAll& worst) {
  CAPTURE(name);
  REQUIRE(one.gradients.problem == "");
  REQUIRE(one.steps.problem == "");

  LayoutRun traced = first_gradients(run);
  traced.traced = true;
  const LayoutOutcome first = run_layout(traced);
  CHECK(first.problem == "");
  CHECK(first.target_tokens == one.gradients.target_tokens);
  if (tolerance.compares_gradients) {
    const TensorDifference difference = gradient_difference(first.gradients, one.gradients.gradients, run.config.model);
    CAPTURE(difference.tensor);
    if (!(difference.error <= gradient_tolerance))
      check_against_exact(first.gradients, one.gradients.gradients, one.run);
    worst.gradient.add(difference.error, name + ": " + difference.tensor);
  } else {
    const double norm = largest_relative({first.grad_norms.front()}, {one.gradients.grad_norms.front()});
    CHECK(norm <= tolerance.steps);
    worst.gradient.add(norm, name);
  }
  CHECK(traffic_problem(first, static_cast<std::size_t>(traced.steps)) == "");

  const LayoutOutcome steps = run_layout(several_steps(run));
  CHECK(steps.problem == "");
  CHECK(steps.target_tokens == one.steps.target_tokens);
  const double loss = largest_relative(steps.losses, one.steps.losses);
  const double norm = largest_relative(steps.grad_norms, one.steps.grad_norms);
  CHECK(loss <= tolerance.steps);
  if (tolerance.compares_gradients) CHECK(norm <= tolerance.steps);
  worst.loss.add(loss, name);
  worst.norm.add(norm, name);
}

// A row's run in single precision against one rank; if its gradients travel in bf16, first in fp32.
void check_row(const Row& row, const Baseline& one, WorstOfAll& worst) {
  const std::string name = equivalence::text(row);
  LayoutRun run = run_of(row);
  const bool is_rounded = run.config.precision.reduce == Precision::bf16;
  run.config.precision.reduce = Precision::fp32;
  check_run(name, run, single_tolerance, one, worst);
  if (!is_rounded) return;
  CAPTURE(name);
  LayoutRun rounded = first_gradients(run);
  rounded.config.precision.reduce = Precision::bf16;
  rounded.traced = true;
  const LayoutOutcome found = run_layout(rounded);
  CHECK(found.problem == "");
  CHECK(traffic_problem(found, static_cast<std::size_t>(rounded.steps)) == "");
  check_rounded_once_and_as_a_sum(found.gradients, run_layout(first_gradients(run)).gradients);
}

// The rows in one of the halves, against one rank in the same: of all rows every so many-th by day, with what the other
// half leaves between them, and each by night.
void check_rows_in(DType half, std::size_t first) {
  constexpr std::size_t stride_by_day = 16;
  const std::vector<Row> rows = make_rows();
  const bool is_night = std::getenv("SCALETRAIN_SOAK_STEPS") != nullptr;
  std::map<std::string, Baseline> known;
  WorstOfAll worst;
  for (std::size_t i = is_night ? 0 : first; i < rows.size(); i += is_night ? 1 : stride_by_day) {
    const auto [entry, is_new] = known.try_emplace(baseline_key(rows[i]));
    if (is_new) entry->second = run_baseline(in_half(baseline_of(rows[i]), half));
    check_run(equivalence::text(rows[i]), in_half(run_of(rows[i]), half), half_tolerance, entry->second, worst);
  }
  MESSAGE("largest difference of a loss: " << worst.loss.error << " (" << worst.loss.where << ")");
  MESSAGE("largest difference of the first norm: " << worst.gradient.error << " (" << worst.gradient.where << ")");
}

// The rows of one part: those of a baseline together, and as many as in the other parts.
std::vector<Row> rows_of_part(std::size_t part) {
  std::map<std::string, std::vector<Row>> by_baseline;
  for (const Row& row : make_rows()) by_baseline[baseline_key(row)].push_back(row);
  std::vector<std::vector<Row>> groups;
  groups.reserve(by_baseline.size());
  for (auto& entry : by_baseline) groups.push_back(std::move(entry.second));
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::vector<std::vector<Row>> parts(num_parts);
  for (const std::vector<Row>& group : groups) {
    auto& smallest =
        *std::min_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    smallest.insert(smallest.end(), group.begin(), group.end());
  }
  return parts[part];
}

void check_part(std::size_t part) {
  std::map<std::string, Baseline> known;
  WorstOfAll worst;
  for (const Row& row : rows_of_part(part)) check_row(row, baseline_for(row, known), worst);
  MESSAGE("largest difference of a gradient: " << worst.gradient.error << " (" << worst.gradient.where << ")");
  MESSAGE("largest difference of a loss: " << worst.loss.error << " (" << worst.loss.where << ")");
  MESSAGE("largest difference of a norm: " << worst.norm.error << " (" << worst.norm.where << ")");
}

}  // namespace

namespace {

// Whether `rows` have what they must: two values that some mesh allows together are in some row; a value that a mesh
// allows is in a row of that mesh; and no row has what its mesh does not allow.
void check_cover(const std::vector<Row>& rows, const std::vector<Switch>& all) {
  const auto is_possible = [&](const Row& mesh, std::size_t which, std::size_t value) {
    const SwitchValue& own = all[which].values.at(value);
    return !own.is_possible || own.is_possible(mesh);
  };
  for (const Row& row : rows) {
    REQUIRE(row.values.size() == all.size());
    for (std::size_t which = 0; which < all.size(); ++which) CHECK(is_possible(row, which, row.values[which]));
  }
  const auto check_pair = [&](std::size_t a, std::size_t value_a, std::size_t b, std::size_t value_b) {
    const bool possible = std::any_of(meshes().begin(), meshes().end(), [&](const Row& mesh) {
      return is_possible(mesh, a, value_a) && is_possible(mesh, b, value_b);
    });
    const bool covered = std::any_of(
        rows.begin(), rows.end(), [&](const Row& row) { return row.values[a] == value_a && row.values[b] == value_b; });
    CAPTURE(all[a].name + " " + all[a].values[value_a].name);
    CAPTURE(all[b].name + " " + all[b].values[value_b].name);
    CHECK(covered == possible);
  };
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t value_a = 0; value_a < all[a].values.size(); ++value_a) {
      for (std::size_t b = a + 1; b < all.size(); ++b)
        for (std::size_t value_b = 0; value_b < all[b].values.size(); ++value_b) check_pair(a, value_a, b, value_b);
      for (const Row& mesh : meshes()) {
        const bool covered = std::any_of(
            rows.begin(), rows.end(), [&](const Row& row) { return same_mesh(row, mesh) && row.values[a] == value_a; });
        CHECK(covered == is_possible(mesh, a, value_a));
      }
    }
  }
}

}  // namespace

TEST_CASE("rows_cover_every_possible_pair_of_values_and_of_a_mesh_and_a_value") {
  const std::vector<Row> rows = make_rows();
  CHECK(rows.size() >= 60);
  CHECK(meshes().size() == 38);  // ordered triples with a product of at most eight
  check_cover(rows, switches());
}

// As many as a trainer comes to have: the search may not go through all combinations, which are then over a million.
TEST_CASE("further_switches_join_with_one_entry_each_and_add_few_rows") {
  std::vector<Switch> all = switches();
  const auto join = [&all](const std::string& name, std::size_t num_values, bool needs_tensor_ranks) {
    Switch& own = all.emplace_back(Switch{.name = name, .changes_baseline = false, .values = {}});
    for (std::size_t value = 0; value < num_values; ++value) {
      SwitchValue& joined = own.values.emplace_back();
      joined.name = std::to_string(value);
      if (needs_tensor_ranks && value > 0) joined.is_possible = [](const Row& row) { return row.tensor > 1; };
    }
  };
  join("precision", 4, false);
  join("recomputation", 3, false);
  join("dropout", 2, false);
  join("optimizer", 5, false);
  join("backend", 2, false);
  join("overlap", 2, true);
  const std::vector<Row> rows = make_rows(all);
  check_cover(rows, all);
  CHECK(rows.size() < 2 * make_rows().size());
}

TEST_CASE("gradients_are_zero_by_design_where_the_suite_says_so_and_nowhere_else") {
  LayoutRun run = first_gradients(baseline_of(make_rows().front()));
  run.backend = TestBackend::reference_f64;
  run.config.model.bias = true;
  run.config.model.norm = NormKind::layernorm;
  run.config.model.position = PositionKind::learned;
  run.config.model.activation = ActivationKind::gelu;
  const GlobalTensors gradients = run_layout(run).gradients;
  double all = 0.0;
  for (const auto& entry : gradients) all = std::hypot(all, norm_of(entry.second));
  std::size_t zeros = 0;
  for (const auto& entry : gradients) {
    CAPTURE(entry.first);
    // The others are above the floor below which the suite compares with all gradients.
    const bool is_zero = is_zero_by_design(entry.first, run.config.model);
    zeros += is_zero;
    CHECK((norm_of(entry.second) <= 1e-14 * all) == is_zero);
    if (!is_zero) CHECK(norm_of(entry.second) >= 1e-6 * all);
  }
  CHECK(zeros == static_cast<std::size_t>(run.config.model.layers));
}

// A group of one must not add its gradient twice, nor wait for anybody.
TEST_CASE("zero_without_replicas_and_schedules_without_stages_change_nothing") {
  Row row{.values = std::vector<std::size_t>(switches().size(), 0)};
  std::map<std::string, Baseline> known;
  WorstOfAll worst;
  for (const std::int64_t tensor : {1, 2}) {
    row.tensor = tensor;
    for (std::int64_t zero = 0; zero <= 3; ++zero) {
      for (const ScheduleKind schedule : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
        LayoutRun run = run_of(row);
        run.config.parallel.zero = zero;
        run.config.parallel.schedule = schedule;
        check_run("tensor " + std::to_string(tensor) + ", zero " + std::to_string(zero) + ", schedule " +
                      std::to_string(static_cast<int>(schedule)),
                  run, single_tolerance, baseline_for(row, known), worst);
      }
    }
  }
}

// 7 samples on three replicas are runs of 3, 2 and 2: with micro-batches of one sample the last micro-batch of two
// replicas is empty, with those of two samples rows are. An elastic run that has lost a replica trains so.
TEST_CASE("a_batch_that_does_not_divide_among_replicas_changes_nothing") {
  Row row{.data = 3, .values = std::vector<std::size_t>(switches().size(), 0)};
  WorstOfAll worst;
  const auto with_batch = [](LayoutRun run, std::int64_t micro_batch) {
    run.config.train.global_batch = 7;
    run.config.train.micro_batch = micro_batch;
    return run;
  };
  const LayoutRun base = with_batch(baseline_of(row), 7);
  const Baseline one = run_baseline(base);
  for (const std::int64_t micro_batch : {1, 2}) {
    for (const std::int64_t pipeline : {1, 2}) {
      row.pipeline = pipeline;
      LayoutRun run = with_batch(run_of(row), micro_batch);
      run.config.model = base.config.model;
      run.config.parallel.zero = pipeline;
      check_run("7 samples on 3 replicas, micro-batch " + std::to_string(micro_batch) + ", pipeline " +
                    std::to_string(pipeline),
                run, single_tolerance, one, worst);
    }
  }
}

// Full steps, shorter samples in memory that was planned for longer ones, fewer of them, and full steps again. No
// switch of the rows: their calls are those of a plan whose steps are all alike.
TEST_CASE("phases_of_shorter_and_fewer_samples_have_the_numbers_of_one_rank") {
  const auto in_phases = [](LayoutRun run) {
    run.config.precision.reduce = Precision::fp32;
    run.config.train.phases = {PhaseConfig{.steps = 2}, PhaseConfig{.steps = 2, .context = 4},
                               PhaseConfig{.steps = 2, .context = 4, .global_batch = 2}, PhaseConfig{.steps = 44}};
    run.steps = 10;
    return run_layout(run);
  };
  constexpr std::size_t stride = 12;
  const std::vector<Row> rows = make_rows();
  for (std::size_t i = 5; i < rows.size(); i += stride) {
    CAPTURE(equivalence::text(rows[i]));
    const LayoutOutcome one = in_phases(baseline_of(rows[i]));
    const LayoutOutcome many = in_phases(run_of(rows[i]));
    CHECK(many.problem == "");
    CHECK(many.target_tokens == one.target_tokens);
    CHECK(many.target_tokens[2] <= 4 * many.plan.global_batch);
    CHECK(many.target_tokens[4] <= 4 * 2);
    CHECK(largest_relative(many.losses, one.losses) <= single_tolerance.steps);
    CHECK(largest_relative(many.grad_norms, one.grad_norms) <= single_tolerance.steps);
  }
}

// Every third step in halves. No switch of the rows either: it is the steps that differ, and gradient_noise_test.cpp
// has their calls.
TEST_CASE("steps_that_measure_noise_have_the_numbers_of_one_rank") {
  const auto measured = [](LayoutRun run) {
    run.config.precision.reduce = Precision::fp32;
    run.config.log.gradient_noise = GradientNoiseConfig{.every = 3};
    run.steps = 7;
    return run_layout(run);
  };
  constexpr std::size_t stride = 12;
  const std::vector<Row> rows = make_rows();
  for (std::size_t i = 2; i < rows.size(); i += stride) {
    CAPTURE(equivalence::text(rows[i]));
    const LayoutOutcome one = measured(baseline_of(rows[i]));
    const LayoutOutcome many = measured(run_of(rows[i]));
    CHECK(many.problem == "");
    CHECK(many.target_tokens == one.target_tokens);
    CHECK(largest_relative(many.losses, one.losses) <= single_tolerance.steps);
    CHECK(largest_relative(many.grad_norms, one.grad_norms) <= single_tolerance.steps);
  }
}

// So many rows of each ZeRO stage, of any mesh.
namespace {
std::vector<Row> rows_of_each_stage(std::size_t count) {
  std::map<std::int64_t, std::vector<Row>> by_stage;
  for (const Row& row : make_rows()) by_stage[run_of(row).config.parallel.zero].push_back(row);
  REQUIRE(by_stage.size() == 4);
  std::vector<Row> chosen;
  for (const auto& entry : by_stage) {
    const std::vector<Row>& rows = entry.second;
    REQUIRE(rows.size() >= count);
    for (std::size_t i = 0; i < count; ++i) chosen.push_back(rows[(2 * i + 1) * rows.size() / (2 * count)]);
  }
  return chosen;
}
}  // namespace

// A block and the maps of others wait for two updates, the embedding (and what is tied to it) for four. No switch of
// the rows: their calls are those of steps that are all alike; frozen_test.cpp holds those of these.
TEST_CASE("parameters_that_join_have_the_numbers_of_one_rank_before_and_after") {
  const auto joining = [](LayoutRun run) {
    run.config.precision.reduce = Precision::fp32;
    run.config.finetune = {};
    run.config.finetune.freeze = {"embedding.*", "blocks.0.*", "*.ffn.down.weight"};
    run.config.finetune.unfreeze = {{.step = 2, .patterns = {"blocks.*"}}, {.step = 4, .patterns = {"embedding.*"}}};
    return run;
  };
  const auto run_to = [&](const LayoutRun& run, std::int64_t step) {
    LayoutRun made = first_gradients(joining(run));
    made.steps = step + 1;
    made.gradients_of = step;
    return made;
  };
  const auto gradients_of = [](const LayoutRun& run) {
    LayoutOutcome outcome = run_layout(run);
    CHECK(outcome.problem == "");
    // What has not joined has none.
    std::erase_if(outcome.gradients, [&](const auto& entry) {
      return outcome.plan.table.find(entry.first)->joins_after > run.gradients_of;
    });
    return outcome.gradients;
  };
  for (const Row& row : rows_of_each_stage(3)) {
    CAPTURE(equivalence::text(row));
    std::size_t num_trained = 0;
    for (const std::int64_t step : {1, 2, 4}) {
      CAPTURE(step);
      const LayoutRun run = run_to(run_of(row), step);
      const LayoutRun base = run_to(baseline_of(row), step);
      const GlobalTensors one = gradients_of(base);
      const GlobalTensors many = gradients_of(run);
      const TensorDifference difference = gradient_difference(many, one, run.config.model);
      CAPTURE(difference.tensor);
      if (!(difference.error <= gradient_tolerance)) check_against_exact(many, one, base);
      CHECK(one.size() > num_trained);
      num_trained = one.size();
    }
    LayoutRun base = joining(baseline_of(row));
    LayoutRun ranks = joining(run_of(row));
    base.steps = ranks.steps = 8;
    const LayoutOutcome one = run_layout(base);
    const LayoutOutcome many = run_layout(ranks);
    CHECK(many.problem == "");
    CHECK(many.target_tokens == one.target_tokens);
    CHECK(largest_relative(many.losses, one.losses) <= single_tolerance.steps);
    CHECK(largest_relative(many.grad_norms, one.grad_norms) <= single_tolerance.steps);
  }
}

// Which rows have adapters, dropout and tensor ranks together is left to the cover, which is of pairs.
TEST_CASE("tensor_ranks_drop_of_the_inputs_of_adapters_what_one_rank_drops") {
  const auto dropping = [](LayoutRun run) {
    run = first_gradients(std::move(run));
    run.config.precision.reduce = Precision::fp32;
    run.config.finetune = {};
    run.config.finetune.lora = LoraConfig{.rank = 3, .alpha = 12.0};
    run.config.finetune.lora->dropout = 0.25;
    // In the first step one of an adapter's two matrices is zero, and the other has no gradient.
    run.steps = 2;
    run.gradients_of = 1;
    return run;
  };
  std::vector<Row> rows = make_rows();
  std::erase_if(rows, [](const Row& row) { return row.tensor == 1; });
  REQUIRE(rows.size() >= 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const Row& row = rows[(2 * i + 1) * rows.size() / 8];
    CAPTURE(equivalence::text(row));
    const LayoutRun run = dropping(run_of(row));
    const LayoutRun base = dropping(baseline_of(row));
    const LayoutOutcome one = run_layout(base);
    const LayoutOutcome many = run_layout(run);
    CHECK(many.problem == "");
    const TensorDifference difference = gradient_difference(many.gradients, one.gradients, run.config.model);
    CAPTURE(difference.tensor);
    if (!(difference.error <= gradient_tolerance)) check_against_exact(many.gradients, one.gradients, base);
    CHECK(largest_relative(many.losses, one.losses) <= single_tolerance.steps);
  }
}

TEST_CASE("layouts_have_the_numbers_of_one_rank_and_issue_the_planned_calls_in_order_part_1") {
  check_part(0);
}
TEST_CASE("layouts_have_the_numbers_of_one_rank_and_issue_the_planned_calls_in_order_part_2") {
  check_part(1);
}
TEST_CASE("layouts_in_bf16_have_the_numbers_of_one_rank_within_what_its_rounding_allows") {
  check_rows_in(DType::bf16, 3);
}
TEST_CASE("layouts_in_fp16_have_the_numbers_of_one_rank_within_what_its_rounding_allows") {
  check_rows_in(DType::f16, 11);
}
