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
