// Losses and texts of a trained model: evaluate, generate, and models that are exported and begun from.
#include <doctest/doctest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/process/terminal_text.h"
#include "models.h"
#include "process/tiny_run.h"
#include "refusal.h"
#include "support/near.h"

namespace scaletrain {
namespace {

// What the program writes to a terminal that it has as its standard output.
std::string shown_by_terminal(const std::vector<std::string>& arguments) {
  int terminal = -1;
  int name = -1;
  REQUIRE(::openpty(&terminal, &name, nullptr, nullptr, nullptr) == 0);
  termios raw{};
  ::cfmakeraw(&raw);  // newlines stay what they are
  REQUIRE(::tcsetattr(name, TCSANOW, &raw) == 0);
  Launch launch = workspace().launch(arguments);
  launch.output_file = ::ttyname(name);
  const Ended end = run_program(launch);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  ::close(name);
  // All of it waits there, for it is little.
  std::string shown;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(terminal, buffer.data(), buffer.size())) > 0;)
    shown.append(buffer.data(), static_cast<std::size_t>(n));
  ::close(terminal);
  return shown;
}

TEST_CASE("greedy_texts_repeat_and_sampled_ones_follow_their_seed") {
  const auto generate = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", newest(), "--prompt", "the ", "--max-tokens", "24"});
    const Ended end = workspace().run(more);
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(end.output.starts_with("the "));
    return end.output;
  };
  const std::string greedy = generate({"--greedy"});
  CHECK(generate({"--greedy"}) == greedy);
  CHECK(generate({"--temperature", "0"}) == greedy);
  const std::string seven = generate({"--seed", "7"});
  CHECK(generate({"--seed", "7"}) == seven);
  CHECK(generate({"--seed", "8"}) != seven);
  CHECK(seven != greedy);
}

TEST_CASE("a_terminal_gets_no_control_characters_of_a_models_text_and_a_pipe_every_byte") {
  // So hot that every byte is as likely as any other.
  const std::vector<std::string> arguments = {"generate", newest(),        "--prompt", "a\x1b[7mb", "--max-tokens",
                                              "24",       "--temperature", "100",      "--seed",    "1"};
  const Ended piped = workspace().run(arguments);
  REQUIRE_MESSAGE(piped.exit_code == 0, piped.errors);
  CHECK(piped.output.starts_with("a\x1b[7mb"));
  const auto is_plain = [](char c) { return (c >= ' ' && c <= '~') || c == '\n'; };
  CHECK_FALSE(std::all_of(piped.output.begin() + 6, piped.output.end(), is_plain));
  TerminalText text;
  std::string expected = text.add(piped.output.substr(0, piped.output.size() - 1));
  expected += text.finish() + "\n";
  CHECK(shown_by_terminal(arguments) == expected);
}

TEST_CASE("numbers_that_make_no_sense_are_refused_with_what_is_expected") {
  const auto generate = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", newest(), "--prompt", "a"});
    return workspace().run(more);
  };
  const auto evaluate = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"evaluate", newest(), "--data", held(), "--json"});
    return workspace().run(more);
  };
  for (const char* temperature : {"nan", "inf", "-1", "1e9", "warm"})
    check_refused(generate({"--temperature", temperature}), 2, {"--temperature: must be a number from 0 to 100"});
  check_refused(generate({"--seed", "-3"}), 2, {"--seed: must be at least 0, not -3"});
  check_refused(generate({"--seed", "18446744073709551616"}), 2, {"--seed: must be at most 18446744073709551615"});
  CHECK(generate({"--seed", "18446744073709551615", "--max-tokens", "1"}).exit_code == 0);
  check_refused(generate({"--max-tokens", "0"}), 2, {"--max-tokens: must be at least 1, not 0\n"});
  check_refused(generate({"--max-tokens", "9223372036854775808"}), 2, {"--max-tokens: must be at most"});
  check_refused(generate({"--max-tokens", "2.5"}), 2, {"--max-tokens: must be a whole number"});
  check_refused(generate({"--greedy", "--temperature", "1"}), 2, {"--greedy", "--temperature"});
  check_refused(evaluate({"--batches", "-1"}), 2, {"--batches: must be at least 0"});
  check_refused(evaluate({"--micro-batch", "4097"}), 2, {"--micro-batch: must be at most 4096"});
  // As many batches as a number can say are all there are.
  CHECK(loss_of(evaluate({"--batches", "9223372036854775807"})) == loss_of(evaluate({})));
}

