#include "config/keys/keys.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "config/keys/suggest.h"
#include "config/keys/unsupported.h"
#include "config_helpers.h"

using namespace scaletrain;

namespace {
const KeyInfo& key(std::string_view path) {
  const auto keys = config_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const KeyInfo& info) { return info.path == path; });
  REQUIRE_MESSAGE(found != keys.end(), path);
  return *found;
}

// A preset's number of parameters by the textbook formulas, written apart from the code that counts them.
std::int64_t parameters(const ModelConfig& m) {
  const std::int64_t head = m.head_dim ? *m.head_dim : m.hidden / m.heads;
  const std::int64_t width = head * m.heads;
  const std::int64_t kv_width = head * m.kv_heads;
  const std::int64_t gates = has_gate(m.activation) ? 3 : 2;
  std::int64_t layer = 2 * m.hidden * width + 2 * m.hidden * kv_width + gates * m.hidden * m.ffn_hidden + 2 * m.hidden;
  std::int64_t rest = *m.vocab * m.hidden * (m.tie_embeddings ? 1 : 2) + m.hidden;
  if (m.qkv_bias.value_or(m.bias)) layer += width + 2 * kv_width;
  if (m.qk_norm) layer += 2 * head;
  if (m.post_norm) layer += 2 * m.hidden;
  if (m.bias) {
    layer += m.hidden + m.ffn_hidden + m.hidden + 2 * m.hidden;
    rest += m.hidden;
  }
  if (m.position == PositionKind::learned) rest += m.context * m.hidden;
  return m.layers * layer + rest;
}
}  // namespace

TEST_CASE("every key has a type, a default, a meaning and stands once") {
  std::set<std::string> seen;
  for (const KeyInfo& info : config_keys()) {
    CHECK_MESSAGE(seen.insert(info.path).second, info.path);
    CHECK_MESSAGE(!info.type.empty(), info.path);
    CHECK_MESSAGE(!info.fallback.empty(), info.path);
    CHECK_MESSAGE(info.meaning.ends_with('.'), info.path);
  }
  CHECK(seen.size() > 90);
}

TEST_CASE("the table's defaults are the config's") {
  CHECK(key("train.global_batch").fallback == "32");
  CHECK(key("train.optimizer.betas").fallback == "[0.9, 0.95]");
  CHECK(key("train.optimizer.learning_rate").fallback == "0.0006");
  CHECK(key("checkpoint.every").fallback == "200");
  CHECK(key("supervise.heartbeat").fallback == "60s");
  CHECK(key("model.vocab").fallback == "auto");
  CHECK(key("precision.compute").fallback == "auto");
  CHECK(key("precision.reduce").fallback == "fp32");
  CHECK(key("model.kv_heads").fallback == "heads");
  CHECK(key("model.norm").fallback == "layernorm");
  CHECK(key("model.norm").type == "one of: layernorm | rmsnorm");
  CHECK(key("early_stop").fallback == "null");
  CHECK(key("data.train[].path").fallback == "required");
  CHECK(key("supervise.elastic.min_data").unit == "ranks");
  // Writing a default out changes nothing.
  const Config plain = load_text(kLeast).config;
  for (const KeyInfo& info : config_keys()) {
    const bool is_inner = info.path.find("[]") != std::string::npos || info.path.starts_with("early_stop.") ||
                          info.path.starts_with("finetune.lora.") || info.path.starts_with("train.spike.") ||
                          info.path.starts_with("supervise.elastic.") ||
                          info.path.starts_with("train.optimizer.scale_with_batch.") ||
                          info.path.starts_with("train.ema.") || info.path.starts_with("train.batch_ramp.") ||
                          info.path.starts_with("log.gradient_noise.") || info.path.starts_with("train.batch_auto.");
    if (is_inner || info.fallback == "required" || info.fallback == "heads" || info.fallback == "4 * hidden" ||
        info.path == "train.steps" || info.path == "run.directory")
      continue;
    const Config written = load_text(kLeast, {info.path + "=" + info.fallback}).config;
    CHECK_MESSAGE(compare_configs(plain, written).empty(), info.path);
  }
}

TEST_CASE("resume rules are those of the design") {
  using enum ResumeRule;
  for (const char* path : {"model.layers", "model.context", "run.seed", "data.tokenizer.type", "model.init.std"})
    CHECK_MESSAGE(key(path).resume == never, path);
  for (const char* path : {"train.steps", "train.tokens", "train.optimizer.learning_rate", "train.lr_schedule.warmup",
                           "train.clip_norm", "data.train", "data.train[].weight", "train.spike", "train.spike.action",
                           "precision.compute", "precision.loss_scale", "precision.reduce", "run.device",
                           "data.instructions.loss", "data.instructions.chat_template", "data.train[].records"})
    CHECK_MESSAGE(key(path).resume == with_notice, path);
  for (const char* path : {"run.name", "run.directory", "model.init.from", "data.tokenizer.path", "train.micro_batch",
                           "parallel.tensor", "parallel.zero", "evaluate.every", "early_stop", "checkpoint.every",
                           "supervise.heartbeat", "launch.port", "log.every", "data.cache", "data.validation"})
    CHECK_MESSAGE(key(path).resume == freely, path);
}

