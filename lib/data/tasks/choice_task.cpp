#include "data/tasks/choice_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tasks/count_choices.h"
#include "data/tokens/python_space.h"

namespace scaletrain {

namespace {

constexpr std::uint64_t max_task_bytes = std::uint64_t{1} << 30;
constexpr std::int32_t masked = -1;

std::vector<std::string> choices_of(const nlohmann::json& object, const std::string& where) {
  const nlohmann::json& list = json_member(object, "choices", where);
  if (!list.is_array() || list.size() < 2)
    throw InputError(where + ": \"choices\" must be a list of two texts or more");
  std::vector<std::string> choices;
  for (const nlohmann::json& choice : list) {
    if (!choice.is_string() || choice.get<std::string>().empty())
      throw InputError(where + ": \"choices\" has one that is no text, or empty");
    choices.push_back(choice.get<std::string>());
  }
  return choices;
}

std::int64_t answer_of(const nlohmann::json& object, const std::vector<std::string>& choices,
                       const std::string& where) {
  const nlohmann::json& answer = json_member(object, "answer", where);
  if (answer.is_number_integer()) {
    const std::int64_t index = json_integer(object, "answer", where);
    if (index >= 0 && index < std::ssize(choices)) return index;
    throw InputError(
        fmt::format("{}: \"answer\" is {}, but the choices are 0 to {}", where, index, choices.size() - 1));
  }
  if (!answer.is_string()) throw InputError(where + ": \"answer\" must be an index from 0 or a choice's text");
  const auto found = std::find(choices.begin(), choices.end(), answer.get<std::string>());
  if (found == choices.end())
    throw InputError(
        fmt::format("{}: \"answer\" is {}, which is none of the choices", where, quoted(answer.get<std::string>())));
  return found - choices.begin();
}

std::optional<double> standard_error(double share, std::int64_t count) {
  if (count < 2) return std::nullopt;
  return std::sqrt(share * (1.0 - share) / static_cast<double>(count - 1));
}

nlohmann::json question_of(const std::string& line, const std::string& where) {
  nlohmann::json object = parse_json(line, where);
  if (!object.is_object()) throw InputError(where + ": must be an object with `question`, `choices` and `answer`");
  return object;
}

// Calls use(line, where) for each line that is not blank.
template <class Use>
void for_each_question(const std::filesystem::path& file, Use use) {
  const std::string text = read_text_file(file, max_task_bytes);
  std::int64_t number = 0;
  std::int64_t questions = 0;
  for (const std::string& line : split_text(text, '\n')) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    use(line, fmt::format("{}:{}", file.string(), number));
    ++questions;
  }
  if (questions == 0)
    throw InputError(fmt::format(
        "{}: no question; each line is {{\"question\": ..., \"choices\": [...], \"answer\": 0}}", file.string()));
}

}  // namespace

std::int64_t count_choices(const std::filesystem::path& file) {
  std::int64_t rows = 0;
  for_each_question(file, [&rows](const std::string& line, const std::string& where) {
    const nlohmann::json object = question_of(line, where);
    json_string(object, "question", where);
    const std::vector<std::string> choices = choices_of(object, where);
    answer_of(object, choices, where);
    rows += std::ssize(choices);
  });
  return rows;
}

ChoiceTask::ChoiceTask(std::string name, const std::filesystem::path& file, const Tokenizer& tokenizer,
                       std::int64_t context, const std::string& key)
    : name_(std::move(name)), context_(context) {
  SCALETRAIN_CHECK_LT(0, context);
  if (!tokenizer.reads_text())
    throw UserError(
        fmt::format("{}: questions are text, and the model's tokenizer ({}) reads none", key, tokenizer.description()));
  for_each_question(file,
                    [&](const std::string& line, const std::string& where) { add_question(line, where, tokenizer); });
}

void ChoiceTask::add_question(const std::string& text, const std::string& where, const Tokenizer& tokenizer) {
  const nlohmann::json object = question_of(text, where);
  const std::string question = json_string(object, "question", where);
  const std::vector<std::string> choices = choices_of(object, where);
  answers_.push_back(answer_of(object, choices, where));
  first_rows_.push_back(num_rows());
  for (const std::string& choice : choices) rows_.push_back(make_row(question, choice, where, tokenizer));
}

