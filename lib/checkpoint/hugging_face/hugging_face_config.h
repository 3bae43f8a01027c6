// config.json of the model families that are known, both ways. A family is one row of the table in
// hugging_face_config.cpp.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/hugging_face/hugging_face.h"
#include "config/config.h"
#include "tensor/dtype.h"

namespace scaletrain {

// What changes the computation and is not supported is an InputError naming `where` and the member; members that only
// matter to generation or to training in that library are ignored. Sizes are bounded so that the tensors' bytes fit 63
// bits.
HuggingFaceShape parse_hugging_face_config(const nlohmann::json& value, const std::string& where);

// As the library spells ids of which there may be several: nothing is null, one a number.
nlohmann::ordered_json ids_json(const std::vector<std::int64_t>& ids);

// UserError where no family can express the model.
std::string hugging_face_config_text(const ModelConfig& model, DType dtype, const SpecialTokens& tokens);

}  // namespace scaletrain
