// Best of n and majority voting, of generate: one text, or one answer, of all samples of a prompt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generate_prompts.h"
#include "infer/choose_sample.h"

namespace CLI {
class App;
}

namespace scaletrain {

struct ChoiceArguments {
  std::int64_t best_of = 0;  // 0: not given
  std::string vote;          // empty: not given
  void declare(CLI::App& command);
  bool is_given() const { return best_of > 0 || !vote.empty(); }
};

// UserError for a pattern that is none, and for one sample to vote.
void check_choice(const ChoiceArguments& arguments, std::int64_t samples);

// Gathers the samples of a prompt, and tells what comes of them: on standard output the text that was chosen or the
// answer, or of --json all samples; on standard error the tokens that were spent, of the most that it could be.
class SampleChoice {
 public:
  // Of arguments that check_choice() has let pass.
  SampleChoice(const ChoiceArguments& arguments, const std::vector<Prompt>& prompts, const GenerationOptions& options,
               bool json);

  // Samples come in order.
  void add(const GeneratedSample& sample);

 private:
  void choose_best();
  void choose_by_vote(const AnswerPattern& pattern);
  std::string name_of_prompt() const;
  std::string spent_text() const;

  const std::vector<Prompt>& prompts_;
  std::int64_t samples_;
  std::int64_t budget_;
  std::optional<AnswerPattern> pattern_;
  bool json_;
  std::vector<GeneratedSample> gathered_;
  std::int64_t spent_ = 0;
};

}  // namespace scaletrain
