// The run folder that a config means although the config is wrong, so that a rank that cannot take part still finds the
// others and tells them why.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace scaletrain {

// As far as `run.directory` and `run.name` can be read, from the file or the texts of --set; absolute. Nothing where
// neither says (the file is missing, its `run:` section cannot be parsed). Never throws for what is wrong with either.
std::optional<std::filesystem::path> meant_run_folder(const std::filesystem::path& config,
                                                      const std::vector<std::string>& overrides);

}  // namespace scaletrain
