#include "checkpoint/hugging_face/hugging_face_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hugging_face/hugging_face_families.h"

namespace scaletrain {

void check_heads(const ModelConfig& model, const Members& members, std::string_view heads, std::string_view kv_heads) {
  if (model.hidden > largest_hidden) {
    members.refuse(heads,
                   fmt::format("divides a hidden size of {}, at most {} is accepted", model.hidden, largest_hidden));
  }
  if (!model.head_dim && model.hidden % model.heads != 0) {
    members.refuse(heads, fmt::format("is {}, which does not divide the hidden size {}", model.heads, model.hidden));
  }
  if (model.head_dim && *model.head_dim > largest_hidden / model.heads) {
    members.refuse("head_dim", fmt::format("is {}, with {} heads more than {} in all", *model.head_dim, model.heads,
                                           largest_hidden));
  }
  if (model.heads % model.kv_heads != 0) {
    members.refuse(kv_heads, fmt::format("is {}, which does not divide the {} heads", model.kv_heads, model.heads));
  }
  if (model.position == PositionKind::rope && model.head_size() % 2 != 0) {
    members.refuse(model.head_dim ? "head_dim" : heads, "gives an odd head size, which rotary positions cannot have");
  }
}

namespace {

using nlohmann::json;

HuggingFaceShape parse_gpt2(const Members& members, const std::string& /*where*/, const LlamaTraits& /*traits*/) {
  ModelConfig model;
  model.layers = members.size("n_layer", 12);
  model.hidden = members.size("n_embd", 768);
  model.heads = members.size("n_head", 12);
  model.kv_heads = model.heads;
  model.ffn_hidden = members.size("n_inner", 4 * model.hidden);
  model.context = members.size("n_positions", 1024);
  model.vocab = members.size("vocab_size", 50257);
  model.norm = NormKind::layernorm;
  model.norm_epsilon = members.positive("layer_norm_epsilon", 1e-5);
  model.position = PositionKind::learned;
  model.bias = true;
  model.tie_embeddings = members.flag("tie_word_embeddings", true);
  const std::string activation = members.text("activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    model.activation = ActivationKind::gelu_tanh;
  } else if (activation == "gelu") {
    model.activation = ActivationKind::gelu;
  } else {
    members.refuse("activation_function", fmt::format("is {}; supported are gelu_new, gelu_pytorch_tanh and gelu",
                                                      quoted(std::string_view(activation))));
  }
  members.require_flag("scale_attn_weights", true);
  members.require_flag("scale_attn_by_inverse_layer_idx", false);
  members.require_flag("add_cross_attention", false);
  check_heads(model, members, "n_head", "n_head");
  return {.model = model, .window = std::nullopt};
}

RopeScalingConfig parse_rope_scaling(const Members& rope, std::string_view type, std::int64_t context) {
  RopeScalingConfig scaling;
  if (type == "default") return scaling;
  scaling.factor = rope.required_positive("factor");
  if (type == "linear") {
    scaling.type = RopeScalingKind::linear;
  } else {
    scaling.type = RopeScalingKind::llama3;
    scaling.low_frequency_factor = rope.required_positive("low_freq_factor");
    scaling.high_frequency_factor = rope.required_positive("high_freq_factor");
    scaling.original_context = rope.size("original_max_position_embeddings", context);
    if (scaling.low_frequency_factor >= scaling.high_frequency_factor)
      rope.refuse("low_freq_factor", fmt::format("is {}, no less than high_freq_factor {}",
                                                 scaling.low_frequency_factor, scaling.high_frequency_factor));
  }
  // Which changes nothing.
  return scaling.factor == 1.0 ? RopeScalingConfig() : scaling;
}

}  // namespace

RopeMembers parse_rope_object(const Members& members, std::string_view key, const json& value, const std::string& where,
                              std::int64_t context) {
  if (!value.is_object()) members.refuse(key, "is not an object");
  for (const auto& [name, inner] : value.items())
    if (inner.is_object())
      members.refuse(key,
                     fmt::format("has one of its own for {}, which is not supported", quoted(std::string_view(name))));
  const std::string place = fmt::format("{}: {}", where, quoted(key));
  const Members rope(value, place);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type != "default" && type != "linear" && type != "llama3") {
    members.refuse(key, fmt::format("asks for {}, which is not supported; default, linear and llama3 are",
                                    quoted(std::string_view(type))));
  }
  if (rope.positive("partial_rotary_factor", 1.0) != 1.0) {
    rope.refuse("partial_rotary_factor", "is not 1, which is not supported");
  }
  RopeMembers parsed{.scaling = parse_rope_scaling(rope, type, context), .theta = std::nullopt};
  if (rope.has("rope_theta")) parsed.theta = rope.positive("rope_theta", 10000.0);
  return parsed;
}

