// What the process tests of several ranks share: a tiny model of four layers, its run on one rank, and comparisons.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tiny_run.h"

namespace scaletrain {

inline constexpr double ranks_patience = 150.0;

// Steps of a comparison: 10, or what SCALETRAIN_SOAK_STEPS says.
int layout_steps();

using Settings = std::vector<std::string>;

// `run config.yaml` with the four-layer model and these settings. Run folders are given by their whole path, so that
// every process that works for one is found by it.
std::vector<std::string> layout_arguments(const std::string& run, const Settings& settings);
Launch layout_launch(const std::string& run, const Settings& settings);
std::filesystem::path layout_folder(const std::string& run);

// The trajectory of the four-layer model on one rank, trained once.
const Trajectory& one_rank();

// Each step's and evaluation's loss within 1e-5 of the one-rank run's, relative; all steps are there.
void check_same_losses(const std::string& run);
void check_no_process_left(const std::string& run);

// The processes of a launcher: `world` times the program, with torchrun's variables.
class LaunchedRanks {
 public:
  LaunchedRanks(int world, const std::string& run, const Settings& settings);
  // None yet: they are started one by one.
  explicit LaunchedRanks(int world) : world_(world) {}
  void start(int rank, const std::string& run, const Settings& settings,
             const std::vector<std::pair<std::string, std::string>>& environment = {},
             const std::string& config = "config.yaml");
  // In the order of their starts.
  Program& rank(int index) { return *ranks_.at(static_cast<std::size_t>(index)); }
  // Exit codes.
  std::vector<int> wait(double seconds = ranks_patience);
  // All that they said on standard error.
  std::string errors();

 private:
  int world_;
  std::vector<std::unique_ptr<Program>> ranks_;
};

}  // namespace scaletrain
