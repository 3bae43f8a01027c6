// The prompts of generate: from the command line, a file or standard input.
#pragma once

#include <string>
#include <vector>

#include "infer/model.h"

namespace CLI {
class App;
}

namespace scaletrain {

struct PromptArguments {
  std::string prompt;
  std::string file;
  bool has_prompt = false;  // an empty one is one too
  void declare(CLI::App& command);
};

struct Prompt {
  std::string text;                  // as it was given
  std::string where;                 // for messages: "--prompt", "prompts.jsonl:3: prompt"
  std::vector<std::int32_t> tokens;  // as prompt_tokens() makes them
};

// At least one. UserError where none or two of the options are given, for a prompt that the model cannot go on from,
// and for a file that cannot be read; InputError for a line that is no object with `prompt`.
std::vector<Prompt> read_prompts(const PromptArguments& arguments, LoadedModel& model);

}  // namespace scaletrain
