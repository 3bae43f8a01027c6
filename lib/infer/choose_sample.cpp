#include "infer/choose_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <regex>

#include "base/error.h"
#include "base/text.h"

namespace scaletrain {

namespace {

// Bounds the time of a pattern that begins anew at every byte.
constexpr std::size_t longest_searched = 4096;

std::string trimmed(const std::string& text) {
  constexpr const char* space = " \t\r\n\f\v";
  const std::size_t first = text.find_first_not_of(space);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(space) - first + 1);
}

}  // namespace

double mean_log_probability(const GeneratedSample& sample) {
  const std::vector<double>& values = sample.log_probabilities;
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::size_t likeliest_sample(std::span<const GeneratedSample> samples) {
  SCALETRAIN_CHECK(!samples.empty());
  std::size_t best = 0;
  for (std::size_t i = 1; i < samples.size(); ++i)
    if (mean_log_probability(samples[i]) > mean_log_probability(samples[best])) best = i;
  return best;
}

struct AnswerPattern::Impl {
  std::regex pattern;
};

AnswerPattern::AnswerPattern(const std::string& pattern) {
  try {
    // libstdc++'s matcher that goes through the text once with all states: the other one calls itself for every byte of
    // the text, and overflows the stack.
    impl_ =
        std::make_unique<Impl>(Impl{std::regex(pattern, std::regex::ECMAScript | std::regex_constants::__polynomial)});
  } catch (const std::regex_error& error) {
    throw UserError(fmt::format("{} is no regular expression that is supported: {}", quoted(pattern), error.what()));
  }
  if (impl_->pattern.mark_count() == 0)
    throw UserError(fmt::format("{} has no group: put parentheses around the answer", quoted(pattern)));
}

AnswerPattern::~AnswerPattern() = default;
AnswerPattern::AnswerPattern(AnswerPattern&&) noexcept = default;
AnswerPattern& AnswerPattern::operator=(AnswerPattern&&) noexcept = default;

std::optional<std::string> AnswerPattern::find(std::string_view text) const {
  std::optional<std::string> answer;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    // The end of a longer line, as the last match counts.
    const std::string line(text.substr(end - std::min(end, longest_searched), std::min(end, longest_searched)));
    text.remove_prefix(std::min(end + 1, text.size()));
    for (std::sregex_iterator match(line.begin(), line.end(), impl_->pattern), none; match != none; ++match)
      if ((*match)[1].matched) answer = trimmed((*match)[1].str());
  }
  return answer;
}

Vote majority(std::span<const std::optional<std::string>> answers) {
  Vote vote;
  std::map<std::string, std::int64_t> votes;
  for (const auto& answer : answers)
    if (answer) ++votes[*answer];
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i]) continue;
    ++vote.cast;
    if (votes[*answers[i]] <= vote.votes) continue;
    vote.answer = answers[i];
    vote.votes = votes[*answers[i]];
    vote.first = i;
  }
  return vote;
}

}  // namespace scaletrain
