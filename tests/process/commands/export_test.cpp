// A model handed on: what an export carries, as a Hugging Face folder and as a GGUF file, and what is refused before a
// model is read.
#include <doctest/doctest.h>

#include "base/file.h"
#include "models.h"
#include "process/tiny_run.h"
#include "refusal.h"
#include "support/near.h"
#include "unit/data/shared_data.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Ended exported(const std::string& model, const std::string& output, std::vector<std::string> more = {}) {
  std::vector<std::string> command = {"checkpoint", "export", model, "--to", "huggingface", "--output", output};
  command.insert(command.end(), more.begin(), more.end());
  return workspace().run(command);
}

Ended chat(const std::string& model, std::vector<std::string> more = {}) {
  std::vector<std::string> command = {"generate", model, "--chat", "--prompt", "hi", "--greedy", "--max-tokens", "4"};
  command.insert(command.end(), more.begin(), more.end());
  return workspace().run(command);
}

// A folder with the tokenizer of Qwen 3, and a run that began from it.
std::vector<std::string> from_folder(const fs::path& folder) {
  return {"train.steps=1",           "train.lr_schedule.warmup=0",
          "data.tokenizer.type=bpe", "data.tokenizer.path=" + folder.string(),
          "model.context=64",        "data.validation=[]",
          "evaluate.every=0"};
}

TEST_CASE("a_run_and_its_export_carry_what_lies_beside_the_tokenizer_and_how_texts_are_sampled") {
  if (!is_shared_data_present("tokenizers/qwen3")) return;
  const fs::path folder = workspace() / "whole";
  fs::create_directories(folder);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(shared_data("tokenizers/qwen3") / name, folder / name);
  const std::string template_text =
      json::parse(read_file(folder / "tokenizer_config.json")).at("chat_template").get<std::string>();
  // A model of this shape, to begin from.
  REQUIRE(workspace().run(workspace().training("shape", from_folder(folder))).exit_code == 0);
  REQUIRE(exported((workspace() / "shape").string(), (workspace() / "begin").string()).exit_code == 0);
  const fs::path begin = workspace() / "begin";
  CHECK(read_file(begin / "tokenizer_config.json") == read_file(folder / "tokenizer_config.json"));
  const json config = json::parse(read_file(begin / "config.json"));
  CHECK(config.at("eos_token_id") == 151645);  // the eos_token of its settings
  CHECK(config.at("pad_token_id") == 151643);
  CHECK(config.at("bos_token_id").is_null());
  const std::string sampling = "{\"temperature\": 0.6, \"eos_token_id\": [151645, 151643]}";
  workspace().write("begin/generation_config.json", sampling);
  workspace().write("begin/chat_template.jinja", template_text);

  std::vector<std::string> settings = from_folder(begin);
  settings.push_back("model.init.from=" + begin.string());
  const Ended trained = workspace().run(workspace().training("carries", settings));
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  // All of it may be gone, but for the tokenizer itself where the run goes on.
  const fs::path moved = workspace() / "begin-tokenizer";
  fs::create_directories(moved);
  fs::copy_file(begin / "tokenizer.json", moved / "tokenizer.json");
  fs::remove_all(begin);
  const std::string run = (workspace() / "carries").string();
  const Ended talks = chat(run);
  CHECK_MESSAGE(talks.exit_code == 0, talks.errors);

  const fs::path out = workspace() / "carried";
  const Ended written = exported(run, out.string());
  REQUIRE_MESSAGE(written.exit_code == 0, written.errors);
  CHECK(read_file(out / "generation_config.json") == sampling);
  CHECK(read_file(out / "chat_template.jinja") == template_text);
  CHECK(read_file(out / "tokenizer_config.json") == read_file(folder / "tokenizer_config.json"));
  CHECK(read_file(out / "tokenizer.json") == read_file(folder / "tokenizer.json"));
  CHECK(chat(out.string()).output == talks.output);
  // And once more, from one folder to another: every byte.
  const fs::path again = workspace() / "carried-again";
  REQUIRE(exported(out.string(), again.string()).exit_code == 0);
  for (const fs::directory_entry& entry : fs::directory_iterator(out))
    CHECK_MESSAGE(read_file(again / entry.path().filename()) == read_file(entry.path()), entry.path().string());

  // A resume carries what the run began with, and what now lies beside the tokenizer.
  std::vector<std::string> resumed = from_folder(moved);
  resumed.push_back("model.init.from=" + begin.string());
  resumed.front() = "train.steps=2";
  const Ended went_on = workspace().run(workspace().training("carries", resumed));
  REQUIRE_MESSAGE(went_on.exit_code == 0, went_on.errors);
  const fs::path later = checkpoint(workspace() / "carries", 2);
  CHECK(read_file(later / "generation_config.json") == sampling);
  CHECK_FALSE(fs::exists(later / "chat_template.jinja"));
  const Ended silent = chat(later.string());
  CHECK(silent.exit_code == 3);
  CHECK_MESSAGE(silent.says("--chat-template"), silent.errors);
}

