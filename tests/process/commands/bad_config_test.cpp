// What is wrong with a config or a command line is said at once: where, what was found, what would be right. Exit
// code 2.
#include <doctest/doctest.h>

#include "process/tiny_run.h"
#include "refusal.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

struct BadText {
  std::string name;
  std::string text;
  std::vector<std::string> words;  // each must be in the message
};

std::string repeated(std::string_view text, std::size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

std::string alias_bomb() {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + repeated(before + ", ", 9) + before + "]\n";
  }
  return text;
}

std::vector<BadText> hostile_texts() {
  return {
      {"alias-bomb", alias_bomb(), {"bad.yaml:1:5", "anchor"}},
      {"deep-flow", "run: " + repeated("[", 100000), {"bad.yaml:1:", "64 levels"}},
      {"many-blocks", "run:\n  " + repeated("- ", 100000) + "x\n", {"bad.yaml:2:", "100000 values"}},
      {"deep-maps", repeated("{a: ", 100000), {"bad.yaml:1:", "64 levels"}},
      {"huge-scalar", "run: {name: " + repeated("x", 8u << 20) + "}\n", {"bad.yaml:1:1", "MiB"}},
      {"long-scalar", "run: {name: " + repeated("x", 900000) + "}\n", {"bad.yaml:1:13", "run.name"}},
      {"duplicate-key", "train: {steps: 5}\nmodel: {layers: 2, layers: 3}\n", {"bad.yaml:2:20", "duplicate", "layers"}},
      {"duplicate-section",
       "train: {steps: 5}\nmodel: {}\ntrain: {steps: 6}\n",
       {"bad.yaml:3:1", "duplicate", "train"}},
      {"bad-utf8", "run: {name: caf\xe9}\n", {"bad.yaml:1:16", "UTF-8"}},
      {"overlong-utf8", "run:\n  name: \"\xc0\xaf\"\n", {"bad.yaml:2:10", "UTF-8"}},
      {"nul", std::string("run:\n  name: a\0b\n", 17), {"bad.yaml:2:10: ", "0x00"}},
      {"tag", "run: !!python/object:os.system {name: x}\n", {"bad.yaml:1:", "tag"}},
      {"unterminated", "run: {name: \"x\n", {"bad.yaml:"}},
      {"tab-indent", "run:\n\tname: x\n", {"bad.yaml:2:"}},
      {"a-list", "- run\n- model\n", {"bad.yaml:1:1", "sections"}},
      {"empty", "", {"bad.yaml"}},
      {"two-documents", "run: {name: x}\n---\nrun: {name: y}\n", {"bad.yaml:2:", "document"}},
  };
}

TEST_CASE("hostile_yaml_is_refused_with_line_and_column_within_a_second") {
  for (const BadText& bad : hostile_texts()) {
    CAPTURE(bad.name);
    workspace().write("bad.yaml", bad.text);
    for (const char* command : {"check", "run"}) {
      const Ended end = workspace().run({command, "bad.yaml"});
      check_refused(end, 2, bad.words);
      CHECK(end.errors.size() < 16384);
      CHECK(end.output.empty());
    }
  }
}

std::string tiny_with(const std::string& extra) {
  return "data: {train: [{path: train.txt}]}\ntrain: {steps: 20, global_batch: 4, micro_batch: 2}\n" + extra;
}

