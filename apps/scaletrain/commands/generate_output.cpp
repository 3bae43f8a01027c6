#include "generate_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "commands.h"

namespace scaletrain {

ModelOutput::ModelOutput() : is_terminal_(::isatty(STDOUT_FILENO) == 1) {}

void ModelOutput::write(const std::string& text) {
  write_output(is_terminal_ ? shown_.add(text) : text);
}

void ModelOutput::finish() {
  write_output((is_terminal_ ? shown_.finish() : "") + "\n");
}

void StreamedText::write_prompt() {
  if (!std::exchange(prompt_written_, true)) output_.write(prompt_);
}

void StreamedText::add(const std::string& text) {
  write_prompt();
  output_.write(text);
}

void StreamedText::finish() {
  write_prompt();
  output_.finish();
}

void write_sample(const Prompt& prompt, const GeneratedSample& sample) {
  ModelOutput output;
  output.write(fmt::format("== prompt {}, sample {}: {}\n", sample.prompt + 1, sample.sample + 1, to_text(sample.end)));
  output.write(prompt.shown + sample.text);
  output.finish();
}

void write_json_sample(const Prompt& prompt, const GeneratedSample& sample, const nlohmann::ordered_json& more) {
  nlohmann::ordered_json line;
  line["prompt_index"] = sample.prompt;
  line["sample"] = sample.sample;
  line["prompt"] = prompt.text;
  line["text"] = sample.text;
  line["tokens"] = sample.tokens;
  line["log_probabilities"] = sample.log_probabilities;
  line["end"] = to_text(sample.end);
  line["stop"] = nullptr;
  if (sample.stop) line["stop"] = *sample.stop;
  line.update(more);
  write_output(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace scaletrain
