// How large a run's checkpoints are, in bytes and in parts: the save plans of all ranks, counted without being made.
#pragma once

#include <cstdint>
#include <string>

#include "plan/run_plan.h"

namespace scaletrain {

struct SaveSize {
  std::uint64_t bytes = 0;  // of all tensors
  std::int64_t files = 0;   // about: a file ends where the next piece would not fit
  std::int64_t pieces = 0;  // of all tensors
  std::int64_t most_pieces = 0;
  std::string most_cut;              // the tensor that has so many
  std::uint64_t manifest_bytes = 0;  // about; without lists that lie beside it
  std::uint64_t list_bytes = 0;      // about; of those lists, of pieces and of files
};

// Takes time in proportion to the pieces: a second for ten million.
SaveSize save_size(const PhasePlan& phase);

// Memory that rank 0 needs beside its plan while it makes the manifest, with what it reads back to check it. A bound;
// 0 where the pieces are so few that it is lost in the rest.
std::uint64_t manifest_memory(const SaveSize& size);

// "4.4 TiB in 131,072 files; 9,012,000 pieces, ..."; empty where there are few of them.
std::string save_text(const SaveSize& size);

// Why such a checkpoint could not be written or read back; empty if it can.
std::string save_refusal(const SaveSize& size);

}  // namespace scaletrain