void parse_rope(ModelConfig& model, const Members& members, const std::string& where) {
  std::optional<double> theta;
  if (members.has("rope_scaling") && members.has("rope_parameters"))
    members.refuse("rope_scaling", "and \"rope_parameters\" are both set; leave one of them out");
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    if (!members.has(key)) continue;
    const RopeMembers parsed = parse_rope_object(members, key, members.member(key), where, model.context);
    if (parsed.scaling.type != RopeScalingKind::none) model.rope_scaling = parsed.scaling;
    if (parsed.theta) theta = parsed.theta;
  }
  model.rope_theta = theta.value_or(members.positive("rope_theta", 10000.0));
}

namespace {

bool has_sliding_layer(const Members& members) {
  bool has_one = false;
  const json& types = members.member("layer_types");
  if (!types.is_array()) members.refuse("layer_types", "is not a list");
  for (const json& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      members.refuse("layer_types",
                     fmt::format("has {}; full_attention and sliding_attention are supported", type.dump()));
    has_one = has_one || type == "sliding_attention";
  }
  return has_one;
}

// How many tokens back attention reaches, where that is not all of them in some layer.
std::optional<std::int64_t> parse_window(const Members& members, Window window, std::int64_t layers) {
  if (window == Window::never) {
    members.require_absent("sliding_window");
    return std::nullopt;
  }
  // A file that leaves it out has the library's own; null is none.
  std::optional<std::int64_t> tokens = 4096;
  if (members.is_null("sliding_window")) tokens.reset();
  if (members.has("sliding_window")) tokens = members.size("sliding_window");
  if (window == Window::by_flag) {
    if (!members.flag("use_sliding_window", false)) return std::nullopt;
    if (members.has("layer_types")) return has_sliding_layer(members) ? tokens : std::nullopt;
    // The layers before that one have none.
    if (const std::int64_t first = members.count("max_window_layers", 28); first >= layers) return std::nullopt;
  }
  return tokens;
}

HuggingFaceShape parse_llama(const Members& members, const std::string& where, const LlamaTraits& traits) {
  ModelConfig model;
  model.layers = members.size("num_hidden_layers");
  model.hidden = members.size("hidden_size");
  model.heads = members.size("num_attention_heads");
  // A file that leaves it out has the library's own; null is as many as heads.
  const bool has_own = traits.kv_heads && !members.is_null("num_key_value_heads");
  model.kv_heads = members.size("num_key_value_heads", has_own ? *traits.kv_heads : model.heads);
  if (members.has("head_dim") || traits.head_dim) model.head_dim = members.size("head_dim", traits.head_dim);
  model.ffn_hidden = members.size("intermediate_size");
  model.context = members.size("max_position_embeddings", traits.context);
  model.vocab = members.size("vocab_size");
  model.norm = NormKind::rmsnorm;
  model.norm_epsilon = members.positive("rms_norm_eps", 1e-6);
  model.position = PositionKind::rope;
  parse_rope(model, members, where);
  model.tie_embeddings = members.flag("tie_word_embeddings", false);
  model.activation = ActivationKind::swiglu;
  const std::string activation = members.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    members.refuse("hidden_act", fmt::format("is {}; supported is silu", quoted(std::string_view(activation))));
  }
  if (traits.biases == Biases::by_flags) {
    model.bias = members.flag("attention_bias", false);
    if (members.flag("mlp_bias", false) != model.bias) {
      members.refuse("mlp_bias", "differs from \"attention_bias\", which is not supported");
    }
  } else {
    members.require_flag("attention_bias", false);
    model.bias = false;
    if (traits.biases == Biases::of_qkv) model.qkv_bias = true;
  }
  model.qk_norm = traits.qk_norm;
  check_heads(model, members, "num_attention_heads", "num_key_value_heads");
  // The same model as one whose file leaves it out.
  if (model.hidden % model.heads == 0 && model.head_dim == model.hidden / model.heads) model.head_dim.reset();
  if (members.positive("partial_rotary_factor", 1.0) != 1.0) {
    members.refuse("partial_rotary_factor", "is not 1, which is not supported");
  }
  HuggingFaceShape shape{.model = model, .window = parse_window(members, traits.window, model.layers)};
  if (traits.window == Window::always) shape.model.window.tokens = std::exchange(shape.window, std::nullopt);
  if (shape.window) shape.model.context = std::min(shape.model.context, *shape.window);
  return shape;
}

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      throw UserError(fmt::format("exporting weights as {} is not supported; choose F32, BF16 or F16", to_text(dtype)));
  }
}

// Without what Gemma alone has, but for windows.
bool is_plain(const ModelConfig& model) {
  return !model.post_norm && !model.norm_zero_centered && !model.scale_embeddings && !model.attention_softcap &&
         !model.logit_softcap && model.query_scalar() == static_cast<double>(model.head_size());
}

