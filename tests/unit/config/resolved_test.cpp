#include <doctest/doctest.h>

#include <bit>
#include <random>
#include <sstream>

#include "config/keys/keys.h"
#include "config/yaml/yaml_text.h"
#include "config_helpers.h"

using namespace scaletrain;

namespace {

// Values that a careless writer would get wrong, besides harmless ones.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::int64_t whole(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  bool coin() { return whole(0, 1) == 1; }
  double share() { return std::uniform_real_distribution<double>(1e-9, 0.999)(random_); }
  std::string text() {
    static const std::string pieces[] = {"a", "null", "\"",   "\\",  "'", "${X}", "$", "$${", "{", ", ", ": ", "#",
                                         " ", "é",    "auto", "1e5", "-", "[",    "~", "\t",  "%", "&",  "*"};
    std::string out;
    for (std::int64_t i = whole(1, 5); i > 0; --i)
      out += pieces[whole(0, static_cast<std::int64_t>(std::size(pieces)) - 1)];
    return out;
  }
  std::string pattern() {
    static const std::string pieces[] = {"a", "null", "*", "?", ".", "_", "1e5", "0x1", "true", "weight"};
    std::string out;
    for (std::int64_t i = whole(1, 5); i > 0; --i)
      out += pieces[whole(0, static_cast<std::int64_t>(std::size(pieces)) - 1)];
    return out;
  }
  std::optional<std::string> maybe_text() { return coin() ? std::optional(text()) : std::nullopt; }

 private:
  std::mt19937_64 random_;
};