TEST_CASE("prompts_that_are_empty_too_long_or_beyond_the_context_are_met") {
  // An empty prompt starts behind the end-of-document token.
  const Ended empty = workspace().run({"generate", newest(), "--prompt", "", "--max-tokens", "8"});
  CHECK_MESSAGE(empty.exit_code == 0, empty.errors);
  const Ended twice = workspace().run({"generate", newest(), "--prompt", "", "--max-tokens", "8"});
  CHECK(empty.output == twice.output);
  const Ended longer = workspace().run({"generate", newest(), "--prompt", std::string(32, 'a')});
  check_refused(longer, 2, {"--prompt", "32"});
  CHECK(longer.output.empty());
  const Ended full =
      workspace().run({"generate", newest(), "--prompt", std::string(30, 'a'), "--max-tokens", "100", "--greedy"});
  CHECK_MESSAGE(full.exit_code == 0, full.errors);
  CHECK(full.says("context is full"));
}

TEST_CASE("evaluate_takes_a_run_a_checkpoint_and_data_of_the_users") {
  const double of_data = loss_of(workspace().run({"evaluate", newest(), "--data", held(), "--json"}));
  CHECK(of_data > 0.0);
  CHECK(of_data < std::log(257.0));
  CHECK(loss_of(workspace().run({"evaluate", undisturbed_run().string(), "--json"})) == of_data);
  // Samples are the same whatever their number at once; only the order of the sum may differ.
  CHECK(loss_of(workspace().run({"evaluate", newest(), "--data", held(), "--json", "--micro-batch", "3"})) ==
        Near(of_data).epsilon(1e-6));
  const Ended two = workspace().run({"evaluate", newest(), "--data", held(), "--data", "train.txt", "--json"});
  REQUIRE(two.exit_code == 0);
  CHECK(nlohmann::json::parse(two.output).size() == 2);
  check_refused(workspace().run({"evaluate", newest(), "--data", "no-such.txt"}), 2, {"--data PATH: ", "no-such.txt"});
  // A checkpoint has its tokenizer.
  check_refused(workspace().run({"evaluate", newest(), "--tokenizer", "bytes"}), 2, {"--tokenizer", "its own"});
  check_refused(workspace().run({"evaluate", "no-such-model"}), 3, {"no-such-model"});
  check_refused(workspace().run({"evaluate", workspace().path().string()}), 3, {"manifest.json", "config.json"});
}

TEST_CASE("losses_of_models_that_see_documents_otherwise_are_not_called_comparable") {
  const std::string text =
      workspace().write("two.jsonl", "{\"text\": \"one and\"}\n{\"text\": \"another\"}\n").string();
  const Ended trained = workspace().run(workspace().training(
      "within", {"train.steps=1", "train.lr_schedule.warmup=0", "data.documents.attention=within"}));
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  const std::string within = (workspace() / "within").string();
  const Ended two = workspace().run({"evaluate", within, newest(), "--data", text});
  CHECK_MESSAGE(two.exit_code == 0, two.errors);
  CHECK(two.output.find("not to be compared: data.documents of these models differ") != std::string::npos);
  const Ended alike = workspace().run({"evaluate", newest(), undisturbed_run().string(), "--data", text});
  CHECK(alike.output.find("not to be compared") == std::string::npos);
}

