#include "generate_choice.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "commands.h"
#include "generate_output.h"
#include "option_checks.h"

namespace scaletrain {

namespace {

std::string digits_of(std::int64_t count) {
  return grouped_digits(static_cast<std::uint64_t>(count));
}

std::optional<AnswerPattern> pattern_of(const ChoiceArguments& arguments) {
  if (arguments.vote.empty()) return std::nullopt;
  try {
    return AnswerPattern(arguments.vote);
  } catch (const UserError& error) {
    throw UserError(fmt::format("--vote: {}", error.what()));
  }
}

}  // namespace

void check_choice(const ChoiceArguments& arguments, std::int64_t samples) {
  if (!arguments.vote.empty() && samples < 2) throw UserError("--vote: one sample is no majority: give --samples N");
  pattern_of(arguments);
}

void ChoiceArguments::declare(CLI::App& command) {
  CLI::Option* best = command
                          .add_option("--best-of", best_of,
                                      "Of so many samples of each prompt the one with the largest mean "
                                      "log-probability of its tokens, by the model itself")
                          ->transform(whole_number(2, 65536))
                          ->excludes(command.get_option("--samples"));
  command
      .add_option("--vote", vote,
                  "The answer that most samples give, of equals the first: the first group of this regular expression "
                  "in the last match of each, within a line")
      ->type_name("PATTERN")
      ->excludes(best);
}

SampleChoice::SampleChoice(const ChoiceArguments& arguments, const std::vector<Prompt>& prompts,
                           const GenerationOptions& options, bool json)
    : prompts_(prompts),
      samples_(options.samples),
      budget_(try_mul(options.samples, options.max_tokens).value_or(std::numeric_limits<std::int64_t>::max())),
      pattern_(pattern_of(arguments)),
      json_(json) {}

void SampleChoice::add(const GeneratedSample& sample) {
  gathered_.push_back(sample);
  spent_ += static_cast<std::int64_t>(sample.tokens.size());
  if (static_cast<std::int64_t>(gathered_.size()) < samples_) return;
  if (pattern_) {
    choose_by_vote(*pattern_);
  } else {
    choose_best();
  }
  gathered_.clear();
  spent_ = 0;
}

std::string SampleChoice::name_of_prompt() const {
  return prompts_.size() == 1 ? "" : fmt::format("prompt {}: ", gathered_.front().prompt + 1);
}

std::string SampleChoice::spent_text() const {
  return fmt::format("{} new tokens spent, of at most {} ({})", digits_of(spent_), digits_of(budget_),
                     counted(samples_, "sample"));
}

void SampleChoice::choose_best() {
  const std::size_t best = likeliest_sample(gathered_);
  const Prompt& prompt = prompts_[static_cast<std::size_t>(gathered_.front().prompt)];
  write_message(fmt::format("{}sample {} is the likeliest: {:.4g} nats per token in the mean; {}", name_of_prompt(),
                            best + 1, mean_log_probability(gathered_[best]), spent_text()));
  if (!json_) {
    if (prompts_.size() > 1) {
      write_sample(prompt, gathered_[best]);
    } else {
      StreamedText text(prompt.shown);
      text.add(gathered_[best].text);
      text.finish();
    }
    return;
  }
  for (std::size_t i = 0; i < gathered_.size(); ++i)
    write_json_sample(prompt, gathered_[i],
                      {{"mean_log_probability", mean_log_probability(gathered_[i])},
                       {"chosen", i == best},
                       {"tokens_spent", spent_},
                       {"token_budget", budget_}});
}

void SampleChoice::choose_by_vote(const AnswerPattern& pattern) {
  std::vector<std::optional<std::string>> answers;
  for (const GeneratedSample& sample : gathered_) answers.push_back(pattern.find(sample.text));
  const Vote vote = majority(answers);
  const std::int64_t none = samples_ - vote.cast;
  const Prompt& prompt = prompts_[static_cast<std::size_t>(gathered_.front().prompt)];
  write_message(fmt::format("{}{} of {} samples give this answer, {} none; {}", name_of_prompt(), vote.votes, samples_,
                            none, spent_text()));
  if (!json_) {
    ModelOutput output;
    if (prompts_.size() > 1) output.write(fmt::format("== prompt {}\n", gathered_.front().prompt + 1));
    output.write(vote.answer.value_or(""));
    output.finish();
    return;
  }
  for (std::size_t i = 0; i < gathered_.size(); ++i) {
    nlohmann::ordered_json more = {{"answer", nullptr},
                                   {"chosen", vote.answer.has_value() && i == vote.first},
                                   {"votes", nullptr},
                                   {"tokens_spent", spent_},
                                   {"token_budget", budget_}};
    if (answers[i]) {
      more["answer"] = *answers[i];
      more["votes"] = std::count(answers.begin(), answers.end(), answers[i]);
    }
    write_json_sample(prompt, gathered_[i], more);
  }
}

}  // namespace scaletrain
