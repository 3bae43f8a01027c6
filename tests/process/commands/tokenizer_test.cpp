// A run whose text a byte-level BPE cuts: from tokenizer.json to a text that the model writes, wherever the files then
// are.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models.h"
#include "process/tiny_run.h"
#include "refusal.h"
#include "support/base64.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// 256 bytes, a few merges of English, and the token between documents.
std::string tokenizer_text(const std::string& end_name) {
  json vocab = json::object();
  json merges = json::array();
  std::int64_t next = 0;
  char32_t moved = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const char32_t c = is_itself ? byte : moved++;
    std::string text;
    if (c < 0x80) {
      text.push_back(static_cast<char>(c));
    } else {
      text.push_back(static_cast<char>(0xc0 | c >> 6));
      text.push_back(static_cast<char>(0x80 | (c & 0x3f)));
    }
    vocab[text] = next++;
  }
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"t", "h"}, {"th", "e"}, {"\xc4\xa0", "the"}, {"i", "n"}, {"in", "g"}, {"\xc4\xa0", "a"}, {"o", "n"}};
  for (const auto& [left, right] : pairs) {
    merges.push_back(json::array({left, right}));
    vocab[left + right] = next++;
  }
  vocab[end_name] = next;
  return json{{"version", "1.0"},
              {"added_tokens", json::array({{{"id", next}, {"content", end_name}, {"special", true}}})},
              {"normalizer", nullptr},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
              {"post_processor", nullptr},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}}
      .dump();
}

std::string setting(const fs::path& tokenizer) {
  return "data.tokenizer={type: bpe, path: " + tokenizer.string() + "}";
}

TEST_CASE("a_run_with_a_bpe_tokenizer_carries_it_to_every_command") {
  const fs::path file = workspace().write("own/my.json", tokenizer_text("<|endoftext|>"));
  const Ended plan = workspace().run({"check", "config.yaml", "--set", setting(file)});
  CHECK_MESSAGE(plan.exit_code == 0, plan.errors);
  const Ended trained = workspace().run(workspace().training("bpe", {setting(file)}));
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  const fs::path saved = checkpoint(workspace() / "bpe", tiny_steps);
  CHECK(read_file(saved / "my.json") == read_file(file));

  // The folder that it was read from may be gone, and the checkpoint somewhere else.
  fs::rename(workspace() / "own", workspace() / "gone");
  const fs::path moved = workspace() / "moved";
  fs::copy(saved, moved, fs::copy_options::recursive);
  const auto generate = [](const std::string& model) {
    const Ended end = workspace().run({"generate", model, "--prompt", " the ing", "--max-tokens", "16", "--greedy"});
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(end.output.starts_with(" the ing"));
    return end.output;
  };
  const std::string text = generate(moved.string());
  const double loss = loss_of(workspace().run({"evaluate", moved.string(), "--data", held(), "--json"}));

  // An exported folder holds the tokenizer and is read by it.
  const std::string folder = (workspace() / "bpe-exported").string();
  const Ended exported =
      workspace().run({"checkpoint", "export", moved.string(), "--to", "huggingface", "--output", folder});
  REQUIRE_MESSAGE(exported.exit_code == 0, exported.errors);
  CHECK(generate(folder) == text);
  CHECK(loss_of(workspace().run({"evaluate", folder, "--data", held(), "--json"})) == loss);
  const Ended ids = workspace().run({"generate", folder, "--prompt", "1 2", "--tokenizer", "ids", "--max-tokens", "2"});
  CHECK_MESSAGE(ids.exit_code == 0, ids.errors);

  // As GPT-2's pair of files.
  const fs::path found = fs::path(folder) / "tokenizer.json";
  const std::string text_of_file = read_file(found);
  const json content = json::parse(text_of_file);
  std::string merges = "#version: 0.2\n";
  for (const json& merge : content["model"]["merges"])
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  fs::remove(found);
  workspace().write("bpe-exported/vocab.json", content["model"]["vocab"].dump());
  workspace().write("bpe-exported/merges.txt", merges);
  CHECK(generate(folder) == text);

  // One that cannot be used: ids and a notice, unless it was asked for.
  json larger = content;
  for (int i = 0; i < 2; ++i)
    larger["added_tokens"].push_back({{"id", 264 + i}, {"content", "<" + std::to_string(i) + ">"}});
  const std::vector<std::pair<std::string, std::string>> unusable = {
      {R"({"model": {"type": "Unigram"}})", "the model \"Unigram\" is not supported"},
      {tokenizer_text("<|over|>"), "it is not known which token ends a document"},
      {larger.dump(), "the tokenizer has 266 tokens, the model's vocabulary 264"}};
  for (const auto& entry : unusable) {
    const std::string& why = entry.second;
    CAPTURE(why);
    workspace().write("bpe-exported/tokenizer.json", entry.first);
    const Ended read = workspace().run({"generate", folder, "--prompt", "1 2", "--max-tokens", "2"});
    CHECK_MESSAGE(read.exit_code == 0, read.errors);
    CHECK(read.output.starts_with("1 2"));
    CHECK_MESSAGE(read.errors.find(why) != std::string::npos, read.errors);
    CHECK_MESSAGE(read.errors.find("`--tokenizer bpe` would refuse") != std::string::npos, read.errors);
    const Ended asked = workspace().run({"generate", folder, "--prompt", "1 2", "--tokenizer", "bpe"});
    check_refused(asked, 3, {why, "; `--tokenizer ids` or `bytes` reads the model without it"});
    CHECK(asked.errors.find("data.") == std::string::npos);
    CHECK(asked.errors.find("model.vocab") == std::string::npos);
  }
}