TEST_CASE("evaluate_needs_no_folder_of_the_runs_owner_for_tokenised_text") {
  // The run keeps it where whoever evaluates the checkpoint cannot write, and neither has that user any other place.
  const std::filesystem::path temporary = workspace().write("for-a-while/.keep", "").parent_path();
  const std::filesystem::path cache = workspace() / "cache-of-the-owner";
  const Ended trained =
      workspace().run(workspace().training("of-the-owner", {"train.steps=20", "data.cache=" + cache.string()}));
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  const std::string model = checkpoint(workspace() / "of-the-owner", 20).string();
  const double expected = loss_of(workspace().run({"evaluate", model, "--json"}));
  std::filesystem::remove_all(cache);
  write_file(cache, "no folder");
  Launch launch = workspace().launch({"evaluate", model, "--data", held(), "--json"});
  launch.environment.insert(
      launch.environment.begin(),
      {{"SCALETRAIN_CACHE", "/dev/null/cache"}, {"HOME", "/dev/null"}, {"TMPDIR", temporary.string()}});
  const Ended end = run_program(launch);
  CHECK(loss_of(end) == expected);
  CHECK(end.says("tokenised text is not kept in " + cache.string()));
  for (const auto& entry : std::filesystem::directory_iterator(temporary)) CHECK(entry.path().filename() == ".keep");
}

TEST_CASE("evaluate_and_generate_of_a_run_say_which_checkpoint_they_use_and_which_they_pass_over") {
  const std::filesystem::path run = copy_run(undisturbed_run(), "half-damaged");
  const Ended whole = workspace().run({"evaluate", run.string(), "--json", "--batches", "1"});
  CHECK(whole.says("step-00000200 (step 200)"));
  CHECK(nlohmann::json::parse(whole.output).at(0).at("step") == 200);
  write_file(checkpoint(run, 200) / "manifest.json", "{");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"evaluate", run.string(), "--json", "--batches", "1"},
        {"generate", run.string(), "--prompt", "a", "--max-tokens", "2"}}) {
    const Ended end = workspace().run(command);
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(end.says("step-00000180 (step 180)"));
    CHECK(end.says("warning: a damaged checkpoint is passed over"));
    CHECK(end.says("step-00000200"));
  }
}

TEST_CASE("evaluate_gives_the_loss_of_the_last_evaluation_of_the_run_to_the_bit") {
  const Ended end = workspace().run(workspace().training(
      "whole-set", {"train.steps=20", "evaluate.every=10", "evaluate.batches=0", "checkpoint.every=20"}));
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const Trajectory found = trajectory_of(workspace() / "whole-set");
  // The order of the sum is that of the micro-batches; the run's have two samples.
  const double loss =
      loss_of(workspace().run({"evaluate", (workspace() / "whole-set").string(), "--json", "--micro-batch", "2"}));
  CHECK(std::stod(found.evaluations.at({20, "held"})) == loss);
  CHECK(std::stod(found.evaluations.at({10, "held"})) != loss);
}

TEST_CASE("evaluate_says_where_its_loss_is_over_other_samples_than_those_of_the_run") {
  const std::string run = undisturbed_run().string();
  const Ended whole = workspace().run({"evaluate", run, "--json"});
  REQUIRE_MESSAGE(whole.exit_code == 0, whole.errors);
  const nlohmann::json set = nlohmann::json::parse(whole.output).at(0);
  CHECK(set.at("samples_in_run") == 8);  // two global batches of four
  const std::string all = std::to_string(set.at("samples").get<int>());
  const Ended text = workspace().run({"evaluate", run});
  std::string tokens = set.at("tokens").dump();
  REQUIRE((tokens.size() > 3 && tokens.size() < 7));
  tokens.insert(tokens.size() - 3, 1, ',');
  CHECK_MESSAGE(text.output.find(" over " + tokens + " tokens\n") != std::string::npos, text.output);
  CHECK_MESSAGE(
      text.output.ends_with("\n    over all " + all + " samples; the run's own evaluations are over the first 8 of " +
                            all + " samples (evaluate.batches: 2)\n"),
      text.output);
  // The same samples: nothing to say, and the loss of the run.
  const Ended same = workspace().run({"evaluate", run, "--batches", "4", "--micro-batch", "2"});
  CHECK(same.output.find("evaluate.batches") == std::string::npos);
  CHECK(loss_of(workspace().run({"evaluate", run, "--batches", "4", "--micro-batch", "2", "--json"})) ==
        std::stod(trajectory_of(run).evaluations.at({tiny_steps, "held"})));
  // Of other data than the run's there is nothing to compare.
  const Ended other = workspace().run({"evaluate", run, "--data", held()});
  CHECK(other.output.find("evaluate.batches") == std::string::npos);
}

