// The keys of the section model.
#include "config/keys/key_rows.h"

namespace scaletrain::key_rows {

namespace {

// A key that may be left out for what others say: the resolved config has its value all the same.
Key<Config> spelled_out(Key<Config> key, std::string (*text)(const ModelConfig& model)) {
  key.write = [text](const Config& config) { return text(config.model); };
  return key;
}

}  // namespace

void add_model(KeyTable<Config>& table) {
  table.push_back(top({"model.preset", "", "A known model; any other key of this section overrides it."},
                      optional(PresetCodec()), FIELD(model.preset)));
  table.push_back(
      top({"model.layers", "", "Transformer layers.", never}, at_least(1, kMaxLayers), FIELD(model.layers)));
  table.push_back(
      top({"model.hidden", "", "Width of the residual stream; a multiple of heads unless head_dim is set.", never},
          at_least(1, kMaxWidth), FIELD(model.hidden)));
  table.push_back(top({"model.heads", "", "Attention heads.", never}, at_least(1, kMaxWidth), FIELD(model.heads)));
  table.push_back(
      top({"model.kv_heads", "", "Key and value heads; fewer than heads: grouped-query attention.", never, "heads"},
          at_least(1, kMaxWidth), FIELD(model.kv_heads)));
  table.push_back(spelled_out(top({"model.head_dim", "", "Size of a head; auto: hidden / heads.", never},
                                  optional(at_least(1, kMaxWidth), "auto"), FIELD(model.head_dim)),
                              [](const ModelConfig& model) { return std::to_string(model.head_size()); }));
  table.push_back(top({"model.ffn_hidden", "", "Width inside the feed-forward block.", never, "4 * hidden"},
                      at_least(1, kMaxFfn), FIELD(model.ffn_hidden)));
  table.push_back(top({"model.context", "tokens", "Tokens per training sample.", never}, at_least(1, kMaxContext),
                      FIELD(model.context)));
  table.push_back(
      top({"model.vocab", "tokens", "Vocabulary; auto: the tokenizer's size with its special tokens.", never},
          optional(at_least(1, kMaxVocab), "auto"), FIELD(model.vocab)));
  table.push_back(top({"model.norm", "", "Kind of normalisation.", never}, EnumCodec<NormKind>(), FIELD(model.norm)));
  table.push_back(top({"model.norm_epsilon", "", "Added to the variance inside the normalisation.", never},
                      positive(1.0), FIELD(model.norm_epsilon)));
  table.push_back(top({"model.activation", "", "Activation of the feed-forward block.", never},
                      EnumCodec<ActivationKind>(), FIELD(model.activation)));
  table.push_back(
      top({"model.position", "", "How positions enter: a learned table, or rotation of queries and keys.", never},
          EnumCodec<PositionKind>(), FIELD(model.position)));
  table.push_back(top({"model.rope_theta", "", "Base of the rotation frequencies (position: rope).", never}, positive(),
                      FIELD(model.rope_theta)));
  table.push_back(
      top({"model.rope_scaling.type", "",
           "How rotation frequencies are divided for longer contexts: linear: all by the factor; llama3: as "
           "Llama 3.1, those of few turns.",
           never},
          EnumCodec<RopeScalingKind>(), FIELD(model.rope_scaling.type)));
  table.push_back(
      top({"model.rope_scaling.factor", "", "What frequencies are divided by (type: linear, llama3).", never},
          positive(), FIELD(model.rope_scaling.factor)));
  table.push_back(top({"model.rope_scaling.low_frequency_factor", "",
                       "Frequencies that turn less often within original_context are divided (type: llama3).", never},
                      positive(), FIELD(model.rope_scaling.low_frequency_factor)));
  table.push_back(top({"model.rope_scaling.high_frequency_factor", "",
                       "Frequencies that turn more often within original_context stay; in between a share is divided "
                       "(type: llama3).",
                       never},
                      positive(), FIELD(model.rope_scaling.high_frequency_factor)));
  table.push_back(top({"model.rope_scaling.original_context", "tokens",
                       "The context that the model was first made for (type: llama3).", never},
                      at_least(1, kMaxContext), FIELD(model.rope_scaling.original_context)));
  table.push_back(top({"model.bias", "", "Whether linear layers and layernorms have biases.", never}, BoolCodec(),
                      FIELD(model.bias)));
  table.push_back(spelled_out(
      top({"model.qkv_bias", "", "Whether the maps to query, key and value have biases; auto: as bias says.", never},
          optional(BoolCodec(), "auto"), FIELD(model.qkv_bias)),
      [](const ModelConfig& model) { return BoolCodec().text(model.has_qkv_bias()); }));
  table.push_back(
      top({"model.qk_norm", "", "Whether each head's query and key pass an RMS norm before their rotation.", never},
          BoolCodec(), FIELD(model.qk_norm)));
  table.push_back(top({"model.post_norm", "",
                       "Whether what attention and the feed-forward block give passes a norm of its own before it is "
                       "added to the residual stream.",
                       never},
                      BoolCodec(), FIELD(model.post_norm)));
  table.push_back(
      top({"model.norm_zero_centered", "",
           "Whether norms multiply by 1 + weight: weights start at 0 and are kept as their distance from one.", never},
          BoolCodec(), FIELD(model.norm_zero_centered)));
  table.push_back(top({"model.scale_embeddings", "",
                       "Whether token embeddings are multiplied by sqrt(hidden) (position: rope).", never},
                      BoolCodec(), FIELD(model.scale_embeddings)));
  table.push_back(spelled_out(
      top({"model.query_pre_attn_scalar", "",
           "Attention scores are query times key, divided by the square root of this; auto: head_dim.", never},
          optional(positive(), "auto"), FIELD(model.query_pre_attn_scalar)),
      [](const ModelConfig& model) { return number_text(model.query_scalar()); }));
  table.push_back(
      top({"model.attention_softcap", "", "Attention scores become cap * tanh(score / cap); none: they stay.", never},
          optional(positive(), "none"), FIELD(model.attention_softcap)));
  table.push_back(top({"model.logit_softcap", "", "Logits become cap * tanh(logit / cap); none: they stay.", never},
                      optional(positive(), "none"), FIELD(model.logit_softcap)));
  table.push_back(top({"model.window.tokens", "tokens",
                       "How many tokens attention sees, the query's own among them (sliding window); none: all "
                       "before it.",
                       never},
                      optional(at_least(1, kMaxContext), "none"), FIELD(model.window.tokens)));
  table.push_back(
      top({"model.window.global_every", "",
           "The last of so many layers each sees all before it, and has no window; 0: all have windows.", never},
          at_least(0, kMaxLayers), FIELD(model.window.global_every)));
  table.push_back(
      top({"model.window.rope_theta", "",
           "Base of the rotation frequencies of layers with a window, without rope_scaling (position: rope); auto: "
           "rope_theta and rope_scaling.",
           never},
          optional(positive(), "auto"), FIELD(model.window.rope_theta)));
  table.push_back(top({"model.tie_embeddings", "", "Whether the output head is the token embedding.", never},
                      BoolCodec(), FIELD(model.tie_embeddings)));
  const NumberCodec probability{0.0, 1.0, Bounds::open_above};
  table.push_back(top({"model.dropout", "",
                       "Probability of dropping an element in training: of what the embedding gives, of attention's "
                       "probabilities, and of what attention and the ffn add to the residual stream.",
                       never},
                      probability, FIELD(model.dropout)));
  table.push_back(spelled_out(
      top({"model.embedding_dropout", "", "Of what the embedding gives; auto: model.dropout.", never},
          optional(probability, "auto"), FIELD(model.embedding_dropout)),
      [](const ModelConfig& model) { return number_text(model.embedding_dropout.value_or(model.dropout)); }));
  table.push_back(spelled_out(
      top({"model.attention_dropout", "", "Of attention's probabilities; auto: model.dropout.", never},
          optional(probability, "auto"), FIELD(model.attention_dropout)),
      [](const ModelConfig& model) { return number_text(model.attention_dropout.value_or(model.dropout)); }));
  table.push_back(spelled_out(
      top({"model.residual_dropout", "",
           "Of what attention and the ffn add to the residual stream; auto: model.dropout.", never},
          optional(probability, "auto"), FIELD(model.residual_dropout)),
      [](const ModelConfig& model) { return number_text(model.residual_dropout.value_or(model.dropout)); }));
  table.push_back(top({"model.init.type", "", "Distribution of the initial weights.", never}, EnumCodec<InitKind>(),
                      FIELD(model.init.type)));
  table.push_back(
      top({"model.init.std", "",
           "Standard deviation of initial weights (type: normal) and, whatever the type, of embeddings.", never},
          positive(1e3), FIELD(model.init.std)));
  table.push_back(spelled_out(
      top({"model.init.scale_residual", "",
           "Whether projections back into the residual stream start smaller by sqrt(2 * layers); auto: those of type "
           "normal do. A resume has its weights already.",
           with_notice},
          optional(BoolCodec(), "auto"), FIELD(model.init.scale_residual)),
      [](const ModelConfig& model) { return BoolCodec().text(model.init.scales_residual()); }));
  table.push_back(top({"model.init.from", "", "A Hugging Face folder to start from; read at the first start only."},
                      optional(path_text()), FIELD(model.init.from)));
  table.push_back(
      top({"model.grow.order", "",
           "For a model of more layers than that of init.from: stack puts copies of all layers on top of each other, "
           "interleave each layer's beside it. Read at the first start only."},
          EnumCodec<GrowthOrder>(), FIELD(model.grow.order)));
  table.push_back(top({"model.grow.identity", "",
                       "Copies add nothing at first (what ends their branches begins as zero), so that the "
                       "model computes what that of init.from does; false: they are whole copies."},
                      BoolCodec(), FIELD(model.grow.identity)));
}

}  // namespace scaletrain::key_rows
