// The commands as a user and a program meet them: help, JSON, plans, losses, texts, and output that nobody can take.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>

#include "refusal.h"
#include "tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

std::string held() {
  return (workspace() / "held.txt").string();
}
std::string newest() {
  return checkpoint(undisturbed_run(), tiny_steps).string();
}

double loss_of(const Ended& end) {
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const nlohmann::json answer = nlohmann::json::parse(end.output);
  REQUIRE(answer.size() == 1);
  return answer.at(0).at("loss").get<double>();
}

TEST_CASE("every_command_explains_itself") {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"run"},
                                                          {"check"},
                                                          {"schema"},
                                                          {"plot"},
                                                          {"completion"},
                                                          {"evaluate"},
                                                          {"generate"},
                                                          {"checkpoint"},
                                                          {"checkpoint", "list"},
                                                          {"checkpoint", "inspect"},
                                                          {"checkpoint", "verify"},
                                                          {"checkpoint", "export"}};
  for (std::vector<std::string> command : commands) {
    command.emplace_back("--help");
    const Ended end = workspace().run(command);
    CAPTURE(command.front());
    CHECK(end.exit_code == 0);
    CHECK(end.output.find("Usage:") != std::string::npos);
    CHECK(end.errors.empty());
  }
  const Ended top = workspace().run({"--help"});
  for (const char* name : {"run", "check", "schema", "evaluate", "generate", "checkpoint"})
    CHECK(top.output.find(name) != std::string::npos);
  CHECK(top.output.find("worker") == std::string::npos);
  CHECK(workspace().run({"--version"}).output.find('.') != std::string::npos);
}

TEST_CASE("schema_lists_every_key_as_text_and_as_json") {
  const Ended json = workspace().run({"schema", "--json"});
  REQUIRE(json.exit_code == 0);
  const nlohmann::json keys = nlohmann::json::parse(json.output);
  const Ended text = workspace().run({"schema"});
  REQUIRE(keys.size() > 80);
  CHECK(text.output == workspace().run({"schema", ""}).output);
  const auto keys_of = [](const std::string& name) {
    std::vector<std::string> paths;
    for (const nlohmann::json& key : nlohmann::json::parse(workspace().run({"schema", name, "--json"}).output))
      paths.push_back(key.at("key"));
    return paths;
  };
  CHECK(keys_of("train.clip_norm") == std::vector<std::string>{"train.clip_norm"});
  const std::vector<std::string> spike = keys_of("train.spike");
  CHECK(std::find(spike.begin(), spike.end(), "train.spike.window") != spike.end());
  CHECK(std::find(spike.begin(), spike.end(), "train.steps") == spike.end());
  CHECK(keys_of("data.train.0.weight") == std::vector<std::string>{"data.train[].weight"});
  CHECK(keys_of("data.train").size() > 2);
  check_refused(workspace().run({"schema", "train.clip_nrom"}), 2, {"clip_nrom", "did you mean train.clip_norm?"});
  for (const nlohmann::json& key : keys) {
    CHECK_FALSE(key.at("meaning").get<std::string>().empty());
    CHECK_FALSE(key.at("type").get<std::string>().empty());
    const std::string not_yet = key.at("not_supported_yet").empty() ? "" : key.at("not_supported_yet")[0];
    CHECK((key.at("key") == "run.device") == (not_yet == "cuda"));
    CHECK(text.output.find(key.at("key").get<std::string>() + "\n") != std::string::npos);
  }
}

TEST_CASE("check_prints_a_plan_and_touches_nothing") {
  const auto before = snapshot(workspace().path());
  const Ended text = workspace().run({"check", "config.yaml"});
  CHECK_MESSAGE(text.exit_code == 0, text.errors);
  CHECK(text.output.find("34,720 parameters") != std::string::npos);
  const Ended json = workspace().run({"check", "config.yaml", "--json"});
  REQUIRE(json.exit_code == 0);
  const nlohmann::json plan = nlohmann::json::parse(json.output);
  // Token table 257 x 32 and 32 positions, twice (4 * 32 * 32 + 2 * 32 * 128 weights, 9 * 32 + 128 in biases and
  // norms), and a last norm.
  CHECK(plan.at("parameters") == 289 * 32 + 2 * (4 * 1024 + 2 * 4096 + 10 * 32 + 96) + 64);
  CHECK(snapshot(workspace().path()) == before);
}

