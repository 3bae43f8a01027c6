#include "data/tasks/choice_task.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "open_tokenizer.h"
#include "shared_data.h"
#include "support/near.h"
#include "support/temp_folder.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

struct TaskFile {
  ChoiceTask open(const std::string& text, std::int64_t context = 64) const {
    return {"t", folder.write("task.jsonl", text), tokenizer, context, "--task"};
  }
  std::string refusal(const std::string& text, std::int64_t context = 64) const {
    return message_of<InputError>([&] { open(text, context); });
  }
  TempFolder folder;
  ByteTokenizer tokenizer;
};

struct ReadRow {
  std::vector<std::int32_t> inputs, targets;
};
ReadRow row_of(const ChoiceTask& task, std::int64_t row, std::size_t length) {
  ReadRow read{std::vector<std::int32_t>(length), std::vector<std::int32_t>(length)};
  task.read_row(row, read.inputs, read.targets);
  return read;
}

}  // namespace

TEST_CASE("a row is the question and the choice, whose tokens alone are targets") {
  const TaskFile file;
  const ChoiceTask task = file.open(
      "{\"question\": \"ab \", \"choices\": [\"c\", \"de\"], \"answer\": 1}\n\n"
      "{\"question\": \"\", \"choices\": [\"f\", \"g\"], \"answer\": \"f\"}\n");
  CHECK(task.num_questions() == 2);
  CHECK(task.num_rows() == 4);
  CHECK(task.row_tokens(0) == 4);
  // White space at the question's end counts to the choice.
  CHECK(row_of(task, 0, 6).inputs == std::vector<std::int32_t>{'a', 'b', ' ', ' ', 0, 0});
  CHECK(row_of(task, 0, 6).targets == std::vector<std::int32_t>{-1, ' ', ' ', 'c', -1, -1});
  CHECK(row_of(task, 1, 5).targets == std::vector<std::int32_t>{-1, ' ', ' ', 'd', 'e'});
  // Nothing asked: behind the end of a document.
  CHECK(row_of(task, 2, 2).inputs == std::vector<std::int32_t>{256, ' '});
  CHECK(row_of(task, 2, 2).targets == std::vector<std::int32_t>{' ', 'f'});
  CHECK(task.num_cut() == 0);
  // Of a text that is too long the end is read.
  const ChoiceTask cut = file.open("{\"question\": \"abcdef\", \"choices\": [\"g\", \"h\"], \"answer\": 1}", 4);
  CHECK(cut.num_cut() == 2);
  CHECK(row_of(cut, 1, 4).inputs == std::vector<std::int32_t>{'d', 'e', 'f', ' '});
  CHECK(row_of(cut, 1, 4).targets == std::vector<std::int32_t>{-1, -1, ' ', 'h'});
  CHECK(cut.hash() != task.hash());
}

TEST_CASE("the likeliest choice counts, by its sum and by its sum over its bytes, of equals the first") {
  const TaskFile file;
  const std::string question = "{\"question\": \"q\", \"choices\": [\"aaaa\", \"b\", \"cc\"], \"answer\": 0}\n";
  const ChoiceTask task = file.open(question + question + question + question);
  const std::vector<double> log_likelihoods = {-4, -3, -9,   // the second; by length the first
                                               -2, -2, -2,   // equal: the first; by length too
                                               -9, -9, -1,   // the third
                                               -1, -1, -9};  // equal
  const TaskScore score = task.score(log_likelihoods);
  CHECK(score.accuracy == 0.5);
  CHECK(score.normalized_accuracy == 0.75);
  CHECK(*score.accuracy_error == Near(std::sqrt(0.25 / 3)));
  const TaskScore one = file.open(question).score(std::vector<double>{-1, -2, -3});
  CHECK(one.accuracy == 1.0);
  CHECK_FALSE(one.accuracy_error);
}

TEST_CASE("a model whose numbers are none has no accuracy") {
  const TaskFile file;
  const ChoiceTask task = file.open("{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n");
  for (const double bad : {std::nan(""), -std::numeric_limits<double>::infinity()}) {
    const TaskScore score = task.score(std::vector<double>{bad, -2.0});
    CHECK(std::isnan(score.accuracy));
    CHECK(std::isnan(score.normalized_accuracy));
    CHECK_FALSE(score.accuracy_error);
  }
}

TEST_CASE("what is no question is refused by file and line") {
  const TaskFile file;
  const std::string good = "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n";
  const auto check = [&](const std::string& line, const std::string& words) {
    const std::string message = file.refusal(good + line);
    CHECK_MESSAGE(contains(message, "task.jsonl:2: "), message);
    CHECK_MESSAGE(contains(message, words), message);
  };
  check("[]", "must be an object");
  check("{\"choices\": [\"a\", \"b\"], \"answer\": 0}", "\"question\"");
  check("{\"question\": \"q\", \"choices\": [\"a\"], \"answer\": 0}", "two texts or more");
  check("{\"question\": \"q\", \"choices\": [\"a\", \"\"], \"answer\": 0}", "no text, or empty");
  check("{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 2}", "the choices are 0 to 1");
  check("{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": -1}", "the choices are 0 to 1");
  check("{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": \"c\"}", "none of the choices");
  check("{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": true}", "an index from 0");
  check("{\"question\": \"q\", \"choices\": [\"a\", \"" + std::string(80, 'b') + "\"], \"answer\": 0}",
        "81 tokens, the model's context 64");
  CHECK(contains(file.refusal("\n"), "no question"));
  const IdsTokenizer ids(10, std::nullopt);
  const auto path = file.folder.write("task.jsonl", good);
  CHECK(
      contains(message_of<UserError>([&] { ChoiceTask("t", path, ids, 8, "--task"); }), "--task: questions are text"));
}

TEST_CASE("a choice's tokens are those that the whole text has beyond the question's") {
  if (!is_shared_data_present("tokenizers")) return;
  const TempFolder folder;
  const auto path = folder.write(
      "task.jsonl",
      "{\"question\": \"The capital of France is\", \"choices\": [\"Paris\", \"Rome, Italy\"], \"answer\": 0}");
  for (const char* name : {"gpt2", "llama3", "qwen3"}) {
    CAPTURE(name);
    const Tokenizer& tokenizer = real_tokenizer(name);
    const ChoiceTask task("t", path, tokenizer, 64, "--task");
    std::vector<std::int32_t> expected(tokenizer.before_document().begin(), tokenizer.before_document().end());
    for (const std::int32_t token : tokenizer.encode("The capital of France is Rome, Italy")) expected.push_back(token);
    const auto length = static_cast<std::size_t>(task.row_tokens(1));
    const ReadRow row = row_of(task, 1, length);
    CHECK(row.inputs == std::vector<std::int32_t>(expected.begin(), expected.end() - 1));
    std::vector<std::int32_t> scored;
    for (const std::int32_t target : row.targets)
      if (target >= 0) scored.push_back(target);
    CHECK(scored == tokenizer.encode(" Rome, Italy"));
  }
}
