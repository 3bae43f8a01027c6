// What the degrees of parallelism, the model, the batch and the number of ranks must have to do with one another. Every
// such rule stands here once: the loader asks with the places of the keys at hand, so that all errors of a config come
// together, and the plan asks again for configs and numbers of replicas that did not come through the loader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace scaletrain {

// How many ranks there are, and who says so.
struct WorldSize {
  std::int64_t ranks = 1;
  std::string told = "the world has";  // what stands before "12 ranks": "torchrun has started", "--world asks for"
};

struct LayoutProblem {
  std::vector<std::string> keys;  // what the rule reads: the better the place of a key for the error, the earlier
  std::string text;               // begins with the key that it is about and a colon; else the ranks are at fault
  bool is_of_world = false;       // no key of the config is
};

// Replicas: parallel.data, or for auto what the world leaves; nothing where that is open, or does not come out even.
std::optional<std::int64_t> data_degree(const ParallelConfig& parallel, const std::optional<WorldSize>& world);

// Every broken rule. What needs the number of replicas is judged where `data` gives it, what needs the number of ranks
// where `world` does. Degrees are the config's, so no product leaves 64 bits.
std::vector<LayoutProblem> layout_problems(const Config& config, std::optional<std::int64_t> data,
                                           const std::optional<WorldSize>& world);

// Micro-batches that the replica with the largest share of a batch runs per step; all run as many.
std::int64_t micro_batches_of_replica(const TrainConfig& train, std::int64_t replicas);
// And the samples that each has room for: as even as may be, at most train.micro_batch.
std::int64_t samples_of_micro_batch(const TrainConfig& train, std::int64_t replicas);

}  // namespace scaletrain
