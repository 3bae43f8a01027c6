#include <doctest/doctest.h>

#include <algorithm>

#include "config/keys/keys.h"
#include "config/keys/unsupported.h"
#include "config_helpers.h"
#include "support/temp_folder.h"

using namespace scaletrain;

TEST_CASE("the smallest config has every default") {
  const LoadedConfig loaded = load_text(kLeast);
  CHECK(loaded.source == kLeast);
  CHECK(loaded.notices.empty());
  CHECK(loaded.config.run.directory == "runs/run");
  CHECK(loaded.config.train.steps == 200);
  CHECK(loaded.config.model.kv_heads == 12);
  CHECK(loaded.config.data.train.at(0).path == "/base/corpus.txt");
  CHECK(loaded.config.train.clip_norm == 1.0);
}

TEST_CASE("all errors are reported at once in the order of their places") {
  const std::string report = errors_of(
      "run: {name: a/b, sed: 3}\n"
      "model:\n"
      "  layers: many\n"
      "  hidden: 100\n"
      "  heads: 12\n"
      "train:\n"
      "  steps: 0\n"
      "  optimizer: {betas: [0.9, 1.5], learning_rate: \"6e-4\"}\n"
      "  label_smoothing: 1.5\n"
      "log: {every: 1.5}\n",
      {"train.global_batch=abc", "train.nonfinite.skip=-1"});
  const std::string expected =
      "c.yaml:1:1: data.train: is missing; name at least one source, such as [{path: data/text}]\n"
      "c.yaml:1:13: run.name: expected a plain name without '/', found text \"a/b\"\n"
      "c.yaml:1:18: unknown key \"run.sed\"; did you mean run.seed?\n"
      "c.yaml:3:11: model.layers: expected an integer, found text \"many\"\n"
      "c.yaml:4:11: model.hidden: 100 is no multiple of heads 12\n"
      "c.yaml:7:10: train.steps: 0 is out of range; expected at least 1\n"
      "c.yaml:8:28: train.optimizer.betas: 1.5 is out of range; expected less than 1\n"
      "c.yaml:8:49: train.optimizer.learning_rate: expected a number, found text \"6e-4\" in quotes; remove the "
      "quotes\n"
      "c.yaml:9:20: train.label_smoothing: 1.5 is out of range; expected less than 1\n"
      "c.yaml:10:14: log.every: expected an integer, found the number 1.5\n"
      "--set train.global_batch=abc: train.global_batch: expected an integer, found text \"abc\"\n"
      "--set train.nonfinite.skip=-1: train.nonfinite.skip: -1 is out of range; expected at least 0";
  CHECK(report == expected);
}

TEST_CASE("wrong kinds of values say what was found") {
  CHECK(contains(errors_of(kLeast + "run: 3\n"), "c.yaml:3:6: run: expected a mapping of keys, found the number 3"));
  CHECK(contains(errors_of(kLeast + "model: {bias: yes}\n"), "model.bias: expected true or false, found text \"yes\""));
  CHECK(contains(errors_of(kLeast + "model: {norm: rmsnrm}\n"),
                 "model.norm: expected one of layernorm, rmsnorm, found text \"rmsnrm\"; did you mean rmsnorm?"));
  CHECK(contains(
      errors_of(kLeast + "precision: {compute: bfloat16}\n"),
      "precision.compute: expected one of auto, fp32, tf32, bf16, fp16, found text \"bfloat16\"; did you mean bf16?"));
  CHECK(contains(errors_of(kLeast + "run: {device: gpu}\n"),
                 "run.device: expected one of auto, cpu, cuda, found text \"gpu\"; did you mean cuda?"));
  CHECK(contains(errors_of(kLeast + "model: {layers: [1]}\n"), "model.layers: expected an integer, found a list"));
  CHECK(contains(errors_of(kLeast + "model:\n  layers:\n"),
                 "c.yaml:4:3: model.layers: expected an integer, found nothing"));
  CHECK(contains(errors_of(kLeast + "supervise: {heartbeat: 60}\n"), "expected a time such as 90s, 30m or 2h"));
  CHECK(contains(errors_of("data: {train: corpus.txt}\ntrain: {steps: 1}\n"),
                 "data.train: expected a list, found text \"corpus.txt\""));
  CHECK(contains(errors_of("data: {train: [corpus.txt]}\ntrain: {steps: 1}\n"),
                 "data.train.0: expected a mapping of keys, found text \"corpus.txt\""));
  CHECK(contains(
      errors_of("data: {train: [{weight: 1}]}\ntrain: {steps: 1}\n"),
      "data.train.0.path: is missing: a file, a folder, or a pattern (web/**/*.jsonl.zst), such as path: data/books"));
  CHECK(contains(errors_of(kLeast + "run: {seed: -1}\n"), "run.seed: expected an integer from 0"));
  CHECK(load_text(kLeast + "run: {seed: 18446744073709551615}\n").config.run.seed == 18446744073709551615u);
  CHECK(contains(errors_of("hello\n"), "expected sections"));
  CHECK(contains(errors_of("steps:3\n"), "a colon needs a space"));
  CHECK(contains(errors_of(""), "train.steps: is missing"));
}

