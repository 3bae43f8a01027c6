// The model section of a config that begins from somebody else's weights: model.init.from brings the shape, and what
// the config says of it must agree. Inside config/ only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/keys/key_table.h"
#include "config/load.h"

namespace scaletrain {

// Fills every key of the shape that neither the file nor a preset gave, and refuses those that say something else, each
// at its place. Nothing without model.init.from. `folder`: against which its path is resolved. A folder that cannot be
// read is refused where the config does not say what the model is; else whoever reads its weights reports it.
void take_folder_model(const FolderModelLook& look, const std::filesystem::path& folder, Config& config,
                       ReadContext& context, std::vector<std::string>& notices);

}  // namespace scaletrain