bool gpt2_expresses(const ModelConfig& model, const LlamaTraits& /*traits*/) {
  return model.norm == NormKind::layernorm && model.position == PositionKind::learned && model.bias &&
         model.has_qkv_bias() && !model.qk_norm && model.kv_heads == model.heads && !has_gate(model.activation) &&
         model.hidden == model.heads * model.head_size() && is_plain(model) && !model.window.tokens;
}

nlohmann::ordered_json gpt2_json(const ModelConfig& model, const LlamaTraits& /*traits*/) {
  return {{"vocab_size", model.vocab.value()},
          {"n_positions", model.context},
          {"n_embd", model.hidden},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", model.ffn_hidden},
          {"activation_function", model.activation == ActivationKind::gelu ? "gelu" : "gelu_new"},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"attn_pdrop", model.attention_dropout.value_or(model.dropout)},
          {"embd_pdrop", model.embedding_dropout.value_or(model.dropout)},
          {"resid_pdrop", model.residual_dropout.value_or(model.dropout)}};
}

bool is_of_llama_kind(const ModelConfig& model) {
  return model.norm == NormKind::rmsnorm && model.position == PositionKind::rope &&
         model.activation == ActivationKind::swiglu;
}

bool llama_expresses(const ModelConfig& model, const LlamaTraits& traits) {
  const bool has_biases = traits.biases == Biases::by_flags
                              ? model.has_qkv_bias() == model.bias
                              : !model.bias && model.has_qkv_bias() == (traits.biases == Biases::of_qkv);
  const WindowConfig& window = model.window;
  const bool has_window =
      !window.tokens || (traits.window == Window::always && window.global_every == 0 &&
                         (!window.rope_theta || (*window.rope_theta == model.rope_theta &&
                                                 model.rope_scaling.type == RopeScalingKind::none)));
  return is_of_llama_kind(model) && is_plain(model) && has_window && has_biases && model.qk_norm == traits.qk_norm &&
         !(traits.heads_divide_hidden && model.hidden % model.heads != 0);
}

}  // namespace

nlohmann::ordered_json rope_json(const RopeScalingConfig& scaling) {
  switch (scaling.type) {
    case RopeScalingKind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScalingKind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_frequency_factor},
              {"high_freq_factor", scaling.high_frequency_factor},
              {"original_max_position_embeddings", scaling.original_context}};
    case RopeScalingKind::none:
      break;
  }
  return nullptr;
}

nlohmann::ordered_json decoder_json(const ModelConfig& model, std::string_view activation, std::string_view function) {
  return {{"vocab_size", model.vocab.value()},
          {"max_position_embeddings", model.context},
          {"hidden_size", model.hidden},
          {"intermediate_size", model.ffn_hidden},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.head_size()},
          {activation, function},
          {"rms_norm_eps", model.norm_epsilon},
          {"rope_theta", model.rope_theta},
          {"rope_scaling", rope_json(model.rope_scaling)}};
}

