// Ranks as processes of their own that train by turns on random tokens, each with one thread on one
// processor, so that time and memory are measured as a real run has them: the program training_rank, assembled as a
// worker is, without files and checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/rendezvous/rendezvous.h"
#include "config/config.h"
#include "support/turn_process.h"

namespace scaletrain {

class TrainingRanks {
 public:
  // The config names the degrees and the model's vocabulary. runs: that many runs of it, which do not know each other;
  // their ranks follow each other.
  explicit TrainingRanks(const Config& config, int runs = 1);
  TrainingRanks(const TrainingRanks&) = delete;
  TrainingRanks& operator=(const TrainingRanks&) = delete;

  // One step of all ranks: the slowest one's seconds; of each the processor time of the thread that computes and of the
  // others, its own seconds, and those of them in which it waited for other ranks. What it did not wait it worked.
  struct Step {
    double seconds = 0.0;
    std::vector<double> computing{};
    std::vector<double> others{};
    std::vector<double> own{};
    std::vector<double> waiting{};
  };
  Step step();

  // Of one rank, in bytes: what its peak of resident memory is above what it was before its backend was made, and what
  // the plan says.
  struct Memory {
    std::uint64_t grown = 0;
    std::uint64_t planned = 0;
    double ratio() const { return static_cast<double>(grown) / static_cast<double>(planned); }
  };
  // Ends the ranks.
  std::vector<Memory> memory();

 private:
  std::vector<std::unique_ptr<RendezvousServer>> servers_;  // one a run
  std::vector<TurnProcess> processes_;                      // end before their servers
};

// The environment variable of what the ranks of one layout share: a command line could be read by others.
inline constexpr const char* rank_secret_variable = "SCALETRAIN_SECRET";

}  // namespace scaletrain