TEST_CASE("evaluate_says_bits_per_byte_and_several_models_side_by_side") {
  const std::string folder = (workspace() / "beside").string();
  REQUIRE(workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder}).exit_code ==
          0);
  const std::string older = checkpoint(undisturbed_run(), 20).string();
  const Ended end =
      workspace().run({"evaluate", older, newest(), folder, "--tokenizer", "bytes", "--data", held(), "--json"});
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const nlohmann::json all = nlohmann::json::parse(end.output);
  REQUIRE(all.size() == 3);
  CHECK(all[0].at("loss") > all[1].at("loss"));
  CHECK(all[1].at("loss") == all[2].at("loss"));
  CHECK(all[0].at("model") == older);
  CHECK(all[2].at("step").is_null());
  // A byte a token, but for the ends of documents.
  const double bytes = all[1].at("bytes");
  const double tokens = all[1].at("tokens");
  CHECK(bytes == tokens - 1);
  CHECK(bytes == read_file(held()).size() - 1);  // the first one is not a target
  CHECK(all[1].at("bits_per_byte").get<double>() ==
        Near(all[1].at("loss").get<double>() * tokens / bytes / std::log(2.0)).epsilon(1e-12));
  const Ended table = workspace().run({"evaluate", older, newest(), "--data", held()});
  CHECK_MESSAGE(table.output.starts_with(held() + "\nmodel "), table.output);
  for (const char* words : {"nats/token", "perplexity/token", "bits/byte", "step-00000020", "step-00000200"})
    CHECK(table.output.find(words) != std::string::npos);
  const Ended one = workspace().run({"evaluate", newest(), "--data", held()});
  for (const char* words : {"nats per token", "perplexity", "bits per byte"})
    CHECK(one.output.find(words) != std::string::npos);
  check_refused(workspace().run({"evaluate", older, newest(), "--tokenizer", "bytes"}), 2, {"--tokenizer", "its own"});
}

TEST_CASE("evaluate_measures_multiple_choice_tasks_with_their_standard_errors") {
  const std::string golden = SCALETRAIN_SOURCE_FOLDER "/tests/golden/choices";
  const nlohmann::json expected = nlohmann::json::parse(read_file(golden + "/expected.json"));
  const std::vector<std::string> command = {"evaluate", golden,   "--tokenizer",
                                            "bytes",    "--task", "easy=" + golden + "/questions.jsonl"};
  std::vector<std::string> as_json = command;
  as_json.emplace_back("--json");
  const Ended json = workspace().run(as_json);
  REQUIRE_MESSAGE(json.exit_code == 0, json.errors);
  const nlohmann::json found = nlohmann::json::parse(json.output);
  REQUIRE(found.size() == 1);
  CHECK(found[0].at("task") == "easy");
  CHECK(found[0].at("questions") == 8);
  CHECK(found[0].at("cut_texts") == 2);
  for (const char* key : {"accuracy", "accuracy_error", "normalized_accuracy", "normalized_accuracy_error"})
    CHECK(found[0].at(key).get<double>() == Near(expected.at(key).get<double>()).epsilon(1e-12));
  CHECK(workspace().run(command).output ==
        "easy: accuracy 0.5000 ± 0.1890, by length in bytes 0.1250 ± 0.1250, of 8 questions\n"
        "    2 texts longer than the context: of these the end was read\n");
  // Beside data, and of several models.
  const Ended both = workspace().run(
      {"evaluate", golden, newest(), "--tokenizer", "bytes", "--task", command.back(), "--data", held()});
  REQUIRE_MESSAGE(both.exit_code == 0, both.errors);
  CHECK(both.output.find("\n\neasy\nmodel ") != std::string::npos);
  check_refused(workspace().run({"evaluate", newest(), "--task", "questions.jsonl"}), 2,
                {"--task: ", "is not NAME=FILE"});
  check_refused(workspace().run({"evaluate", newest(), "--task", "a=no-such.jsonl"}), 3, {"no-such.jsonl"});
  check_refused(workspace().run({"evaluate", golden, "--tokenizer", "ids", "--task", command.back()}), 2,
                {"--task easy: questions are text"});
}

