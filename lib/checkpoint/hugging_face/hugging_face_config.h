// config.json of GPT-2 and Llama models, both ways.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "config/config.h"
#include "tensor/dtype.h"

namespace scaletrain {

// What changes the computation and is not supported is an InputError naming `where` and the member; members that only
// matter to generation or to training in that library are ignored. Sizes are bounded so that the tensors' bytes fit 63
// bits.
ModelConfig parse_hugging_face_config(const nlohmann::json& value, const std::string& where);

// UserError where neither family can express the model.
std::string hugging_face_config_text(const ModelConfig& model, DType dtype);

}  // namespace scaletrain