Config random_config(std::uint64_t seed) {
  Dice dice(seed);
  Config c;
  c.run = {dice.text(), dice.text(), static_cast<std::uint64_t>(dice.whole(0, 1LL << 62)) * 2 + 1, DeviceKind::cpu};
  c.model.heads = 2 * dice.whole(1, 8);
  c.model.kv_heads = dice.coin() ? c.model.heads : 2;
  c.model.hidden = 2 * c.model.heads * dice.whole(1, 9);
  c.model.ffn_hidden = dice.whole(1, 5000);
  c.model.layers = dice.whole(1, 100);
  if (dice.coin()) c.model.preset = "tiny-llama";
  if (dice.coin()) c.model.vocab = dice.whole(1, 1 << 20);
  c.model.norm_epsilon = dice.share();
  c.model.rope_theta = 1e5 * dice.share();
  c.model.norm = dice.coin() ? NormKind::rmsnorm : NormKind::layernorm;
  c.model.activation = dice.coin() ? ActivationKind::swiglu : ActivationKind::gelu_tanh;
  c.model.position = dice.coin() ? PositionKind::rope : PositionKind::learned;
  c.model.bias = dice.coin();
  if (dice.coin()) c.model.qkv_bias = !c.model.bias;
  c.model.qk_norm = dice.coin();
  if (dice.coin()) c.model.activation = ActivationKind::geglu;
  c.model.post_norm = dice.coin() && c.model.norm == NormKind::rmsnorm;
  c.model.norm_zero_centered = dice.coin();
  c.model.scale_embeddings = dice.coin() && c.model.position == PositionKind::rope;
  if (dice.coin()) c.model.query_pre_attn_scalar = 100 * dice.share();
  if (dice.coin()) c.model.attention_softcap = 50 * dice.share();
  if (dice.coin()) c.model.logit_softcap = 30 * dice.share();
  if (dice.coin()) c.model.window = {dice.whole(1, 5000), dice.whole(2, 7), std::nullopt};
  if (c.model.window.tokens && c.model.position == PositionKind::rope && dice.coin())
    c.model.window.rope_theta = 1e5 * dice.share();
  if (dice.coin()) c.model.head_dim = 2 * dice.whole(200, 300);
  if (c.model.position == PositionKind::rope && dice.coin())
    c.model.rope_scaling = {RopeScalingKind::llama3, 1.5 + dice.share(), dice.share(), 2 + dice.share(),
                            dice.whole(1, 1 << 20)};
  c.model.tie_embeddings = dice.coin();
  c.model.dropout = dice.share();
  for (auto* const of_site : {&c.model.embedding_dropout, &c.model.attention_dropout, &c.model.residual_dropout})
    if (dice.coin()) *of_site = dice.share();
  c.model.init = {InitKind::he, dice.share(), dice.coin(), dice.maybe_text()};
  c.data.documents.loss_across = dice.coin();
  if (dice.coin()) c.data.documents.attention = DocumentAttention::within;
  if (dice.coin()) c.data.instructions = {InstructionLoss::all, dice.maybe_text()};
  for (std::int64_t i = dice.whole(0, 3); i > 0; --i) c.finetune.freeze.push_back(dice.pattern());
  for (std::int64_t i = c.finetune.freeze.empty() ? 0 : dice.whole(0, 2); i > 0; --i)
    c.finetune.unfreeze.push_back({10 - i, {dice.pattern(), dice.pattern()}});
  for (std::int64_t i = dice.whole(0, 3); i > 0; --i)
    c.finetune.learning_rates.emplace_back(std::to_string(i) + dice.pattern(), dice.share());
  for (std::int64_t i = dice.whole(0, 3); i > 0; --i)
    c.finetune.weight_decays.emplace_back(std::to_string(i) + dice.pattern(), dice.coin() ? 0.0 : dice.share());
  c.finetune.layer_decay = dice.share();
  if (dice.coin() && c.model.init.from && c.finetune.freeze.empty())
    c.finetune.lora = LoraConfig{dice.whole(1, 99), 9 * dice.share(), 0.0, {"all-linear", "a_proj", "mlp.b_proj"}};
  c.data.cache = dice.maybe_text();
  c.data.verify = dice.coin() ? DataCheck::all : DataCheck::changed;
  for (std::int64_t i = dice.whole(1, 3); i > 0; --i) {
    SourceConfig source;
    source.path = dice.text();
    source.weight = dice.share();
    if (dice.coin()) source.epochs = 10 * dice.share();
    if (dice.coin()) source.separator = dice.coin() ? "" : dice.text();
    if (dice.coin()) {
      source.field = dice.text();
    } else {
      source.records = dice.coin() ? RecordKind::messages : RecordKind::prompt_completion;
    }
    c.data.train.push_back(source);
  }
  for (std::int64_t i = dice.whole(0, 2); i > 0; --i)
    c.data.validation.push_back({std::string(1, static_cast<char>('a' + i)) + dice.text(), dice.text(),
                                 SourceKind::automatic, RecordKind::text, dice.text(), std::nullopt});
  c.train.micro_batch = dice.whole(1, 9);
  c.train.global_batch = c.train.micro_batch * dice.whole(1, 9);
  if (dice.coin()) {
    c.train.steps = dice.whole(200, 1 << 20);
  } else {
    c.train.tokens = dice.whole(1LL << 30, 1LL << 50);
  }
  c.train.optimizer = {OptimizerKind::sgd, dice.share(), dice.share(), dice.share(), dice.share(), dice.share()};
  c.train.lr_schedule = {LrScheduleKind::linear, dice.whole(0, 100), dice.share()};
  if (dice.coin()) {
    c.train.lr_schedule.type = LrScheduleKind::wsd;
    if (dice.coin())
      c.train.lr_schedule.decay_steps = dice.whole(1, 99);
    else
      c.train.lr_schedule.decay_share = dice.share();
    c.train.lr_schedule.decay_shape = DecayShape::one_minus_sqrt;
  } else if (dice.coin()) {
    c.train.lr_schedule.type = LrScheduleKind::cosine_restarts;
    c.train.lr_schedule.restart_steps = dice.whole(1, 99);
    c.train.lr_schedule.restart_factor = 1.0 + dice.share();
  }
  if (dice.coin()) c.train.optimizer.scale_with_batch = BatchScalingConfig{BatchScaling::sqrt, dice.whole(1, 99)};
  c.train.label_smoothing = dice.share();
  c.train.z_loss = dice.share();
  if (dice.coin()) c.train.ema = EmaConfig{dice.share()};
  if (dice.coin()) c.train.batch_ramp = BatchRampConfig{c.train.global_batch, 3, dice.whole(9, 99)};
  if (dice.coin()) c.log.gradient_noise = GradientNoiseConfig{dice.whole(1, 99), dice.share()};
  if (!c.train.batch_ramp && c.train.tokens && dice.coin()) {
    c.train.adapts_batch = true;
    c.train.batch_auto = BatchAutoConfig{c.train.global_batch + 1, 8 * (c.train.global_batch + 1), dice.whole(1, 99)};
    c.train.global_batch = c.train.batch_auto->max;
    c.log.gradient_noise = GradientNoiseConfig();
  }
  if (c.train.batch_ramp) c.train.global_batch += 3 * dice.whole(1, 9);
  if (c.train.global_batch < 2) c.log.gradient_noise.reset();  // which has no halves
  if (dice.coin()) c.train.clip_norm.reset();
  c.train.nonfinite.skip = dice.whole(0, 99);
  if (dice.coin()) c.train.spike = SpikeConfig{dice.whole(8, 99), 9 * dice.share(), SpikeAction::skip};
  if (dice.coin()) c.parallel.data.reset();
  if (dice.coin()) c.precision.loss_scale = 1e6 * dice.share();
  c.precision.compute = c.precision.loss_scale ? Precision::fp16 : Precision::bf16;
  c.evaluate = {dice.whole(1, 99), dice.whole(0, 99), c.train.ema && dice.coin(), {}};
  for (std::int64_t i = dice.whole(0, 2); i > 0; --i)
    c.evaluate.tasks.push_back({std::string(1, static_cast<char>('a' + i)) + dice.text(), dice.text()});
  if (!c.data.validation.empty())
    c.early_stop = EarlyStopConfig{"validation/" + c.data.validation[0].name + "/loss", 3, dice.share(), -dice.share()};
  if (dice.coin()) {
    c.checkpoint.every_steps.reset();
    if (dice.coin()) c.checkpoint.every_seconds = 1e4 * dice.share();
  }
  if (dice.coin()) c.checkpoint.keep_every = dice.whole(1, 99);
  c.supervise = {dice.whole(0, 9), 100 * dice.share(), std::nullopt};
  if (dice.coin()) c.supervise.elastic_min_data = 3;
  if (dice.coin()) c.launch = {"auto", 2000, 8, RankTransport::tcp};  // an interface that is called auto is quoted
  return c;
}

}  // namespace

