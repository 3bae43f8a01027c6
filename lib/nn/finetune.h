// Which parameters a run does not train, or not yet, and with what part of the learning rate the others. Frozen ones
// keep their values, and have neither gradient nor optimizer state.
#pragma once

#include "config/config.h"
#include "parallel/param_table.h"

namespace scaletrain {

// Freezes what the patterns of finetune.freeze match (base/glob.h: * and ?, over the whole name), but for what a phase
// of finetune.unfreeze names: that is trained, and joins after the first such phase's step (Parameter::joins_after). A
// tied tensor goes by the name of its owner. UserError: a pattern that matches nothing, or of a phase nothing that is
// not trained before; one that parts a fused matrix; patterns that leave nothing to train from the start.
void freeze_parameters(ParamTable& table, const FinetuneConfig& config);

// Gives the parameters their factors on the learning rate: of finetune.learning_rates that of the last pattern that
// matches, 1 without one, times layer_decay to the power of the units behind (Clark et al. 2020, ELECTRA: the embedding
// of a model of L blocks has L + 1). UserError: a pattern that matches nothing, or frozen parameters alone.
void scale_learning_rates(ParamTable& table, const FinetuneConfig& config);

}  // namespace scaletrain