TEST_CASE("an_exported_model_has_the_same_loss_in_every_exact_type") {
  const double ours = loss_of(workspace().run({"evaluate", newest(), "--data", held(), "--json"}));
  const std::string folder = (workspace() / "exported").string();
  const Ended exported = workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder});
  REQUIRE_MESSAGE(exported.exit_code == 0, exported.errors);
  CHECK(exported.says("the model reads bytes: the tokenizer.json written for it has a token for each"));
  CHECK(loss_of(workspace().run({"evaluate", folder, "--data", held(), "--tokenizer", "bytes", "--json"})) == ours);
  CHECK(loss_of(workspace().run({"evaluate", folder, "--data", held(), "--json"})) == ours);
  for (const Ended& end : {workspace().run({"evaluate", folder, "--data", held(), "--tokenizer", "ids"}),
                           workspace().run({"generate", folder, "--prompt", "the ", "--tokenizer", "ids"})})
    check_refused(end, 2, {"--tokenizer bytes"});
  // Rounding weights to 8 bits of mantissa moves the loss, a little.
  const std::string half = (workspace() / "exported-bf16").string();
  REQUIRE(workspace()
              .run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", half, "--dtype", "bf16"})
              .exit_code == 0);
  const double rounded =
      loss_of(workspace().run({"evaluate", half, "--data", held(), "--tokenizer", "bytes", "--json"}));
  CHECK(rounded != ours);
  CHECK(rounded == Near(ours).epsilon(0.01));
  const Ended generated = workspace().run(
      {"generate", folder, "--prompt", "the ", "--tokenizer", "bytes", "--greedy", "--max-tokens", "16"});
  CHECK(generated.output ==
        workspace().run({"generate", newest(), "--prompt", "the ", "--greedy", "--max-tokens", "16"}).output);
  // A folder that holds something is not written over.
  const auto before = snapshot(folder);
  check_refused(workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder}), 2,
                {folder, "not an empty folder; name a new folder, or remove what is there"});
  CHECK(snapshot(folder) == before);
}

TEST_CASE("a_model_trained_in_bf16_is_evaluated_in_fp32_from_its_masters") {
  const Ended trained = workspace().run(workspace().training("half", {"precision.compute=bf16", "evaluate.batches=0"}));
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  const std::string run = (workspace() / "half").string();
  const std::string folder = (workspace() / "exported-half").string();
  REQUIRE(workspace().run({"checkpoint", "export", run, "--to", "huggingface", "--output", folder}).exit_code == 0);
  // The folder holds fp32, and no word of bf16.
  const double ours = loss_of(workspace().run({"evaluate", run, "--data", held(), "--json"}));
  CHECK(loss_of(workspace().run({"evaluate", folder, "--data", held(), "--tokenizer", "bytes", "--json"})) == ours);
  const double in_training = std::stod(trajectory_of(run).evaluations.at({tiny_steps, "held"}));
  CHECK(in_training == Near(ours).epsilon(0.01));
}

TEST_CASE("a_model_whose_weights_are_not_numbers_is_refused_by_evaluate_and_generate") {
  const std::string folder = (workspace() / "not-numbers").string();
  REQUIRE(workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder}).exit_code ==
          0);
  const std::filesystem::path file = std::filesystem::path(folder) / "model.safetensors";
  std::string bytes = read_file(file);
  // The second half, which holds tensors alone: 0x7fffffff is a NaN.
  for (std::size_t i = bytes.size() - bytes.size() / 8 * 4; i < bytes.size(); ++i)
    bytes[i] = (bytes.size() - i) % 4 == 1 ? '\x7f' : '\xff';
  write_file(file, bytes);
  check_refused(workspace().run({"evaluate", folder, "--data", held(), "--tokenizer", "bytes"}), 3,
                {folder, "is not a number: its weights are damaged or its training diverged"});
  check_refused(workspace().run({"generate", folder, "--prompt", "a", "--tokenizer", "bytes"}), 3,
                {"its weights are damaged or its training diverged"});
}