TEST_CASE("resolved configs of all presets read back equal") {
  for (const std::string& preset : model_preset_names()) {
    const Config config = load_text(kLeast, {"model.preset=" + preset}).config;
    const std::string yaml = resolved_yaml(config);
    const Config back = parse_resolved_config(yaml, "manifest");
    CHECK(compare_configs(config, back).empty());
    CHECK(resolved_yaml(back) == yaml);
    CHECK(compare_configs(config, load_text(yaml).config).empty());
  }
}

// Of checkpoints from before these keys.
TEST_CASE("resolved configs without sizes of heads, norms, biases and scaling of their own mean what they meant") {
  for (const char* preset : {"gpt2-124m", "llama-8b", "tiny-llama"}) {
    const Config config = load_text(kLeast, {std::string("model.preset=") + preset}).config;
    std::istringstream lines(resolved_yaml(config));
    std::string older;
    std::size_t dropped = 0;
    for (std::string line; std::getline(lines, line);) {
      const bool is_newer =
          line.starts_with("  head_dim:") || line.starts_with("  qkv_bias:") || line.starts_with("  qk_norm:") ||
          line.starts_with("  rope_scaling:") || line.starts_with("    factor:") ||
          line.starts_with("    low_frequency_factor:") || line.starts_with("    high_frequency_factor:") ||
          line.starts_with("    original_context:") || line == "    type: none" || line.starts_with("  post_norm:") ||
          line.starts_with("  norm_zero_centered:") || line.starts_with("  scale_embeddings:") ||
          line.starts_with("  query_pre_attn_scalar:") || line.starts_with("  attention_softcap:") ||
          line.starts_with("  logit_softcap:") || line.starts_with("  window:") || line == "    tokens: none" ||
          line.starts_with("    global_every:") || line.starts_with("    rope_theta:");
      dropped += is_newer ? 1 : 0;
      if (!is_newer) older += line + "\n";
    }
    CHECK(dropped == 19);
    CHECK(compare_configs(config, parse_resolved_config(older, "manifest")).empty());
  }
}