TEST_CASE("wrong_keys_types_ranges_and_values_are_told_with_their_place") {
  const std::vector<BadText> cases = {
      {"nearest", tiny_with("modle: {layers: 2}\n"), {"bad.yaml:3:1: ", "\"modle\"", "did you mean model?"}},
      {"nearest-inner",
       tiny_with("model: {hiden: 2}\n"),
       {"bad.yaml:3:9: ", "model.hiden", "did you mean model.hidden?"}},
      {"word-for-number", tiny_with("model: {layers: two}\n"), {"bad.yaml:3:17: ", "model.layers", "\"two\""}},
      {"fraction", tiny_with("model: {layers: 2.5}\n"), {"bad.yaml:3:17: ", "model.layers", "2.5"}},
      {"list-for-number", tiny_with("model: {layers: [2]}\n"), {"bad.yaml:3:17: ", "model.layers"}},
      {"number-for-section", tiny_with("model: 7\n"), {"bad.yaml:3:8: ", "model"}},
      {"negative", tiny_with("model: {layers: -2}\n"), {"bad.yaml:3:17: ", "model.layers", "-2"}},
      {"beyond-64-bits", tiny_with("run: {seed: 99999999999999999999999}\n"), {"bad.yaml:3:13: ", "run.seed"}},
      {"not-a-number", tiny_with("model: {norm_epsilon: .nan}\n"), {"bad.yaml:3:23: ", "model.norm_epsilon"}},
      {"unknown-word",
       tiny_with("model: {norm: batchnorm}\n"),
       {"bad.yaml:3:15: ", "model.norm", "batchnorm", "rmsnorm"}},
      {"unknown-preset", tiny_with("model: {preset: gpt2-125m}\n"), {"bad.yaml:3:17: ", "gpt2-124m"}},
      {"quoted-bool", tiny_with("model: {bias: maybe}\n"), {"bad.yaml:3:15: ", "model.bias"}},
      {"heads", tiny_with("model: {hidden: 100, heads: 3}\n"), {"bad.yaml:3:", "model.hidden", "100", "3"}},
      {"batches",
       "data: {train: [{path: train.txt}]}\ntrain: {steps: 20, global_batch: 5, micro_batch: 2}\nparallel: {data: 6}\n",
       {"bad.yaml:3:18: ", "parallel.data", "6", "train.global_batch", "5"}},
      {"sequence",
       tiny_with("model: {context: 1}\nparallel: {tensor: 4, sequence: true}\n"),
       {"bad.yaml:4:33: ", "parallel.sequence",
        "4 tensor ranks (parallel.tensor) share the 2 tokens of a micro-batch"}},
      {"unset-variable",
       tiny_with("run: {name: \"${SCALETRAIN_NOT_SET}\"}\n"),
       {"bad.yaml:3:13: ", "SCALETRAIN_NOT_SET"}},
      {"no-data", "train: {steps: 20}\n", {"data.train"}},
      {"no-length", "data: {train: [{path: train.txt}]}\n", {"train.steps", "tokens"}},
      {"size-overflow", tiny_with("model: {context: 4611686018427387904}\n"), {"bad.yaml:3:", "context"}},
  };
  for (const BadText& bad : cases) {
    CAPTURE(bad.name);
    workspace().write("bad.yaml", bad.text);
    check_refused(workspace().run({"run", "bad.yaml"}), 2, bad.words);
  }
  CHECK_FALSE(fs::exists(workspace() / "runs"));
}

TEST_CASE("all_errors_come_at_once_with_unsupported_values_among_them") {
  workspace().write("bad.yaml",
                    "model: {layerz: 2, hidden: -1}\n"
                    "data: {train: [{path: train.txt, wieght: 2}]}\n"
                    "train: {steps: 0, label_smoothing: 1.5}\n"
                    "parallel: {tensor: two, zero: 4}\n"
                    "precision: {reduce: fp16}\n");
  const Ended end = workspace().run({"run", "bad.yaml"});
  check_refused(end, 2,
                {"bad.yaml:1:9: ", "model.layerz", "bad.yaml:1:28: ", "bad.yaml:2:34: ", "weight", "bad.yaml:3:16: ",
                 "bad.yaml:3:36: train.label_smoothing: 1.5 is out of range", "bad.yaml:4:20: parallel.tensor",
                 "bad.yaml:4:31: parallel.zero", "bad.yaml:5:21: precision.reduce: fp16 is not supported yet"});
}

TEST_CASE("paths_that_do_not_exist_are_named_by_key_before_anything_is_made") {
  const Ended end = workspace().run({"run", "config.yaml", "--set", "run.directory=nothing-made", "--set",
                                     "data.train.0.path=no/such/file", "--set", "data.validation.0.path=neither"});
  check_refused(end, 2,
                {"--set data.train.0.path=no/such/file: data.train.0.path", "data.validation.0.path", "neither"});
  CHECK_FALSE(fs::exists(workspace() / "nothing-made"));
  check_refused(workspace().run({"run", "no-such.yaml"}), 2, {"no-such.yaml", "no such config file"});
  check_refused(workspace().run({"run", "."}), 2, {"not a regular file"});
  check_refused(workspace().run({"run", "/dev/zero"}), 2, {"/dev/zero", "not a regular file"});
}

TEST_CASE("check_prints_the_plan_and_names_what_is_wrong_with_the_data_and_run_starts_nothing") {
  const std::string missing = "--set data.train.0.path=no/such/file: data.train.0.path: no such file or folder";
  const Ended end = workspace().run({"check", "config.yaml", "--set", "data.train.0.path=no/such/file"});
  check_refused(end, 2, {"this is the plan, but it cannot be run so:\n" + missing});
  CHECK(end.output.find("34,720 parameters") != std::string::npos);
  workspace().write("hollow/empty.txt", "");
  workspace().write("bad.yaml",
                    "data:\n  train: [{path: hollow}]\ntrain: {steps: 20, global_batch: 4, micro_batch: 2}\n");
  const std::string hollow = "bad.yaml:2:18: data.train.0.path: " + (workspace() / "hollow").string() +
                             ": its only file, empty.txt, is empty; give it text";
  check_refused(workspace().run({"check", "bad.yaml"}), 3, {hollow});
  const Ended run = workspace().run({"run", "bad.yaml"});
  check_refused(run, 3, {hollow});
  CHECK_FALSE(run.says("worker"));
  CHECK_FALSE(fs::exists(workspace() / "runs"));
  check_refused(workspace().run({"run", "bad.yaml", "--set", "train.stepz=1"}), 2,
                {hollow, "did you mean train.steps"});
}

