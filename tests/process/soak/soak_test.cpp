// Random faults at random moments, on one layout after the other: every run ends with the numbers of one that nothing
// disturbed.
//   SCALETRAIN_SOAK_KILLS    goes on until so many ranks were killed (12)
//   SCALETRAIN_SOAK_SECONDS  goes on for at least so long
//   SCALETRAIN_SOAK_SEED     of the first run; the next has the next number
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>

#include "torment/tormented_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Mostly kills of ranks; a rank that is stopped costs a heartbeat.
constexpr std::array torments = {
    Torment::kill_rank,          Torment::kill_rank,          Torment::kill_rank,         Torment::kill_rank,
    Torment::kill_rank,          Torment::kill_rank_in_save,  Torment::kill_rank_in_save, Torment::kill_rank_in_save,
    Torment::kill_rank_at_start, Torment::kill_rank_at_start, Torment::kill_agent,        Torment::tell_agent,
    Torment::tell_rank,          Torment::flip_bit,           Torment::besiege_port,      Torment::stop_rank,
    Torment::hang_storage,       Torment::reset_connection,
};

struct Totals {
  std::map<std::string, int> layouts;
  std::map<std::string, int> faults;
  int runs = 0;
  int rank_kills = 0;
  int inside_saves = 0;
  std::vector<double> recoveries;
  std::string slowest;  // what the longest of them was
  std::vector<double> stop_recoveries;
  std::vector<double> reset_recoveries;
  std::vector<double> restarts;
};

// One run with a handful of faults, all of it drawn from its seed. Seeds go round the layouts, so that a few of them
// meet every one, and each precision.
std::string run_of_seed(unsigned seed, Totals& totals) {
  SoakRandom random(seed);
  const SoakLayout& layout = soak_layouts()[seed % soak_layouts().size()];
  const bool background = pick(random, 2) == 0;
  const bool may_stop = pick(random, 4) == 0;
  Settings settings = soak_settings(layout, background);
  settings.emplace_back(may_stop ? "supervise.heartbeat=4s" : "supervise.heartbeat=30s");
  constexpr int faults = 6;
  const std::string name = "soak-" + std::to_string(seed);
  undisturbed_soak(layout);
  TormentedRun run(name, layout, settings);
  std::string told = layout.name + (background ? ", saves in the background:" : ", saves in the foreground:");
  std::size_t recovered = 0;
  for (int i = 0; i < faults; ++i) {
    Torment torment = torments[pick(random, torments.size())];
    if (torment == Torment::stop_rank && !may_stop) torment = Torment::kill_rank;
    const bool needs_peers = torment == Torment::besiege_port || torment == Torment::reset_connection;
    if (needs_peers && layout.world == 1) torment = Torment::kill_rank;
    // A heartbeat of a few seconds is no measure for storage on a machine that is busy.
    if (torment == Torment::hang_storage && may_stop) torment = Torment::kill_rank;
    const long step = 2 + static_cast<long>(0.85 * soak_steps * (i + fraction_of(random)) / faults);
    told += "\n  step " + std::to_string(step) + ": " + name_of(torment);
    if (!run.suffer(torment, step, random)) {
      told += " (not met)";
      if (!run.problem().empty()) break;
      continue;
    }
    ++totals.faults[name_of(torment)];
    if (!run.recoveries().empty() && run.recoveries().size() != recovered &&
        run.recoveries().back() >= std::max(largest_of(totals.recoveries), largest_of(run.recoveries())))
      totals.slowest = std::string(name_of(torment)) + " at step " + std::to_string(step) + " of " + layout.name +
                       ", seed " + std::to_string(seed);
    recovered = run.recoveries().size();
    if (kills_a_rank(torment)) totals.rank_kills += torment == Torment::kill_rank_at_start ? 2 : 1;
    if (!run.problem().empty()) break;
  }
  const std::string problem = run.finish();
  ++totals.runs;
  ++totals.layouts[layout.name + (background ? " (background)" : "")];
  totals.inside_saves += run.kills_inside_saves();
  append(totals.recoveries, run.recoveries());
  append(totals.stop_recoveries, run.recoveries_from_stop());
  append(totals.reset_recoveries, run.recoveries_from_reset());
  append(totals.restarts, run.restarts());
  if (problem.empty()) {
    fs::remove_all(layout_folder(name));
    return {};
  }
  return "SCALETRAIN_SOAK_SEED=" + std::to_string(seed) + ": " + told + "\n" + problem;
}

void tell(const Totals& totals, unsigned seed, double seconds) {
  std::cout << "soak from seed " << seed << ": " << totals.runs << " runs, " << totals.rank_kills << " ranks killed ("
            << totals.inside_saves << " while a checkpoint was being written), " << seconds << " s\n";
  for (const auto& [name, count] : totals.faults) std::cout << "  " << count << " x " << name << "\n";
  std::cout << "layouts:\n";
  for (const auto& [name, count] : totals.layouts) std::cout << "  " << count << " x " << name << "\n";
  const auto line = [](const char* what, const std::vector<double>& values) {
    std::cout << what << ": median " << median_of(values) << " s, longest " << largest_of(values) << " s, of "
              << values.size() << "\n";
  };
  line("from a kill to the first new step", totals.recoveries);
  std::cout << "  the longest: " << totals.slowest << "\n";
  line("from a stop to the first new step", totals.stop_recoveries);
  line("from a reset connection to the first new step", totals.reset_recoveries);
  line("from a start by hand to the first new step", totals.restarts);
  std::cout << std::flush;
}

}  // namespace

TEST_CASE("whatever_is_done_to_a_run_at_whatever_moment_it_ends_as_if_nothing_had_happened") {
  const auto seed = static_cast<unsigned>(number_from_environment("SCALETRAIN_SOAK_SEED", 7));
  const long kills = number_from_environment("SCALETRAIN_SOAK_KILLS", 12);
  const auto seconds = static_cast<double>(number_from_environment("SCALETRAIN_SOAK_SECONDS", 0));
  std::cout << "SCALETRAIN_SOAK_SEED=" << seed << std::endl;
  Totals totals;
  const double begin = test_clock();
  for (unsigned next = seed; totals.rank_kills < kills || test_clock() - begin < seconds; ++next) {
    const std::string problem = run_of_seed(next, totals);
    CHECK_MESSAGE(problem.empty(), problem);
    // One that is broken is looked into before thousands are.
    if (!problem.empty()) break;
  }
  tell(totals, seed, test_clock() - begin);
}

}  // namespace scaletrain
