// Choosing among the samples of a prompt: more computing at inference for a better answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "infer/generate.h"

namespace scaletrain {

// The mean over its tokens; 0 for none.
double mean_log_probability(const GeneratedSample& sample);
// Best of n: the sample with the largest mean log-probability, the first of equals. At least one; with
// log-probabilities.
std::size_t likeliest_sample(std::span<const GeneratedSample> samples);

// A regular expression (ECMAScript's, without references back) whose first group is the answer in a text.
class AnswerPattern {
 public:
  // UserError, which does not name the option, for what is none or has no group.
  explicit AnswerPattern(const std::string& pattern);
  ~AnswerPattern();
  AnswerPattern(AnswerPattern&&) noexcept;
  AnswerPattern& operator=(AnswerPattern&&) noexcept;

  // Of the last match, without white space around it; a match lies within a line, of which the first 4096 bytes are
  // searched. Time and stack are bounded whatever pattern and text are.
  std::optional<std::string> find(std::string_view text) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Majority voting (Wang et al. 2023, "Self-consistency"): the answer that the most samples give; of equals the one that
// comes first. Samples without an answer have no vote.
struct Vote {
  std::optional<std::string> answer;  // nothing: no sample has one
  std::int64_t votes = 0;             // for it
  std::int64_t cast = 0;              // for any
  std::size_t first = 0;              // the first sample with it
};
Vote majority(std::span<const std::optional<std::string>> answers);

}  // namespace scaletrain
