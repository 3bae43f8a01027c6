// The commands as a user and a program meet them: help, JSON, plans, losses, texts, and output that nobody can take.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "refusal.h"
#include "tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

std::string held() {
  return (workplace() / "held.txt").string();
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
                                                          {"evaluate"},
                                                          {"generate"},
                                                          {"checkpoint"},
                                                          {"checkpoint", "list"},
                                                          {"checkpoint", "inspect"},
                                                          {"checkpoint", "verify"},
                                                          {"checkpoint", "export"}};
  for (std::vector<std::string> command : commands) {
    command.emplace_back("--help");
    const Ended end = workplace().run(command);
    CAPTURE(command.front());
    CHECK(end.exit_code == 0);
    CHECK(end.output.find("Usage:") != std::string::npos);
    CHECK(end.errors.empty());
  }
  const Ended top = workplace().run({"--help"});
  for (const char* name : {"run", "check", "schema", "evaluate", "generate", "checkpoint"})
    CHECK(top.output.find(name) != std::string::npos);
  CHECK(top.output.find("worker") == std::string::npos);
  CHECK(workplace().run({"--version"}).output.find('.') != std::string::npos);
}

TEST_CASE("schema_lists_every_key_as_text_and_as_json") {
  const Ended json = workplace().run({"schema", "--json"});
  REQUIRE(json.exit_code == 0);
  const nlohmann::json keys = nlohmann::json::parse(json.output);
  const Ended text = workplace().run({"schema"});
  REQUIRE(keys.size() > 80);
  for (const nlohmann::json& key : keys) {
    CHECK_FALSE(key.at("meaning").get<std::string>().empty());
    CHECK_FALSE(key.at("type").get<std::string>().empty());
    CHECK(text.output.find(key.at("key").get<std::string>() + "\n") != std::string::npos);
  }
}

TEST_CASE("check_prints_a_plan_and_touches_nothing") {
  const auto before = snapshot(workplace().path());
  const Ended text = workplace().run({"check", "config.yaml"});
  CHECK_MESSAGE(text.exit_code == 0, text.errors);
  CHECK(text.output.find("34,720 parameters") != std::string::npos);
  const Ended json = workplace().run({"check", "config.yaml", "--json"});
  REQUIRE(json.exit_code == 0);
  const nlohmann::json plan = nlohmann::json::parse(json.output);
  // Token table 257 x 32 and 32 positions, twice (4 * 32 * 32 + 2 * 32 * 128 weights, 9 * 32 + 128 in biases and
  // norms), and a last norm.
  CHECK(plan.at("parameters") == 289 * 32 + 2 * (4 * 1024 + 2 * 4096 + 10 * 32 + 96) + 64);
  CHECK(snapshot(workplace().path()) == before);
}

TEST_CASE("check_plans_llama_405b_on_16384_ranks_within_a_second") {
  std::vector<std::string> arguments = {"check", "big.yaml"};
  workplace().write("big.yaml",
                    "model: {preset: llama-405b}\ndata: {train: [{path: train.txt}]}\n"
                    "train: {steps: 10000, global_batch: 2048, micro_batch: 1}\n");
  for (const char* degree : {"data=32", "tensor=8", "pipeline=64"}) {
    arguments.emplace_back("--set");
    arguments.push_back(std::string("parallel.") + degree);
  }
  const Ended end = workplace().run(arguments);
  check_refused(end, 2,
                {"parallel.tensor: 8 is not supported yet", "parallel.pipeline: 64 is not supported yet",
                 "parallel.data: 32 is not supported yet"});
  CHECK(end.output.find("16384 ranks") != std::string::npos);
  arguments.emplace_back("--json");
  const Ended json = workplace().run(arguments);
  check_refused(json, 2, {"not supported yet"});
  const nlohmann::json plan = nlohmann::json::parse(json.output);
  CHECK(plan.at("mesh").at("pipeline") == 64);
  CHECK(plan.at("parameters").get<double>() == doctest::Approx(405e9).epsilon(0.02));

  arguments = {
      "check",   "big.yaml", "--set", "parallel.data=32", "--set", "parallel.tensor=8", "--set", "parallel.pipeline=64",
      "--world", "16000"};
  check_refused(workplace().run(arguments), 2, {"16000", "16384"});
}

TEST_CASE("a_model_larger_than_the_machine_is_refused_with_its_memory_plan") {
  workplace().write("huge.yaml",
                    "run: {directory: huge}\nmodel: {preset: llama-405b}\ndata: {train: [{path: train.txt}]}\n"
                    "train: {steps: 100, global_batch: 2, micro_batch: 1}\n");
  check_refused(workplace().run({"run", "huge.yaml"}), 2, {"master weights", "optimizer state", "the machine has"});
  CHECK_FALSE(fs::exists(workplace() / "huge"));
}

