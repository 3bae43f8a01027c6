#include "equivalence_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "reduced_in_bf16.h"
#include "traffic.h"

namespace scaletrain::equivalence {

namespace {

constexpr const char* zero_gradient = "attention.key.bias";

double beside_its_weight(const GlobalTensors& gradients, std::string bias) {
  const double size = norm_of(gradients.at(bias));
  return size / norm_of(gradients.at(bias.replace(bias.find("bias"), std::string::npos, "weight")));
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

// How far a tensor is from what is exact, relative.
double distance(const GlobalTensors& tensors, const GlobalTensors& exact, const std::string& tensor) {
  const std::vector<double>& expected = exact.at(tensor);
  std::vector<double> difference = tensors.at(tensor);
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[i];
  return norm_of(difference) / norm_of(expected);
}

}  // namespace

LayoutRun first_gradients(LayoutRun run) {
  run.config.train.optimizer.type = OptimizerKind::sgd;
  run.config.train.optimizer.weight_decay = 0.0;
  run.config.train.clip_norm.reset();
  run.steps = 2;
  return run;
}

LayoutRun several_steps(LayoutRun run) {
  const char* const steps = std::getenv("SCALETRAIN_SOAK_STEPS");
  run.steps = steps == nullptr ? 10 : std::stoll(steps);
  return run;
}

Baseline run_baseline(const LayoutRun& run) {
  return {.run = first_gradients(run),
          .gradients = run_layout(first_gradients(run)),
          .steps = run_layout(several_steps(run))};
}

bool is_zero_by_design(const std::string& tensor, const ModelConfig& model) {
  return model.position == PositionKind::learned && tensor.find(zero_gradient) != std::string::npos;
}

double norm_of(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
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

void check_against_exact(const GlobalTensors& gradients, const GlobalTensors& one, LayoutRun base) {
  base.backend = TestBackend::reference_f64;
  base.make_gpu = {};
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

void check_row_run(const std::string& name, LayoutRun run, const Baseline& one, WorstOfAll& worst) {
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

LayoutRun in_phases(LayoutRun run) {
  run.config.precision.reduce = Precision::fp32;
  run.config.train.phases = {PhaseConfig{.steps = 2}, PhaseConfig{.steps = 2, .context = 4},
                             PhaseConfig{.steps = 2, .context = 4, .global_batch = 2}, PhaseConfig{.steps = 44}};
  run.steps = 10;
  return run;
}

LayoutRun measuring_noise(LayoutRun run) {
  run.config.precision.reduce = Precision::fp32;
  run.config.log.gradient_noise = GradientNoiseConfig{.every = 3};
  run.steps = 7;
  return run;
}

LayoutOutcome check_steps(const LayoutRun& run, const LayoutRun& base) {
  const LayoutOutcome one = run_layout(base);
  REQUIRE(one.problem == "");
  LayoutOutcome many = run_layout(run);
  CHECK(many.problem == "");
  CHECK(many.target_tokens == one.target_tokens);
  CHECK(largest_relative(many.losses, one.losses) <= single_tolerance.steps);
  CHECK(largest_relative(many.grad_norms, one.grad_norms) <= single_tolerance.steps);
  return many;
}

void WorstOfAll::tell() const {
  MESSAGE("largest difference of a gradient: " << gradient.error << " (" << gradient.where << ")");
  MESSAGE("largest difference of a loss: " << loss.error << " (" << loss.where << ")");
  MESSAGE("largest difference of a norm: " << norm.error << " (" << norm.where << ")");
}

}  // namespace scaletrain::equivalence