TEST_CASE("check_plans_llama_405b_on_16384_ranks_within_a_second") {
  std::vector<std::string> arguments = {"check", "big.yaml"};
  workspace().write("big.yaml",
                    "model: {preset: llama-405b}\ndata: {train: [{path: train.txt}]}\n"
                    "train: {steps: 10000, global_batch: 2048, micro_batch: 1}\n");
  for (const char* degree : {"data=32", "tensor=8", "pipeline=64"}) {
    arguments.emplace_back("--set");
    arguments.push_back(std::string("parallel.") + degree);
  }
  const Ended end = workspace().run(arguments);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.output.find("16384 ranks") != std::string::npos);
  arguments.emplace_back("--json");
  const Ended json = workspace().run(arguments);
  CHECK_MESSAGE(json.exit_code == 0, json.errors);
  const nlohmann::json plan = nlohmann::json::parse(json.output);
  CHECK(plan.at("mesh").at("pipeline") == 64);
  CHECK(plan.at("parameters").get<double>() == doctest::Approx(405e9).epsilon(0.02));

  arguments = {
      "check",   "big.yaml", "--set", "parallel.data=32", "--set", "parallel.tensor=8", "--set", "parallel.pipeline=64",
      "--world", "16000"};
  check_refused(workspace().run(arguments), 2, {"16000", "16384"});
}

TEST_CASE("a_model_larger_than_the_machine_is_refused_with_its_memory_plan") {
  workspace().write("huge.yaml",
                    "run: {directory: huge}\nmodel: {preset: llama-405b}\ndata: {train: [{path: train.txt}]}\n"
                    "train: {steps: 100, global_batch: 2, micro_batch: 1}\n");
  check_refused(workspace().run({"run", "huge.yaml"}), 2, {"master weights", "optimizer state", "the machine has"});
  CHECK_FALSE(fs::exists(workspace() / "huge"));
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
  CHECK(generate({"--greedy", "--seed", "9"}) == greedy);
  CHECK(generate({"--temperature", "0"}) == greedy);
  const std::string seven = generate({"--seed", "7"});
  CHECK(generate({"--seed", "7"}) == seven);
  CHECK(generate({"--seed", "8"}) != seven);
  CHECK(seven != greedy);
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

TEST_CASE("help_names_the_defaults") {
  const Ended generate = workspace().run({"generate", "--help"});
  for (const char* value : {"INT=200 ", "FLOAT=0.8 ", "UINT=0 "})
    CHECK(generate.output.find(value) != std::string::npos);
  CHECK(workspace().run({"evaluate", "--help"}).output.find("INT=8 ") != std::string::npos);
  CHECK(workspace().run({"checkpoint", "export", "--help"}).output.find("=fp32\n") != std::string::npos);
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
        doctest::Approx(of_data).epsilon(1e-6));
  const Ended two = workspace().run({"evaluate", newest(), "--data", held(), "--data", "train.txt", "--json"});
  REQUIRE(two.exit_code == 0);
  CHECK(nlohmann::json::parse(two.output).size() == 2);
  check_refused(workspace().run({"evaluate", newest(), "--data", "no-such.txt"}), 2, {"--data PATH: ", "no-such.txt"});
  // A checkpoint has its tokenizer.
  check_refused(workspace().run({"evaluate", newest(), "--tokenizer", "bytes"}), 2, {"--tokenizer", "its own"});
  check_refused(workspace().run({"evaluate", "no-such-model"}), 3, {"no-such-model"});
  check_refused(workspace().run({"evaluate", workspace().path().string()}), 3, {"manifest.json", "config.json"});
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

TEST_CASE("an_exported_model_has_the_same_loss_in_every_exact_type") {
  const double ours = loss_of(workspace().run({"evaluate", newest(), "--data", held(), "--json"}));
  const std::string folder = (workspace() / "exported").string();
  const Ended exported = workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder});
  REQUIRE_MESSAGE(exported.exit_code == 0, exported.errors);
  CHECK(loss_of(workspace().run({"evaluate", folder, "--data", held(), "--tokenizer", "bytes", "--json"})) == ours);
  for (const Ended& end : {workspace().run({"evaluate", folder, "--data", held()}),
                           workspace().run({"generate", folder, "--prompt", "the "})})
    check_refused(end, 2, {"--tokenizer bytes"});
  // Rounding weights to 8 bits of mantissa moves the loss, a little.
  const std::string half = (workspace() / "exported-bf16").string();
  REQUIRE(workspace()
              .run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", half, "--dtype", "bf16"})
              .exit_code == 0);
  const double rounded =
      loss_of(workspace().run({"evaluate", half, "--data", held(), "--tokenizer", "bytes", "--json"}));
  CHECK(rounded != ours);
  CHECK(rounded == doctest::Approx(ours).epsilon(0.01));
  const Ended generated = workspace().run(
      {"generate", folder, "--prompt", "the ", "--tokenizer", "bytes", "--greedy", "--max-tokens", "16"});
  CHECK(generated.output ==
        workspace().run({"generate", newest(), "--prompt", "the ", "--greedy", "--max-tokens", "16"}).output);
  // A folder that holds something is not written over.
  const auto before = snapshot(folder);
  CHECK(workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder}).exit_code != 0);
  CHECK(snapshot(folder) == before);
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
  CHECK(std::stod(found.evaluations.at({1, "held"})) == doctest::Approx(ours).epsilon(1e-6));
  // Another shape than the folder's is refused by key.
  const Ended other =
      workspace().run(workspace().training("from-other", {"model.init.from=" + folder, "model.hidden=64"}));
  CHECK_MESSAGE(other.exit_code == 2, other.errors);
  CHECK(other.says("model.hidden: 64 in the config, 32 in the folder"));
}