TEST_CASE("values written as elsewhere are told how to write them here") {
  struct Case {
    std::string yaml;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"model: {bias: yes}", "found text \"yes\"; write true"},
      {"model: {bias: Off}", "found text \"Off\"; write false"},
      {"model: {layers: 1k}", "model.layers: expected an integer, found text \"1k\"; write 1K"},
      {"model: {layers: 1_000}", "found text \"1_000\"; write 1000"},
      {"model:\n  context: 4,096", "found text \"4,096\"; write 4096"},
      {"model: {context: 4ki}", "found text \"4ki\"; write 4Ki"},
      {"model: {norm_epsilon: 1_0e-5}", "expected a number, found text \"1_0e-5\"; write 10e-5"},
      {"checkpoint: {keep_every: never}",
       "checkpoint.keep_every: expected an integer, found text \"never\"; write null"},
      {"launch: {port: none}", "launch.port: expected an integer, found text \"none\"; write auto"},
      {"launch: {port: dynamic}", "launch.port: expected an integer, found text \"dynamic\"; write auto"},
      {"precision: {compute: fp16, loss_scale: auto}",
       "precision.loss_scale: expected a number, found text \"auto\"; write dynamic"},
      {"precision: {compute: fp16, loss_scale: dynamik}",
       "precision.loss_scale: expected a number, found text \"dynamik\"; did you mean dynamic?"},
      {"launch: {transport: shm}", "launch.transport: expected one of auto, host, tcp, nccl, found text \"shm\""},
      {"checkpoint: 100", "checkpoint: expected a mapping of keys, found the number 100; write {every: 100}"},
      {"checkpoint: 30m", "checkpoint: expected a mapping of keys, found text \"30m\"; write {every: 30m}"},
      {"model: gpt2-124m", "; write {preset: gpt2-124m}"},
      {"supervise: {elastic: 2}", "; write {min_data: 2}"},
  };
  for (const Case& bad : cases) {
    const std::string report = errors_of(kLeast + bad.yaml + "\n");
    CHECK_MESSAGE(contains(report, bad.message), report);
  }
  CHECK(contains(override_errors({"train.lr_schedule=cosine"}),
                 "train.lr_schedule: expected a mapping of keys, found text \"cosine\"; write {type: cosine}"));
  CHECK(contains(override_errors({"data.tokenizer=bytes"}), "; write {type: bytes}"));
  CHECK(contains(override_errors({"data.train=[text]"}), "; write {path: text}"));
  CHECK(contains(override_errors({"train.optimizer=adamw"}), "; write {type: adamw}"));
  CHECK(contains(override_errors({"train.clip_norm=none"}), "found text \"none\"; write null"));
  CHECK_FALSE(contains(override_errors({"train.clip_norm=auto"}), "write"));  // null would be no clipping
  CHECK(override_errors({"train.optimizer=adamm"}).find("write") == std::string::npos);
  CHECK(contains(override_errors({"data.train=[a.txt]"}), "found text \"a.txt\"; write {path: a.txt}"));
  CHECK(
      contains(override_errors({"data.train=a.txt"}), "expected a list, found text \"a.txt\"; write [{path: a.txt}]"));
  CHECK(contains(override_errors({"data.train={path: a}"}), "found a mapping; put it into a list: \"train: [{...}]\""));
  CHECK(contains(override_errors({"data.validation=[a.txt]"}), "; write {name: ..., path: a.txt}"));
}

