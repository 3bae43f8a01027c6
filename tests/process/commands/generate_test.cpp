// Many prompts and samples: generate as a program.
#include <doctest/doctest.h>

#include <map>
#include <sstream>

#include "models.h"
#include "process/tiny_run.h"
#include "refusal.h"
#include "support/near.h"
#include "unit/data/shared_data.h"

namespace scaletrain {
namespace {

Ended generate(std::vector<std::string> more) {
  more.insert(more.begin(), {"generate", newest()});
  return workspace().run(more);
}

std::vector<nlohmann::json> lines_of(const Ended& end) {
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  std::vector<nlohmann::json> lines;
  std::istringstream text(end.output);
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// From a file as the shell's `<` gives it.
Ended with_input(std::vector<std::string> arguments, const std::string& input) {
  const std::string file = workspace().write("input.txt", input).string();
  Launch launch = workspace().launch({"-c", "exec \"$@\" < " + file, "sh"});
  std::vector<std::string> command = {launch.executable.string(), "generate", newest()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  launch.executable = "/bin/sh";
  launch.arguments.insert(launch.arguments.end(), command.begin(), command.end());
  return run_program(launch);
}

// A small model with a shared tokenizer, as a Hugging Face folder.
std::string chat_model() {
  const std::filesystem::path tokenizer = shared_data("tokenizers/qwen3");
  const Ended trained = workspace().run(workspace().training(
      "chat",
      {"train.steps=1", "train.lr_schedule.warmup=0", "data.tokenizer.type=bpe",
       "data.tokenizer.path=" + tokenizer.string(), "model.context=64", "data.validation=[]", "evaluate.every=0"}));
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  std::string folder = (workspace() / "chat-model").string();
  REQUIRE(workspace()
              .run({"checkpoint", "export", (workspace() / "chat").string(), "--to", "huggingface", "--output", folder})
              .exit_code == 0);
  std::filesystem::copy_file(tokenizer / "tokenizer_config.json", folder + "/tokenizer_config.json",
                             std::filesystem::copy_options::overwrite_existing);
  return folder;
}

TEST_CASE("samples_of_several_prompts_are_lines_of_json_the_same_whatever_the_batch") {
  const std::string file =
      workspace().write("prompts.jsonl", "{\"prompt\": \"the \"}\n\n{\"prompt\": \"a\", \"id\": 7}\n").string();
  const std::vector<std::string> arguments = {"--prompt-file", file, "--samples", "3",      "--max-tokens", "9",
                                              "--top-k",       "20", "--json",    "--batch"};
  const auto in_batches_of = [&](const std::string& batch) {
    std::vector<std::string> all = arguments;
    all.push_back(batch);
    return generate(all);
  };
  const Ended one = in_batches_of("1");
  const std::vector<nlohmann::json> lines = lines_of(one);
  REQUIRE(lines.size() == 6);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(lines[i].at("prompt_index") == i / 3);
    CHECK(lines[i].at("sample") == i % 3);
    CHECK(lines[i].at("prompt") == (i < 3 ? "the " : "a"));
    CHECK(lines[i].at("tokens").size() == 9);
    CHECK(lines[i].at("end") == "length");
    REQUIRE(lines[i].at("log_probabilities").size() == 9);
    for (const nlohmann::json& log_probability : lines[i].at("log_probabilities")) CHECK(log_probability <= 0.0);
  }
  CHECK(in_batches_of("2").output == one.output);
  CHECK(in_batches_of("64").output == one.output);
  // A single text is the first sample of the first prompt.
  const Ended single = generate({"--prompt", "the ", "--max-tokens", "9", "--top-k", "20"});
  CHECK(single.output == "the " + lines[0].at("text").get<std::string>() + "\n");
  CHECK(lines[0].at("text") != lines[1].at("text"));
  // To people each sample says what it is of.
  const Ended text = generate({"--prompt", "the ", "--max-tokens", "9", "--top-k", "20", "--samples", "2"});
  CHECK(text.output == "== prompt 1, sample 1: length\nthe " + lines[0].at("text").get<std::string>() +
                           "\n== prompt 1, sample 2: length\nthe " + lines[1].at("text").get<std::string>() + "\n");
}

TEST_CASE("prompts_come_from_standard_input_as_text_or_as_jsonl") {
  const std::string expected = generate({"--prompt", "the end", "--max-tokens", "5"}).output;
  CHECK(with_input({"--prompt", "-", "--max-tokens", "5"}, "the end").output == expected);
  CHECK(with_input({"--prompt-file", "-", "--max-tokens", "5"}, "{\"prompt\": \"the end\"}\n").output == expected);
  check_refused(with_input({"--prompt-file", "-"}, "{\"prompt\": \"the\"}\n{\"promt\": \"end\"}\n"), 3,
                {"standard input:2: ", "prompt"});
  check_refused(with_input({"--prompt-file", "-"}, "the end\n"), 3, {"standard input:1"});
  check_refused(with_input({"--prompt-file", "-"}, "\n"), 3, {"standard input: no prompt"});
  const Ended longer =
      with_input({"--prompt-file", "-"}, "{\"prompt\": \"the\"}\n{\"prompt\": \"" + std::string(32, 'a') + "\"}\n");
  check_refused(longer, 2, {"standard input:2: prompt: 32 tokens leave no room"});
  CHECK(longer.output.empty());
  check_refused(generate({"--prompt-file", "no-such-file"}), 3, {"no-such-file"});
  check_refused(generate({}), 2, {"--prompt is required, or --prompt-file"});
  check_refused(generate({"--prompt", "a", "--prompt-file", "b"}), 2, {"--prompt-file"});
}

TEST_CASE("a_text_ends_before_a_stop_string_and_a_full_context_is_said_of_each_sample") {
  const std::string whole = generate({"--prompt", "the ", "--max-tokens", "20"}).output;
  const std::string stop = whole.substr(10, 2);
  const Ended stopped = generate({"--prompt", "the ", "--max-tokens", "20", "--stop", "\x01\x02", "--stop", stop});
  CHECK(stopped.output == whole.substr(0, whole.find(stop, 4)) + "\n");
  const nlohmann::json line =
      lines_of(generate({"--prompt", "the ", "--max-tokens", "20", "--stop", stop, "--json"})).at(0);
  CHECK(line.at("end") == "stop");
  CHECK(line.at("stop") == stop);
  check_refused(generate({"--prompt", "a", "--stop", ""}), 2, {"--stop: must not be empty"});
  // The context has 32 tokens.
  for (const nlohmann::json& full :
       lines_of(generate({"--prompt", std::string(30, 'a'), "--max-tokens", "100", "--samples", "2", "--json"}))) {
    CHECK(full.at("end") == "context_full");
    CHECK(full.at("tokens").size() == 3);
  }
}

TEST_CASE("greedy_texts_are_the_same_with_and_without_the_cache") {
  const std::vector<std::string> greedy = {"--prompt", "the ", "--greedy", "--max-tokens", "28"};
  std::vector<std::string> without = greedy;
  without.emplace_back("--no-cache");
  CHECK(generate(without).output == generate(greedy).output);
}

TEST_CASE("the_likeliest_of_some_samples_and_the_answer_of_most_of_them_are_told_with_the_tokens_that_they_took") {
  const std::vector<nlohmann::json> best =
      lines_of(generate({"--prompt", "the ", "--max-tokens", "9", "--best-of", "6", "--json"}));
  REQUIRE(best.size() == 6);
  const nlohmann::json* chosen = nullptr;
  double largest = -1e9;
  for (const nlohmann::json& line : best) {
    double sum = 0.0;
    for (const nlohmann::json& value : line.at("log_probabilities")) sum += value.get<double>();
    CHECK(line.at("mean_log_probability").get<double>() == Near(sum / 9));
    largest = std::max(largest, line.at("mean_log_probability").get<double>());
    CHECK(line.at("tokens_spent") == 54);
    CHECK(line.at("token_budget") == 54);
    if (line.at("chosen")) {
      CHECK(chosen == nullptr);
      chosen = &line;
    }
  }
  REQUIRE(chosen != nullptr);
  CHECK(chosen->at("mean_log_probability") == largest);
  const Ended text = generate({"--prompt", "the ", "--max-tokens", "9", "--best-of", "6"});
  CHECK(text.output == "the " + chosen->at("text").get<std::string>() + "\n");
  CHECK(text.says("54 new tokens spent, of at most 54 (6 samples)"));
  // Of single letters the most frequent.
  const std::vector<std::string> vote = {"--prompt",  "the ", "--max-tokens", "4",
                                         "--samples", "9",    "--vote",       "([a-z])"};
  std::vector<std::string> as_json = vote;
  as_json.emplace_back("--json");
  std::map<std::string, int> votes;
  std::string answer;
  for (const nlohmann::json& line : lines_of(generate(as_json))) {
    if (line.at("answer").is_null()) continue;
    ++votes[line.at("answer")];
    if (line.at("chosen")) answer = line.at("answer");
  }
  REQUIRE_FALSE(answer.empty());
  for (const auto& [other, count] : votes) CHECK(count <= votes[answer]);
  const Ended voted = generate(vote);
  CHECK(voted.output == answer + "\n");
  CHECK(voted.says(std::to_string(votes[answer]) + " of 9 samples give this answer"));
  check_refused(generate({"--prompt", "a", "--vote", "(a)"}), 2, {"--vote: one sample is no majority"});
  check_refused(generate({"--prompt", "a", "--samples", "2", "--vote", "a"}), 2, {"--vote: \"a\" has no group"});
  check_refused(generate({"--prompt", "a", "--best-of", "2", "--samples", "2"}), 2, {"--best-of", "--samples"});
  check_refused(generate({"--prompt", "a", "--best-of", "2", "--greedy"}), 2, {"--best-of: greedy samples"});
}

// A checkpoint's tokenizer has no chat template, and a byte is no end of a turn.
TEST_CASE("a_chat_without_a_template_or_a_token_that_ends_a_turn_is_refused") {
  check_refused(generate({"--chat", "--prompt", "a"}), 2,
                {"--chat: the model's tokenizer (bytes", "has no files, so no chat template"});
  check_refused(generate({"--chat", "--chat-template", "vicuna", "--prompt", "a"}), 2,
                {"--chat-template: \"vicuna\" is no chat template", "qwen3"});
  check_refused(generate({"--chat", "--chat-template", "chatml", "--prompt", "a"}), 2, {"<|im_end|>", "is no token"});
  check_refused(generate({"--system", "s", "--prompt", "a"}), 2, {"--system", "--chat"});
  check_refused(with_input({"--prompt-file", "-"}, "{\"messages\": []}"), 3, {"standard input:1: messages", "--chat"});
}

// A model of the shared tokenizer's vocabulary, not trained.
TEST_CASE("a_chat_puts_questions_as_the_template_says_and_keeps_what_was_said") {
  if (!is_shared_data_present("tokenizers/qwen3")) return;
  const std::string folder = chat_model();
  const auto ask = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", folder, "--chat"});
    return workspace().run(more);
  };
  const Ended asked = ask({"--prompt", "Hello", "--system", "terse", "--max-tokens", "5", "--json"});
  const nlohmann::json line = lines_of(asked).at(0);
  CHECK(line.at("prompt") ==
        "<|im_start|>system\nterse<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  // Of a chat the answer alone is shown.
  CHECK(ask({"--prompt", "Hello", "--system", "terse", "--max-tokens", "5"}).output ==
        line.at("text").get<std::string>() + "\n");
  const std::string conversation =
      "{\"messages\": [{\"role\": \"system\", \"content\": \"terse\"}, {\"role\": \"user\", \"content\": \"Hello\"}]}";
  const std::string file = workspace().write("chats.jsonl", conversation + "\n").string();
  CHECK(ask({"--prompt-file", file, "--max-tokens", "5", "--json"}).output == asked.output);
  const std::string tools = R"({"messages": [{"role": "user", "content": "a", "tool_calls": []}]})";
  const Ended refused = ask({"--prompt-file", workspace().write("tools.jsonl", tools).string()});
  CHECK(refused.exit_code == 3);
  CHECK(refused.says("tools.jsonl:1: messages.0: \"tool_calls\" is not supported"));
  // Two turns of a conversation: the second goes on with what the first one came to.
  Launch launch = workspace().launch({"-c", "printf 'Hello\\nAnd?\\n' | exec \"$@\"", "sh", SCALETRAIN_PROGRAM,
                                      "generate", folder, "--chat", "--max-tokens", "5", "--greedy"});
  launch.executable = "/bin/sh";
  const Ended talk = run_program(launch);
  REQUIRE_MESSAGE(talk.exit_code == 0, talk.errors);
  const std::string first = ask({"--prompt", "Hello", "--max-tokens", "5", "--greedy"}).output;
  CHECK(talk.output.starts_with(first));
  const nlohmann::json turns = {{"messages",
                                 {{{"role", "user"}, {"content", "Hello"}},
                                  {{"role", "assistant"}, {"content", first.substr(0, first.size() - 1)}},
                                  {{"role", "user"}, {"content", "And?"}}}}};
  const std::string turns_file = workspace().write("turns.jsonl", turns.dump() + "\n").string();
  CHECK(talk.output == first + ask({"--prompt-file", turns_file, "--max-tokens", "5", "--greedy"}).output);
  // A long one goes on without its oldest turns.
  launch.arguments[1] = "for turn in $(seq 30); do echo 'Hello, and what of this one?'; done | exec \"$@\"";
  const Ended long_talk = run_program(launch);
  CHECK_MESSAGE(long_talk.exit_code == 0, long_talk.errors);
  CHECK(long_talk.says("its oldest turns are left out"));
  CHECK(std::count(long_talk.output.begin(), long_talk.output.end(), '\n') >= 30);
  check_refused(ask({"--json"}), 2, {"--json: a conversation has one answer"});
}

TEST_CASE("options_of_sampling_that_make_no_sense_are_refused") {
  const auto refused = [](std::vector<std::string> more, const std::vector<std::string>& words) {
    more.insert(more.begin(), {"--prompt", "a"});
    check_refused(generate(more), 2, words);
  };
  refused({"--top-p", "1.1"}, {"--top-p: must be a number from 0 to 1"});
  refused({"--min-p", "-1"}, {"--min-p: must be a number from 0 to 1"});
  refused({"--top-k", "-1"}, {"--top-k: must be at least 0"});
  refused({"--repetition-penalty", "0"}, {"--repetition-penalty: must be a number above 0"});
  refused({"--samples", "0"}, {"--samples: must be at least 1"});
  refused({"--batch", "0"}, {"--batch: must be at least 1"});
  refused({"--greedy", "--top-k", "3"}, {"--greedy", "--top-k"});
  refused({"--greedy", "--samples", "2"}, {"--samples: greedy samples of a prompt are all the same"});
  refused({"--temperature", "0", "--samples", "2"}, {"--samples: greedy samples of a prompt are all the same"});
}

}  // namespace
}  // namespace scaletrain