TEST_CASE("compare_configs names keys, values and rules") {
  const Config before = load_text(kLeast).config;
  CHECK(compare_configs(before, before).empty());
  Config after = before;
  after.model.layers = 13;
  after.train.optimizer.beta2 = 0.99;
  after.data.train.at(0).weight = 2;
  after.early_stop.emplace().metric = "validation/a/loss";
  const auto differences = compare_configs(before, after);
  REQUIRE(differences.size() == 4);
  CHECK(differences[0].path == "model.layers");
  CHECK(differences[0].before == "12");
  CHECK(differences[0].after == "13");
  CHECK(differences[0].rule == ResumeRule::never);
  CHECK(differences[1].path == "data.train");
  CHECK(differences[2].path == "train.optimizer.betas");
  CHECK(differences[2].after == "[0.9, 0.99]");
  CHECK(differences[3].path == "early_stop");
  CHECK(differences[3].before == "null");
}

TEST_CASE("presets have the published parameter counts") {
  const auto count = [](const char* name) {
    const ModelConfig* model = find_model_preset(name);
    REQUIRE(model != nullptr);
    CHECK(model->preset == name);
    return parameters(*model);
  };
  CHECK(count("gpt2-124m") == 124439808);
  CHECK(count("gpt2-355m") == 354823168);
  CHECK(count("gpt2-774m") == 774030080);
  CHECK(count("gpt2-1558m") == 1557611200);
  CHECK(count("llama-8b") == 8030261248);
  CHECK(count("llama-70b") == 70553706496);
  CHECK(count("llama-405b") == 405853388800);
  CHECK(count("llama-3.1-8b") == 8030261248);
  CHECK(count("llama-3.2-1b") == 1235814400);
  CHECK(count("llama-3.2-3b") == 3212749824);
  CHECK(count("smollm2-135m") == 134515008);
  CHECK(count("smollm2-360m") == 361821120);
  CHECK(count("mistral-7b-v0.3") == 7248023552);
  CHECK(count("qwen2.5-0.5b") == 494032768);
  CHECK(count("qwen3-0.6b") == 596049920);
  CHECK(count("qwen3-1.7b") == 1720574976);
  CHECK(count("qwen3-4b") == 4022468096);
  CHECK(count("qwen3-8b") == 8190735360);
  CHECK(count("gemma-2b") == 2506172416);
  CHECK(count("gemma-7b") == 8537680896);
  CHECK(count("gemma2-2b") == 2614341888);
  CHECK(count("gemma2-9b") == 9241705984);
  CHECK(count("gemma3-270m") == 268098176);
  CHECK(count("gemma3-1b") == 999885952);
  CHECK(count("gemma3-4b-text") == 3880263168);
  CHECK(find_model_preset("gpt5") == nullptr);
  for (const std::string& name : model_preset_names())
    CHECK(load_text(kLeast, {"model.preset=" + name}).config.model.preset == name);
}

TEST_CASE("the schema marks exactly the values that are refused as not supported yet") {
  std::size_t marked = 0;
  for (const KeyInfo& info : config_keys()) {
    constexpr std::string_view choice = "one of: ";
    std::string type = info.type;
    if (type.starts_with(choice)) {
      type.erase(0, choice.size());
    } else if (type != "true | false") {
      continue;
    }
    if (info.path.find("[]") != std::string::npos || info.path == "model.preset") continue;
    const auto is_refused = [&info](const std::string& word) {
      return contains(override_errors({info.path + "=" + word}), info.path + ": " + word + " is not supported yet");
    };
    const std::vector<std::string> not_yet = unsupported_values_of(info.path);
    std::set<std::string> words;
    for (std::string word; !type.empty();) {
      const std::size_t end = type.find(" | ");
      word = type.substr(0, end);
      type.erase(0, end == std::string::npos ? end : end + 3);
      const bool is_marked = std::find(not_yet.begin(), not_yet.end(), word) != not_yet.end();
      CHECK_MESSAGE(is_marked == is_refused(word), info.path << ": " << word);
      words.insert(word);
    }
    // The word for nothing beside the others.
    const std::string last = info.type.substr(info.type.rfind(' ') + 1);
    const std::string besides = info.type.ends_with(" or " + last) && last != "null" ? last : "";
    // Also those that are no words of the key so far.
    for (const std::string& word : not_yet)
      if (!words.contains(word)) CHECK_MESSAGE(is_refused(word), info.path << ": " << word);
    // What an error offers is supported.
    if (info.type.starts_with(choice)) {
      const std::string report = override_errors({info.path + "=[]"});
      const std::string offered = report.substr(0, report.rfind(", found a list"));
      REQUIRE_MESSAGE(contains(offered, ": expected one of "), report);
      for (const std::string& word : words) {
        const std::string name = word.substr(0, word.find(" or "));
        const bool is_offered = contains(offered + ",", " " + name + ",");
        CHECK_MESSAGE(is_offered != is_refused(name), info.path << ": " << report);
      }
      if (!besides.empty()) CHECK_MESSAGE(contains(offered + ",", " " + besides + ","), info.path << ": " << report);
    }
    marked += not_yet.size();
  }
  CHECK(marked >= 3);
  for (const UnsupportedValue& row : unsupported_table()) CHECK_FALSE(unsupported_values_of(row.path).empty());
  CHECK(unsupported_values_of("precision.compute") == std::vector<std::string>{"fp8"});
  CHECK(unsupported_values_of("model.layers").empty());
}