TEST_CASE("missing paths are errors among the others, in the order of the file") {
  const TempFolder folder;
  const auto file = folder.write("c.yaml",
                                 "model: {vocab: 100}\n"
                                 "data:\n"
                                 "  train: [{path: here.txt}, {path: not-here.txt}, {path: pair}]\n"
                                 "train: {steps: 200, stepz: 3}\n");
  folder.write("here.txt", "x");
  folder.write("pair.idx", "x");
  folder.write("pair.bin", "x");
  std::string report;
  try {
    load_config(file, {});
  } catch (const UserError& error) {
    report = error.what();
  }
  const std::string at = file.string() + ":";
  CHECK(report == at + "1:16: model.vocab: 100 is too small; tokenizer bytes has 257 tokens (write auto)\n" + at +
                      "3:36: data.train.1.path: no such file or folder: \"" + (folder / "not-here.txt").string() +
                      "\" (relative paths start at the config file's folder)\n" + at +
                      "4:21: unknown key \"train.stepz\"; did you mean train.steps?");
}

TEST_CASE("missing paths can be listed beside the config, and what a shell would have expanded is told") {
  const LoadOptions list{.missing_paths = MissingPaths::list};
  const LoadedConfig loaded = load_text(
      "data:\n  train:\n    - path: ~/none\n    - path: $DATA/none\n    - path: /none/*.txt\n"
      "train: {steps: 200}\n",
      {}, {}, list);
  REQUIRE(loaded.unready.size() == 3);
  CHECK_FALSE(loaded.is_unready_data);
  for (const std::string& line : {loaded.unready[0], loaded.unready[1]}) {
    CHECK(contains(line, "no such file or folder"));
    CHECK(contains(line, "~ and $NAME are not expanded, ${NAME} is"));
  }
  CHECK(contains(loaded.unready[2], "there is no folder \"/none\" to look into: \"/none/*.txt\""));
  CHECK(loaded.unready[1].starts_with("c.yaml:4:13: data.train.1.path: "));
  // A run that has a checkpoint needs the initial weights no more: that is not known here.
  CHECK(load_text("data: {train: [{path: /}]}\nmodel: {init: {from: /no/weights}}\ntrain: {steps: 200}\n", {}, {},
                  {.missing_paths = MissingPaths::refuse})
            .notices.empty());
}

TEST_CASE("what the data's own layer finds joins the errors, and alone it is the data's") {
  const std::string data = "data:\n  train:\n    - {path: /, type: text}\n";
  LoadOptions options{.missing_paths = MissingPaths::refuse};
  options.look_at_data = [](const Config& config) {
    return std::vector<InputProblem>{
        {.key = "data.train.0.path", .message = config.data.train.front().path + ": empty"}};
  };
  CHECK_THROWS_WITH_AS(load_text(data + "train: {steps: 200}\n", {}, {}, options),
                       "c.yaml:3:14: data.train.0.path: /: empty", InputError);
  CHECK_THROWS_WITH_AS(load_text(data + "train: {steps: 200, stepz: 3}\n", {}, {}, options),
                       "c.yaml:3:14: data.train.0.path: /: empty\n"
                       "c.yaml:4:21: unknown key \"train.stepz\"; did you mean train.steps?",
                       UserError);
  options.missing_paths = MissingPaths::list;
  const LoadedConfig loaded = load_text(data + "train: {steps: 200}\n", {}, {}, options);
  CHECK(loaded.unready == std::vector<std::string>{"c.yaml:3:14: data.train.0.path: /: empty"});
  CHECK(loaded.is_unready_data);
}

TEST_CASE("keys of features that do not exist yet say so") {
  CHECK(override_errors({"parallel.context=2"}) ==
        "--set parallel.context=2: parallel.context: context parallelism is not supported yet; remove the key");
  CHECK(contains(override_errors({"parallel.expert=2"}), "parallel.expert: expert parallelism is not supported yet"));
  CHECK(contains(override_errors({"fp8=true"}), "did you mean precision.compute?"));
  CHECK(contains(override_errors({"precision.reduce_dtype=bf16"}), "did you mean precision.reduce?"));
  for (const UnsupportedKey& key : unsupported_keys()) {
    if (key.path.empty()) continue;
    const std::string path(key.path);
    CHECK(contains(override_errors({path + "=2"}), path + ": " + std::string(key.feature) + " is not supported yet"));
    CHECK(std::none_of(config_keys().begin(), config_keys().end(),
                       [&](const auto& known) { return known.path == path; }));
  }
  for (const char* key : {"parallel.experts", "model.experts", "model.num_experts", "moe"}) {
    CHECK_MESSAGE(contains(override_errors({std::string(key) + "=2"}),
                           std::string(key) + ": a mixture of experts is not supported yet; remove the key"),
                  key);
  }
  // Another section's context is no degree.
  CHECK(contains(override_errors({"train.context=128"}), "did you mean model.context?"));
}