TEST_CASE("check_finds_folders_that_cannot_be_made_with_its_other_mistakes_and_makes_nothing") {
  workspace().write("bad.yaml", tiny_with("run: {directory: train.txt/run}\nlaunch: {interface: nowhere7}\n"));
  const auto before = snapshot(workspace().path());
  const std::string cache = "--set data.cache=train.txt/cache: data.cache: " + (workspace() / "train.txt").string() +
                            ": creating the folder failed: Not a directory; ";
  const Ended end = workspace().run({"check", "bad.yaml", "--set", "data.cache=train.txt/cache", "--set",
                                     "data.validation=[{name: none, path: no/such/file}]"});
  check_refused(end, 2,
                {"data.validation.0.path: no such file or folder", cache,
                 "bad.yaml:3:18: run.directory: " + (workspace() / "train.txt").string(),
                 "notice: bad.yaml:4:21: launch.interface: the host "});
  const std::vector<std::string> good = {"--set", "run.directory=never", "--set", "launch.interface=auto"};
  for (const char* command : {"check", "run"}) {
    std::vector<std::string> arguments = {command, "bad.yaml", "--set", "data.cache=train.txt/cache"};
    arguments.insert(arguments.end(), good.begin(), good.end());
    const Ended refused = workspace().run(arguments);
    check_refused(refused, 3, {cache});
    CHECK_FALSE(refused.says("worker"));
  }
  // For other machines it is by the way.
  const Ended elsewhere = workspace().run({"check", "bad.yaml", "--device", "h100"});
  CHECK_MESSAGE(elsewhere.exit_code == 0, elsewhere.errors);
  CHECK(elsewhere.says("notice: bad.yaml:3:18: run.directory: "));
  CHECK(snapshot(workspace().path()) == before);
}

TEST_CASE("check_tells_what_a_resume_changes_and_not_what_its_device_does") {
  // The checkpoints are in fp32, as auto is here.
  const std::vector<std::string> arguments = {"check",    "config.yaml", "--set", "run.directory=undisturbed",
                                              "--device", "h100",        "--set", "precision.compute=auto"};
  undisturbed_run();
  const Ended silent = workspace().run(arguments);
  CHECK_MESSAGE(silent.exit_code == 0, silent.errors);
  CHECK(silent.output.find("bf16") != std::string::npos);
  CHECK_FALSE(silent.says("this resume changes precision.compute"));
  auto asked = arguments;
  asked.back() = "precision.compute=bf16";
  CHECK(workspace().run(asked).says("notice: this resume changes precision.compute: fp32 in the checkpoint, bf16 now"));
}

TEST_CASE("check_refuses_checkpoints_of_another_model_as_run_does") {
  const fs::path& run = undisturbed_run();
  const auto before = snapshot(run);
  for (const char* command : {"check", "run"}) {
    const Ended end =
        workspace().run({command, "config.yaml", "--set", "run.directory=undisturbed", "--set", "model.layers=1"});
    check_refused(end, 2,
                  {checkpoint(run, 200).string() + " cannot be resumed with another value of:\n",
                   "--set model.layers=1: model.layers: 2 in the checkpoint, 1 now"});
  }
  // For other machines it is by the way.
  const Ended elsewhere = workspace().run(
      {"check", "config.yaml", "--set", "run.directory=undisturbed", "--set", "model.layers=1", "--device", "h100"});
  CHECK_MESSAGE(elsewhere.exit_code == 0, elsewhere.errors);
  CHECK(elsewhere.says("notice: " + checkpoint(run, 200).string() + " cannot be resumed with another value of:\n"));
  CHECK(snapshot(run) == before);
}

TEST_CASE("check_names_all_that_is_unsupported_also_without_a_tokenizer") {
  workspace().write("bad.yaml",
                    tiny_with("model: {vocab: auto}\nprecision: {reduce: fp16}\n") + "parallel: {tensor: 5}\n");
  const std::string later = "data.tokenizer={type: sentencepiece, path: not-here-yet.model}";
  const Ended without = workspace().run({"check", "bad.yaml", "--set", later});
  check_refused(without, 2,
                {"data.tokenizer.path: no such file or folder", "bad.yaml:4:21: precision.reduce: fp16 is not"});
  CHECK(without.output.empty());
  // With a vocabulary there is a plan, and with a degree that does not divide the heads there is an error more.
  const Ended misfit = workspace().run({"check", "bad.yaml", "--set", later, "--set", "model.vocab=1000"});
  check_refused(misfit, 2,
                {"bad.yaml:5:20: parallel.tensor: 5 does not divide model.heads: 12",
                 "data.tokenizer.path: no such file or folder", "bad.yaml:4:21: precision.reduce: fp16 is not"});
  const Ended plan =
      workspace().run({"check", "bad.yaml", "--set", later, "--set", "model.vocab=1000", "--set", "parallel.tensor=2"});
  check_refused(plan, 2, {"data.tokenizer.path: no such file or folder"});
  CHECK(plan.output.find("2 ranks") != std::string::npos);
}