TEST_CASE("list_inspect_and_verify_tell_what_is_there") {
  const std::string run = undisturbed_run().string();
  const Ended list = workspace().run({"checkpoint", "list", run, "--json"});
  REQUIRE_MESSAGE(list.exit_code == 0, list.errors);
  const nlohmann::json entries = nlohmann::json::parse(list.output);
  REQUIRE(entries.size() == 10);
  CHECK(entries.at(0).at("step") == 200);
  CHECK(entries.at(9).at("step") == 20);
  // The text's last sample, which is among those that were read, is not full: only tokens that exist are counted.
  const std::uintmax_t in_last = fs::file_size(workspace() / "train.txt") % 32;
  CHECK(in_last == 15);
  CHECK(entries.at(0).at("tokens") == 200 * 4 * 32 - (32 - in_last));
  const Ended inspect = workspace().run({"checkpoint", "inspect", run, "--json"});
  REQUIRE_MESSAGE(inspect.exit_code == 0, inspect.errors);
  const nlohmann::json inside = nlohmann::json::parse(inspect.output);
  CHECK(inside.at("step") == 200);
  std::int64_t trained = 0;
  for (const nlohmann::json& tensor : inside.at("tensors")) {
    if (tensor.at("role") != "trained") continue;
    std::int64_t elements = 1;
    for (const nlohmann::json& extent : tensor.at("shape")) elements *= extent.get<std::int64_t>();
    trained += elements;
  }
  CHECK(trained == 34720);
  CHECK(workspace().run({"checkpoint", "verify", run}).exit_code == 0);
  const Ended verified = workspace().run({"checkpoint", "verify", run, "--json"});
  REQUIRE_MESSAGE(verified.exit_code == 0, verified.errors);
  const nlohmann::json answer = nlohmann::json::parse(verified.output);
  CHECK(answer.at("verified") == true);
  CHECK(answer.at("save_id") == inside.at("save_id"));
  check_refused(workspace().run({"checkpoint", "list", (workspace() / "nowhere").string()}), 3, {"nowhere"});
}

TEST_CASE("list_of_a_folder_without_checkpoints_is_an_error_unless_it_is_a_run") {
  fs::create_directories(workspace() / "plain");
  check_refused(workspace().run({"checkpoint", "list", "plain"}), 3, {"plain", "no checkpoints here"});
  const fs::path run = copy_run(undisturbed_run(), "no-checkpoints");
  for (const std::string& name : checkpoint_names(run)) fs::remove_all(run / "checkpoints" / name);
  for (const char* path : {"no-checkpoints", "no-checkpoints/checkpoints"}) {
    const Ended empty = workspace().run({"checkpoint", "list", path, "--json"});
    CHECK(empty.exit_code == 0);
    CHECK(nlohmann::json::parse(empty.output).empty());
    CHECK(empty.says("no checkpoints in"));
  }
}