TEST_CASE("unknown keys name the key that was meant") {
  const auto suggestion = [](const std::string& key) {
    const std::string report = override_errors({key + "=1"});
    const std::size_t at = report.find("did you mean ");
    return at == std::string::npos ? report : report.substr(at + 13, report.find('?', at) - at - 13);
  };
  CHECK(suggestion("train.lr") == "train.optimizer.learning_rate");
  CHECK(suggestion("train.learning_rate") == "train.optimizer.learning_rate");
  CHECK(suggestion("batch_size") == "train.global_batch");
  CHECK(suggestion("train.step") == "train.steps");
  CHECK(suggestion("train.warmup") == "train.lr_schedule.warmup");
  CHECK(suggestion("model.n_layer") == "model.layers");
  CHECK(suggestion("model.hidden_size") == "model.hidden");
  CHECK(suggestion("seq_len") == "model.context");
  CHECK(suggestion("modle") == "model");
  CHECK(suggestion("data.train.0.wieght") == "data.train.0.weight");
  CHECK(suggestion("data.train[0].wieght") == "data.train.0.weight");
  CHECK(suggestion("num_epochs") == "train.epochs");
  CHECK(suggestion("train.optimizer.weight_deacy") == "train.optimizer.weight_decay");
  CHECK(suggestion("train.precision") == "precision.compute");
  CHECK(suggestion("train.gradient_checkpointing") == "train.recompute");
  CHECK(suggestion("parallel.tensor_model_parallel_size") == "parallel.tensor");
  CHECK(contains(suggestion("qqqqqqqqqq"), "`scaletrain schema` lists all keys"));
  CHECK(contains(errors_of(kLeast + "run: {seed:3}\n"), "a colon needs a space behind it"));
  CHECK(contains(errors_of(kLeast + "run.seed: 3\n"), "unknown key \"run.seed\""));
}

TEST_CASE("a preset lies under the file's keys") {
  const Config config = load_text(kLeast + "model: {hidden: 512, preset: llama-8b}\n").config;
  CHECK(config.model.hidden == 512);
  CHECK(config.model.layers == 32);
  CHECK(config.model.kv_heads == 8);
  CHECK(config.model.ffn_hidden == 14336);
  CHECK(config.model.preset == "llama-8b");
  CHECK(contains(errors_of(kLeast + "model: {preset: gpt2-125m}\n"), "did you mean gpt2-124m?"));
  CHECK(load_text(kLeast, {"model.preset=tiny-llama"}).config.model.kv_heads == 2);
  CHECK(contains(override_errors({"model.preset=llama-8b", "model.heads=16", "model.kv_heads=12"}),
                 "heads 16 is no multiple of kv_heads 12"));
}

TEST_CASE("other heads than a preset's have no grouped queries by accident") {
  const auto model = [](const std::vector<std::string>& overrides) {
    return load_text(kLeast, overrides).config.model;
  };
  CHECK(model({"model.preset=gpt2-124m", "model.heads=16"}).kv_heads == 16);
  CHECK(model({"model.preset=gpt2-124m", "model.heads=24"}).kv_heads == 24);  // 12 would divide it
  CHECK(model({"model.preset=gpt2-124m", "model.heads=24", "model.kv_heads=12"}).kv_heads == 12);
  // Grouped queries are the preset's own: they stay, and that is said.
  const LoadedConfig grouped = load_text(kLeast, {"model.preset=llama-8b", "model.heads=16"});
  CHECK(grouped.config.model.kv_heads == 8);
  CHECK(std::any_of(grouped.notices.begin(), grouped.notices.end(), [](const std::string& notice) {
    return contains(notice, "model.kv_heads: 8 as in preset llama-8b");
  }));
  CHECK(contains(override_errors({"model.preset=llama-8b", "model.heads=4"}),
                 "heads 4 is no multiple of kv_heads 8 (from preset llama-8b)"));
}