// A folder with the tokenizer of Qwen 3 alone and what is given of its settings.
fs::path bare_tokenizer(const std::string& name, const std::string& settings) {
  fs::path folder = workspace() / name;
  fs::create_directories(folder);
  fs::copy_file(shared_data("tokenizers/qwen3") / "tokenizer.json", folder / "tokenizer.json");
  if (!settings.empty()) workspace().write(name + "/tokenizer_config.json", settings);
  return folder;
}

TEST_CASE("a_run_of_conversations_chats_and_exports_by_the_template_of_its_config") {
  if (!is_shared_data_present("tokenizers/qwen3")) return;
  const std::string settings =
      R"({"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ 1 }}"})";
  std::vector<std::string> trained = from_folder(bare_tokenizer("chatml", settings));
  const std::string chats =
      workspace()
          .write("chatml.jsonl",
                 R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
                 "\n")
          .string();
  trained.insert(trained.end(),
                 {"data.train=[{path: " + chats + ", records: messages}]", "data.instructions.chat_template=chatml"});
  const Ended end = workspace().run(workspace().training("chatml-run", trained));
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const std::string run = (workspace() / "chatml-run").string();
  const Ended talks = chat(run);
  REQUIRE_MESSAGE(talks.exit_code == 0, talks.errors);

  const fs::path out = workspace() / "chatml-out";
  const Ended written = exported(run, out.string());
  REQUIRE_MESSAGE(written.exit_code == 0, written.errors);
  CHECK_MESSAGE(written.says("notice: the chat template is the one that the run read"), written.errors);
  const std::string jinja = read_file(out / "chat_template.jinja");
  CHECK(jinja.find("'<|im_start|>' + message.role") != std::string::npos);
  CHECK(json::parse(read_file(out / "tokenizer_config.json")).at("chat_template") == jinja);
  CHECK(json::parse(read_file(out / "config.json")).at("eos_token_id") == json{151643, 151645});
  CHECK(json::parse(read_file(out / "generation_config.json")) == json{{"eos_token_id", {151643, 151645}}});
  CHECK(chat(out.string()).output == talks.output);
}

TEST_CASE("an_export_names_the_tokens_that_the_tokenizers_settings_name") {
  if (!is_shared_data_present("tokenizers/llama3")) return;
  REQUIRE(
      workspace().run(workspace().training("llama3-run", from_folder(shared_data("tokenizers/llama3")))).exit_code ==
      0);
  const fs::path out = workspace() / "llama3-out";
  REQUIRE(exported((workspace() / "llama3-run").string(), out.string()).exit_code == 0);
  CHECK(json::parse(read_file(out / "config.json")).at("bos_token_id") == 128000);
}

TEST_CASE("an_odd_tokenizer_config_is_refused_by_member_or_passed_over") {
  if (!is_shared_data_present("tokenizers/qwen3")) return;
  const auto with_added = [](const std::string& added) {
    return R"({"pad_token": "<pad>", "added_tokens_decoder": {)" + added + "}}";
  };
  const fs::path folder = bare_tokenizer("odd", with_added(R"("x": {"content": "<pad>"})"));
  REQUIRE(workspace().run(workspace().training("odd-run", from_folder(folder))).exit_code == 0);
  const std::string run = (workspace() / "odd-run").string();
  const std::string out = (workspace() / "odd-out").string();
  const auto put = [&](const std::string& settings) {
    replace_file(checkpoint(workspace() / "odd-run", 1), "tokenizer_config.json", settings);
    fs::remove_all(out);
    return exported(run, out);
  };
  const auto refused = [](const Ended& end, const std::string& words) {
    CHECK(end.exit_code == 3);
    CHECK_MESSAGE(end.says(words), end.errors);
  };
  refused(exported(run, out), "tokenizer_config.json: added_tokens_decoder: \"x\" is no token's id");
  refused(put(R"({"pad_token": 5})"), "tokenizer_config.json: \"pad_token\" is integer 5, expected a string");
  for (const char* added : {R"("5": {"content": 1})", R"("5000000": {"content": "<pad>"})"}) {
    const Ended end = put(with_added(added));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(json::parse(read_file(fs::path(out) / "config.json")).at("pad_token_id").is_null());
  }
}

