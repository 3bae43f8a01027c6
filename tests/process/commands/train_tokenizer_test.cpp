// scaletrain data train-tokenizer: from a text to a run with a tokenizer of its own.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "process/tiny_run.h"
#include "refusal.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a_tokenizer_is_trained_on_a_text_the_same_with_any_threads_and_a_run_uses_it") {
  const Ended trained = workspace().run(
      {"data", "train-tokenizer", "train.txt", "--vocab", "300", "--output", "own-bpe", "--threads", "3"});
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  CHECK(trained.errors.empty());
  CHECK(trained.output.starts_with("own-bpe/tokenizer.json: 300 tokens, trained on "));
  const fs::path file = workspace() / "own-bpe" / "tokenizer.json";
  const auto content = nlohmann::json::parse(read_file(file));
  CHECK(content["model"]["vocab"].size() == 300);
  CHECK(content["model"]["vocab"]["<|endoftext|>"] == 0);
  const Ended again = workspace().run(
      {"data", "train-tokenizer", "train.txt", "--vocab", "300", "--output", "other-bpe", "--threads", "1"});
  CHECK(again.exit_code == 0);
  CHECK(read_file(workspace() / "other-bpe" / "tokenizer.json") == read_file(file));

  const auto run =
      workspace().training("with-own-bpe", {"data.tokenizer={type: bpe, path: own-bpe}", "train.steps=20"});
  const Ended used = workspace().run(run);
  CHECK_MESSAGE(used.exit_code == 0, used.errors);
}

TEST_CASE("train_tokenizer_overwrites_nothing_unasked_and_refuses_by_name_what_it_cannot_do") {
  const std::vector<std::string> words = {"data", "train-tokenizer", "held.txt", "--output", "kept-bpe"};
  const auto run = [&words](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = words;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return workspace().run(arguments);
  };
  REQUIRE(run({"--vocab", "270"}).exit_code == 0);
  const std::string before = read_file(workspace() / "kept-bpe" / "tokenizer.json");
  check_refused(run({"--vocab", "280"}), 2, {"kept-bpe/tokenizer.json is there already", "--overwrite"});
  CHECK(read_file(workspace() / "kept-bpe" / "tokenizer.json") == before);
  const Ended replaced =
      run({"--vocab", "280", "--overwrite", "--pattern", "llama3", "--special", "<a>", "--special", "<b>"});
  CHECK(replaced.exit_code == 0);
  CHECK(replaced.says("none of the 2 special tokens is known to end a document"));
  CHECK(read_file(workspace() / "kept-bpe" / "tokenizer.json") != before);
  // What stands behind a special token is a source.
  CHECK(workspace()
            .run({"data", "train-tokenizer", "--special", "<a>", "held.txt", "--vocab", "270", "--output", "behind"})
            .exit_code == 0);
  check_refused(run({"--vocab", "256", "--overwrite"}), 2, {"--vocab: 256 is too small"});
  check_refused(run({"--vocab", "ten", "--overwrite"}), 2, {"--vocab"});
  check_refused(run({"--vocab", "280", "--overwrite", "--pattern", "own"}), 2, {"--pattern"});
  check_refused(workspace().run({"data", "train-tokenizer", "nowhere.txt", "--vocab", "280", "--output", "x"}), 2,
                {"SOURCES", "nowhere.txt"});
  CHECK_FALSE(fs::exists(workspace() / "x"));
}

}  // namespace
}  // namespace scaletrain
