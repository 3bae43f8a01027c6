// Which tokens begin and end the texts of a run's model, and stand in place of text, for other programs.
#pragma once

#include <filesystem>

#include "checkpoint/hugging_face/hugging_face.h"
#include "infer/model.h"

namespace scaletrain {

// Of a model of ours, whose checkpoint is `folder`: by the generation_config.json and the tokenizer_config.json that it
// carries, else by the tokenizer. Ids that the model does not have count as not there. InputError, which names file and
// member, for what is no id or no token's text.
SpecialTokens exported_tokens(const TextModel& model, const std::filesystem::path& folder);

}  // namespace scaletrain