TEST_CASE("check_says_when_this_machine_is_too_small") {
  workspace().write("bad.yaml", tiny_with("model: {preset: llama-405b}\n"));
  const Ended end = workspace().run({"check", "bad.yaml"});
  check_refused(end, 2, {" and the rank needs "});
  CHECK(end.output.starts_with("DOES NOT FIT "));
  CHECK(end.says("notice: model.vocab 128256 (from the preset) is larger than the tokenizer's 257"));
  CHECK_FALSE(workspace().run({"check", "config.yaml"}).says("notice:"));
}

TEST_CASE("mistakes_in_set_name_the_override") {
  struct Case {
    std::string setting;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"train.steps", {"--set train.steps", "'='"}},
      {"=5", {"--set =5"}},
      {"train.steps=", {"--set train.steps=: nothing behind"}},
      {"train.stepz=5", {"--set train.stepz=5", "did you mean train.steps?"}},
      {"train.steps=many", {"--set train.steps=many", "train.steps", "\"many\""}},
      {"train.steps=-1", {"--set train.steps=-1", "-1"}},
      {"train=5", {"--set train=5", "train"}},
      {"data.train.7.weight=2", {"--set data.train.7.weight=2", "data.train"}},
      {"data.train.x.weight=2", {"--set data.train.x.weight=2"}},
      {"model.init={type: normal", {"--set model.init={type: normal"}},
      {"train.steps={a: &b 5}", {"--set train.steps={a: &b 5}"}},
      {"train.recompute=some", {"--set train.recompute=some", "train.recompute", "selective"}},
      {"precision.reduce=fp16", {"--set precision.reduce=fp16", "not supported yet"}},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.setting);
    check_refused(workspace().run({"run", "config.yaml", "--set", bad.setting}), 2, bad.words);
  }
  // The later of two overrides of a key counts, and the file's value is replaced.
  const Ended end = workspace().run(
      {"check", "config.yaml", "--json", "--set", "train.global_batch=8", "--set", "train.global_batch=16"});
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(nlohmann::json::parse(end.output).at("global_batch") == 16);
}

TEST_CASE("mistakes_on_the_command_line_end_with_2_and_say_what_is_expected") {
  struct Case {
    std::vector<std::string> arguments;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {{}, {"name a command", "check"}},
      {{"trian"}, {"trian"}},
      {{"run"}, {"config is required, as in: scaletrain run my.yaml"}},
      {{"run", "config.yaml", "--sett", "a=b"}, {"--sett"}},
      {{"run", "config.yaml", "--set"}, {"--set"}},
      {{"run", "config.yaml", "extra"}, {"extra"}},
      {{"check", "config.yaml", "--world", "0"}, {"--world"}},
      {{"checkpoint"}, {"list", "inspect", "verify", "export"}},
      {{"checkpoint", "destroy"}, {"destroy"}},
      {{"checkpoint", "verify"}, {"path is required, as in: scaletrain checkpoint verify runs/first"}},
      {{"checkpoint", "export", "x", "--to", "onnx", "--output", "y"}, {"onnx", "huggingface", "gguf"}},
      {{"evaluate"}, {"model is required"}},
      {{"evaluate", "x", "--micro-batch", "0"}, {"--micro-batch"}},
      {{"generate", "x"}, {"--prompt is required"}},
      {{"generate", "x", "--prompt", "a", "--temperature", "-1"}, {"--temperature"}},
      {{"generate", "x", "--prompt", "a", "--max-tokens", "0"}, {"--max-tokens"}},
      {{"generate", "x", "--prompt", "a", "--seed", "seven"}, {"--seed"}},
      {{"generate", "x", "--prompt", "a", "--greedy", "--seed", "7"}, {"--greedy", "--seed"}},
      {{"check", "config.yaml", "--verbose", "--json"}, {"--verbose", "--json"}},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.arguments.size());
    if (!bad.arguments.empty()) CAPTURE(bad.arguments.back());
    const Ended end = workspace().run(bad.arguments);
    check_refused(end, 2, bad.words);
    CHECK(end.output.empty());
  }
}

}  // namespace
}  // namespace scaletrain
