// What the equivalence suite asks of a run on some layout: gradients, losses, norms and calls, against one rank. Checks
// are doctest's, of the test that calls them.
#pragma once

#include <string>
#include <vector>

#include "equivalence_rows.h"
#include "support/ranks/rank_trainer.h"

namespace scaletrain::equivalence {

inline constexpr double gradient_tolerance = 1e-5;

// Two steps, of which the first one's gradients are kept: SGD, neither decay nor clipping.
LayoutRun first_gradients(LayoutRun run);
// Ten, or what SCALETRAIN_SOAK_STEPS says: what drifts is seen in ten, how far it drifts in more.
LayoutRun several_steps(LayoutRun run);

// Full steps, shorter samples in memory that was planned for longer ones, fewer of them, and full steps again.
LayoutRun in_phases(LayoutRun run);
// Every third step in halves.
LayoutRun measuring_noise(LayoutRun run);

// One rank's.
struct Baseline {
  LayoutRun run;  // that of the gradients
  LayoutOutcome gradients;
  LayoutOutcome steps;
};
Baseline run_baseline(const LayoutRun& run);

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
  Worst gradient, loss, norm;  // of halves there are no gradients: those of the first norm
  void tell() const;
};

// A key's bias adds the same to all scores of a query, which softmax does not see: its gradient is zero, and what
// single precision leaves of it is rounding alone, some 1e-9 of all gradients, which differs from layout to layout. It
// is held against zero, on the scale of the gradient of the same map's weight, instead of against another run's
// rounding. Where keys are rotated it adds something else to each.
bool is_zero_by_design(const std::string& tensor, const ModelConfig& model);
double norm_of(const std::vector<double>& values);
TensorDifference gradient_difference(const GlobalTensors& gradients, GlobalTensors expected, const ModelConfig& model);

// What single precision leaves of a gradient whose terms nearly cancel (that of Gemma's key norms, of a few numbers) is
// up to the kernels of the processor, on one rank as on many. Where the two differ by more than the tolerance, ranks
// must be no further from float64, by more than a factor of two, than one rank is. base: the run of one rank, which is
// what is exact in float64: the same layout would have its errors there too.
void check_against_exact(const GlobalTensors& gradients, const GlobalTensors& one, LayoutRun base);

// `run` (one row's) against one rank.
void check_run(const std::string& name, const LayoutRun& run, const Tolerance& tolerance, const Baseline& one,
               WorstOfAll& worst);
// The same in single precision; if the run's gradients travel in bf16, first in fp32.
void check_row_run(const std::string& name, LayoutRun run, const Baseline& one, WorstOfAll& worst);

// Losses and norms of some steps against one rank's, in single precision.
LayoutOutcome check_steps(const LayoutRun& run, const LayoutRun& base);

}  // namespace scaletrain::equivalence