namespace {

nlohmann::ordered_json llama_json(const ModelConfig& model, const LlamaTraits& traits) {
  nlohmann::ordered_json value = decoder_json(model, "hidden_act", "silu");
  // The library's Qwen2 has no such member: its biases are fixed.
  if (traits.biases != Biases::of_qkv) value["attention_bias"] = model.bias;
  if (traits.biases == Biases::by_flags) value["mlp_bias"] = model.bias;
  if (const double dropout = model.attention_dropout.value_or(model.dropout); dropout > 0)
    value["attention_dropout"] = dropout;
  if (traits.window != Window::never) value["sliding_window"] = nullptr;
  if (model.window.tokens) value["sliding_window"] = *model.window.tokens;
  if (traits.window == Window::by_flag) value["use_sliding_window"] = false;
  return value;
}

// An export is of the first that has all of the model: Mistral's without windows are Llamas, and so come out as those.
constexpr Family families[] = {
    {.type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .parse = parse_gpt2,
     .expresses = gpt2_expresses,
     .write = gpt2_json},
    {.type = "llama",
     .architecture = "LlamaForCausalLM",
     .parse = parse_llama,
     .expresses = llama_expresses,
     .write = llama_json,
     .traits = {.heads_divide_hidden = true}},
    {.type = "mistral",
     .architecture = "MistralForCausalLM",
     .parse = parse_llama,
     .expresses = llama_expresses,
     .write = llama_json,
     .traits = {.biases = Biases::none, .window = Window::always, .kv_heads = 8, .context = 131072}},
    {.type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .parse = parse_llama,
     .expresses = llama_expresses,
     .write = llama_json,
     .traits = {.biases = Biases::of_qkv, .window = Window::by_flag, .kv_heads = 32, .context = 32768}},
    {.type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .parse = parse_llama,
     .expresses = llama_expresses,
     .write = llama_json,
     .traits = {.biases = Biases::none,
                .window = Window::by_flag,
                .qk_norm = true,
                .kv_heads = 32,
                .head_dim = 128,
                .context = 32768}},
    {.type = "gemma",
     .architecture = "GemmaForCausalLM",
     .parse = parse_gemma,
     .expresses = gemma_expresses,
     .write = gemma_json,
     .traits = {.kv_heads = 16,
                .head_dim = 256,
                .context = 8192,
                .gemma = {.post_norm = false, .is_query_scalar_own = false}}},
    {.type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .parse = parse_gemma,
     .expresses = gemma_expresses,
     .write = gemma_json,
     .traits = {.window = Window::always,
                .kv_heads = 4,
                .head_dim = 256,
                .context = 8192,
                .gemma = {.caps_attention = true,
                          .attention_softcap = 50.0,
                          .caps_logits = true,
                          .logit_softcap = 30.0,
                          .global_every = 2},
                .heads_divide_hidden = true}},
    {.type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .parse = parse_gemma,
     .expresses = gemma_expresses,
     .write = gemma_json,
     .traits = {.window = Window::always,
                .qk_norm = true,
                .kv_heads = 4,
                .head_dim = 256,
                .context = 131072,
                .gemma = {.caps_logits = true, .global_every = 6, .has_local_rope = true},
                .heads_divide_hidden = true}},
};

[[noreturn]] void refuse_export(const ModelConfig& model) {
  if (model.norm == NormKind::layernorm && model.position == PositionKind::learned)
    throw UserError(
        "a GPT-2 of Hugging Face has biases, as many key/value heads as heads, heads of hidden / heads without norms "
        "of their own, no windows, and gelu or gelu_tanh: this model cannot be exported as one");
  if (model.activation == ActivationKind::geglu || !is_plain(model))
    throw UserError(
        "Hugging Face has Gemma (rmsnorm, rope, geglu, norm_zero_centered and scale_embeddings, no biases), Gemma 2 "
        "(and "
        "post_norm, windows, attention_softcap, logit_softcap) and Gemma 3 (as Gemma 2 with qk_norm and no "
        "attention_softcap; rotations of layers with a window are not scaled): this model is none of them and cannot "
        "be "
        "exported");
  if (model.window.tokens && is_of_llama_kind(model))
    throw UserError(
        "Hugging Face has windows in all layers of Mistral (no biases, no qk_norm), and in some or all of Gemma 2 and "
        "3: this model is none of them and cannot be exported");
  if (!is_of_llama_kind(model))
    throw UserError(
        "Hugging Face has GPT-2 (layernorm, learned positions) and Llama (rmsnorm, rope, swiglu): this model is a "
        "mixture of both and cannot be exported");
  throw UserError(fmt::format(
      "Hugging Face has Llama (biases everywhere or nowhere), Qwen2 (on query, key and value) and Qwen3 (nowhere, with "
      "qk_norm): this model, with bias {}, qkv_bias {} and qk_norm {}{}, is none of them and cannot be exported",
      model.bias, model.has_qkv_bias(), model.qk_norm,
      model.hidden % model.heads == 0 ? "" : ", and a hidden size that is no multiple of its heads"));
}

}  // namespace

HuggingFaceShape parse_hugging_face_config(const json& value, const std::string& where) {
  const std::string type = json_string(value, "model_type", where);
  const Members members(value, where);
  members.require_absent("quantization_config");
  std::string supported;
  for (const Family& family : families) {
    if (family.type == type) return family.parse(members, where, family.traits);
    supported += (supported.empty() ? "" : ", ") + std::string(family.type);
  }
  members.refuse("model_type", fmt::format("is {}; supported are {}", quoted(std::string_view(type)), supported));
}

std::string hugging_face_config_text(const ModelConfig& model, DType dtype, const SpecialTokens& tokens) {
  SCALETRAIN_CHECK(model.vocab.has_value());
  const auto* const family = std::find_if(std::begin(families), std::end(families), [&](const Family& candidate) {
    return candidate.expresses(model, candidate.traits);
  });
  if (family == std::end(families)) refuse_export(model);
  nlohmann::ordered_json value = {{"architectures", {family->architecture}}, {"model_type", family->type}};
  value.update(family->write(model, family->traits));
  value["tie_word_embeddings"] = model.tie_embeddings;
  const auto id = [](const std::optional<std::int64_t>& token) {
    return token ? nlohmann::ordered_json(*token) : nlohmann::ordered_json(nullptr);
  };
  value["bos_token_id"] = id(tokens.begin);
  value["eos_token_id"] = ids_json(tokens.end);
  value["pad_token_id"] = id(tokens.pad);
  value["torch_dtype"] = torch_name(dtype);
  return value.dump(2) + "\n";
}

}  // namespace scaletrain
