// The small model of the tests, as a config: each test takes it and changes what it is about. By default sizes that
// nothing divides, two key/value heads, and weights large enough that predictions are far from uniform.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"

namespace scaletrain {

struct TinySizes {
  std::int64_t layers = 4;
  std::int64_t hidden = 16;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t ffn_hidden = 36;
  std::int64_t context = 7;
  std::optional<std::int64_t> vocab = 61;  // nothing: the tokenizer's
  double std = 0.2;                        // of the initial weights
};

// Of GPT-2's family.
inline ModelConfig tiny_model(const TinySizes& sizes = {}) {
  ModelConfig model;
  model.layers = sizes.layers;
  model.hidden = sizes.hidden;
  model.heads = sizes.heads;
  model.kv_heads = sizes.kv_heads;
  model.ffn_hidden = sizes.ffn_hidden;
  model.context = sizes.context;
  model.vocab = sizes.vocab;
  model.init.std = sizes.std;
  return model;
}

// The same sizes in Llama's family.
inline void make_llama(ModelConfig& model) {
  model.norm = NormKind::rmsnorm;
  model.activation = ActivationKind::swiglu;
  model.position = PositionKind::rope;
  model.bias = false;
}

// In those of Gemma: Gemma 3's norms, window and rotations, with Gemma 2's caps.
inline void make_gemma(ModelConfig& model) {
  make_llama(model);
  model.activation = ActivationKind::geglu;
  model.qk_norm = model.post_norm = model.norm_zero_centered = model.scale_embeddings = true;
  model.query_pre_attn_scalar = 3.0;
  model.attention_softcap = 1.5;
  model.logit_softcap = 3.0;
  model.window = {.tokens = 3, .global_every = 2, .rope_theta = 500.0};
}

// A run of it: batches of 12 samples, one sample a micro-batch.
inline Config tiny_config(const TinySizes& sizes = {}) {
  Config config;
  config.model = tiny_model(sizes);
  config.train.steps = 10;
  config.train.global_batch = 12;
  config.train.micro_batch = 1;
  return config;
}

// Updates that are the gradient times the rate, and nothing else.
inline void use_sgd(Config& config) {
  config.train.optimizer.type = OptimizerKind::sgd;
  config.train.optimizer.weight_decay = 0.0;
  config.train.clip_norm.reset();
}

}  // namespace scaletrain
