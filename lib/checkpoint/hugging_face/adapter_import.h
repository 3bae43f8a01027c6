// A folder of peft's adapters (adapter_config.json and adapter_model.safetensors) as what a run's adapters begin as.
#pragma once

#include <filesystem>

#include "config/config.h"
#include "parallel/param_table.h"
#include "store/param_store.h"

namespace scaletrain {

// Whether a folder holds adapters and no model.
bool is_adapter_folder(const std::filesystem::path& folder);

// UserError, with what to write, unless the folder's adapters are those that the config describes, of this base: their
// rank, alpha and maps. InputError for a folder that cannot be read, or whose adapters compute something else than
// x·Aᵀ·Bᵀ · alpha / rank beside a map.
void check_adapter_folder(const std::filesystem::path& folder, const ParamTable& base, const LoraConfig& lora);

// Fills the adapters' masters of the store, wherever they lie; the store's values then have changed. The folder was
// checked for its model.
void load_adapters(const std::filesystem::path& folder, ParamStore& store);

}  // namespace scaletrain
