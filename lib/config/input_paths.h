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

// What is wrong with an input that a key names.
struct InputProblem {
  std::string key;         // "data.train.0.path"
  std::string message;     // what is wrong, and what helps
  bool is_config = false;  // the config is to be mended, and not the data
};

// The given paths behind which there is nothing, of a config that is not resolved yet; model.init.from is left to
// whoever knows whether the run still needs it. Values that were refused already are left out.
std::vector<InputProblem> missing_paths(const Config& config, const std::filesystem::path& folder,
                                        const ReadContext& context);

}  // namespace scaletrain
