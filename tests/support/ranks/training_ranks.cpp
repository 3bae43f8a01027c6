#include "support/ranks/training_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/text.h"
#include "config/load.h"

namespace scaletrain {

TrainingRanks::TrainingRanks(const Config& config, int runs) {
  const std::string secret = make_secret();
  ::setenv(rank_secret_variable, secret.c_str(), 1);
  const ParallelConfig& parallel = config.parallel;
  const std::int64_t world = parallel.data.value() * parallel.tensor * parallel.pipeline;
  for (int run = 0; run < runs; ++run) {
    servers_.push_back(std::make_unique<RendezvousServer>(RendezvousServer::Options{.secret = secret}));
    for (std::int64_t rank = 0; rank < world; ++rank)
      processes_.emplace_back(std::vector<std::string>{SCALETRAIN_TRAINING_RANK, resolved_yaml(config),
                                                       std::to_string(rank), std::to_string(processes_.size()),
                                                       std::to_string(servers_.back()->address().port)});
  }
}

TrainingRanks::Step TrainingRanks::step() {
  for (TurnProcess& process : processes_) process.ask("step");
  Step step;
  for (TurnProcess& process : processes_) {
    const std::vector<std::string> words = split_text(process.answer(), ' ');
    step.own.push_back(std::stod(words.at(0)));
    step.seconds = std::max(step.seconds, step.own.back());
    step.computing.push_back(std::stod(words.at(1)));
    step.others.push_back(std::stod(words.at(2)));
    step.waiting.push_back(std::stod(words.at(3)));
  }
  return step;
}

std::vector<TrainingRanks::Memory> TrainingRanks::memory() {
  std::vector<Memory> out;
  for (TurnProcess& process : processes_) process.end_commands();
  for (TurnProcess& process : processes_) {
    const std::vector<std::string> words = split_text(process.answer(), ' ');
    out.push_back({std::stoull(words.at(0)), std::stoull(words.at(1))});
  }
  return out;
}

}  // namespace scaletrain
