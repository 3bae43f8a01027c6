#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "config/keys/keys.h"

namespace scaletrain {

namespace {

// GPT-2 (Radford et al. 2019), sizes as released.
ModelConfig gpt2(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  ModelConfig model;
  model.layers = layers;
  model.hidden = hidden;
  model.heads = heads;
  model.kv_heads = heads;
  model.ffn_hidden = 4 * hidden;
  model.context = 1024;
  model.vocab = 50257;
  model.norm = NormKind::layernorm;
  model.norm_epsilon = 1e-5;
  model.activation = ActivationKind::gelu_tanh;
  model.position = PositionKind::learned;
  model.bias = true;
  model.tie_embeddings = true;
  return model;
}

// Llama 3 (Dubey et al. 2024), table 3.
ModelConfig llama(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                  std::int64_t ffn_hidden) {
  ModelConfig model;
  model.layers = layers;
  model.hidden = hidden;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.ffn_hidden = ffn_hidden;
  model.context = 8192;
  model.vocab = 128256;
  model.norm = NormKind::rmsnorm;
  model.norm_epsilon = 1e-5;
  model.activation = ActivationKind::swiglu;
  model.position = PositionKind::rope;
  model.rope_theta = 500000.0;
  model.bias = false;
  model.tie_embeddings = false;
  return model;
}

// Llama 3.1 and 3.2 as released (config.json): the same for contexts of 128 Ki tokens, all frequencies of few turns in
// the original 8 Ki tokens divided by `factor`.
ModelConfig llama3_1(ModelConfig model, double factor, bool tied) {
  model.context = 131072;
  model.rope_scaling = {.type = RopeScalingKind::llama3,
                        .factor = factor,
                        .low_frequency_factor = 1.0,
                        .high_frequency_factor = 4.0,
                        .original_context = 8192};
  model.tie_embeddings = tied;
  return model;
}

// Models of Llama's kind with other vocabularies, contexts and rotations, as released (config.json).
struct LlamaKind {
  std::int64_t vocab = 0;
  std::int64_t context = 0;
  double rope_theta = 0.0;
  double norm_epsilon = 0.0;
  bool tied = false;
};
ModelConfig of_kind(ModelConfig model, const LlamaKind& kind) {
  model.vocab = kind.vocab;
  model.context = kind.context;
  model.rope_theta = kind.rope_theta;
  model.norm_epsilon = kind.norm_epsilon;
  model.tie_embeddings = kind.tied;
  return model;
}

// SmolLM2 (Ben Allal et al. 2025).
ModelConfig smollm2(const ModelConfig& model) {
  return of_kind(model, {.vocab = 49152, .context = 8192, .rope_theta = 1e5, .norm_epsilon = 1e-5, .tied = true});
}

// Mistral 7B (Jiang et al. 2023), version 0.3, which has no sliding window.
ModelConfig mistral(const ModelConfig& model) {
  return of_kind(model, {.vocab = 32768, .context = 32768, .rope_theta = 1e6, .norm_epsilon = 1e-5, .tied = false});
}

// Qwen2.5 (Yang et al. 2024).
ModelConfig qwen2_5(ModelConfig model) {
  model = of_kind(model, {.vocab = 151936, .context = 32768, .rope_theta = 1e6, .norm_epsilon = 1e-6, .tied = true});
  model.qkv_bias = true;
  return model;
}

// Qwen3 (Yang et al. 2025): heads of 128, whatever the hidden size.
ModelConfig qwen3(ModelConfig model, bool tied) {
  model = of_kind(model, {.vocab = 151936, .context = 40960, .rope_theta = 1e6, .norm_epsilon = 1e-6, .tied = tied});
  model.head_dim = 128;
  model.qk_norm = true;
  return model;
}

// Gemma (Mesnard et al. 2024), as released: heads of 256, whatever the hidden size.
ModelConfig gemma(ModelConfig model) {
  model = of_kind(model, {.vocab = 256000, .context = 8192, .rope_theta = 1e4, .norm_epsilon = 1e-6, .tied = true});
  model.head_dim = 256;
  model.activation = ActivationKind::geglu;
  model.norm_zero_centered = true;
  model.scale_embeddings = true;
  return model;
}

// Gemma 2 (Riviere et al. 2024): every second layer sees all, the others 4096 tokens.
ModelConfig gemma2(ModelConfig model) {
  model = gemma(std::move(model));
  model.post_norm = true;
  model.attention_softcap = 50.0;
  model.logit_softcap = 30.0;
  model.window = {.tokens = 4096, .global_every = 2, .rope_theta = std::nullopt};
  return model;
}

// The text model of Gemma 3 (Kamath et al. 2025): every sixth layer sees all, rotated by a base of its own.
ModelConfig gemma3(ModelConfig model, std::int64_t context, std::int64_t window) {
  model = gemma(std::move(model));
  model.vocab = 262144;
  model.context = context;
  model.rope_theta = 1e6;
  model.post_norm = true;
  model.qk_norm = true;
  model.window = {.tokens = window, .global_every = 6, .rope_theta = 1e4};
  return model;
}

// Of 128 Ki tokens, with what pictures are read by left out but for the rows of the vocabulary.
ModelConfig gemma3_of_pictures(ModelConfig model) {
  model = gemma3(std::move(model), 131072, 1024);
  model.vocab = 262208;
  model.rope_scaling = {.type = RopeScalingKind::linear, .factor = 8.0};
  return model;
}

// Small enough for a test or a first run on a laptop; the tokenizer decides the vocabulary.
ModelConfig tiny(ModelConfig model) {
  model.context = 64;
  model.vocab.reset();
  if (model.position == PositionKind::rope) model.rope_theta = 10000.0;
  return model;
}

struct Presets {
  std::vector<std::string> names;
  std::vector<ModelConfig> models;
};

const Presets& presets() {
  static const Presets all = [] {
    Presets out;
    const auto add = [&](std::string name, ModelConfig model) {
      model.preset = name;
      out.names.push_back(std::move(name));
      out.models.push_back(std::move(model));
    };
    add("tiny-gpt2", tiny(gpt2(2, 64, 4)));
    add("tiny-llama", tiny(llama(2, 64, 4, 2, 176)));
    add("gpt2-124m", gpt2(12, 768, 12));
    add("gpt2-355m", gpt2(24, 1024, 16));
    add("gpt2-774m", gpt2(36, 1280, 20));
    add("gpt2-1558m", gpt2(48, 1600, 25));
    add("llama-8b", llama(32, 4096, 32, 8, 14336));
    add("llama-70b", llama(80, 8192, 64, 8, 28672));
    add("llama-405b", llama(126, 16384, 128, 8, 53248));
    add("llama-3.1-8b", llama3_1(llama(32, 4096, 32, 8, 14336), 8.0, false));
    add("llama-3.2-1b", llama3_1(llama(16, 2048, 32, 8, 8192), 32.0, true));
    add("llama-3.2-3b", llama3_1(llama(28, 3072, 24, 8, 8192), 32.0, true));
    add("smollm2-135m", smollm2(llama(30, 576, 9, 3, 1536)));
    add("smollm2-360m", smollm2(llama(32, 960, 15, 5, 2560)));
    add("mistral-7b-v0.3", mistral(llama(32, 4096, 32, 8, 14336)));
    add("qwen2.5-0.5b", qwen2_5(llama(24, 896, 14, 2, 4864)));
    add("qwen3-0.6b", qwen3(llama(28, 1024, 16, 8, 3072), true));
    add("qwen3-1.7b", qwen3(llama(28, 2048, 16, 8, 6144), true));
    add("qwen3-4b", qwen3(llama(36, 2560, 32, 8, 9728), true));
    add("qwen3-8b", qwen3(llama(36, 4096, 32, 8, 12288), false));
    add("gemma-2b", gemma(llama(18, 2048, 8, 1, 16384)));
    add("gemma-7b", gemma(llama(28, 3072, 16, 16, 24576)));
    add("gemma2-2b", gemma2(llama(26, 2304, 8, 4, 9216)));
    add("gemma2-9b", gemma2(llama(42, 3584, 16, 8, 14336)));
    add("gemma3-270m", gemma3(llama(18, 640, 4, 1, 2048), 32768, 512));
    add("gemma3-1b", gemma3(llama(26, 1152, 4, 1, 6912), 32768, 512));
    add("gemma3-4b-text", gemma3_of_pictures(llama(34, 2560, 8, 4, 10240)));
    return out;
  }();
  return all;
}

}  // namespace

std::span<const std::string> model_preset_names() {
  return presets().names;
}

const ModelConfig* find_model_preset(std::string_view name) {
  const Presets& all = presets();
  const auto found = std::find(all.names.begin(), all.names.end(), name);
  return found == all.names.end() ? nullptr : &all.models[static_cast<std::size_t>(found - all.names.begin())];
}

}  // namespace scaletrain