TEST_CASE("greedy_texts_repeat_and_sampled_ones_follow_their_seed") {
  const auto generate = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", newest(), "--prompt", "the ", "--max-tokens", "24"});
    const Ended end = workplace().run(more);
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

TEST_CASE("prompts_that_are_empty_too_long_or_beyond_the_context_are_met") {
  // An empty prompt starts behind the end-of-document token.
  const Ended empty = workplace().run({"generate", newest(), "--prompt", "", "--max-tokens", "8"});
  CHECK_MESSAGE(empty.exit_code == 0, empty.errors);
  const Ended twice = workplace().run({"generate", newest(), "--prompt", "", "--max-tokens", "8"});
  CHECK(empty.output == twice.output);
  const Ended longer = workplace().run({"generate", newest(), "--prompt", std::string(32, 'a')});
  check_refused(longer, 2, {"--prompt", "32"});
  CHECK(longer.output.empty());
  const Ended full =
      workplace().run({"generate", newest(), "--prompt", std::string(30, 'a'), "--max-tokens", "100", "--greedy"});
  CHECK_MESSAGE(full.exit_code == 0, full.errors);
  CHECK(full.says("context is full"));
}

TEST_CASE("evaluate_takes_a_run_a_checkpoint_and_data_of_the_users") {
  const double of_data = loss_of(workplace().run({"evaluate", newest(), "--data", held(), "--json"}));
  CHECK(of_data > 0.0);
  CHECK(of_data < std::log(257.0));
  CHECK(loss_of(workplace().run({"evaluate", undisturbed_run().string(), "--json"})) == of_data);
  // Samples are the same whatever their number at once; only the order of the sum may differ.
  CHECK(loss_of(workplace().run({"evaluate", newest(), "--data", held(), "--json", "--micro-batch", "3"})) ==
        doctest::Approx(of_data).epsilon(1e-6));
  const Ended two = workplace().run({"evaluate", newest(), "--data", held(), "--data", "train.txt", "--json"});
  REQUIRE(two.exit_code == 0);
  CHECK(nlohmann::json::parse(two.output).size() == 2);
  check_refused(workplace().run({"evaluate", newest(), "--data", "no-such.txt"}), 2, {"--data", "no-such.txt"});
  check_refused(workplace().run({"evaluate", "no-such-model"}), 3, {"no-such-model"});
  check_refused(workplace().run({"evaluate", workplace().path().string()}), 3, {"manifest.json", "config.json"});
}

TEST_CASE("an_exported_model_has_the_same_loss_in_every_exact_type") {
  const double ours = loss_of(workplace().run({"evaluate", newest(), "--data", held(), "--json"}));
  const std::string folder = (workplace() / "exported").string();
  const Ended exported = workplace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder});
  REQUIRE_MESSAGE(exported.exit_code == 0, exported.errors);
  CHECK(loss_of(workplace().run({"evaluate", folder, "--data", held(), "--tokenizer", "bytes", "--json"})) == ours);
  // Rounding weights to 8 bits of mantissa moves the loss, a little.
  const std::string half = (workplace() / "exported-bf16").string();
  REQUIRE(workplace()
              .run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", half, "--dtype", "bf16"})
              .exit_code == 0);
  const double rounded =
      loss_of(workplace().run({"evaluate", half, "--data", held(), "--tokenizer", "bytes", "--json"}));
  CHECK(rounded != ours);
  CHECK(rounded == doctest::Approx(ours).epsilon(0.01));
  const Ended generated = workplace().run(
      {"generate", folder, "--prompt", "the ", "--tokenizer", "bytes", "--greedy", "--max-tokens", "16"});
  CHECK(generated.output ==
        workplace().run({"generate", newest(), "--prompt", "the ", "--greedy", "--max-tokens", "16"}).output);
  // A folder that holds something is not written over.
  const auto before = snapshot(folder);
  CHECK(workplace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder}).exit_code != 0);
  CHECK(snapshot(folder) == before);
}

TEST_CASE("a_run_starts_from_an_exported_model_at_its_loss") {
  const std::string folder = (workplace() / "start-from").string();
  REQUIRE(workplace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", folder}).exit_code ==
          0);
  const Ended end = workplace().run(
      workplace().training("from", {"model.init.from=" + folder, "train.steps=1", "train.lr_schedule.warmup=1",
                                    "train.optimizer.learning_rate=1e-12", "evaluate.batches=1000"}));
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const double ours = loss_of(workplace().run({"evaluate", newest(), "--data", held(), "--json"}));
  const Trajectory found = trajectory_of(workplace() / "from");
  CHECK(std::stod(found.evaluations.at({1, "held"})) == doctest::Approx(ours).epsilon(1e-6));
  // Another shape than the folder's is refused by key.
  const Ended other =
      workplace().run(workplace().training("from-other", {"model.init.from=" + folder, "model.hidden=64"}));
  CHECK_MESSAGE(other.exit_code == 2, other.errors);
  CHECK(other.says("model.hidden: 64 in the config, 32 in the folder"));
}

TEST_CASE("list_inspect_and_verify_tell_what_is_there") {
  const std::string run = undisturbed_run().string();
  const Ended list = workplace().run({"checkpoint", "list", run, "--json"});
  REQUIRE_MESSAGE(list.exit_code == 0, list.errors);
  const nlohmann::json entries = nlohmann::json::parse(list.output);
  REQUIRE(entries.size() == 10);
  CHECK(entries.at(0).at("step") == 200);
  CHECK(entries.at(9).at("step") == 20);
  CHECK(entries.at(0).at("tokens") == 200 * 4 * 32);
  const Ended inspect = workplace().run({"checkpoint", "inspect", run, "--json"});
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
  CHECK(workplace().run({"checkpoint", "verify", run}).exit_code == 0);
  check_refused(workplace().run({"checkpoint", "list", (workplace() / "nowhere").string()}), 3, {"nowhere"});
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
    Launch launch = workplace().launch(command);
    launch.output_file = "/dev/full";
    const Ended end = run_program(launch);
    CHECK(end.exit_code == 3);
    CHECK(end.says("standard output"));
  }
}

TEST_CASE("machine_output_and_messages_go_to_different_streams") {
  const fs::path folder = copy_run(undisturbed_run(), "streams");
  const Ended run = workplace().run(workplace().training("streams", {"train.steps=210"}));
  CHECK_MESSAGE(run.exit_code == 0, run.errors);
  CHECK(run.output.empty());
  CHECK(run.says("step 210/210"));
  // Neither colours nor a line that redraws itself where no terminal is.
  CHECK(run.errors.find('\033') == std::string::npos);
  CHECK(run.errors.find('\r') == std::string::npos);
}

}  // namespace
}  // namespace scaletrain
