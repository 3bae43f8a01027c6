// Gemma, Gemma 2 and the text models of Gemma 3 (Riviere et al. 2024; Kamath et al. 2025): config.json to keys and
// back.
#include <algorithm>

#include "checkpoint/hugging_face/hugging_face_families.h"

namespace scaletrain {

namespace {

using nlohmann::json;

constexpr double local_theta = 10000.0;  // the library's own
constexpr double global_theta = 1000000.0;
constexpr std::int64_t own_window = 4096;

// A member that the library has a value of its own for where a file leaves it out, and that is none where it is null.
std::optional<double> softcap(const Members& members, std::string_view key, bool is_known, std::optional<double> own) {
  if (!is_known) {
    members.require_absent(key);
    return std::nullopt;
  }
  if (members.has(key)) return members.required_positive(key);
  return members.is_null(key) ? std::nullopt : own;
}

// Every how many layers one sees all: 0 for none, 1 for all.
std::int64_t global_every(const Members& members, std::int64_t layers, std::int64_t own) {
  if (!members.has("layer_types")) {
    const std::int64_t older = members.count("_sliding_window_pattern", own);
    const std::int64_t every = members.count("sliding_window_pattern", older);
    return every > layers ? 0 : every;
  }
  const json& types = members.member("layer_types");
  if (!types.is_array() || static_cast<std::int64_t>(types.size()) != layers)
    members.refuse("layer_types", fmt::format("is not a list of {} layers", layers));
  std::int64_t every = 0;
  std::int64_t layer = 0;
  for (const json& type : types) {
    ++layer;
    if (type != "full_attention" && type != "sliding_attention")
      members.refuse("layer_types",
                     fmt::format("has {}; full_attention and sliding_attention are supported", type.dump()));
    const bool sees_all = type == "full_attention";
    if (sees_all && every == 0) every = layer;
    if (sees_all != (every != 0 && layer % every == 0))
      members.refuse("layer_types",
                     fmt::format("is not the same in every so many layers: layer {} is {}; only the last of each may "
                                 "be full_attention",
                                 layer - 1, type.dump()));
  }
  return every;
}

void parse_window(ModelConfig& model, const Members& members, const GemmaTraits& traits) {
  const std::int64_t every = global_every(members, model.layers, traits.global_every);
  if (members.is_null("sliding_window") || every == 1) return;
  model.window.tokens = members.size("sliding_window", own_window);
  model.window.global_every = every;
}

// Gemma 3's layers without a window and with one have rotations of their own.
void parse_ropes(ModelConfig& model, const Members& members, const std::string& where) {
  double local = members.positive("rope_local_base_freq", local_theta);
  model.rope_theta = members.positive("rope_theta", global_theta);
  if (members.has("rope_scaling") && members.has("rope_parameters"))
    members.refuse("rope_scaling", "and \"rope_parameters\" are both set; leave one of them out");
  if (members.has("rope_scaling"))
    model.rope_scaling =
        parse_rope_object(members, "rope_scaling", members.member("rope_scaling"), where, model.context).scaling;
  if (members.has("rope_parameters")) {
    const json& both = members.member("rope_parameters");
    if (!both.is_object()) members.refuse("rope_parameters", "is not an object");
    const std::string place = where + ": \"rope_parameters\"";
    const Members kinds(both, place);
    for (const auto& [name, value] : both.items())
      if (name != "full_attention" && name != "sliding_attention")
        members.refuse("rope_parameters",
                       fmt::format("has {}; full_attention and sliding_attention are expected, each with one",
                                   quoted(std::string_view(name))));
    if (kinds.has("full_attention")) {
      const RopeMembers all =
          parse_rope_object(kinds, "full_attention", kinds.member("full_attention"), place, model.context);
      model.rope_scaling = all.scaling;
      model.rope_theta = all.theta.value_or(model.rope_theta);
    }
    if (kinds.has("sliding_attention")) {
      const RopeMembers near =
          parse_rope_object(kinds, "sliding_attention", kinds.member("sliding_attention"), place, model.context);
      if (near.scaling.type != RopeScalingKind::none)
        kinds.refuse("sliding_attention", "is scaled, which is not supported");
      local = near.theta.value_or(local);
    }
  }
  if (model.window.tokens) model.window.rope_theta = local;
}

void require_activation(const Members& members, std::string_view key, std::initializer_list<std::string_view> known) {
  const std::string activation = members.text(key, "gelu_pytorch_tanh");
  if (std::find(known.begin(), known.end(), activation) == known.end())
    members.refuse(key, fmt::format("is {}; supported is gelu_pytorch_tanh", quoted(std::string_view(activation))));
}

bool is_whole(double value) {
  return value == std::floor(value) && value < 1e9;
}

}  // namespace

HuggingFaceShape parse_gemma(const Members& members, const std::string& where, const LlamaTraits& traits) {
  const GemmaTraits& gemma = traits.gemma;
  ModelConfig model;
  model.layers = members.size("num_hidden_layers");
  model.hidden = members.size("hidden_size");
  model.heads = members.size("num_attention_heads");
  model.kv_heads = members.size("num_key_value_heads", traits.kv_heads);
  model.head_dim = members.size("head_dim", traits.head_dim);
  model.ffn_hidden = members.size("intermediate_size");
  model.context = members.size("max_position_embeddings", traits.context);
  model.vocab = members.size("vocab_size");
  model.norm = NormKind::rmsnorm;
  model.norm_epsilon = members.positive("rms_norm_eps", 1e-6);
  model.norm_zero_centered = true;
  model.scale_embeddings = true;
  model.position = PositionKind::rope;
  model.activation = ActivationKind::geglu;
  // The first Gemma's files say gelu, and mean the other: the library takes it so.
  if (gemma.post_norm)
    require_activation(members, "hidden_activation", {"gelu_pytorch_tanh"});
  else
    for (const std::string_view key : {"hidden_act", "hidden_activation"})
      require_activation(members, key, {"gelu_pytorch_tanh", "gelu"});
  model.tie_embeddings = members.flag("tie_word_embeddings", true);
  members.require_flag("attention_bias", false);
  members.require_flag("use_bidirectional_attention", false);
  model.bias = false;
  model.qk_norm = traits.qk_norm;
  model.post_norm = gemma.post_norm;
  check_heads(model, members, "num_attention_heads", "num_key_value_heads");
  if (model.hidden % model.heads == 0 && model.head_dim == model.hidden / model.heads) model.head_dim.reset();
  if (gemma.is_query_scalar_own) {
    const double scalar = members.positive("query_pre_attn_scalar", 256.0);
    if (scalar != static_cast<double>(model.head_size())) model.query_pre_attn_scalar = scalar;
  }
  model.attention_softcap = softcap(members, "attn_logit_softcapping", gemma.caps_attention, gemma.attention_softcap);
  model.logit_softcap = softcap(members, "final_logit_softcapping", gemma.caps_logits, gemma.logit_softcap);
  if (traits.window == Window::always) parse_window(model, members, gemma);
  if (gemma.has_local_rope)
    parse_ropes(model, members, where);
  else
    parse_rope(model, members, where);
  return {.model = model, .window = std::nullopt};
}

bool gemma_expresses(const ModelConfig& model, const LlamaTraits& traits) {
  const GemmaTraits& gemma = traits.gemma;
  const bool has_scalar = gemma.is_query_scalar_own ? is_whole(model.query_scalar())
                                                    : model.query_scalar() == static_cast<double>(model.head_size());
  // Layers with a window rotate as the others, or unscaled.
  const bool rotates_alike =
      !model.window.tokens || !model.window.rope_theta ||
      (*model.window.rope_theta == model.rope_theta && model.rope_scaling.type == RopeScalingKind::none);
  const bool rotates = gemma.has_local_rope ? !model.window.tokens || model.window.rope_theta.has_value() ||
                                                  model.rope_scaling.type == RopeScalingKind::none
                                            : rotates_alike;
  return model.norm == NormKind::rmsnorm && model.norm_zero_centered && model.scale_embeddings &&
         model.position == PositionKind::rope && model.activation == ActivationKind::geglu && !model.bias &&
         !model.has_qkv_bias() && model.qk_norm == traits.qk_norm && model.post_norm == gemma.post_norm && has_scalar &&
         (gemma.caps_attention || !model.attention_softcap) && (gemma.caps_logits || !model.logit_softcap) &&
         (traits.window == Window::always || !model.window.tokens) && rotates &&
         !(traits.heads_divide_hidden && model.hidden % model.heads != 0);
}

nlohmann::ordered_json gemma_json(const ModelConfig& model, const LlamaTraits& traits) {
  const GemmaTraits& gemma = traits.gemma;
  nlohmann::ordered_json value = decoder_json(model, "hidden_activation", "gelu_pytorch_tanh");
  value["attention_bias"] = false;
  if (!gemma.post_norm) value["hidden_act"] = "gelu_pytorch_tanh";
  if (gemma.is_query_scalar_own) value["query_pre_attn_scalar"] = static_cast<std::int64_t>(model.query_scalar());
  const auto cap = [](const std::optional<double>& number) {
    return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
  };
  if (gemma.caps_attention) value["attn_logit_softcapping"] = cap(model.attention_softcap);
  if (gemma.caps_logits) value["final_logit_softcapping"] = cap(model.logit_softcap);
  if (gemma.has_local_rope) value["rope_local_base_freq"] = model.window.rope_theta.value_or(model.rope_theta);
  if (traits.window != Window::always) return value;
  // Without windows the library wants a number all the same.
  value["sliding_window"] = model.window.tokens.value_or(own_window);
  const std::int64_t every = model.window.tokens ? model.window.global_every : 1;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (std::int64_t layer = 1; layer <= model.layers; ++layer)
    types.push_back(every > 0 && layer % every == 0 ? "full_attention" : "sliding_attention");
  value["layer_types"] = types;
  return value;
}

}  // namespace scaletrain