// A model of 420 pieces that Google's program has trained.
std::string sentencepiece_model() {
  const fs::path file = fs::path(SCALETRAIN_SOURCE_FOLDER) / "tests/golden/tokenizers/sentencepiece_small.json";
  return from_base64(json::parse(read_file(file))["models"][0]["model"].get<std::string>());
}

TEST_CASE("a_run_with_a_sentencepiece_model_carries_it_to_every_command") {
  const fs::path file = workspace().write("spm/own.model", sentencepiece_model());
  const std::string setting_of_it = "data.tokenizer={type: sentencepiece, path: " + file.string() + "}";
  const Ended plan = workspace().run({"check", "config.yaml", "--set", setting_of_it});
  CHECK_MESSAGE(plan.exit_code == 0, plan.errors);
  CHECK(plan.output.find("420") != std::string::npos);
  const auto arguments = workspace().training("sentencepiece", {setting_of_it, "train.steps=40"});
  const Ended trained = workspace().run(arguments);
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  const fs::path saved = checkpoint(workspace() / "sentencepiece", 40);
  CHECK(read_file(saved / "own.model") == read_file(file));

  const fs::path other = workspace().write("spm/other.model", sentencepiece_model() + std::string("\x12\0", 2));
  const std::string setting_of_other = "data.tokenizer={type: sentencepiece, path: " + other.string() + "}";
  check_refused(workspace().run(workspace().training("sentencepiece", {setting_of_other, "train.steps=60"})), 2,
                {"data.tokenizer.path: its files hold another tokenizer than the checkpoint's"});

  // Words keep their spaces when tokens come one by one.
  const auto generate = [](const std::vector<std::string>& options) {
    std::vector<std::string> words = {"generate"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--prompt", "the cat", "--max-tokens", "12", "--greedy"});
    return workspace().run(words);
  };
  const Ended text = generate({saved.string()});
  CHECK_MESSAGE(text.exit_code == 0, text.errors);
  CHECK(text.output.starts_with("the cat"));
  const double loss = loss_of(workspace().run({"evaluate", saved.string(), "--data", held(), "--json"}));
  // Each document has the bytes of its text: a space that the model puts before it is none of them.
  const std::string documents = "{\"text\": \"the cat\"}\n{\"text\": \"sat on the mat\"}\n{\"text\": \" the\"}\n";
  const std::string three = workspace().write("spm/three.jsonl", documents).string();
  const Ended counted = workspace().run({"evaluate", saved.string(), "--data", three, "--json"});
  CHECK(json::parse(counted.output).at(0).at("bytes") == 7 + 14 + 4);

  const std::string folder = (workspace() / "sentencepiece-exported").string();
  const Ended exported =
      workspace().run({"checkpoint", "export", saved.string(), "--to", "huggingface", "--output", folder});
  REQUIRE_MESSAGE(exported.exit_code == 0, exported.errors);
  CHECK(exported.errors.empty());
  CHECK(read_file(fs::path(folder) / "tokenizer.model") == read_file(file));
  CHECK(generate({folder}).output == text.output);
  CHECK(generate({folder, "--tokenizer", "sentencepiece"}).output == text.output);
  CHECK(loss_of(workspace().run({"evaluate", folder, "--data", held(), "--json"})) == loss);

  // As Llama 2's folders are: the tokenizer.json beside it is none that is supported.
  workspace().write("sentencepiece-exported/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  const Ended beside = generate({folder});
  CHECK(beside.output == text.output);
  CHECK_MESSAGE(beside.says("notice: text is read by its tokenizer.model"), beside.errors);
  CHECK(beside.says("(`--tokenizer bpe` would refuse)"));
  workspace().write("sentencepiece-exported/tokenizer.model", "no model");
  const Ended ids = workspace().run({"generate", folder, "--prompt", "1 2", "--max-tokens", "2"});
  CHECK_MESSAGE(ids.exit_code == 0, ids.errors);
  CHECK_MESSAGE(ids.says("text is read as token ids"), ids.errors);
  check_refused(generate({folder, "--tokenizer", "sentencepiece"}), 3,
                {"no SentencePiece model", "; `--tokenizer ids` or `bytes` reads the model without it"});
}

TEST_CASE("a_resume_goes_on_with_a_tokenizer_that_moved_and_refuses_another") {
  const fs::path file = workspace().write("a/tokenizer.json", tokenizer_text("<|endoftext|>"));
  REQUIRE(workspace().run(workspace().training("moves", {setting(file), "train.steps=40"})).exit_code == 0);
  const fs::path other = workspace().write("b/tokenizer.json", tokenizer_text("<eos>"));
  check_refused(workspace().run(workspace().training("moves", {setting(other), "train.steps=60"})), 2,
                {"data.tokenizer.path: its files hold another tokenizer than the checkpoint's"});
  const fs::path same = workspace().write("c/tokenizer.json", tokenizer_text("<|endoftext|>"));
  const Ended resumed = workspace().run(workspace().training("moves", {setting(same), "train.steps=60"}));
  CHECK_MESSAGE(resumed.exit_code == 0, resumed.errors);
}

TEST_CASE("a_tokenizer_that_cannot_be_used_is_refused_by_check_and_run_with_its_place") {
  const fs::path broken = workspace().write("broken/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  for (const char* command : {"check", "run"})
    check_refused(
        workspace().run({command, "config.yaml", "--set", "run.directory=broken-run", "--set", setting(broken)}), 3,
        {broken.string() + ": model: the model \"Unigram\" is not supported"});
  // Of a folder that holds the other kind too the other type is offered.
  workspace().write("both/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  workspace().write("both/tokenizer.model", "looked at by its name alone");
  for (const char* command : {"check", "run"})
    check_refused(workspace().run({command, "config.yaml", "--set", "run.directory=broken-run", "--set",
                                   setting(workspace() / "both")}),
                  3,
                  {"the model \"Unigram\" is not supported",
                   "; its tokenizer.model is read with data.tokenizer.type: sentencepiece"});
  // Of one that holds the other kind alone it is the type that is wrong, and told once.
  workspace().write("other/tokenizer.model", "looked at by its name alone");
  workspace().write(
      "talks.jsonl",
      R"({"text": "x", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]})");
  for (const std::string records : {"text", "messages"}) {
    const Ended end =
        workspace().run({"check", "config.yaml", "--set", "data.train=[{path: talks.jsonl, records: " + records + "}]",
                         "--set", setting(workspace() / "other")});
    const std::string words = "data.tokenizer.type: bpe, but the tokenizer in " + (workspace() / "other").string() +
                              " is SentencePiece's (tokenizer.model); write sentencepiece";
    check_refused(end, 2, {words});
    CHECK(end.errors.find(words) == end.errors.rfind(words));
  }
  workspace().write("third/vocab.json", "{}");
  workspace().write("third/merges.txt", "");
  check_refused(
      workspace().run({"check", "config.yaml", "--set",
                       "data.tokenizer={type: sentencepiece, path: " + (workspace() / "third").string() + "}"}),
      2,
      {"data.tokenizer.type: sentencepiece, but " + (workspace() / "third").string() +
       " holds no tokenizer.model; it holds vocab.json: write bpe"});
  check_refused(workspace().run({"check", "config.yaml", "--set", "data.tokenizer.type=bpe"}), 2,
                {"data.tokenizer.path: tokenizer bpe needs it"});
  check_refused(workspace().run({"check", "config.yaml", "--set", "data.tokenizer.type=sentencepiece"}), 2,
                {"data.tokenizer.path: tokenizer sentencepiece needs it: a tokenizer.model"});
  check_refused(workspace().run({"check", "config.yaml", "--set", setting(workspace() / "nowhere")}), 2,
                {"data.tokenizer.path: no such file or folder"});
}

}  // namespace
}  // namespace scaletrain