TEST_CASE("list_marks_the_best_checkpoint_and_counts_bytes_as_the_metrics_do") {
  const Ended run = workspace().run(workspace().training(
      "best", {"train.steps=40", "evaluate.every=10", "checkpoint.every=10", "train.optimizer.learning_rate=0.05",
               "early_stop={metric: validation/held/loss, patience: 1000}"}));
  REQUIRE_MESSAGE(run.exit_code == 0, run.errors);
  const Trajectory found = trajectory_of(workspace() / "best");
  long best_step = 0;
  double best = INFINITY;
  for (const auto& entry : found.evaluations) {
    if (std::stod(entry.second) < best) {
      best = std::stod(entry.second);
      best_step = entry.first.first;
    }
  }
  std::map<long, std::uint64_t> bytes;
  std::ifstream metrics(workspace() / "best" / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.at("kind") == "checkpoint") bytes[object.at("step").get<long>()] = object.at("bytes");
  }
  const Ended list = workspace().run({"checkpoint", "list", "best", "--json"});
  REQUIRE_MESSAGE(list.exit_code == 0, list.errors);
  const nlohmann::json entries = nlohmann::json::parse(list.output);
  REQUIRE(entries.size() == 4);
  for (const nlohmann::json& entry : entries) {
    const long step = entry.at("step").get<long>();
    CHECK(entry.at("best").get<bool>() == (step == best_step));
    CHECK(entry.at("bytes").get<std::uint64_t>() == bytes.at(step));
  }
  const std::string text = workspace().run({"checkpoint", "list", "best"}).output;
  const std::size_t mark = text.find("  best\n");
  REQUIRE(mark != std::string::npos);
  const std::string line = text.substr(0, mark).substr(text.rfind('\n', mark - 1) + 1);
  CHECK(line.find("  step " + std::to_string(best_step) + "  ") != std::string::npos);
  CHECK(text.find("  best\n", mark + 1) == std::string::npos);
  // The best loss of the scalars is to be read by people.
  const std::string& spelled = found.evaluations.at({best_step, "held"});
  const Ended all = workspace().run({"checkpoint", "inspect", "best", "--all"});
  CHECK(all.output.find("(" + spelled + ")\n") != std::string::npos);
}

// Overfits: trained on one letter, the loss on other text rises after the first evaluation, and the run stops early.
const fs::path& overfitted_run() {
  static const fs::path run = [] {
    workspace().write("letter.txt", std::string(2000, 'x'));
    const Ended end = workspace().run(workspace().training(
        "overfitted", {"data.train.0.path=letter.txt", "train.optimizer.learning_rate=3e-2", "evaluate.every=10",
                       "early_stop={metric: validation/held/loss, patience: 3}"}));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    REQUIRE(end.says("stopping early"));
    return workspace() / "overfitted";
  }();
  return run;
}

TEST_CASE("the_best_checkpoint_of_a_run_is_taken_if_asked_for_and_else_named") {
  const std::string run = overfitted_run().string();
  const nlohmann::json entries = nlohmann::json::parse(workspace().run({"checkpoint", "list", run, "--json"}).output);
  const auto best = std::find_if(entries.begin(), entries.end(), [](const auto& entry) { return entry.at("best"); });
  REQUIRE(best != entries.end());
  const std::string path = best->at("path");
  const std::string name = fs::path(path).filename().string();
  REQUIRE(path != entries.at(0).at("path"));
  const std::string folder = (workspace() / "exported-best").string();
  const std::vector<std::vector<std::string>> commands = {
      {"evaluate", run, "--json"},
      {"generate", run, "--prompt", "the ", "--greedy", "--max-tokens", "4"},
      {"checkpoint", "inspect", run},
      {"checkpoint", "verify", run},
      {"checkpoint", "export", run, "--to", "huggingface", "--output", folder}};
  for (std::vector<std::string> command : commands) {
    CAPTURE(command);
    const Ended newest = workspace().run(command);
    CHECK_MESSAGE(newest.exit_code == 0, newest.errors);
    CHECK(newest.says("using " + entries.at(0).at("path").get<std::string>() + " (step"));
    CHECK(newest.says("a better one is pinned: " + name + " (validation/held/loss "));
    CHECK(newest.says("--best takes it"));
    fs::remove_all(folder);
    std::vector<std::string> same = command;
    *std::find(same.begin(), same.end(), run) = path;
    const Ended given = workspace().run(same);
    fs::remove_all(folder);
    command.emplace_back("--best");
    const Ended asked = workspace().run(command);
    CHECK_MESSAGE(asked.exit_code == 0, asked.errors);
    CHECK(asked.output == given.output);
    CHECK(asked.says("using " + path + " (step"));
    CHECK_FALSE(given.says("using"));
  }
  CHECK(loss_of(workspace().run({"evaluate", run, "--json", "--best"})) <
        loss_of(workspace().run({"evaluate", run, "--json"})));
}

TEST_CASE("best_is_refused_where_there_is_none") {
  check_refused(workspace().run({"evaluate", newest(), "--best"}), 2, {"--best", "is no run folder"});
  check_refused(workspace().run({"checkpoint", "verify", undisturbed_run().string(), "--best"}), 3,
                {"--best", "no checkpoint is pinned as the best", "early_stop"});
  const fs::path run = copy_run(overfitted_run(), "best-is-gone");
  const nlohmann::json entries =
      nlohmann::json::parse(workspace().run({"checkpoint", "list", run.string(), "--json"}).output);
  for (const nlohmann::json& entry : entries)
    if (entry.at("best")) fs::remove_all(entry.at("path").get<std::string>());
  check_refused(workspace().run({"evaluate", run.string(), "--best"}), 3, {"--best", "not there any more"});
  CHECK(workspace().run({"evaluate", run.string()}).exit_code == 0);
}

