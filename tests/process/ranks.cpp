#include "ranks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

double number_at(const std::string& text, int position) {
  std::size_t at = 0;
  for (int i = 0; i < position; ++i) at = text.find(' ', at) + 1;
  return std::stod(text.substr(at));
}

void check_close(const std::string& found, const std::string& expected, const std::string& where) {
  const double ours = number_at(found, 0);
  const double theirs = number_at(expected, 0);
  CHECK_MESSAGE(std::abs(ours - theirs) <= 1e-5 * std::abs(theirs), where, ": ", ours, " against ", theirs);
}

}  // namespace

int layout_steps() {
  const char* const text = std::getenv("SCALETRAIN_SOAK_STEPS");
  return text == nullptr ? 10 : std::max(10, std::atoi(text));
}

fs::path layout_folder(const std::string& run) {
  return workspace() / run;
}

std::vector<std::string> layout_arguments(const std::string& run, const Settings& settings) {
  Settings all = {"model.layers=4",
                  "train.global_batch=8",
                  "train.micro_batch=1",
                  "train.steps=" + std::to_string(layout_steps()),
                  "evaluate={every: 5, batches: 2}",
                  "checkpoint={every: 5, keep: 100}"};
  all.insert(all.end(), settings.begin(), settings.end());
  return workspace().training(layout_folder(run).string(), all);
}

Launch layout_launch(const std::string& run, const Settings& settings) {
  return workspace().launch(layout_arguments(run, settings));
}

const Trajectory& one_rank() {
  static const Trajectory trajectory = [] {
    const Ended end = run_program(layout_launch("one-rank", {}), ranks_patience);
    if (end.exit_code != 0) throw std::runtime_error("the run on one rank failed:\n" + end.errors);
    return trajectory_of(layout_folder("one-rank"));
  }();
  return trajectory;
}

void check_same_losses(const std::string& run) {
  const Trajectory found = trajectory_of(layout_folder(run));
  CHECK(found.steps.size() == static_cast<std::size_t>(layout_steps()));
  CHECK(found.evaluations.size() == one_rank().evaluations.size());
  for (const auto& entry : one_rank().steps) {
    const auto other = found.steps.find(entry.first);
    const std::string where = run + ", step " + std::to_string(entry.first);
    REQUIRE_MESSAGE(other != found.steps.end(), where, " is missing");
    check_close(other->second, entry.second, where);
  }
  for (const auto& entry : one_rank().evaluations) {
    const auto other = found.evaluations.find(entry.first);
    const std::string where = run + ", evaluation at step " + std::to_string(entry.first.first);
    REQUIRE_MESSAGE(other != found.evaluations.end(), where, " is missing");
    check_close(other->second, entry.second, where);
  }
}

void check_no_process_left(const std::string& run) {
  CHECK(wait_until([&] { return processes_with(layout_folder(run).string()).empty(); }, 10.0));
}

LaunchedRanks::LaunchedRanks(int world, const std::string& run, const Settings& settings) : world_(world) {
  for (int rank = 0; rank < world; ++rank) start(rank, run, settings);
}

void LaunchedRanks::start(int rank, const std::string& run, const Settings& settings,
                          const std::vector<std::pair<std::string, std::string>>& environment,
                          const std::string& config) {
  Launch launch = layout_launch(run, settings);
  launch.arguments.at(1) = config;
  // The first of a name is what a process reads.
  launch.environment.insert(launch.environment.end(), environment.begin(), environment.end());
  launch.environment.emplace_back("RANK", std::to_string(rank));
  launch.environment.emplace_back("WORLD_SIZE", std::to_string(world_));
  launch.environment.emplace_back("LOCAL_RANK", std::to_string(rank));
  launch.environment.emplace_back("LOCAL_WORLD_SIZE", std::to_string(world_));
  ranks_.push_back(std::make_unique<Program>(launch));
}

std::vector<int> LaunchedRanks::wait(double seconds) {
  std::vector<int> codes;
  codes.reserve(ranks_.size());
  for (const auto& rank : ranks_) codes.push_back(rank->wait(seconds).exit_code);
  return codes;
}

std::string LaunchedRanks::errors() {
  std::string text;
  for (const auto& rank : ranks_) text += rank->errors();
  return text;
}

}  // namespace scaletrain
