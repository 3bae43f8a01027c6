// The prompts of generate: from the command line, a file or standard input.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokens/chat/chat_template.h"
#include "infer/model.h"

namespace CLI {
class App;
}

namespace scaletrain {

struct PromptArguments {
  std::string prompt;
  std::string file;
  bool has_prompt = false;  // an empty one is one too
  bool chat = false;
  std::string chat_template;  // empty: that of the run's config, else the tokenizer's
  std::string system;         // empty: none
  void declare(CLI::App& command);
  bool has_any() const { return has_prompt || !file.empty(); }
  bool is_conversation() const { return chat && !has_any(); }
};

struct Prompt {
  std::string text;                  // as it was given; of a chat as it is rendered
  std::string shown;                 // before the model's own text: the same, but nothing of a chat
  std::string where;                 // for messages: "--prompt", "prompts.jsonl:3: prompt"
  std::vector<std::int32_t> tokens;  // as prompt_tokens() makes them
};

// How the model is talked to.
struct Chat {
  ChatTemplate chat_template;
  std::vector<std::int32_t> end_tokens;  // that end an answer

  // A conversation that an answer is to be written to. UserError beginning with `where` where it leaves no room.
  Prompt prompt(LoadedModel& model, std::span<const ChatMessage> messages, const std::string& where) const;
  // The same, which may be longer than the model's context.
  Prompt unbounded_prompt(LoadedModel& model, std::span<const ChatMessage> messages, const std::string& where) const;
};
// Nothing without --chat. UserError where the template's end of a turn is no token of the model's tokenizer; UserError
// or InputError for a template that is missing or not known.
std::optional<Chat> open_chat(const PromptArguments& arguments, const LoadedModel& model);

// At least one. UserError where none or two of the options are given, for a prompt that the model cannot go on from,
// and for a file that cannot be read; InputError for a line that is no object with `prompt` (or `messages`, of a chat).
std::vector<Prompt> read_prompts(const PromptArguments& arguments, const std::optional<Chat>& chat, LoadedModel& model);

// The UserError of a command line without a prompt.
[[noreturn]] void throw_no_prompt();

// What standard input holds.
std::string read_standard_input();

}  // namespace scaletrain