TEST_CASE("random configs read back equal, to the bit") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Config config = random_config(seed);
    const std::string yaml = resolved_yaml(config);
    CAPTURE(yaml);
    const Config back = parse_resolved_config(yaml, "manifest");
    CHECK(compare_configs(config, back).empty());
    // What is spelled out is the member's own value, and not another's.
    const ModelConfig& before = config.model;
    const ModelConfig& after = back.model;
    using Site = std::optional<double> ModelConfig::*;
    for (const Site site :
         {&ModelConfig::embedding_dropout, &ModelConfig::attention_dropout, &ModelConfig::residual_dropout})
      CHECK((after.*site).value_or(after.dropout) == (before.*site).value_or(before.dropout));
    CHECK(after.head_size() == before.head_size());
    CHECK(after.qkv_bias.value_or(after.bias) == before.qkv_bias.value_or(before.bias));
    CHECK(back.run.directory == config.run.directory);
    CHECK(back.run.seed == config.run.seed);
    CHECK(std::bit_cast<std::uint64_t>(back.model.norm_epsilon) ==
          std::bit_cast<std::uint64_t>(config.model.norm_epsilon));
    CHECK(std::bit_cast<std::uint64_t>(back.supervise.heartbeat) ==
          std::bit_cast<std::uint64_t>(config.supervise.heartbeat));
    CHECK(back.data.train.at(0).separator == config.data.train.at(0).separator);
    CHECK(back.launch.interface == config.launch.interface);
    CHECK(back.launch.transport == config.launch.transport);
    CHECK(back.checkpoint.every_steps == config.checkpoint.every_steps);
    CHECK(back.train.global_batch == config.train.global_batch);
    CHECK(back.train.adapts_batch == config.train.adapts_batch);
    CHECK(back.train.batch_auto == config.train.batch_auto);
    CHECK(back.early_stop.has_value() == config.early_stop.has_value());
  }
}

TEST_CASE("a config made in code reads back though it describes no run") {
  const Config config;
  const Config back = parse_resolved_config(resolved_yaml(config), "manifest");
  CHECK(compare_configs(config, back).empty());
  CHECK(back.run.directory.empty());
  CHECK(back.data.train.empty());
}