TEST_CASE("inspect_sums_up_unless_it_is_asked_for_all") {
  const Ended summary = workspace().run({"checkpoint", "inspect", overfitted_run().string()});
  REQUIRE_MESSAGE(summary.exit_code == 0, summary.errors);
  CHECK(std::count(summary.output.begin(), summary.output.end(), '\n') <= 24);
  for (const char* part : {"model        2 layers, hidden 32, 4 heads, context 32", " trained F32: 34,720 elements, ",
                           " optimizer state F32: 69,440 elements, ", "stopped      validation/held/loss has not",
                           "best loss    ", "--all"})
    CHECK_MESSAGE(summary.output.find(part) != std::string::npos, part);
  const Ended all = workspace().run({"checkpoint", "inspect", overfitted_run().string(), "--all"});
  REQUIRE_MESSAGE(all.exit_code == 0, all.errors);
  for (const char* part : {"early_stop.best = ", "/exp_avg_sq", "global_batch: 4"})
    CHECK_MESSAGE(all.output.find(part) != std::string::npos, part);
}

// Root may do everything unless it gives that up.
Launch heeding_permissions(Launch launch) {
  if (::geteuid() != 0) return launch;
  launch.arguments.insert(launch.arguments.begin(),
                          {"--bounding-set=-dac_override,-dac_read_search", launch.executable.string()});
  launch.executable = "/usr/bin/setpriv";
  return launch;
}

TEST_CASE("a_folder_that_may_not_be_looked_into_does_not_read_like_one_that_is_missing") {
  const fs::path forbidden = workspace() / "forbidden";
  fs::create_directories(forbidden);
  const std::string run = (forbidden / "run").string();
  const std::vector<std::vector<std::string>> commands = {
      {"evaluate", run},
      {"checkpoint", "list", run},
      {"checkpoint", "inspect", run},
      {"check", (forbidden / "config.yaml").string()},
      {"evaluate", newest(), "--data", run},
      {"check", "config.yaml", "--set", "data.train.0.path=" + run},
      {"run", "config.yaml", "--set", "run.directory=not-begun", "--set", "data.train.0.path=" + run}};
  for (const std::vector<std::string>& command : commands) {
    CAPTURE(command);
    const Ended missing = workspace().run(command);
    CHECK(missing.says("no such"));
    CHECK_FALSE(missing.says("Permission denied"));
    fs::permissions(forbidden, fs::perms::none);
    const Ended refused = run_program(heeding_permissions(workspace().launch(command)));
    fs::permissions(forbidden, fs::perms::owner_all);
    CHECK_FALSE(refused.says("no such"));
    CHECK(refused.says("Permission denied"));
    CHECK((refused.exit_code == 0) == (missing.exit_code == 0));  // check goes on without the data
  }
}

TEST_CASE("output_that_cannot_be_written_is_an_error") {
  const std::vector<std::vector<std::string>> commands = {{"schema"},
                                                          {"schema", "--json"},
                                                          {"check", "config.yaml"},
                                                          {"checkpoint", "list", undisturbed_run().string()},
                                                          {"checkpoint", "inspect", newest()},
                                                          {"checkpoint", "verify", newest()},
                                                          {"evaluate", newest(), "--data", held()},
                                                          {"generate", newest(), "--prompt", "a", "--max-tokens", "2"}};
  for (const auto& command : commands) {
    CAPTURE(command.front());
    Launch launch = workspace().launch(command);
    launch.output_file = "/dev/full";
    const Ended end = run_program(launch);
    CHECK(end.exit_code == 3);
    CHECK(end.says("standard output"));
  }
}

TEST_CASE("machine_output_and_messages_go_to_different_streams") {
  const fs::path folder = copy_run(undisturbed_run(), "streams");
  const Ended run = workspace().run(workspace().training("streams", {"train.steps=210"}));
  CHECK_MESSAGE(run.exit_code == 0, run.errors);
  CHECK(run.output.empty());
  CHECK(run.says("step 210/210"));
  // Neither colours nor a line that redraws itself where no terminal is.
  CHECK(run.errors.find('\033') == std::string::npos);
  CHECK(run.errors.find('\r') == std::string::npos);
}

}  // namespace
}  // namespace scaletrain
