// Multiple choice by log-likelihood: which of its choices a model finds the likeliest behind a question, as
// lm-evaluation-harness measures it (its `multiple_choice` tasks: acc and acc_norm).
//
// A file is JSONL: {"question": "...", "choices": ["...", ...], "answer": 0}, the answer an index from 0 or the
// choice's text. The text of a choice is " " + choice behind the question; its tokens are those of question + " " +
// choice without as many as the question alone has, where white space at the question's end counts to the choice. A
// text begins as a document does (before_document()), an empty question, where that is nothing, behind an
// end-of-document token. Of a text that is longer than the context its end is read.
//
//   accuracy             of the largest sum of the log-probabilities of a choice's tokens
//   normalized accuracy  of the largest sum divided by the choice's length in bytes, without the space. (The harness
//                        divides by characters: the same where a choice is ASCII.)
//
// Of equals the first is taken. The standard error is that of the mean of n values 0 or 1: sqrt(p(1-p)/(n-1)).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokens/tokenizer.h"

namespace scaletrain {

struct TaskScore {
  std::int64_t questions = 0;
  double accuracy = 0.0;
  double normalized_accuracy = 0.0;
  // Nothing for one question.
  std::optional<double> accuracy_error, normalized_accuracy_error;
};

// Immutable; may be read concurrently.
class ChoiceTask {
 public:
  // Reads the file. InputError with file and line for what is no question, or has a choice without a token of its own
  // or of more tokens than the context; UserError, beginning with `key`, for a tokenizer that reads no text.
  ChoiceTask(std::string name, const std::filesystem::path& file, const Tokenizer& tokenizer, std::int64_t context,
             const std::string& key);

  const std::string& name() const { return name_; }
  std::int64_t context() const { return context_; }
  std::int64_t num_questions() const { return static_cast<std::int64_t>(answers_.size()); }
  // Texts: each choice of each question, in order.
  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows_.size()); }
  // Tokens that a row's inputs have, at most the context.
  std::int64_t row_tokens(std::int64_t row) const;
  // Texts of which the beginning is not read.
  std::int64_t num_cut() const { return num_cut_; }
  // Of all tokens, answers and lengths.
  std::uint64_t hash() const;

  // inputs and targets have the same length, no less than row_tokens(row). Target i is the token behind input i; -1
  // where it is the question's, or padding.
  void read_row(std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

  // log_likelihoods: of each row, in nats, the sum over its targets. If one is not finite the accuracies are NaN.
  TaskScore score(std::span<const double> log_likelihoods) const;

 private:
  struct Row {
    std::vector<std::int32_t> tokens;
    std::int64_t num_scored = 0;  // its last tokens, which are the choice's
    std::int64_t bytes = 0;       // of the choice
  };
  void add_question(const std::string& text, const std::string& where, const Tokenizer& tokenizer);
  Row make_row(const std::string& question, const std::string& choice, const std::string& where,
               const Tokenizer& tokenizer);

  std::string name_;
  std::int64_t context_;
  std::vector<Row> rows_;
  std::vector<std::int64_t> first_rows_;  // of each question
  std::vector<std::int64_t> answers_;
  std::int64_t num_cut_ = 0;
};

}  // namespace scaletrain