TEST_CASE("a_run_starts_from_an_exported_model_at_its_loss") {
  const std::string folder = (workspace() / "start-from").string();
  REQUIRE(workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder}).exit_code ==
          0);
  const Ended end = workspace().run(
      workspace().training("from", {"model.init.from=" + folder, "train.steps=1", "train.lr_schedule.warmup=1",
                                    "train.optimizer.learning_rate=1e-12", "evaluate.batches=1000"}));
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const double ours = loss_of(workspace().run({"evaluate", newest(), "--data", held(), "--json"}));
  const Trajectory found = trajectory_of(workspace() / "from");
  CHECK(std::stod(found.evaluations.at({1, "held"})) == Near(ours).epsilon(1e-6));
  // Another shape than the folder's is refused by key.
  std::vector<std::string> other = workspace().training("from-other", {"model.init.from=" + folder, "model.hidden=64"});
  std::vector<std::string> hollow = workspace().training("from-other", {"model.init.from=hollow"});
  std::filesystem::create_directories(workspace() / "hollow");
  for (const char* command : {"check", "run"}) {
    other.front() = command;
    hollow.front() = command;
    const Ended shape = workspace().run(other);
    CHECK_MESSAGE(shape.exit_code == 2, shape.errors);
    CHECK(shape.says("--set model.hidden=64: model.hidden: 64, but the model in " + folder + " has 32"));
    const Ended empty = workspace().run(hollow);
    CHECK_MESSAGE(empty.exit_code == 3, empty.errors);
    CHECK(empty.says("--set model.init.from=hollow: model.init.from: " + (workspace() / "hollow").string() +
                     ": the file \"config.json\" is missing"));
  }
  CHECK_FALSE(std::filesystem::exists(workspace() / "from-other"));
}

TEST_CASE("a_model_that_grows_begins_at_the_loss_of_that_which_it_grew_from_and_trains_all_of_its_layers") {
  const std::string folder = (workspace() / "grow-from").string();
  REQUIRE(workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder}).exit_code ==
          0);
  const auto first_losses = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"model.init.from=" + folder, "train.steps=2", "train.lr_schedule.warmup=1"};
    settings.insert(settings.end(), more.begin(), more.end());
    const Ended end = workspace().run(workspace().training(name, settings));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    std::map<long, std::string> losses;
    for (const auto& [step, line] : trajectory_of(workspace() / name).steps)
      losses[step] = line.substr(0, line.find(' '));
    return losses;
  };
  const auto of_folder = first_losses("grown-not", {});
  for (const std::string order : {"stack", "interleave"}) {
    const auto grown = first_losses("grown-" + order, {"model.layers=5", "model.grow.order=" + order});
    // Zeros are added: to the bit.
    CHECK(grown.at(1) == of_folder.at(1));
    // Copies learn, too.
    CHECK(grown.at(2) != of_folder.at(2));
    const auto divided = first_losses("grown-ranks-" + order, {"model.layers=5", "model.grow.order=" + order,
                                                               "parallel.tensor=2", "parallel.pipeline=2"});
    for (const int step : {1, 2}) CHECK(std::stod(divided.at(step)) == Near(std::stod(grown.at(step))).epsilon(1e-6));
  }
  const auto whole = first_losses("grown-whole", {"model.layers=5", "model.grow={order: stack, identity: false}"});
  CHECK(whole.at(1) != of_folder.at(1));
  // The run has its layers now.
  const Ended resumed = workspace().run(
      workspace().training("grown-stack", {"model.init.from=" + folder, "train.steps=3", "train.lr_schedule.warmup=1",
                                           "model.layers=5", "model.grow.order=stack"}));
  REQUIRE_MESSAGE(resumed.exit_code == 0, resumed.errors);
  CHECK(trajectory_of(workspace() / "grown-stack").last_step() == 3);
}

