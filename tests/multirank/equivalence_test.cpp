// Any layout, the same numbers: every row of equivalence_rows.h in single precision, and in halves, ranks as threads
// with the CPU backend, against one rank. Tolerances are those of DESIGN section 4.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "equivalence_checks.h"
#include "equivalence_rows.h"

using namespace scaletrain;
using namespace scaletrain::equivalence;

namespace {

constexpr std::size_t num_parts = 2;  // each a test of its own, so that two processors have work

const Baseline& baseline_for(const Row& row, std::map<std::string, Baseline>& known) {
  const auto [entry, is_new] = known.try_emplace(baseline_key(row));
  if (is_new) entry->second = run_baseline(baseline_of(row));
  return entry->second;
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
  worst.tell();
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
  for (const Row& row : rows_of_part(part))
    check_row_run(equivalence::text(row), run_of(row), baseline_for(row, known), worst);
  worst.tell();
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

// No switch of the rows: their calls are those of a plan whose steps are all alike.
TEST_CASE("phases_of_shorter_and_fewer_samples_have_the_numbers_of_one_rank") {
  constexpr std::size_t stride = 12;
  const std::vector<Row> rows = make_rows();
  for (std::size_t i = 5; i < rows.size(); i += stride) {
    CAPTURE(equivalence::text(rows[i]));
    const LayoutOutcome many = check_steps(in_phases(run_of(rows[i])), in_phases(baseline_of(rows[i])));
    CHECK(many.target_tokens[2] <= 4 * many.plan.global_batch);
    CHECK(many.target_tokens[4] <= 4 * 2);
  }
}

// No switch of the rows either: it is the steps that differ, and gradient_noise_test.cpp has their calls.
TEST_CASE("steps_that_measure_noise_have_the_numbers_of_one_rank") {
  constexpr std::size_t stride = 12;
  const std::vector<Row> rows = make_rows();
  for (std::size_t i = 2; i < rows.size(); i += stride) {
    CAPTURE(equivalence::text(rows[i]));
    check_steps(measuring_noise(run_of(rows[i])), measuring_noise(baseline_of(rows[i])));
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