TEST_CASE("an_export_has_the_context_of_the_base_model_where_positions_are_rotated") {
  const auto settings = [](std::vector<std::string> more) {
    more.insert(more.end(), {"train.steps=1", "train.lr_schedule.warmup=0", "model.context=64"});
    return more;
  };
  const std::string run = (workspace() / "short-run").string();
  REQUIRE(workspace()
              .run(workspace().training("long-run", settings({"model.norm=rmsnorm", "model.position=rope",
                                                              "model.activation=swiglu", "model.bias=false"})))
              .exit_code == 0);
  const fs::path base = workspace() / "long-base";
  REQUIRE(exported((workspace() / "long-run").string(), base.string()).exit_code == 0);
  json config = json::parse(read_file(base / "config.json"));
  config["max_position_embeddings"] = 512;
  write_file(base / "config.json", config.dump());
  const Ended trained =
      workspace().run(workspace().training("short-run", settings({"model.init.from=" + base.string()})));
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  const auto context_in = [&](const std::string& name, const std::string& notice) {
    const fs::path out = workspace() / name;
    const Ended end = exported(run, out.string());
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    CHECK_MESSAGE(end.says(notice), end.errors);
    return json::parse(read_file(out / "config.json")).at("max_position_embeddings").get<int>();
  };
  CHECK(context_in("short-of-base", "notice: the context is 512 tokens, that of the base model in ") == 512);
  fs::remove_all(base);
  CHECK(context_in("short-alone", "notice: the context is 64 tokens: the run read at most 64 tokens at once") == 64);
}

TEST_CASE("what_lies_beside_a_tokenizer_and_is_broken_is_refused_at_the_start") {
  if (!is_shared_data_present("tokenizers/qwen3")) return;
  const fs::path folder = workspace() / "broken-beside";
  fs::create_directories(folder);
  fs::copy_file(shared_data("tokenizers/qwen3") / "tokenizer.json", folder / "tokenizer.json");
  workspace().write("broken-beside/tokenizer_config.json", "[]");
  const Ended end = workspace().run(workspace().training("broken-beside-run", from_folder(folder)));
  CHECK(end.exit_code == 3);
  CHECK_MESSAGE(end.says("tokenizer_config.json: is no JSON object; mend or remove the file"), end.errors);
}

TEST_CASE("a_tokenizer_without_settings_gets_a_class_and_names_in_an_export") {
  if (!is_shared_data_present("tokenizers/qwen3")) return;
  const fs::path folder = workspace() / "bare";
  fs::create_directories(folder);
  fs::copy_file(shared_data("tokenizers/qwen3") / "tokenizer.json", folder / "tokenizer.json");
  REQUIRE(workspace().run(workspace().training("bare-run", from_folder(folder))).exit_code == 0);
  const fs::path out = workspace() / "bare-out";
  REQUIRE(exported((workspace() / "bare-run").string(), out.string()).exit_code == 0);
  const json config = json::parse(read_file(out / "tokenizer_config.json"));
  CHECK(config.at("tokenizer_class") == "PreTrainedTokenizerFast");
  CHECK(config.at("eos_token") == "<|endoftext|>");
  CHECK_FALSE(config.contains("bos_token"));
  CHECK(config.at("model_max_length") == 64);
  CHECK(json::parse(read_file(out / "generation_config.json")) == json{{"eos_token_id", 151643}});
  // One without a class gets that alone.
  workspace().write("bare/tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\", \"pad_token\": \"<|im_end|>\"}");
  REQUIRE(workspace().run(workspace().training("named-run", from_folder(folder))).exit_code == 0);
  const fs::path named = workspace() / "named-out";
  REQUIRE(exported((workspace() / "named-run").string(), named.string()).exit_code == 0);
  CHECK(json::parse(read_file(named / "tokenizer_config.json")) ==
        json{{"eos_token", "<|im_end|>"}, {"pad_token", "<|im_end|>"}, {"tokenizer_class", "PreTrainedTokenizerFast"}});
  CHECK(json::parse(read_file(named / "config.json")).at("pad_token_id") == 151645);
}