TEST_CASE("defaults that follow another key") {
  const Config config = load_text(kLeast + "model: {hidden: 96, heads: 6}\nrun: {name: abc}\n").config;
  CHECK(config.model.kv_heads == 6);
  CHECK(config.model.ffn_hidden == 384);
  CHECK(config.run.directory == "runs/abc");
}

TEST_CASE("an override of a mapping whose order counts replaces it") {
  const std::string file = kLeast + "finetune: {learning_rates: {'blocks.*': 0.5, '*norm*': 2}, layer_decay: 0.9}\n";
  const auto rates = [&](const std::string& value) {
    return load_text(file, {"finetune.learning_rates=" + value}).config.finetune.learning_rates;
  };
  using Rates = std::vector<std::pair<std::string, double>>;
  CHECK((rates("{'*norm*': 2, 'blocks.*': 0.5}") == Rates{{"*norm*", 2}, {"blocks.*", 0.5}}));
  CHECK((rates("{'head.*': 3}") == Rates{{"head.*", 3}}));
  CHECK(load_text(file, {"finetune.learning_rates={}"}).config.finetune.layer_decay == 0.9);
}

TEST_CASE("factors on a weight decay are none or more, and of one that is not 0") {
  const auto with_optimizer = [](const std::string& optimizer) {
    return "data: {train: [{path: corpus.txt}]}\ntrain: {steps: 200, optimizer: {" + optimizer +
           "}}\nfinetune: {weight_decays: {'*.bias': 2, 'blocks.*': 0}}\n";
  };
  const std::string file = with_optimizer("type: adamw");
  using Factors = std::vector<std::pair<std::string, double>>;
  CHECK((load_text(file).config.finetune.weight_decays == Factors{{"*.bias", 2.0}, {"blocks.*", 0.0}}));
  CHECK((load_text(file, {"finetune.weight_decays={'head.*': 0.5}"}).config.finetune.weight_decays ==
         Factors{{"head.*", 0.5}}));
  for (const std::string value : {"-0.5", ".nan", ".inf", "many"}) {
    CAPTURE(value);
    const std::string report = override_errors({"finetune.weight_decays={'*.bias': " + value + "}"});
    CHECK(contains(report, "finetune.weight_decays"));
    CHECK(contains(report, "*.bias: "));
  }
  const std::string idle = errors_of(with_optimizer("weight_decay: 0"));
  CHECK(contains(idle,
                 "finetune.weight_decays: has no effect: what its factors multiply, train.optimizer.weight_decay, "
                 "is 0; remove the key, or change train.optimizer.weight_decay"));
  CHECK(contains(errors_of(with_optimizer("type: adafactor")),
                 "is 0, as with adafactor unless it is given; remove the key"));
  const LoadedConfig overruled = load_text(file, {"train.optimizer.weight_decay=0"});
  CHECK(overruled.config.finetune.weight_decays.empty());
  CHECK(std::any_of(overruled.notices.begin(), overruled.notices.end(), [](const std::string& notice) {
    return contains(notice, "finetune.weight_decays: the file's value is not used: what its factors multiply");
  }));
}

TEST_CASE("an early stop by an accuracy has a target that is one") {
  const std::string file = kLeast + "evaluate: {every: 5, tasks: [{name: quiz, path: q.jsonl}]}\n";
  const auto report = [&](const std::string& keys) {
    return errors_of(file, {"early_stop={metric: task/quiz/accuracy, " + keys + "}"});
  };
  CHECK(report("target: 0.9") == "accepted");
  CHECK(report("target: 90").find("early_stop.target: an accuracy lies between 0 and 1") != std::string::npos);
  CHECK(report("target: -1").find("early_stop.target: an accuracy lies between 0 and 1") != std::string::npos);
  CHECK(report("min_delta: 2").find("early_stop.min_delta: an accuracy lies between 0 and 1") != std::string::npos);
}