TEST_CASE("each key is wired to its own member") {
  const LoadedConfig loaded = load_text(
      "run: {name: n, directory: d, seed: 5, device: cpu}\n"
      "model: {layers: 8, hidden: 136, heads: 68, kv_heads: 34, ffn_hidden: 7, context: 9, vocab: 11, norm: rmsnorm,\n"
      "  norm_epsilon: 1e-3, activation: swiglu, position: rope, rope_theta: 13, bias: false, tie_embeddings: false,\n"
      "  post_norm: true, norm_zero_centered: true, scale_embeddings: true, query_pre_attn_scalar: 21,\n"
      "  attention_softcap: 22.5, logit_softcap: 23.5, window: {tokens: 24, global_every: 3, rope_theta: 25},\n"
      "  head_dim: 20, qkv_bias: true, qk_norm: true, rope_scaling: {type: llama3, factor: 9, low_frequency_factor: "
      "2,\n"
      "  high_frequency_factor: 6, original_context: 99},\n"
      "  dropout: 0.25, embedding_dropout: 0.125, attention_dropout: 0.0625, residual_dropout: 0.5, init: {type: "
      "normal, std: 0.5, scale_residual: false}}\n"
      "finetune: {freeze: [a.*, '*.b'], unfreeze: [{step: 3, patterns: [a.b]}], learning_rates: {'*.bias': 2, 'd.?': "
      "0.5}, weight_decays: {'e.*': 0, 'e.f': 3}, layer_decay: 0.75}\n"
      "data: {tokenizer: {type: ids, end_of_document: 10}, documents: {attention: within, loss_across: false},\n"
      "  train: [{path: /a, weight: 2, epochs: 3}, {path: /b, type: tokens}],\n"
      "  validation: [{name: v, path: /c, type: auto, field: f, separator: s}], cache: /k, verify: all}\n"
      "train: {tokens: 1M, global_batch: 6, micro_batch: 3, recompute: full, label_smoothing: 0.125, clip_norm: 0.75,\n"
      "  z_loss: 0.25, ema: {decay: 0.375}, batch_ramp: {from: 2, by: 4, steps: 35},\n"
      "  optimizer: {type: adamw, learning_rate: 0.1, betas: [0.2, 0.3], epsilon: 0.4, weight_decay: 0.6,\n"
      "    scale_with_batch: {rule: sqrt, base: 36}},\n"
      "  lr_schedule: {type: linear, warmup: 8, min_ratio: 0.7}, nonfinite: {skip: 14},\n"
      "  spike: {window: 15, zscore: 16, action: rollback}}\n"
      "parallel: {data: 4, tensor: 17, sequence: true, pipeline: 3, schedule: interleaved, chunks: 2,\n"
      "  stage_layers: [1, 2, 1, 1, 1, 2], zero: 3}\n"
      "precision: {compute: fp16, reduce: bf16, loss_scale: 18}\n"
      "evaluate: {every: 19, batches: 20, ema: true}\n"
      "early_stop: {metric: validation/v/loss, patience: 21, min_delta: 0.22, target: 23}\n"
      "checkpoint: {every: 24, keep: 25, best: false, background: true, keep_every: 26}\n"
      "supervise: {max_restarts: 27, heartbeat: 28s, elastic: {min_data: 1}}\n"
      "launch: {interface: ib0, port: 30, ranks_per_node: 34, transport: tcp}\n"
      "log: {every: 32, tensorboard: true, peak_tflops: 33.5, gradient_noise: {every: 39, decay: 0.625}}\n",
      {}, {}, {.allow_unsupported = true});
  const Config& c = loaded.config;
  CHECK((c.run.name == "n" && c.run.directory == "d" && c.run.seed == 5 && c.run.device == DeviceKind::cpu));
  CHECK((c.model.layers == 8 && c.model.hidden == 136 && c.model.heads == 68 && c.model.kv_heads == 34));
  CHECK((c.model.ffn_hidden == 7 && c.model.context == 9 && c.model.vocab == 11 && c.model.norm == NormKind::rmsnorm));
  CHECK((c.model.norm_epsilon == 1e-3 && c.model.activation == ActivationKind::swiglu));
  CHECK((c.model.position == PositionKind::rope && c.model.rope_theta == 13 && !c.model.bias));
  CHECK((!c.model.tie_embeddings && c.model.dropout == 0.25 && c.model.embedding_dropout == 0.125));
  CHECK((c.model.attention_dropout == 0.0625 && c.model.residual_dropout == 0.5));
  CHECK((c.model.head_dim == 20 && c.model.qkv_bias == true && c.model.qk_norm));
  CHECK(c.model.rope_scaling == RopeScalingConfig{RopeScalingKind::llama3, 9, 2, 6, 99});
  CHECK((c.model.post_norm && c.model.norm_zero_centered && c.model.scale_embeddings));
  CHECK((c.model.query_pre_attn_scalar == 21.0 && c.model.attention_softcap == 22.5 && c.model.logit_softcap == 23.5));
  CHECK(c.model.window == WindowConfig{24, 3, 25.0});
  CHECK((c.model.init.std == 0.5 && c.model.init.scale_residual == false));
  CHECK((c.data.tokenizer.type == TokenizerKind::ids && c.data.tokenizer.end_of_document == 10));
  CHECK((c.data.documents.attention == DocumentAttention::within && !c.data.documents.loss_across));
  CHECK((c.data.train.at(0).path == "/a" && c.data.train.at(0).weight == 2 && c.data.train.at(0).epochs == 3));
  CHECK((c.data.train.at(1).type == SourceKind::tokens && c.data.validation.at(0).name == "v"));
  CHECK((c.data.validation.at(0).path == "/c" && c.data.validation.at(0).field == "f"));
  CHECK((c.data.validation.at(0).separator == "s" && c.data.cache == "/k"));
  CHECK(c.data.verify == DataCheck::all);
  CHECK((!c.train.steps && c.train.tokens == 1000000 && c.train.global_batch == 6 && c.train.micro_batch == 3));
  CHECK(c.train.optimizer.learning_rate == 0.1);
  CHECK((c.train.optimizer.beta1 == 0.2 && c.train.optimizer.beta2 == 0.3 && c.train.optimizer.epsilon == 0.4));
  CHECK((c.train.optimizer.weight_decay == 0.6 && c.train.lr_schedule.type == LrScheduleKind::linear));
  CHECK((c.train.lr_schedule.warmup == 8 && c.train.lr_schedule.min_ratio == 0.7 && c.train.clip_norm == 0.75));
  CHECK((c.train.label_smoothing == 0.125 && c.train.recompute == RecomputeKind::full && c.train.nonfinite.skip == 14));
  CHECK((c.train.z_loss == 0.25 && c.train.ema == EmaConfig{0.375} && c.evaluate.ema));
  CHECK(c.log.gradient_noise == GradientNoiseConfig{39, 0.625});
  CHECK(c.train.batch_ramp == BatchRampConfig{2, 4, 35});
  CHECK(c.train.optimizer.scale_with_batch == BatchScalingConfig{BatchScaling::sqrt, 36});
  const LrScheduleConfig wsd =
      load_text(kLeast, {"train.lr_schedule={type: wsd, decay_steps: 37, decay_shape: 1-sqrt}"})
          .config.train.lr_schedule;
  CHECK((wsd.type == LrScheduleKind::wsd && wsd.decay_steps == 37 && wsd.decay_shape == DecayShape::one_minus_sqrt));
  CHECK(load_text(kLeast, {"train.lr_schedule={type: wsd, decay_share: 0.375}"}).config.train.lr_schedule.decay_share ==
        0.375);
  const LrScheduleConfig cycles =
      load_text(kLeast, {"train.lr_schedule={type: cosine_restarts, restart_steps: 38, restart_factor: 3}"})
          .config.train.lr_schedule;
  CHECK((cycles.restart_steps == 38 && cycles.restart_factor == 3));
  CHECK((c.train.spike->window == 15 && c.train.spike->zscore == 16 && c.train.spike->action == SpikeAction::rollback));
  CHECK((c.parallel.data == 4 && c.parallel.tensor == 17 && c.parallel.sequence && c.parallel.pipeline == 3));
  CHECK((c.parallel.schedule == ScheduleKind::interleaved && c.parallel.chunks == 2 && c.parallel.zero == 3));
  CHECK(c.parallel.stage_layers == std::vector<std::int64_t>{1, 2, 1, 1, 1, 2});
  CHECK((c.precision.compute == Precision::fp16 && c.precision.reduce == Precision::bf16));
  CHECK((c.precision.loss_scale == 18 && c.evaluate.every == 19 && c.evaluate.batches == 20));
  CHECK((c.early_stop->metric == "validation/v/loss" && c.early_stop->patience == 21));
  CHECK((c.early_stop->min_delta == 0.22 && c.early_stop->target == 23));
  CHECK((c.checkpoint.every_steps == 24 && c.checkpoint.keep == 25 && !c.checkpoint.best));
  CHECK((c.checkpoint.background && c.checkpoint.keep_every == 26 && c.supervise.max_restarts == 27));
  CHECK((c.supervise.heartbeat == 28 && c.supervise.elastic_min_data == 1 && c.launch.interface == "ib0"));
  CHECK((c.launch.port == 30 && c.launch.ranks_per_node == 34 && c.log.every == 32 && c.log.tensorboard));
  CHECK((c.launch.transport == RankTransport::tcp && c.log.peak_tflops == 33.5));
  CHECK((c.finetune.freeze == std::vector<std::string>{"a.*", "*.b"} && c.finetune.layer_decay == 0.75));
  CHECK(c.finetune.unfreeze == std::vector<UnfreezeConfig>{{3, {"a.b"}}});
  CHECK((c.finetune.learning_rates == std::vector<std::pair<std::string, double>>{{"*.bias", 2.0}, {"d.?", 0.5}}));
  CHECK((c.finetune.weight_decays == std::vector<std::pair<std::string, double>>{{"e.*", 0.0}, {"e.f", 3.0}}));
  CHECK(loaded.unsupported.empty());
  const Config with_adapters =
      load_text(kLeast,
                {"model.init.from=/f", "finetune.lora={rank: 3, alpha: 5, dropout: 0.5, targets: [q_proj, mlp.b]}"})
          .config;
  CHECK((with_adapters.finetune.lora->rank == 3 && with_adapters.finetune.lora->alpha == 5));
  CHECK(with_adapters.finetune.lora->dropout == 0.5);
  CHECK(with_adapters.finetune.lora->targets == std::vector<std::string>{"q_proj", "mlp.b"});
  CHECK(load_text(kLeast, {"model.init.type=he"}).config.model.init.type == InitKind::he);
  CHECK(load_text(kLeast, {"model.init.from=/f"}).config.model.init.from == "/f");
  CHECK(load_text(kLeast, {"train.optimizer.type=sgd"}).config.train.optimizer.type == OptimizerKind::sgd);
}