TEST_CASE("a_gguf_file_says_what_rounding_cost_and_refuses_what_it_cannot_hold") {
  const std::vector<std::string> command = {"checkpoint", "export", newest(), "--to", "gguf", "--output"};
  const auto to = [&](const std::string& file, std::vector<std::string> more) {
    std::vector<std::string> all = command;
    all.push_back((workspace() / file).string());
    all.insert(all.end(), more.begin(), more.end());
    return workspace().run(all);
  };
  // The tiny run's gelu is the exact one.
  check_refused(to("gelu.gguf", {}), 2, {"--to gguf: model.activation: gelu", "--to huggingface has it"});
  const std::string run = (workspace() / "tanh").string();
  REQUIRE(workspace().run(workspace().training("tanh", {"model.activation=gelu_tanh"})).exit_code == 0);
  const auto of_run = [&](const std::string& file, std::vector<std::string> more) {
    std::vector<std::string> all = {
        "checkpoint", "export", run, "--to", "gguf", "--output", (workspace() / file).string()};
    all.insert(all.end(), more.begin(), more.end());
    return workspace().run(all);
  };
  const double loss = loss_of(workspace().run({"evaluate", run, "--data", held(), "--json"}));
  double lost[2] = {};
  for (const std::string dtype : {"int8", "int4"}) {
    const Ended end = of_run("tanh-" + dtype + ".gguf", {"--dtype", dtype, "--data", held()});
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    CAPTURE(end.output);
    const std::string before = held() + ": loss ";
    const std::size_t at = end.output.find(before);
    REQUIRE(at != std::string::npos);
    CHECK(std::stod(end.output.substr(at + before.size())) == Near(loss).epsilon(1e-5));
    const std::size_t after = end.output.find("in fp32, ");
    REQUIRE(after != std::string::npos);
    lost[dtype == "int4"] = std::abs(std::stod(end.output.substr(after + 9)) / loss - 1);
    CHECK(end.output.find(" in " + dtype + " (") != std::string::npos);
    CHECK(read_file(workspace() / ("tanh-" + dtype + ".gguf")).starts_with("GGUF"));
  }
  CHECK(lost[0] < 0.01);
  CHECK(lost[1] < 0.1);
  CHECK(fs::file_size(workspace() / "tanh-int4.gguf") < fs::file_size(workspace() / "tanh-int8.gguf"));
  // Of the run's own sets without --data, as many samples as its evaluations took.
  const Ended own = of_run("own.gguf", {"--dtype", "int8"});
  CHECK_MESSAGE(own.output.find("held: loss ") != std::string::npos, own.output);
  check_refused(of_run("own.gguf", {}), 2, {"own.gguf: already exists"});
  check_refused(of_run("no/such.gguf", {}), 2, {"no such folder"});
  check_refused(exported(run, (workspace() / "int8").string(), {"--dtype", "int8"}), 2,
                {"--dtype: int8 is of --to gguf"});
  check_refused(of_run("data.gguf", {"--data", held()}), 2, {"--data: ", "int8 or int4"});
  check_refused(of_run("data.gguf", {"--dtype", "int8", "--data", "absent.txt"}), 2, {"absent.txt"});
  // Conversations and completions too.
  const std::string records = (fs::path(SCALETRAIN_SOURCE_FOLDER) / "tests/golden/instructions/records.jsonl").string();
  const Ended answers =
      of_run("answers.gguf", {"--dtype", "int8", "--data", records, "--records", "prompt_completion"});
  CHECK_MESSAGE(answers.output.find("records.jsonl: loss ") != std::string::npos, answers.errors);
  check_refused(of_run("data.gguf", {"--dtype", "int8", "--data", records, "--records", "messages"}), 2,
                {"--chat-template: records: messages need a chat template"});
  std::vector<std::string> nowhere = command;
  nowhere.emplace_back("");
  check_refused(workspace().run(nowhere), 2, {"--output: a path is expected"});
  CHECK_FALSE(fs::exists(workspace() / "data.gguf"));
}