TEST_CASE("heads have any size, and what goes without saying is the same config") {
  const auto model = [](const std::string& keys) { return load_text(kLeast + "model: {" + keys + "}\n").config.model; };
  CHECK(model("hidden: 96, heads: 6").head_size() == 16);
  CHECK(model("hidden: 96, heads: 6, head_dim: 20").head_size() == 20);
  CHECK(model("hidden: 100, heads: 6, head_dim: 20").head_size() == 20);
  CHECK_FALSE(model("hidden: 96, heads: 6, head_dim: 16").head_dim);
  CHECK_FALSE(model("hidden: 96, heads: 6, head_dim: auto").head_dim);
  CHECK(model("preset: qwen3-0.6b, hidden: 512").head_size() == 128);
  CHECK(model("bias: false").has_qkv_bias() == false);
  CHECK(model("bias: false, qkv_bias: true").has_qkv_bias());
  CHECK_FALSE(model("bias: false, qkv_bias: false").qkv_bias);
  CHECK(contains(errors_of(kLeast + "model: {hidden: 100, heads: 6}\n"), "no multiple of heads 6"));
  CHECK(contains(errors_of(kLeast + "model: {position: rope, head_dim: 7}\n"),
                 "model.position: rope rotates pairs, and a head of head_dim 7 is odd"));
  CHECK(contains(errors_of(kLeast + "model: {head_dim: 2048}\nprecision: {compute: bf16}\n"),
                 "a head of head_dim 2048 is longer than 1024"));
}

