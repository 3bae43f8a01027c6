// scaletrain generate: text sampled from a model.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/process/terminal_text.h"
#include "commands.h"
#include "infer/sampling.h"
#include "model_argument.h"
#include "option_checks.h"

namespace scaletrain {

namespace {

struct GenerateArguments {
  ModelArgument model;
  std::string prompt;
  std::int64_t max_tokens = 200;
  double temperature = 0.8;
  std::uint64_t seed = 0;
  bool greedy = false;
};

// What a model says may be any bytes. Those that would command a terminal are shown to it as text; whatever else
// standard output is gets them as they are.
class ModelOutput {
 public:
  void write(const std::string& text) { write_output(is_terminal_ ? shown_.add(text) : text); }
  void finish() { write_output((is_terminal_ ? shown_.finish() : "") + "\n"); }

 private:
  bool is_terminal_ = ::isatty(STDOUT_FILENO) == 1;
  TerminalText shown_;
};

ExitCode generate(const GenerateArguments& arguments) {
  OpenedModel model(arguments.model);
  const SamplingOptions options{.temperature = arguments.greedy ? 0.0 : arguments.temperature, .seed = arguments.seed};
  const bool spaced = !model.loaded.tokenizer().reads_text();  // ids are separated by spaces
  // Only once there is something to add to it: a prompt that is refused leaves the output empty.
  bool prompt_written = false;
  ModelOutput output;
  const auto write_prompt = [&] {
    if (!std::exchange(prompt_written, true)) output.write(arguments.prompt);
  };
  const GenerationEnd end =
      generate_text(model.loaded, arguments.prompt, arguments.max_tokens, options, [&](const std::string& text) {
        write_prompt();
        output.write(spaced ? " " + text : text);
      });
  write_prompt();
  output.finish();
  if (end == GenerationEnd::context_full) write_message("stopped: the model's context is full");
  return ExitCode::finished;
}

}  // namespace

Command add_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Sample text from a checkpoint or Hugging Face model");
  arguments->model.declare(*command);
  command->add_option("--prompt", arguments->prompt, "Text to continue")->required();
  command->add_option("--max-tokens", arguments->max_tokens, "New tokens at most")
      ->transform(whole_number(1))
      ->capture_default_str();
  CLI::Option* temperature =
      command->add_option("--temperature", arguments->temperature, "Spread of the choice, 0 to 100; 0 is greedy")
          ->check(number_between(0, 100))
          ->capture_default_str();
  CLI::Option* seed = command->add_option("--seed", arguments->seed, "Equal seeds give equal texts")
                          ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
                          ->capture_default_str();
  command->add_flag("--greedy", arguments->greedy, "Always the likeliest token")->excludes(temperature)->excludes(seed);
  return [arguments] { return generate(*arguments); };
}

}  // namespace scaletrain
