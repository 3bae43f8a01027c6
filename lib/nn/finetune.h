// Which parameters a run does not train, and with what part of the learning rate the others. Frozen ones keep their
// values, and have neither gradient nor optimizer state.
#pragma once

#include <span>
#include <string>

#include "config/config.h"
#include "parallel/param_table.h"

namespace scaletrain {

// Freezes what the patterns of finetune.freeze match (base/glob.h: * and ?, over the whole name). A tied tensor goes by
// the name of its owner. UserError: a pattern that matches nothing, one that leaves a part of a fused matrix to train,
// patterns that leave nothing to train.
void freeze_parameters(ParamTable& table, std::span<const std::string> patterns);

// Gives the parameters their factors on the learning rate: of finetune.learning_rates that of the last pattern that
// matches, 1 without one, times layer_decay to the power of the units behind (Clark et al. 2020, ELECTRA: the embedding
// of a model of L blocks has L + 1). UserError: a pattern that matches nothing, or frozen parameters alone.
void scale_learning_rates(ParamTable& table, const FinetuneConfig& config);

}  // namespace scaletrain
