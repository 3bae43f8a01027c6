// Instructions from the command line: what check finds ahead, and what evaluate measures of answers.
#include <doctest/doctest.h>

#include "models.h"
#include "process/tiny_run.h"
#include "refusal.h"
#include "support/chat_tokenizer.h"
#include "support/near.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

fs::path golden(const std::string& name) {
  return fs::path(SCALETRAIN_SOURCE_FOLDER) / "tests/golden" / name;
}

TEST_CASE("check_finds_instructions_that_no_template_or_kind_of_file_fits") {
  const std::string chats =
      workspace()
          .write("chats.jsonl",
                 R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
                 "\n")
          .string();
  const auto check = [](const std::vector<std::string>& settings) {
    std::vector<std::string> arguments = {"check", "config.yaml"};
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return workspace().run(arguments);
  };
  const std::string source = "data.train=[{path: " + chats + ", records: messages}]";
  check_refused(check({source}), 2,
                {"data.instructions.chat_template: records: messages need a chat template", "bytes has no files"});
  check_refused(check({source, "data.instructions.chat_template=vicuna"}), 2,
                {"--set data.instructions.chat_template=vicuna: data.instructions.chat_template: \"vicuna\" is no chat "
                 "template: known are llama3"});
  check_refused(check({"data.train=[{path: train.txt, records: prompt_completion}]"}), 2,
                {"data.train.0.path: ", "train.txt is text, and records: prompt_completion are lines of JSONL"});
}

// The model's own config lets attention across documents; answers are measured each by itself all the same.
TEST_CASE("evaluate_measures_answers_as_pytorch_does_of_each_record_alone") {
  const auto evaluate = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"evaluate", golden("choices").string(), "--tokenizer", "bytes", "--json", "--data",
                               golden("instructions/records.jsonl").string()});
    return workspace().run(more);
  };
  const nlohmann::json expected = nlohmann::json::parse(read_file(golden("instructions/loss.json"))).at("answers");
  const Ended answers = evaluate({"--records", "prompt_completion"});
  CHECK(loss_of(answers) == Near(expected.at("loss").get<double>()).epsilon(1e-6));
  CHECK(nlohmann::json::parse(answers.output).at(0).at("tokens") == expected.at("tokens"));
  check_refused(evaluate({"--records", "messages"}), 2, {"--chat-template: records: messages need a chat template"});
  check_refused(evaluate({"--records", "messages", "--chat-template", "chatml"}), 3,
                {"--chat-template: \"<|im_end|>\", which ends a turn by the template chatml, is no token"});
  check_refused(evaluate({}), 3, {"the key \"text\" is missing", "evaluate: --records prompt_completion"});
  check_refused(evaluate({"--records", "prompt_completion", "--chat-template", "chatml"}), 2,
                {"--chat-template: nothing uses it with --records prompt_completion"});
  check_refused(evaluate({"--records", "chat"}), 2, {"--records", "prompt_completion"});
}

TEST_CASE("a_run_of_completions_says_what_ends_them_and_hands_it_on") {
  const TempFolder folder;
  const fs::path tokenizer = test::write_chat_tokenizer(folder);
  write_file(tokenizer / "config.json", R"({"eos_token_id": )" + std::to_string(test::kTurnEnd) + "}");
  write_file(folder / "pairs.jsonl", R"({"prompt": "a", "completion": "b"})"
                                     "\n");
  const Ended run = workspace().run(workspace().training(
      "ends", {"data.tokenizer={type: bpe, path: " + tokenizer.string() + "}",
               "data.train=[{path: " + (folder / "pairs.jsonl").string() + ", records: prompt_completion}]",
               "data.validation=[]", "train.steps=1", "train.lr_schedule.warmup=0"}));
  REQUIRE_MESSAGE(run.exit_code == 0, run.errors);
  CHECK(run.says("; each ends with token 258 (eos_token_id of " + (tokenizer / "config.json").string() + ")"));
  const fs::path out = workspace() / "ends-out";
  const Ended end = workspace().run(
      {"checkpoint", "export", (workspace() / "ends").string(), "--to", "huggingface", "--output", out.string()});
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const nlohmann::json ends = nlohmann::json::parse(read_file(out / "generation_config.json")).at("eos_token_id");
  CHECK(ends == nlohmann::json{256, 258});
}

}  // namespace
}  // namespace scaletrain