TEST_CASE("a_greedy_text_refuses_what_only_random_choice_uses") {
  const auto refused = [](const std::vector<std::string>& options) {
    std::vector<std::string> command = {"generate", newest(), "--prompt", "a", "--temperature", "0"};
    command.insert(command.end(), options.begin(), options.end());
    check_refused(workspace().run(command), 2,
                  {options.front() + ": --temperature 0 always takes the likeliest token"});
  };
  refused({"--top-k", "5"});
  refused({"--top-p", "0.5"});
  refused({"--min-p", "0.5"});
  refused({"--seed", "5"});
}

TEST_CASE("evaluate_measures_the_tasks_of_the_run_too") {
  std::string questions;
  for (int i = 0; i < 4; ++i) questions += "{\"question\": \"the\", \"choices\": [\"cat\", \"xqz\"], \"answer\": 0}\n";
  const std::string file = workspace().write("own-task.jsonl", questions).string();
  REQUIRE(workspace()
              .run(workspace().training("with-task", {"evaluate.tasks=[{name: own, path: " + file + "}]",
                                                      "train.steps=2", "train.lr_schedule.warmup=0"}))
              .exit_code == 0);
  const std::string run = (workspace() / "with-task").string();
  const auto measured = [&](std::vector<std::string> more) {
    std::vector<std::string> command = {"evaluate", run, "--json"};
    command.insert(command.end(), more.begin(), more.end());
    const Ended end = workspace().run(command);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    std::vector<std::string> names;
    for (const json& one : json::parse(end.output))
      names.push_back(one.contains("task") ? "task " + one.at("task").get<std::string>() : "set");
    return names;
  };
  CHECK(measured({}) == std::vector<std::string>{"set", "task own"});
  CHECK(measured({"--data", held()}) == std::vector<std::string>{"set"});
  CHECK(measured({"--task", "other=" + file}) == std::vector<std::string>{"task other"});
  fs::remove(file);
  check_refused(workspace().run({"evaluate", run}), 3, {"own-task.jsonl"});
}

