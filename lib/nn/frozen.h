// Which parameters a run does not train: frozen ones keep their values, and have neither gradient nor optimizer state.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "parallel/param_table.h"

namespace scaletrain {

// Whether the pattern is the whole name, where * stands for any characters, maybe none, and ? for one.
bool matches_name(std::string_view pattern, std::string_view name);

// Freezes what the patterns of finetune.freeze match. A tied tensor goes by the name of its owner. UserError: a pattern
// that matches nothing, one that leaves a part of a fused matrix to train, patterns that leave nothing to train.
void freeze_parameters(ParamTable& table, std::span<const std::string> patterns);

}  // namespace scaletrain
