// The weights of somebody else's that a run begins from: model.init.from, a Hugging Face folder. Not a checkpoint: a
// run that has one no longer needs the folder, unless it trains adapters for it (finetune.lora), which then are all
// that its checkpoints hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/process/work_count.h"
#include "checkpoint/format/manifest.h"
#include "config/config.h"
#include "config/load.h"
#include "nn/model_spec.h"
#include "store/param_store.h"

namespace scaletrain {

// Before anything is started: where the run will begin from such a folder, it must be there, readable, and hold this
// model. No weight is read. UserError, InputError; both begin with the key.
void check_initial_weights(const Config& config, const ModelSpec& model);

// What model.init.from says of the model, for load_config: of a run that has a checkpoint, what that holds.
FolderModel look_at_folder_model(const Config& config);

// The base of adapters: loads its masters, behind which those of the adapters are to come (ParamStore::values_changed()
// is theirs to call), and says what it is. known: what the checkpoint that the run goes on from says of it;
// InputError for a folder of another content, and for one that is missing then. Hashing all of the folder's weights
// takes `threads`; 0: somebody else does, and it is not looked at.
BaseModel load_base(const Config& config, const ModelSpec& model, const std::optional<BaseModel>& known,
                    ParamStore& store, int threads, WorkCount* work);
// InputError if the folder's weights are others than the base's.
void refuse_other_base(const std::string& folder, const BaseModel& base, std::uint64_t content);

// The adapters of finetune.lora.from, which check_initial_weights() has looked at.
void load_initial_adapters(const std::string& folder, ParamStore& store, Stream& stream);

// The weights of config.init.from, or what model.grow makes of them. UserError for a folder that holds another model
// than this one. Returns how it has grown, for people; empty: it has not.
std::string load_initial_weights(const ModelConfig& config, const ModelSpec& model, ParamStore& store, Stream& stream);

}  // namespace scaletrain