// A Hugging Face folder of a GPT-2 whose weights are zeros that nobody wrote.
std::uint64_t write_hollow_model(const fs::path& folder, std::int64_t vocab, std::int64_t ffn) {
  constexpr std::int64_t hidden = 64;
  fs::create_directories(folder);
  write_file(folder / "config.json", json{{"model_type", "gpt2"},
                                          {"vocab_size", vocab},
                                          {"n_positions", 8},
                                          {"n_embd", hidden},
                                          {"n_layer", 1},
                                          {"n_head", 2},
                                          {"n_inner", ffn}}
                                         .dump());
  const std::string block = "transformer.h.0.";
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors = {
      {"transformer.wte.weight", {vocab, hidden}},
      {"transformer.wpe.weight", {8, hidden}},
      {"transformer.ln_f.weight", {hidden}},
      {"transformer.ln_f.bias", {hidden}},
      {block + "ln_1.weight", {hidden}},
      {block + "ln_1.bias", {hidden}},
      {block + "ln_2.weight", {hidden}},
      {block + "ln_2.bias", {hidden}},
      {block + "attn.c_attn.weight", {hidden, 3 * hidden}},
      {block + "attn.c_attn.bias", {3 * hidden}},
      {block + "attn.c_proj.weight", {hidden, hidden}},
      {block + "attn.c_proj.bias", {hidden}},
      {block + "mlp.c_fc.weight", {hidden, ffn}},
      {block + "mlp.c_fc.bias", {ffn}},
      {block + "mlp.c_proj.weight", {ffn, hidden}},
      {block + "mlp.c_proj.bias", {hidden}}};
  json header;
  std::uint64_t end = 0;
  for (const auto& [name, shape] : tensors) {
    std::uint64_t bytes = 4;
    for (const std::int64_t size : shape) bytes *= static_cast<std::uint64_t>(size);
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string size(8, '\0');
  for (int i = 0; i < 8; ++i) size[static_cast<std::size_t>(i)] = static_cast<char>(text.size() >> 8 * i & 0xff);
  write_file(folder / "model.safetensors", size + text);
  fs::resize_file(folder / "model.safetensors", 8 + text.size() + end);
  return end;
}

TEST_CASE("what_is_wrong_with_a_command_is_refused_before_the_weights_are_read") {
  // A model of 230 MB: a refusal that had read it would have taken more memory than any may.
  const fs::path large = workspace() / "hollow-unread";
  write_hollow_model(large, 300'000, 300'000);
  const auto refused = [&](std::vector<std::string> arguments, const std::vector<std::string>& words, int code = 2) {
    arguments.insert(arguments.begin() + 1, large.string());
    if (arguments.front() != "checkpoint") arguments.insert(arguments.end(), {"--tokenizer", "bytes"});
    if (arguments.front() == "checkpoint") std::swap(arguments[1], arguments[2]);
    CAPTURE(words.front());
    check_refused(workspace().run(arguments), code, words);
  };
  refused({"generate", "--prompt", "as long as this"}, {"--prompt", "leave no room"});
  refused({"generate", "--prompt", "a", "--temperature", "0", "--samples", "2"}, {"--samples: greedy samples"});
  refused({"generate", "--prompt", "a", "--vote", "(", "--samples", "2"}, {"--vote"});
  refused({"generate", "--prompt", "a", "--vote", "(a)"}, {"--vote: one sample is no majority"});
  refused({"generate", "--prompt", "a", "--stop", ""}, {"--stop"});
  refused({"generate", "--prompt-file", "absent.jsonl"}, {"absent.jsonl"}, 3);
  refused({"generate", "--prompt", "a", "--chat"}, {"--chat: the model's tokenizer"});
  refused({"evaluate", "--data", "absent.txt"}, {"absent.txt"});
  refused({"evaluate", "--task", "a=" + held()}, {held()}, 3);
  refused({"evaluate"}, {"a Hugging Face folder names no validation set and no task"});
  refused({"checkpoint", "export", "--to", "gguf", "--output", "no/such.gguf"}, {"no such folder"});
  refused({"checkpoint", "export", "--to", "huggingface", "--output", "hollow-unread"}, {"not an empty folder"});
  refused({"checkpoint", "export", "--to", "gguf", "--dtype", "int8", "--output", "no.gguf", "--data", "absent.txt"},
          {"absent.txt"});
  workspace().write("hollow-unread/tokenizer_config.json", "[]");
  refused({"checkpoint", "export", "--to", "huggingface", "--output", "no-folder"}, {"is no JSON object"}, 3);
}

TEST_CASE("an_import_and_an_export_need_less_than_two_tensors_beside_the_model") {
  constexpr std::int64_t many = 300'000;
  constexpr std::uint64_t largest = 4 * 64 * many;
  const std::string small = (workspace() / "hollow-small").string();
  const std::string large = (workspace() / "hollow-large").string();
  write_hollow_model(small, 100, 64);
  const std::uint64_t model = write_hollow_model(large, many, many);
  REQUIRE(model > 3 * largest);
  const fs::path out = workspace() / "hollow-out";
  const auto peak = [&](std::vector<std::string> command, const std::string& folder) {
    command.insert(command.begin() + (command.front() == "checkpoint" ? 2 : 1), folder);
    const Ended end = workspace().run(command);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    fs::remove_all(out);
    return end.peak_bytes;
  };
  const std::string to = out.string();
  const std::vector<std::vector<std::string>> commands = {
      {"checkpoint", "export", "--to", "huggingface", "--output", to},
      {"checkpoint", "export", "--to", "huggingface", "--output", to, "--dtype", "bf16"},
      {"checkpoint", "export", "--to", "gguf", "--output", to, "--dtype", "int8"},
      {"generate", "--tokenizer", "ids", "--prompt", "1", "--max-tokens", "1"}};
  for (const std::vector<std::string>& command : commands) {
    CAPTURE(command.back());
    const auto fixed = static_cast<std::uint64_t>(peak(command, small));
    CHECK(static_cast<std::uint64_t>(peak(command, large)) < fixed + model + 2 * largest);
  }
}

}  // namespace
}  // namespace scaletrain
