// Which parameters a run does not train, or not yet, and with what part of the learning rate and of the weight decay
// the others. Frozen ones keep their values, and have neither gradient nor optimizer state.
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

// Gives the parameters their factors on the weight decay, without a pattern 1 to matrices and 0 to biases and norms. A
// pattern of finetune.weight_decays that matches biases and norms alone gives its factor to all of them; one that
// matches matrices too gives it to these and to what an earlier pattern has decay: "blocks.*" has no norm decay, and 0
// keeps all that it matches from decay. Of several the last one counts. UserError: as above, or a pattern of whose
// matches what is trained does not decay.
void scale_weight_decays(ParamTable& table, const FinetuneConfig& config);

}  // namespace scaletrain