TEST_CASE("a damaged resolved config is an input error that names its place") {
  const auto fault = [](std::string_view text) {
    return message_of<InputError>([&] { parse_resolved_config(text, "step-1/manifest.json"); });
  };
  const std::string yaml = resolved_yaml(load_text(kLeast).config);
  CHECK(fault(yaml) == "");
  CHECK(fault(yaml + "unknown: 1\n").starts_with("step-1/manifest.json:"));
  CHECK(contains(fault(yaml + "run: {}\n"), "duplicate key \"run\""));
  CHECK(contains(fault("model: {heads: 5}\n"), "no multiple of heads 5"));
  CHECK(contains(fault("a: " + std::string(100000, '[')), "more than 64 levels"));
  CHECK(contains(fault("run:\n  name: ${HOME}\n"), "is not set"));
  CHECK(contains(fault("a: &x [*x]\n"), "anchors"));
  CHECK(fault(yaml.substr(0, yaml.find("heartbeat:") + 4)) != "");
}

TEST_CASE("yaml_scalar quotes what a reader could mistake") {
  CHECK(yaml_scalar("data/web-1.txt") == "data/web-1.txt");
  CHECK(yaml_scalar("null") == "\"null\"");
  CHECK(yaml_scalar("Yes") == "\"Yes\"");
  CHECK(yaml_scalar("12") == "\"12\"");
  CHECK(yaml_scalar("") == "\"\"");
  CHECK(yaml_scalar("a\tb\"\\") == "\"a\\x09b\\\"\\\\\"");
  CHECK(yaml_scalar("${X}") == "\"$${X}\"");
}
