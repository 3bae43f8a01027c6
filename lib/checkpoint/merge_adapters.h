// A checkpoint of adapters (nn/lora.h) as one model: the base's weights with scale · B·A added to those that have one.
#pragma once

#include "checkpoint/load.h"
#include "config/config.h"
#include "nn/lora.h"
#include "store/param_store.h"

namespace scaletrain {

// InputError unless the manifest has the adapters that the config names, of the shapes that they have in this model,
// and nothing else but optimizer states.
void check_adapters(const Manifest& manifest, const ParamTable& base, const LoraConfig& config,
                    const std::string& where);

// Adds them to what the store holds of the base, unsharded and not divided among ranks; products are summed in f32.
void merge_adapters(const Checkpoint& checkpoint, const LoraConfig& config, ParamStore& store, Stream& stream);

}  // namespace scaletrain
