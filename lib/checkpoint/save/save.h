// Writing one checkpoint: a hidden temporary folder, every file synced, the manifest last, one rename as the only
// commit point.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "comm/rendezvous/key_value_store.h"
#include "store/param_store.h"

namespace scaletrain {

// What a tensor of a checkpoint has of a state: its values, or codes; the scales of those in 8 bits, one for each
// block; the factors that stand for it, of the rows or of the columns (Parameter::has_factors).
enum class StatePart { values, scales, rows, columns };

// A piece of a tensor that one rank writes: derived from the table and the layout.
struct SavePiece {
  int parameter = 0;  // of the ParamTable
  int state = -1;     // -1: the masters; else an optimizer state
  StatePart part = StatePart::values;
  std::string file;
  std::string key;   // the tensor's name; with "@k" behind it for the k-th box of a rank that writes only a part of it
  Box box;           // of the tensor as it is stored
  ParamRange range;  // where its values lie: a part of the rank's shard; of factors the parameter alone
};
// What one rank writes: the parts of parameters that its data rank owns (ShardLayout::piece_ranges, whatever the ZeRO
// stage), of parameters of whose replication group it is the first; tied copies are not written, nor what the base of
// adapters has. Factors are written by the first tensor and data rank of a stage. A range becomes at most 2d-1 boxes.
// All ranks together write each element of each tensor exactly once. Masters go to model-RRRRR-NNN.safetensors, states
// to optimizer-RRRRR-NNN.safetensors (R the rank, N from 0; a world of one rank leaves R out and gives N five digits);
// a file ends before it would exceed max_file_bytes (unless one piece alone does). A rank without pieces has no file.
inline constexpr std::uint64_t default_max_file_bytes = 4ull << 30;
// state_names: the optimizer's; dtype: of masters and states in the store. Pure: needs no store.
std::vector<SavePiece> make_save_plan(const ParamTable& table, const ShardLayout& layout,
                                      std::span<const std::string> state_names, DType dtype,
                                      std::uint64_t max_file_bytes = default_max_file_bytes);

// Bytes of all pieces of that plan.
std::uint64_t saved_bytes(const ParamTable& table, const ShardLayout& layout, std::span<const std::string> state_names,
                          DType dtype);
// The same of all ranks together, whatever their layout: what a checkpoint takes but for its manifest, the files'
// headers and the tokenizer.
std::uint64_t checkpoint_bytes(const ParamTable& table, std::span<const std::string> state_names, DType dtype);
// What a tensor of a checkpoint is: of a parameter's masters (no state's name), or of a part of a state.
DType saved_dtype(const Parameter& parameter, std::string_view state_name, StatePart part, DType masters);
Shape saved_shape(const Parameter& parameter, StatePart part);
// Its name among the checkpoint's tensors; state -1: the masters.
std::string saved_name(const Parameter& parameter, int state, std::string_view state_name, StatePart part);
// Where the store has a piece's values.
View stored_values(const ParamStore& store, const SavePiece& piece);

// What one rank saves, wherever its values lie: in its store, or in a copy of what the store held (staging.h).
class SavedState {
 public:
  virtual ~SavedState() = default;
  virtual const ParamTable& table() const = 0;
  virtual const ShardLayout& layout() const = 0;
  virtual const std::vector<std::string>& state_names() const = 0;
  virtual DType dtype() const = 0;  // of masters and states
  // The values of a piece of this rank's plan.
  virtual ConstView values(const SavePiece& piece) const = 0;
  // Whose memory they lie in, if it is not the host's; else null.
  virtual Backend* backend() const { return nullptr; }
};

// The ranks that write one checkpoint together. They talk through the rendezvous store alone: rank 0 makes the folder
// and announces it, every rank writes its files and reports their sizes and checksums, rank 0 writes the manifest,
// commits and announces the result. The keys ("save/GENERATION/STEP/ATTEMPT/...") are removed by the last rank that has
// read the result.
struct SaveGroup {
  Rank rank{0};
  std::int64_t world = 1;
  KeyValueStore* store = nullptr;  // null: a single rank
  double deadline = 600.0;         // seconds until a rank that has not reported is given up and the save abandoned
  // Counts the saves of the run's processes, failed ones too: the same number on every rank, and a new one for each
  // save, so that nothing that an abandoned save left behind is taken for this one's.
  std::int64_t attempt = 0;
  // What every rank writes: needed by rank 0. Empty for a single rank.
  std::function<std::vector<SavePiece>(Rank)> plan_of{};
};

// A file of the tokenizer that a run trains with, as it was when the run began: one that is edited or removed since
// changes no checkpoint.
struct TokenizerFile {
  std::string name;
  std::shared_ptr<const std::string> content;
};
// InputError
TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

// Everything that is not in the store. save_id, files and tensors of `manifest` are filled in by save_checkpoint; ranks
// other than 0 need its generation and step only.
struct SaveRequest {
  std::filesystem::path folder;  // .../checkpoints
  Manifest manifest;
  std::vector<TokenizerFile> tokenizer_files;  // stored beside the manifest
  // Called by rank 0 right before the rename; false abandons the save (another process took the run's lock, a newer
  // generation began).
  std::function<bool()> may_commit;
  // Asked between writes, by every rank; true ends the save as a failure. May be empty.
  std::function<bool()> is_abandoned{};
  // The save id of a checkpoint that this one stands for in full; empty: none. Found under the same name it is removed
  // when this one is committed, where any other is kept as abandoned.
  std::string supersedes{};
  // Hears of what does not undo the save: that the commit may not survive a power cut. May be empty.
  std::function<void(const std::string&)> warn{};
  std::uint64_t max_file_bytes = default_max_file_bytes;
  std::uint64_t max_manifest_pieces = most_pieces_in_manifest;  // more lie beside it
  SaveGroup group{};
};

struct SaveResult {
  std::filesystem::path path;  // .../checkpoints/step-00000200
  std::string save_id;
  std::uint64_t bytes = 0;  // of all ranks
  double seconds = 0;
};

// The same result, or the same InputError, on every rank (a rank that cannot reach the store, or hears nothing from
// rank 0: PeerError). Any failure of a file or of memory is an InputError, NoSpaceError (base/file.h) where more space
// would have saved it; whatever else a rank throws keeps its kind there and is an InputError on the others. After a
// failure the temporary folder is removed, by a rank that was too late for the others as well, and no checkpoint is
// changed. An existing checkpoint of the same step (of an abandoned branch) is quarantined first.
SaveResult save_checkpoint(const SavedState& state, const SaveRequest& request);
// What the store holds, which nobody changes until this returns.
SaveResult save_checkpoint(const ParamStore& store, const SaveRequest& request);

// "step-00000200"
std::string checkpoint_name(std::int64_t step);

}  // namespace scaletrain
