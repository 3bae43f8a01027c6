// How generate writes what a model says.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/process/terminal_text.h"
#include "generate_prompts.h"
#include "infer/generate.h"

namespace scaletrain {

// Standard output. What a model says may be any bytes: those that would command a terminal, or are no characters, are
// shown to it as text; whatever else standard output is gets them as they are.
class ModelOutput {
 public:
  ModelOutput();
  void write(const std::string& text);
  // Ends a line and what was held back of a character.
  void finish();

 private:
  bool is_terminal_;
  TerminalText shown_;
};

// One text as it is computed: the prompt, once there is something to add to it, so that a prompt that is refused leaves
// the output empty, then each part.
class StreamedText {
 public:
  explicit StreamedText(std::string prompt) : prompt_(std::move(prompt)) {}
  void add(const std::string& text);
  void finish();

 private:
  void write_prompt();

  std::string prompt_;
  bool prompt_written_ = false;
  ModelOutput output_;
};

// "== prompt 2, sample 1: stop" and the text, prompt first, below it.
void write_sample(const Prompt& prompt, const GeneratedSample& sample);
// A line of JSON, `more` at its end. What is no UTF-8 is U+FFFD in it.
void write_json_sample(const Prompt& prompt, const GeneratedSample& sample,
                       const nlohmann::ordered_json& more = nlohmann::ordered_json::object());

}  // namespace scaletrain
