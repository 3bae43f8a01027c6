// The numbers that define a decoder-only transformer (of GPT-2's kind and Llama's, Qwen and Gemma among it), and what
// follows from them alone: the parameter table, counts, FLOPs. Pure values: building a 405B model's table allocates a
// few thousand parameters and no weights.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backend/operations.h"
#include "config/config.h"
#include "parallel/param_table.h"

namespace scaletrain {

// Which maps of the blocks have low-rank adapters (nn/lora.h).
struct LoraSpec {
  std::int64_t rank = 0;  // r; 0: there are none
  double scale = 1.0;     // alpha / r
  double dropout = 0.0;   // of each adapter's input
  // As blocks call the maps, in the order of the parameter table: "attention.query"; "attention.qkv" where one adapter
  // is for all three.
  std::vector<std::string> maps{};
  bool operator==(const LoraSpec&) const = default;
};

// Probabilities of dropout in training (DropoutMask): of what the embedding gives, of attention's probabilities, and of
// what attention and the ffn give, right before it is added to the residual stream (behind a norm that lies there).
struct DropoutSpec {
  double embedding = 0.0, attention = 0.0, residual = 0.0;
  bool operator==(const DropoutSpec&) const = default;
};

struct ModelSpec {
  std::int64_t layers = 0;      // L
  std::int64_t hidden = 0;      // C
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // G
  std::int64_t head_size = 0;   // D, C / H in most models
  std::int64_t ffn_hidden = 0;  // F
  std::int64_t context = 0;     // T, tokens per sample and rows of a learned position table
  std::int64_t vocab = 0;       // V
  NormKind norm = NormKind::layernorm;
  double norm_epsilon = 1e-5;
  ActivationKind activation = ActivationKind::gelu;
  PositionKind position = PositionKind::learned;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool bias = true;
  bool qkv_bias = true;             // of query, key and value
  bool qk_norm = false;             // each head's query and key pass an RMS norm before their rotation
  bool post_norm = false;           // what attention and the ffn give is normed before it is added
  double norm_weight_offset = 0.0;  // what norms' weights are more than what is stored
  bool scale_embeddings = false;    // by sqrt(C)
  double attention_scale = 0.0;     // of query · key; 0: 1/sqrt(D)
  double attention_softcap = 0.0;   // 0: none, here and below
  double logit_softcap = 0.0;
  // What a layer's attention sees: so many tokens, in all layers but the last of every `global_every` (0: in all).
  std::int64_t window = 0;
  std::int64_t global_every = 0;
  double window_rope_theta = 0.0;  // of layers with a window, unscaled; 0: as the others
  bool tie_embeddings = true;
  DropoutSpec dropout{};
  LoraSpec lora{};
  LossShape loss{};  // of training alone: an evaluation has no gradient that it could shape
  bool operator==(const ModelSpec&) const = default;
};

// vocab: the config's, or the tokenizer's where the config says auto.
ModelSpec make_model_spec(const ModelConfig& config, std::int64_t vocab);

// Whether anything is dropped in training, so that passes need to know which samples they see.
bool has_dropout(const ModelSpec& spec);

// One tensor rank's part of the model.
struct TensorPart {
  std::int64_t degree = 1;
  std::int64_t rank = 0;
  // Between the parallel parts, activations are sequence shards: rows [N] divided among the ranks.
  bool sequence = false;
  bool operator==(const TensorPart&) const = default;
};

// The spec as it is of one layer: with the window and the rotation of that layer alone.
ModelSpec layer_spec(const ModelSpec& spec, std::int64_t layer);

// The keys that attention's queries see in all layers, over those that they would see without windows: 1 without.
double attention_share(const ModelSpec& spec);

// What a tensor rank holds: its heads, key/value heads (at least one), ffn and vocabulary rows, as the table's boxes
// divide them; ffn and vocabulary may be uneven, and none on the last ranks. Everything else is the model's.
ModelSpec local_spec(const ModelSpec& spec, const TensorPart& part);
// The first vocabulary id that a tensor rank holds.
std::int64_t first_vocab_row(const ModelSpec& spec, const TensorPart& part);
// And the first ffn column.
std::int64_t first_ffn_column(const ModelSpec& spec, const TensorPart& part);
// How N rows are divided into sequence shards: counts by tensor rank, in order, as even as may be.
std::vector<std::int64_t> sequence_shards(std::int64_t rows, std::int64_t degree);

// Unit 0 "embedding", units 1..L "blocks.0" .. "blocks.L-1", unit L+1 "head". Parameter names, shapes and order:
//   embedding.token.weight [V,C]; embedding.position.weight [T,C] (learned positions)
//   blocks.i.attention_norm.{weight,bias} [C]; norms have a bias for layernorm with `bias`
//   blocks.i.attention.{query [H·D,C], key [G·D,C], value [G·D,C]}.weight, then their biases;
//     fused as attention.qkv.{weight,bias}
//   blocks.i.attention.{query,key}_norm.weight [D], with qk_norm
//   blocks.i.attention.output.{weight [C,H·D], bias}
//   blocks.i.attention_post_norm.{weight,bias}, with post_norm
//   blocks.i.ffn_norm.{weight,bias}
//   with a gate: blocks.i.ffn.{gate,up}.weight [F,C], fused as ffn.gate_up.{weight,bias}; else
//   blocks.i.ffn.up.{weight,bias} blocks.i.ffn.down.{weight [C,F], bias} blocks.i.ffn_post_norm.{weight,bias}, with
//   post_norm head.norm.{weight,bias}; head.weight [V,C], tied to embedding.token.weight where the model ties them
// Hugging Face names are those of GPT-2 for layernorm with learned positions, of Gemma 2 with post_norm, else of Llama.
// Parameters with the same Hugging Face name are parts of one tensor there (GPT-2's attn.c_attn), stacked along the
// output dim in the order of the parameters. Initial values per config: normal: std, output projections of the residual
// branches divided by sqrt(2L) with scale_residual; xavier: uniform within sqrt(6/(I+O)) (Glorot and Bengio 2010);
// he: normal(sqrt(2/I)) (He et al. 2015); embeddings normal(std), norms one (their stored
// weight), biases zero.
ParamTable make_param_table(const ModelSpec& spec, const InitConfig& init);

// 6N + 6·L·H·D·T per token, forward and backward; a layer whose window W is less than T has 12·H·D·(W - W²/2T) in place
// of 6·H·D·T, of the keys that its queries see on average. N is without what is only looked up: the position table, and
// the token table where the head has a weight of its own. A table that the head shares counts once, for the head's
// product.
double model_flops_per_token(const ModelSpec& spec);
// The same of a model whose table says what is trained after so many updates: 2 less for each parameter that N counts
// and that is not, whose gradient nobody computes, and for each of the units before the first that is trained, through
// which no backward goes; nor does attention's, two thirds of it, in those (of the average layer's, where some have
// windows).
double model_flops_per_token(const ModelSpec& spec, const ParamTable& table,
                             std::int64_t updates = std::numeric_limits<std::int64_t>::max());

}  // namespace scaletrain
