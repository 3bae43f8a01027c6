// scaletrain generate: texts sampled from a model.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "commands.h"
#include "generate_choice.h"
#include "generate_conversation.h"
#include "generate_output.h"
#include "generate_prompts.h"
#include "infer/generate.h"
#include "model_argument.h"
#include "option_checks.h"

namespace scaletrain {

namespace {

struct GenerateArguments {
  ModelArgument model;
  PromptArguments prompts;
  GenerationOptions options{.max_tokens = 200, .samples = 1, .sampling = {.temperature = 0.8}};
  ChoiceArguments choice;
  bool greedy = false;
  std::vector<const CLI::Option*> of_random_choice;  // of no use where the likeliest token is taken
  std::int64_t batch = 8;
  bool no_cache = false;
  bool json = false;
};

// What is wrong whatever the model.
void check_options(const GenerateArguments& arguments) {
  const GenerationOptions& options = arguments.options;
  const bool is_greedy = options.sampling.temperature == 0.0;
  if (options.samples > 1 && is_greedy)
    throw UserError((arguments.choice.best_of > 0 ? "--best-of" : "--samples") +
                    std::string(": greedy samples of a prompt are all the same; give a --temperature above 0"));
  for (const CLI::Option* option : arguments.of_random_choice)
    if (is_greedy && option->count() > 0)
      throw UserError(option->get_name() +
                      ": --temperature 0 always takes the likeliest token; remove one of the two options");
  for (const std::string& stop : options.stop)
    if (stop.empty()) throw UserError("--stop: must not be empty: every text would stop before its first token");
  check_choice(arguments.choice, options.samples);
}

void check_for_model(const GenerateArguments& arguments, const LoadedModel& model) {
  if (!arguments.options.stop.empty() && !model.tokenizer().reads_text())
    throw UserError("--stop: the model writes token ids, not text; remove the option");
}

// A conversation has one answer to each turn, as text.
void check_conversation(const GenerateArguments& arguments) {
  const char* remedy = ": a conversation has one answer to each turn; give --prompt or --prompt-file";
  if (arguments.choice.is_given())
    throw UserError((arguments.choice.best_of > 0 ? "--best-of" : "--vote") + std::string(remedy));
  if (arguments.options.samples > 1) throw UserError("--samples" + std::string(remedy));
  if (arguments.json) throw UserError("--json" + std::string(remedy));
  if (arguments.no_cache) throw UserError("--no-cache" + std::string(remedy));
}

Generator::Extent extent_of(const GenerateArguments& arguments, const LoadedModel& model,
                            const std::vector<Prompt>& prompts) {
  std::int64_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, static_cast<std::int64_t>(prompt.tokens.size()));
  const std::int64_t context = model.transformer().spec().context;
  const auto wanted = static_cast<std::int64_t>(prompts.size());
  // Fewer samples than a batch need no more places.
  const std::int64_t samples = arguments.options.samples;
  const bool fill_batch = wanted >= arguments.batch || samples >= arguments.batch;
  return {
      .context = arguments.options.max_tokens >= context - longest ? context : longest + arguments.options.max_tokens,
      .batch = fill_batch ? arguments.batch : std::min(arguments.batch, wanted * samples),
      .has_cache = !arguments.no_cache};
}

ExitCode generate(GenerateArguments arguments) {
  if (arguments.prompts.is_conversation()) {
    check_conversation(arguments);
  } else if (!arguments.prompts.has_any()) {
    throw_no_prompt();  // before a large model is read for nothing
  }
  GenerationOptions& options = arguments.options;
  if (arguments.greedy) options.sampling.temperature = 0.0;
  if (arguments.choice.best_of > 0) options.samples = arguments.choice.best_of;
  options.wants_log_probabilities = arguments.json || arguments.choice.best_of > 0;
  check_options(arguments);
  std::optional<Chat> chat;
  std::vector<Prompt> prompts;
  OpenedModel model(arguments.model, [&](LoadedModel& found) {
    check_for_model(arguments, found);
    chat = open_chat(arguments.prompts, found);
    if (!arguments.prompts.is_conversation()) prompts = read_prompts(arguments.prompts, chat, found);
  });
  if (arguments.prompts.is_conversation()) {
    converse(model.loaded, *chat, arguments.prompts.system, options);
    return ExitCode::finished;
  }
  if (chat) options.end_tokens = chat->end_tokens;
  std::vector<std::vector<std::int32_t>> tokens;
  tokens.reserve(prompts.size());
  for (const Prompt& prompt : prompts) tokens.push_back(prompt.tokens);
  Generator generator(model.loaded, extent_of(arguments, model.loaded, prompts));

  const auto prompt_of = [&prompts](const GeneratedSample& sample) -> const Prompt& {
    return prompts[static_cast<std::size_t>(sample.prompt)];
  };
  GenerationEvents events;
  std::optional<StreamedText> streamed;
  std::optional<SampleChoice> choice;
  if (arguments.choice.is_given()) {
    choice.emplace(arguments.choice, prompts, options, arguments.json);
    events.done = [&](const GeneratedSample& sample) { choice->add(sample); };
  } else if (arguments.json) {
    events.done = [&](const GeneratedSample& sample) { write_json_sample(prompt_of(sample), sample); };
  } else if (prompts.size() == 1 && options.samples == 1) {
    streamed.emplace(prompts.front().shown);
    events.text = [&](const GeneratedSample&, const std::string& text) { streamed->add(text); };
    events.done = [&](const GeneratedSample& sample) {
      streamed->finish();
      if (sample.end == GenerationEnd::context_full) write_message("stopped: the model's context is full");
    };
  } else {
    events.done = [&](const GeneratedSample& sample) { write_sample(prompt_of(sample), sample); };
  }
  generator.run(tokens, options, events);
  return ExitCode::finished;
}

void declare_sampling(CLI::App& command, GenerateArguments& arguments) {
  SamplingOptions& sampling = arguments.options.sampling;
  CLI::Option* temperature =
      command.add_option("--temperature", sampling.temperature, "Spread of the choice, 0 to 100; 0 is greedy")
          ->check(number_between(0, 100))
          ->capture_default_str();
  CLI::Option* top_k = command.add_option("--top-k", sampling.top_k, "Only so many of the likeliest tokens; 0: all")
                           ->transform(whole_number(0))
                           ->capture_default_str();
  CLI::Option* top_p = command
                           .add_option("--top-p", sampling.top_p,
                                       "Only the likeliest tokens that together have this probability, 0 to 1")
                           ->check(number_between(0, 1))
                           ->capture_default_str();
  CLI::Option* min_p =
      command
          .add_option("--min-p", sampling.min_p, "Only tokens at least so likely as this part of the likeliest, 0 to 1")
          ->check(number_between(0, 1))
          ->capture_default_str();
  command
      .add_option(
          "--repetition-penalty", sampling.repetition_penalty,
          "Divides positive logits, multiplies negative ones, of tokens that the text or its prompt has; 1: none")
      ->check(number_above_zero(100))
      ->capture_default_str();
  CLI::Option* seed = command.add_option("--seed", sampling.seed, "Equal seeds give equal texts")
                          ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
                          ->capture_default_str();
  CLI::Option* greedy = command.add_flag("--greedy", arguments.greedy, "Always the likeliest token");
  for (CLI::Option* other : {temperature, top_k, top_p, min_p, seed}) greedy->excludes(other);
  arguments.of_random_choice = {top_k, top_p, min_p, seed};
}

}  // namespace

Command add_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Sample texts from a checkpoint or Hugging Face model");
  arguments->model.declare(*command);
  arguments->prompts.declare(*command);
  command->add_option("--max-tokens", arguments->options.max_tokens, "New tokens at most, of each sample")
      ->transform(whole_number(1))
      ->capture_default_str();
  command
      ->add_option("--samples", arguments->options.samples,
                   "Of each prompt; sample k is the same whatever their number")
      ->transform(whole_number(1, 65536))
      ->capture_default_str();
  arguments->choice.declare(*command);
  declare_sampling(*command, *arguments);
  command->add_option("--stop", arguments->options.stop, "End a text before this string (repeatable)")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command->add_option("--batch", arguments->batch, "Samples computed at once; changes no text")
      ->transform(whole_number(1, 4096))
      ->capture_default_str();
  command->add_flag("--no-cache", arguments->no_cache,
                    "Compute the whole text again for every token: slow, to compare with");
  command->add_flag("--json", arguments->json,
                    "A line of JSON a sample, with its tokens and their log-probabilities by the model itself");
  return [arguments] { return generate(*arguments); };
}

}  // namespace scaletrain