// Gemma 2: the norms behind the branches of a copy are zero, and every second layer has a window.
TEST_CASE("a_gemma_that_grows_has_the_same_losses_on_another_layout") {
  const auto losses = [](const std::string& name, const std::vector<std::string>& settings) {
    const Ended end = workspace().run(workspace().training(name, settings));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    std::map<long, std::string> found;
    for (const auto& [step, line] : trajectory_of(workspace() / name).steps)
      found[step] = line.substr(0, line.find(' '));
    return found;
  };
  losses("gemma-small",
         {"model.preset=gemma2-2b", "model.kv_heads=2", "model.head_dim=8", "model.ffn_hidden=48", "model.vocab=auto",
          "model.query_pre_attn_scalar=8", "model.window.tokens=16", "train.steps=4", "train.lr_schedule.warmup=1"});
  const std::string folder = (workspace() / "gemma-folder").string();
  REQUIRE(workspace()
              .run({"checkpoint", "export", checkpoint(workspace() / "gemma-small", 4).string(), "--to", "huggingface",
                    "--output", folder})
              .exit_code == 0);
  std::vector<std::string> settings = {"model.init.from=" + folder, "train.steps=2", "train.lr_schedule.warmup=1"};
  const auto of_folder = losses("gemma-not-grown", settings);
  settings.insert(settings.end(), {"model.layers=4", "model.grow.order=stack"});
  const auto grown = losses("gemma-grown", settings);
  CHECK(grown.at(1) == of_folder.at(1));
  CHECK(grown.at(2) != of_folder.at(2));
  settings.insert(settings.end(), {"parallel.tensor=2", "parallel.pipeline=2"});
  const auto divided = losses("gemma-grown-ranks", settings);
  for (const int step : {1, 2}) CHECK(std::stod(divided.at(step)) == Near(std::stod(grown.at(step))).epsilon(1e-6));
}

TEST_CASE("a_folder_alone_says_what_the_model_is_also_to_check_and_a_run_that_has_begun_no_longer_needs_it") {
  const std::filesystem::path folder = workspace() / "shape-alone";
  REQUIRE(workspace()
              .run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder.string()})
              .exit_code == 0);
  const auto config = [&](const std::string& keys) {
    workspace().write("alone.yaml", "run: {directory: alone, device: cpu}\nmodel:\n  init: {from: shape-alone}\n" +
                                        keys +
                                        "data: {train: [{path: train.txt}]}\n"
                                        "train: {steps: 2, global_batch: 2, micro_batch: 1}\ncheckpoint: {every: 1}\n");
  };
  config("  hidden: 64\n");
  for (const char* command : {"check", "run"})
    check_refused(workspace().run({command, "alone.yaml"}), 2,
                  {"alone.yaml:4:11: model.hidden: 64, but the model in shape-alone has 32; leave the key out"});
  config("");
  const Ended planned = workspace().run({"check", "alone.yaml"});
  REQUIRE_MESSAGE(planned.exit_code == 0, planned.errors);
  CHECK(planned.output.find("hidden 32") != std::string::npos);
  // The layout is the folder's model's to fit: 12 heads, which stand where nothing else does, have three ranks.
  check_refused(workspace().run({"check", "alone.yaml", "--set", "parallel.tensor=3"}), 2,
                {"parallel.tensor", "heads"});
  const Ended begun = workspace().run({"run", "alone.yaml", "--set", "parallel.tensor=2"});
  REQUIRE_MESSAGE(begun.exit_code == 0, begun.errors);
  CHECK(read_file(workspace() / "alone" / "config.yaml").find("  hidden: 32\n") != std::string::npos);
  std::filesystem::remove_all(folder);
  const Ended resumed = workspace().run({"run", "alone.yaml", "--set", "train.steps=3"});
  REQUIRE_MESSAGE(resumed.exit_code == 0, resumed.errors);
  CHECK(trajectory_of(workspace() / "alone").last_step() == 3);
  // Scripts may ask for the run's folder also where the model's is gone.
  CHECK(workspace().run({"run", "alone.yaml", "--set", "run.directory=anew", "--print-directory"}).output ==
        (workspace() / "anew").string() + "\n");
  // Without its checkpoints nothing says what the model is.
  for (const char* command : {"check", "run"})
    check_refused(workspace().run({command, "alone.yaml", "--set", "run.directory=anew"}), 2,
                  {"alone.yaml:3:16: model.init.from: ", "shape-alone", "no telling what the model is"});
  CHECK_FALSE(std::filesystem::exists(workspace() / "anew"));
}

}  // namespace
}  // namespace scaletrain
