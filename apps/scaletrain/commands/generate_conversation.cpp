#include "generate_conversation.h"

#include <unistd.h>

#include <iostream>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "generate_output.h"

namespace scaletrain {

void converse(LoadedModel& model, const Chat& chat, const std::string& system, const GenerationOptions& options) {
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  const std::int64_t context = model.transformer().spec().context;
  Generator generator(model, {.context = context, .keeps_past = true});
  GenerationOptions turn = options;
  turn.end_tokens = chat.end_tokens;
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  const auto read_turn = [is_terminal](std::string& line) {
    if (is_terminal) write_output("> ");
    return static_cast<bool>(std::getline(std::cin, line));
  };
  bool is_cut = false;
  bool is_told = false;
  for (std::string line; read_turn(line); ++turn.first_prompt) {
    messages.push_back({"user", line});
    Prompt prompt = chat.unbounded_prompt(model, messages, "the conversation");
    const std::ptrdiff_t oldest = system.empty() ? 0 : 1;
    // A question and its answer at a time; the last question stays.
    while (std::ssize(prompt.tokens) >= context && std::ssize(messages) > oldest + 2) {
      messages.erase(messages.begin() + oldest, messages.begin() + oldest + 2);
      prompt = chat.unbounded_prompt(model, messages, "the conversation");
      is_cut = true;
    }
    if (is_cut && !std::exchange(is_told, true))
      write_message("notice: the conversation is longer than the model's context; its oldest turns are left out");
    check_prompt_fits(model, prompt.tokens, "the conversation");
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