TEST_CASE("overrides replace, merge and index") {
  const std::string text =
      "data: {train: [{path: a, weight: 3}, {path: b}], validation: [{name: v, path: c}]}\n"
      "train: {tokens: 10B, optimizer: {learning_rate: 1e-3}}\nearly_stop: {metric: validation/v/loss}\n";
  Config config = load_text(text, {"data.train.1.weight=2", "train.optimizer={weight_decay: 0}", "early_stop=null",
                                   "run.name=x=y", "train.clip_norm=null"})
                      .config;
  CHECK(config.data.train.at(0).weight == 3.0);
  CHECK(config.data.train.at(1).weight == 2.0);
  CHECK(config.train.optimizer.learning_rate == 1e-3);
  CHECK(config.train.optimizer.weight_decay == 0.0);
  CHECK(config.train.tokens == 10'000'000'000);
  CHECK(!config.early_stop);
  CHECK(config.run.name == "x=y");
  CHECK(!config.train.clip_norm);
  config = load_text(text, {"data.train=[{path: /x}]", "train.tokens=null", "train.steps=5", "train.steps=150"}).config;
  CHECK(config.data.train.size() == 1);
  CHECK(config.data.train.at(0).path == "/x");
  CHECK(config.train.steps == 150);
  CHECK(load_text(text, {"data.train[1].weight=7"}).config.data.train.at(1).weight == 7.0);
  CHECK(load_text(text, {"early_stop.patience=9"}).config.early_stop->patience == 9);
}

TEST_CASE("a bad override explains itself") {
  CHECK(contains(override_errors({"train.steps"}), "--set train.steps: no '=' after the key; write it like"));
  CHECK(contains(override_errors({"=3"}), "\"\" is no key"));
  CHECK(contains(override_errors({"train..steps=3"}), "is no key"));
  CHECK(contains(override_errors({"run.name=[1"}), "--set run.name=[1: the value is not readable: the bracket"));
  CHECK(contains(override_errors({"run.name=*x"}), "the value is not readable: aliases"));
  CHECK(contains(override_errors({"data.train.4.weight=2"}), "data.train has 1 item; \"4\" is none of them"));
  CHECK(contains(override_errors({"data.train.x=2"}), "\"x\" is none of them"));
  CHECK(contains(override_errors({"train.steps.x=2"}), "train.steps: expected an integer, found a mapping"));
  CHECK(contains(override_errors({"train.steps="}), "--set train.steps=: nothing behind the '='; write a value (null"));
  CHECK(line_count(override_errors({"train.steps="})) == 1);
  CHECK(contains(override_errors({"run.name=null"}), "run.name: expected text, found nothing"));
  CHECK(contains(override_errors({"data.train[].weight=2"}), "names no item; write its number, as in data.train.0"));
  CHECK(contains(override_errors({"data.train[x].weight=2"}), "unknown key \"data.train[x]\""));
  CHECK(contains(override_errors({"data.train[4].weight=2"}), "data.train has 1 item; \"4\" is none of them"));
  CHECK(contains(override_errors({"[0].weight=2"}), "unknown key \"[0]\""));
  CHECK(contains(override_errors({"train.stesp=3"}), "--set train.stesp=3: unknown key \"train.stesp\""));
  CHECK(contains(override_errors({"run.name=" + std::string(5000, 'x')}), "xxx\"...: run.name: 5000 bytes"));
}

TEST_CASE("environment variables are put in, also as numbers") {
  const std::string text = "data: {train: [{path: \"${ROOT}/x\"}]}\ntrain:\n  steps: ${STEPS}\nrun:\n  name: a${N}b\n";
  const Config config =
      load_text(text, {"run.seed=${SEED}"}, {{"ROOT", "/data"}, {"STEPS", "150"}, {"N", "${STEPS}"}, {"SEED", "7"}})
          .config;
  CHECK(config.data.train.at(0).path == "/data/x");
  CHECK(config.train.steps == 150);
  CHECK(config.run.name == "a${STEPS}b");  // what comes out is not expanded again
  CHECK(config.run.seed == 7);
  const std::string report = errors_of(text, {}, {{"ROOT", "/data"}, {"N", ""}});
  CHECK(report == "c.yaml:3:10: environment variable \"STEPS\" is not set; set it or write the value out");
  CHECK(contains(errors_of(kLeast + "run:\n  name: a${X\n"), "c.yaml:4:9: ${ without }"));
  CHECK(contains(errors_of(kLeast + "run:\n  name: ${A-B}\n"), "is no name of an environment variable"));
  CHECK(contains(errors_of(kLeast + "run: {name: ${X}}\n"), "c.yaml:3:13: ${NAME} inside [ ] or { } needs quotes"));
  CHECK(load_text(kLeast + "run:\n  name: $${X}$X$\n").config.run.name == "${X}$X$");
  CHECK(contains(errors_of(kLeast + "run:\n  name: ${X}\n", {}, {{"X", "a\xFF"}}), "not valid UTF-8"));
  CHECK(contains(errors_of(kLeast + "run:\n  name: ${X}${X}\n", {}, {{"X", std::string(60000, 'x')}}), "longer than"));
}

TEST_CASE("paths are relative to the config file, the run folder is not") {
  const TempFolder folder;
  const auto file = folder.write("sub/c.yaml",
                                 "data:\n  train: [{path: x}, {path: /abs}]\n  cache: cache\n"
                                 "  validation: [{name: v, path: ../y}]\n"
                                 "model: {init: {from: hf}}\ntrain: {steps: 200}\n");
  const Config config = load_config(file, {}, process_environment, {}).config;
  const std::string base = (folder / "sub").string();
  CHECK(config.data.train.at(0).path == base + "/x");
  CHECK(config.data.train.at(1).path == "/abs");
  CHECK(config.data.validation.at(0).path == base + "/../y");
  CHECK(config.data.cache == base + "/cache");
  CHECK(config.model.init.from == base + "/hf");
  CHECK(config.run.directory == "runs/run");
}

TEST_CASE("checkpoint.every is steps or a time") {
  const auto checkpoint = [](const std::string& value) {
    return load_text(kLeast, {"checkpoint.every=" + value}).config.checkpoint;
  };
  CHECK(checkpoint("50").every_steps == 50);
  CHECK(!checkpoint("50").every_seconds);
  CHECK(checkpoint("30m").every_seconds == 1800.0);
  CHECK(!checkpoint("30m").every_steps);
  CHECK(!checkpoint("0").every_steps);
  CHECK(!checkpoint("0").every_seconds);
  CHECK(contains(override_errors({"checkpoint.every=0s"}), "out of range"));
  CHECK(contains(override_errors({"checkpoint.every=often"}), "expected steps or a time"));
  CHECK(contains(override_errors({"checkpoint.every=-1"}), "at least 0"));
}

TEST_CASE("the shipped GPT-2 config loads and is as long as its comments say") {
  const LoadedConfig loaded = load_config(SCALETRAIN_CONFIGS "/gpt2-124m.yaml", {}, process_environment, {});
  CHECK(loaded.notices.empty());
  CHECK(loaded.config.train.num_steps(loaded.config.model.context) == 19074);
  CHECK(loaded.config.model.vocab == 50257);
  CHECK(loaded.config.checkpoint.every_seconds == 1800.0);
}
