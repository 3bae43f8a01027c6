// The commands as a user and a program meet them: help, JSON, plans, refusals, and output that nobody can take.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>

#include "models.h"
#include "process/tiny_run.h"
#include "refusal.h"
#include "support/near.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

TEST_CASE("every_command_explains_itself") {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"run"},
                                                          {"check"},
                                                          {"schema"},
                                                          {"plot"},
                                                          {"metrics"},
                                                          {"completion"},
                                                          {"evaluate"},
                                                          {"generate"},
                                                          {"data"},
                                                          {"data", "train-tokenizer"},
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
  CHECK(keys_of("parallel.context") == std::vector<std::string>{"parallel.context"});
  CHECK(workspace().run({"schema", "parallel.context"}).output ==
        "parallel.context\n    not supported yet: context parallelism\n");
  std::size_t later = 0;
  for (const nlohmann::json& key : keys) {
    CHECK_FALSE(key.at("meaning").get<std::string>().empty());
    CHECK_FALSE(key.at("type").get<std::string>().empty());
    const std::string not_yet = key.at("not_supported_yet").empty() ? "" : key.at("not_supported_yet")[0];
    CHECK(text.output.find(key.at("key").get<std::string>() + "\n") != std::string::npos);
    later += not_yet == "any value" ? 1 : 0;
  }
  CHECK(later > 5);
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

TEST_CASE("check_takes_its_time_by_the_peak_that_the_config_gives_for_each_ranks_device") {
  const auto plan = [](std::vector<std::string> settings) {
    std::vector<std::string> arguments = {"check", "config.yaml", "--json"};
    for (std::string& setting : settings) {
      arguments.emplace_back("--set");
      arguments.push_back(std::move(setting));
    }
    const Ended end = workspace().run(arguments);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return nlohmann::json::parse(end.output);
  };
  const auto peak = [](const nlohmann::json& of) { return of.at("time").at("peak_flops_of_each").get<double>(); };
  const auto seconds = [](const nlohmann::json& of) { return of.at("time").at("seconds").get<double>(); };
  const nlohmann::json one = plan({"log.peak_tflops=2"});
  CHECK(peak(one) == 2e12);
  CHECK(seconds(plan({"log.peak_tflops=4"})) == Near(seconds(one) / 2));
  // Two ranks of this machine, whose devices it has both.
  CHECK(peak(plan({"log.peak_tflops=2", "parallel.data=2"})) == 4e12);
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
  CHECK_MESSAGE(end.exit_code == 2, end.errors);  // not on this machine
  CHECK(end.output.find("16384 ranks") != std::string::npos);
  arguments.emplace_back("--json");
  const Ended json = workspace().run(arguments);
  CHECK_MESSAGE(json.exit_code == 2, json.errors);
  const nlohmann::json plan = nlohmann::json::parse(json.output);
  CHECK(plan.at("mesh").at("pipeline") == 64);
  CHECK(plan.at("parameters").get<double>() == Near(405e9).epsilon(0.02));

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

TEST_CASE("help_names_the_defaults") {
  const Ended generate = workspace().run({"generate", "--help"});
  for (const char* value : {"INT=200 ", "FLOAT=0.8 ", "UINT=0 "})
    CHECK(generate.output.find(value) != std::string::npos);
  CHECK(workspace().run({"evaluate", "--help"}).output.find("INT=8 ") != std::string::npos);
  CHECK(workspace().run({"checkpoint", "export", "--help"}).output.find("=fp32\n") != std::string::npos);
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
    CHECK(refused.exit_code != 0);
    CHECK(missing.exit_code != 0);
  }
}

TEST_CASE("check_ends_with_3_where_it_may_not_see_whether_the_run_has_begun") {
  const fs::path forbidden = workspace() / "forbidden-runs";
  fs::create_directories(forbidden);
  const std::vector<std::string> command = {"check", "config.yaml",
                                            "--set", "model.init.from=no-such-weights",
                                            "--set", "run.directory=" + (forbidden / "run").string()};
  check_refused(workspace().run(command), 2, {"model.init.from", "no such folder"});
  fs::permissions(forbidden, fs::perms::none);
  const Ended refused = run_program(heeding_permissions(workspace().launch(command)));
  fs::permissions(forbidden, fs::perms::owner_all);
  CHECK_MESSAGE(refused.exit_code == 3, refused.errors);
  CHECK(refused.says("Permission denied"));
}

TEST_CASE("output_that_cannot_be_written_is_an_error") {
  const std::vector<std::vector<std::string>> commands = {{"--help"},
                                                          {"--version"},
                                                          {"run", "--help"},
                                                          {"schema"},
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
