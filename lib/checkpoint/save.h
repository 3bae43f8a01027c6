// Writing one checkpoint: a hidden temporary folder, every file synced, the manifest last, one rename as the only
// commit point.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "parallel/param_store.h"

namespace scaletrain {

// Which rank writes which box of which tensor: derived from the table and the layout. One rank: everything it holds.
struct SavePiece {
  int row = 0;    // of the ParamTable
  int slot = -1;  // -1: the masters; else an optimizer slot
  std::string file;
  std::string key;
  Box box;
};
// Masters go to model-NNNNN.safetensors, slots to optimizer-NNNNN.safetensors; a file ends before it would exceed
// max_file_bytes (unless one tensor alone does). Tied copies are not written.
inline constexpr std::uint64_t default_max_file_bytes = 4ull << 30;
// slot_names: the optimizer's; dtype: of masters and slots in the store. Pure: needs no store.
std::vector<SavePiece> make_save_plan(const ParamTable& table, const ShardLayout& layout,
                                      std::span<const std::string> slot_names, DType dtype,
                                      std::uint64_t max_file_bytes = default_max_file_bytes);

// Everything that is not in the store. save_id, files and tensors of `manifest` are filled in by save_checkpoint.
struct SaveRequest {
  std::filesystem::path folder;  // .../checkpoints
  Manifest manifest;
  std::vector<std::filesystem::path> tokenizer_files;  // copied beside the manifest
  // Called right before the rename; false abandons the save (another process took the run's lock, a newer generation
  // began).
  std::function<bool()> may_commit;
  std::uint64_t max_file_bytes = default_max_file_bytes;
};

struct SaveResult {
  std::filesystem::path path;  // .../checkpoints/step-00000200
  std::string save_id;
  std::uint64_t bytes = 0;
  double seconds = 0;
};

// Any failure is an InputError; the temporary folder is removed and no checkpoint is changed. An existing checkpoint of
// the same step (of an abandoned branch) is set aside first.
SaveResult save_checkpoint(const ParamStore& store, const SaveRequest& request);

// "step-00000200"
std::string checkpoint_name(std::int64_t step);

}  // namespace scaletrain
