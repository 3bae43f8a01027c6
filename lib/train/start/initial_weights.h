// The weights of somebody else's that a run begins from: model.init.from, a Hugging Face folder. Not a checkpoint: a
// run that has one no longer needs the folder.
#pragma once

#include <string>

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

// UserError for a folder that holds another model than this one.
void load_initial_weights(const std::string& folder, const ModelSpec& model, ParamStore& store, Stream& stream);

}  // namespace scaletrain