ChoiceTask::Row ChoiceTask::make_row(const std::string& question, const std::string& choice, const std::string& where,
                                     const Tokenizer& tokenizer) {
  const std::string_view asked = python_rstrip(question);
  const std::vector<std::int32_t> of_question = tokenizer.encode(asked);
  const std::vector<std::int32_t> of_both = tokenizer.encode(question + " " + choice);
  Row row;
  row.bytes = static_cast<std::int64_t>(choice.size());
  row.num_scored = std::ssize(of_both) - std::ssize(of_question);
  if (row.num_scored < 1)
    throw InputError(fmt::format("{}: the choice {} has no token of its own", where, quoted(choice)));
  row.tokens.assign(tokenizer.before_document().begin(), tokenizer.before_document().end());
  row.tokens.insert(row.tokens.end(), of_both.begin(), of_both.end());
  // The first token that is scored needs one before it.
  if (row.num_scored == std::ssize(row.tokens)) {
    if (!tokenizer.end_of_document())
      throw InputError(where + ": an empty question needs a tokenizer with an end-of-document token");
    row.tokens.insert(row.tokens.begin(), *tokenizer.end_of_document());
  }
  if (row.num_scored > context_)
    throw InputError(fmt::format("{}: the choice {} has {} tokens, the model's context {}", where, quoted(choice),
                                 row.num_scored, context_));
  const std::int64_t beyond = std::ssize(row.tokens) - (context_ + 1);
  if (beyond > 0) {
    row.tokens.erase(row.tokens.begin(), row.tokens.begin() + beyond);
    ++num_cut_;
  }
  return row;
}

std::int64_t ChoiceTask::row_tokens(std::int64_t row) const {
  return std::ssize(rows_.at(static_cast<std::size_t>(row)).tokens) - 1;
}

std::uint64_t ChoiceTask::hash() const {
  Hasher hasher;
  const auto add = [&hasher](const auto& values) { hasher.update(std::as_bytes(std::span(values))); };
  add(answers_);
  add(first_rows_);
  for (const Row& row : rows_) {
    add(row.tokens);
    add(std::vector{row.num_scored, row.bytes});
  }
  return hasher.digest();
}

void ChoiceTask::read_row(std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  const Row& read = rows_.at(static_cast<std::size_t>(row));
  const auto count = static_cast<std::size_t>(row_tokens(row));
  SCALETRAIN_CHECK(inputs.size() == targets.size() && count <= inputs.size());
  std::fill(inputs.begin(), inputs.end(), 0);
  std::fill(targets.begin(), targets.end(), masked);
  std::copy_n(read.tokens.begin(), count, inputs.begin());
  const std::size_t first = count - static_cast<std::size_t>(read.num_scored);
  std::copy(read.tokens.begin() + static_cast<std::ptrdiff_t>(first) + 1, read.tokens.end(),
            targets.begin() + static_cast<std::ptrdiff_t>(first));
}

TaskScore ChoiceTask::score(std::span<const double> log_likelihoods) const {
  SCALETRAIN_CHECK_EQ(std::ssize(log_likelihoods), num_rows());
  TaskScore score;
  score.questions = num_questions();
  // Of a model that has diverged: no choice is the likeliest.
  if (!std::all_of(log_likelihoods.begin(), log_likelihoods.end(), [](double value) { return std::isfinite(value); })) {
    score.accuracy = score.normalized_accuracy = std::numeric_limits<double>::quiet_NaN();
    return score;
  }
  std::int64_t right = 0;
  std::int64_t right_normalized = 0;
  for (std::size_t q = 0; q < answers_.size(); ++q) {
    const std::int64_t first = first_rows_[q];
    const std::int64_t end = q + 1 < first_rows_.size() ? first_rows_[q + 1] : num_rows();
    std::int64_t best = first;
    std::int64_t best_normalized = first;
    const auto value = [&](std::int64_t row) { return log_likelihoods[static_cast<std::size_t>(row)]; };
    const auto normalized = [&](std::int64_t row) {
      return value(row) / static_cast<double>(rows_[static_cast<std::size_t>(row)].bytes);
    };
    for (std::int64_t row = first + 1; row < end; ++row) {
      if (value(row) > value(best)) best = row;
      if (normalized(row) > normalized(best_normalized)) best_normalized = row;
    }
    if (best - first == answers_[q]) ++right;
    if (best_normalized - first == answers_[q]) ++right_normalized;
  }
  const auto count = static_cast<double>(score.questions);
  score.accuracy = static_cast<double>(right) / count;
  score.normalized_accuracy = static_cast<double>(right_normalized) / count;
  score.accuracy_error = standard_error(score.accuracy, score.questions);
  score.normalized_accuracy_error = standard_error(score.normalized_accuracy, score.questions);
  return score;
}

}  // namespace scaletrain
