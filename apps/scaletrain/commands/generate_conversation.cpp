#include "generate_conversation.h"

#include <unistd.h>

#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "commands.h"
#include "generate_output.h"

namespace scaletrain {

void converse(LoadedModel& model, const Chat& chat, const std::string& system, const GenerationOptions& options) {
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  Generator generator(model, {.context = model.transformer().spec().context, .keeps_past = true});
  GenerationOptions turn = options;
  turn.end_tokens = chat.end_tokens;
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  const auto read_turn = [is_terminal](std::string& line) {
    if (is_terminal) write_output("> ");
    return static_cast<bool>(std::getline(std::cin, line));
  };
  for (std::string line; read_turn(line); ++turn.first_prompt) {
    messages.push_back({"user", line});
    const Prompt prompt = chat.prompt(model, messages, "the conversation");
    StreamedText text("");
    std::string answer;
    generator.run(std::span(&prompt.tokens, 1), turn,
                  {.text = [&](const GeneratedSample&, const std::string& more) { text.add(more); },
                   .done =
                       [&](const GeneratedSample& sample) {
                         text.finish();
                         answer = sample.text;
                         if (sample.end == GenerationEnd::context_full)
                           write_message("stopped: the model's context is full");
                       }});
    messages.push_back({"assistant", answer});
  }
}

}  // namespace scaletrain
