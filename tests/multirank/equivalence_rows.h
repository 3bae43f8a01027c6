// The runs of the equivalence suite: every mesh of up to eight ranks, and on them a pairwise cover of all switches.
//
// A switch is one entry of switches(): what a run may choose without its losses being another run's. A new one (an
// optimizer, a backend) joins by one entry there: its values, where each is possible, and what each does to the config.
// The cover then grows by itself, and a test sees to it that no pair is missing. A switch whose values compute
// something else in the first place (another model, other data) says so in `changes_baseline`: then the one-rank run
// that a row is compared with has it too.
//
// Two choices are none of these, because they change numbers by more than the order of sums does. The compute precision
// is not a switch: all rows run in single precision, and in_half() makes runs in halves of them. precision.reduce is
// one, but single precision is held to its tolerance with sums in fp32 in every row; a row with bf16 is made a second
// time, and held to the first by what rounding allows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/ranks/rank_trainer.h"

namespace scaletrain::equivalence {

// A choice: the mesh, and one value of each switch (its index in Switch::values).
struct Row {
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::vector<std::size_t> values;
};

// What a value does: to the config, and to the run where that is not the config's business (masks, backends).
using Apply = std::function<void(const Row& row, LayoutRun& run)>;

// How near a run must come to one rank: DESIGN section 4 has these for single precision; in half precision losses
// within 5e-3, and no promise for gradients, whose norm is held to that in the first step alone: later ones are those
// of weights that have come to differ.
struct Tolerance {
  double steps;  // of each loss and norm, relative
  bool compares_gradients;
};
inline constexpr Tolerance single_tolerance{.steps = 1e-5, .compares_gradients = true};
inline constexpr Tolerance half_tolerance{.steps = 5e-3, .compares_gradients = false};

struct SwitchValue {
  std::string name;
  std::function<bool(const Row& mesh)> is_possible;  // empty: everywhere; decides by the degrees alone
  Apply apply;
};

struct Switch {
  std::string name;
  bool changes_baseline = false;
  std::vector<SwitchValue> values;
};

const std::vector<Switch>& switches();

// All (data, tensor, pipeline) with a product of at most eight.
const std::vector<Row>& meshes();
bool same_mesh(const Row& a, const Row& b);

// Every possible pair of values of two switches, and every mesh with every value that is possible on it. The same list
// in every run.
std::vector<Row> make_rows(const std::vector<Switch>& all = switches());

std::string text(const Row& row);
// The run of a row, and the run of one rank that it must equal. Steps, optimizer and tracing are the caller's.
LayoutRun run_of(const Row& row);
LayoutRun baseline_of(const Row& row);
// A row's run, or its baseline, in a half: bf16, or fp16 with a fixed loss scale.
LayoutRun in_half(LayoutRun run, DType half);
// Equal for rows of equal baselines.
std::string baseline_key(const Row& row);

}  // namespace scaletrain::equivalence