TEST_CASE("every default is a supported value") {
  CHECK(unsupported_values(Config()).empty());
}

TEST_CASE("values whose feature does not exist are refused by name") {
  const char* asked[] = {"precision.compute=fp8", "precision.reduce=fp16"};
  std::set<std::string> refused;
  for (const std::string text : asked) {
    const std::string report = override_errors({text});
    const std::string path = text.substr(0, text.find('='));
    CHECK_MESSAGE(report.starts_with(std::string("--set ").append(text).append(": ").append(path)), report);
    CHECK_MESSAGE(contains(report, " is not supported yet; use "), report);
    CHECK(line_count(report) == 1);
    refused.insert(table_path(path));
  }
  for (const UnsupportedValue& row : unsupported_table()) {
    const std::string path(row.path);
    CHECK_MESSAGE(refused.contains(path), path);
  }
  for (const char* text : {"train.optimizer.type=sgd",
                           "model.init.type=he",
                           "model.init.type=xavier",
                           "data.documents.loss_across=false",
                           "run.device=auto",
                           "run.device=cuda",
                           "train.lr_schedule.type=constant",
                           "train.lr_schedule.type=linear",
                           "train.lr_schedule.type=inverse_sqrt",
                           "train.lr_schedule.type=wsd",
                           "train.lr_schedule.type=cosine_restarts",
                           "train.label_smoothing=0.1",
                           "train.z_loss=1e-4",
                           "train.ema={}",
                           "train.optimizer.scale_with_batch={base: 8}",
                           "launch.port=auto",
                           "launch.interface=eth0",
                           "launch.interface=10.0.0.2",
                           "launch.interface=fe::1",
                           "launch.port=29500",
                           "parallel.data=auto",
                           "parallel.data=2",
                           "parallel.tensor=2",
                           "parallel.sequence=true",
                           "parallel.pipeline=2",
                           "parallel.schedule=gpipe",
                           "parallel.schedule=interleaved",
                           "parallel.schedule=zb-h1",
                           "train.spike={}",
                           "train.spike={window: 8, zscore: 3, action: rollback}",
                           "checkpoint.background=true",
                           "checkpoint.background=false",
                           "checkpoint.keep_every=400",
                           "supervise.elastic={min_data: 1}",
                           "launch.ranks_per_node=1",
                           "precision.compute=bf16",
                           "precision.compute=fp16",
                           "precision={compute: fp16, loss_scale: 1024}",
                           "precision.loss_scale=dynamic",
                           "precision={reduce: bf16}",
                           "parallel.zero=0",
                           "parallel.zero=3",
                           "log.tensorboard=true"})
    CHECK(override_errors({text}) == "accepted");
}

TEST_CASE("check may load what cannot run yet") {
  const LoadedConfig loaded = load_text(kLeast + "precision: {reduce: fp16}\n", {}, {}, {.allow_unsupported = true});
  CHECK(loaded.config.precision.reduce == Precision::fp16);
  REQUIRE(loaded.unsupported.size() == 1);
  CHECK(loaded.unsupported[0] == "c.yaml:3:21: precision.reduce: fp16 is not supported yet; use fp32 or bf16");
  CHECK(unsupported_values(loaded.config).size() == 1);
  const LoadedConfig overridden = load_text(kLeast, {"precision.reduce=tf32"}, {}, {.allow_unsupported = true});
  REQUIRE(overridden.unsupported.size() == 1);
  CHECK(overridden.unsupported[0] ==
        "--set precision.reduce=tf32: precision.reduce: tf32 is not supported yet; use fp32 or bf16");
}

TEST_CASE("a plan's problems are told with the places of their keys") {
  const LoadedConfig loaded = load_text(kLeast + "parallel: {tensor: 3, data: 2}\n", {"parallel.pipeline=7"});
  CHECK(loaded.located("parallel.tensor: 3 does not divide model.heads: 12") ==
        "c.yaml:3:20: parallel.tensor: 3 does not divide model.heads: 12");
  CHECK(loaded.located("parallel: 42 ranks\nparallel.pipeline: 7 is odd\nno key at all") ==
        "c.yaml:3:1: parallel: 42 ranks\n--set parallel.pipeline=7: parallel.pipeline: 7 is odd\nno key at all");
  // A key that was not given stands at its section.
  CHECK(loaded.located("parallel.chunks: 2") == "c.yaml:3:1: parallel.chunks: 2");
  const LoadedConfig capped = load_text(kLeast, {"data.train=[{path: a}, {path: b, epochs: 2}]"});
  CHECK(capped.located("data.train.1.epochs: ends early") ==
        "--set data.train=[{path: a}, {path: b, epochs: 2}]: data.train.1.epochs: ends early");
}
