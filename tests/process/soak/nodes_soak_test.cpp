// Random faults at random moments to the agents and ranks of several nodes.
//   SCALETRAIN_SOAK_SEED   of the first run; the next has the next number
//   SCALETRAIN_SOAK_NODES  so many runs (2: one of each kind)
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>

#include "torment/tormented_nodes.h"

namespace scaletrain {
namespace {

constexpr std::array node_torments = {
    NodesTorment::kill_rank,  NodesTorment::kill_rank,   NodesTorment::kill_agent, NodesTorment::kill_coordinator,
    NodesTorment::stop_agent, NodesTorment::pause_agent, NodesTorment::tell_agent, NodesTorment::reset_connection};
// Most of them cost the time until a silent node counts as lost.
constexpr int faults = 3;

struct NodesTotals {
  std::map<std::string, int> faults;
  std::map<std::string, int> layouts;
  int ranks_killed = 0;
  int starts = 0;
  std::vector<double> recoveries;
  std::vector<double> loss_recoveries;
};

std::string run_of_seed(unsigned seed, const NodesLayout& layout, NodesTotals& totals) {
  SoakRandom random(seed);
  const std::string name = "nodes-" + std::to_string(seed) + "-" + layout.name;
  TormentedNodes run(name, layout);
  std::string told = layout.name + ":";
  for (int i = 0; i < faults && run.problem().empty(); ++i) {
    const NodesTorment torment = node_torments[pick(random, node_torments.size())];
    const long step = 2 + static_cast<long>(0.85 * soak_steps * (i + fraction_of(random)) / faults);
    const bool was_met = run.suffer(torment, step, random);
    told += "\n  step " + std::to_string(step) + ": " + name_of(torment) + (was_met ? "" : " (not met)");
    if (was_met) ++totals.faults[name_of(torment)];
  }
  const std::string problem = run.finish();
  ++totals.layouts[layout.name];
  totals.ranks_killed += run.ranks_killed();
  totals.starts += run.starts();
  append(totals.recoveries, run.recoveries());
  append(totals.loss_recoveries, run.recoveries_from_loss());
  if (!problem.empty()) return "SCALETRAIN_SOAK_SEED=" + std::to_string(seed) + ": " + told + "\n" + problem;
  std::filesystem::remove_all(layout_folder(name));
  return {};
}

}  // namespace

TEST_CASE("whatever_is_done_to_the_agents_of_several_nodes_the_run_ends_as_if_nothing_had_happened") {
  const auto seed = static_cast<unsigned>(number_from_environment("SCALETRAIN_SOAK_SEED", 7));
  const long runs = number_from_environment("SCALETRAIN_SOAK_NODES", 2);
  std::cout << "SCALETRAIN_SOAK_SEED=" << seed << std::endl;
  NodesTotals totals;
  const double begin = test_clock();
  for (unsigned i = 0; i < static_cast<unsigned>(runs); ++i) {
    // Every second run is the elastic one, the last of the layouts.
    const std::size_t rigid = nodes_layouts().size() - 1;
    const std::size_t index = i % 2 == 1 ? rigid : (seed + i / 2) % rigid;
    const std::string problem = run_of_seed(seed + i, nodes_layouts()[index], totals);
    CHECK_MESSAGE(problem.empty(), problem);
    if (!problem.empty()) break;
  }
  std::cout << "soak of several nodes from seed " << seed << ": " << runs << " runs, " << totals.starts << " starts, "
            << totals.ranks_killed << " ranks killed, " << test_clock() - begin << " s\n";
  for (const auto& entry : totals.layouts) std::cout << "  " << entry.second << " x " << entry.first << "\n";
  for (const auto& entry : totals.faults) std::cout << "  " << entry.second << " x " << entry.first << "\n";
  std::cout << "from a rank's death to the first new step: median " << median_of(totals.recoveries) << " s, longest "
            << largest_of(totals.recoveries) << " s; from a lost node: median " << median_of(totals.loss_recoveries)
            << " s, longest " << largest_of(totals.loss_recoveries) << " s\n"
            << std::flush;
}

}  // namespace scaletrain
