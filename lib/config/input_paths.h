// The paths of a config that name input: resolved against the config file's folder, and looked for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/diagnostics.h"
#include "config/keys/key_table.h"

namespace scaletrain {

// Relative paths of data, tokenizer and model.init.from become absolute.
void resolve_paths(Config& config, const std::filesystem::path& folder);

struct MissingPath {
  Place place;
  std::string message;  // "data.train.0.path: no such file or folder: ..."
};

// The given paths behind which there is nothing, of a config that is not resolved yet. Values that were refused already
// are left out. `with_initial_weights`: model.init.from too, which a run that has a checkpoint no longer needs.
std::vector<MissingPath> missing_paths(const Config& config, const std::filesystem::path& folder,
                                       const ReadContext& context, bool with_initial_weights);

}  // namespace scaletrain
