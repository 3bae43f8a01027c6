// What a run's checkpoints carry beside its weights, so that nothing else is needed to use or to export one: the
// tokenizer's files with what lies beside them (data/tokens/companion_files.h), and the generation_config.json of the
// folder that the run began from.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "checkpoint/save/save.h"
#include "config/config.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// The tokenizer's own files come first. `resumed`: the checkpoint that the run goes on from; the folder of
// model.init.from may be gone then. InputError for a file that cannot be read or is not what its name says.
std::vector<TokenizerFile> carried_files(const Config& config, const Tokenizer& tokenizer,
                                         const std::optional<std::filesystem::path>& resumed);

}  // namespace scaletrain
