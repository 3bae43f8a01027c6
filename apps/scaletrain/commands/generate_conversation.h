// generate --chat without a prompt: a conversation, each line of standard input a turn of the user's.
#pragma once

#include "generate_prompts.h"
#include "infer/generate.h"

namespace scaletrain {

// Until standard input ends. What was read and written before is not read again. On a terminal a mark shows whose turn
// it is. UserError once the conversation leaves no room in the model's context.
void converse(LoadedModel& model, const Chat& chat, const std::string& system, const GenerationOptions& options);

}  // namespace scaletrain
