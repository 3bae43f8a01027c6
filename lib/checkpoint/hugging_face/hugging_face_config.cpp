#include "checkpoint/hugging_face/hugging_face_config.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace scaletrain {

namespace {

using nlohmann::json;

constexpr std::int64_t largest_size = std::numeric_limits<std::int32_t>::max();
// Far beyond any model; a matrix of four times this by this, and one of largest_size by this, have less than 2^63
// bytes.
constexpr std::int64_t largest_hidden = 1 << 28;

// Members by name, with the library's own defaults for those that a file may leave out or set to null.
class Members {
 public:
  Members(const json& value, const std::string& where) : value_(value), where_(where) {}

  bool has(std::string_view key) const {
    const auto found = value_.find(key);
    return found != value_.end() && !found->is_null();
  }
  std::int64_t size(std::string_view key, std::optional<std::int64_t> fallback = std::nullopt) const {
    if (fallback && !has(key)) return *fallback;
    const std::int64_t value = json_integer(value_, key, where_);
    if (value < 1 || value > largest_size) {
      refuse(key, fmt::format("is {}, expected 1 to {}", value, largest_size));
    }
    return value;
  }
  double positive(std::string_view key, double fallback) const {
    const double value = has(key) ? json_number(value_, key, where_) : fallback;
    if (!(value > 0) || !std::isfinite(value)) refuse(key, fmt::format("is {}, expected a number above 0", value));
    return value;
  }
  bool flag(std::string_view key, bool fallback) const { return has(key) ? json_bool(value_, key, where_) : fallback; }
  std::string text(std::string_view key, const std::string& fallback) const {
    return has(key) ? json_string(value_, key, where_) : fallback;
  }
  // What this program does not compute otherwise.
  void require_flag(std::string_view key, bool needed) const {
    if (flag(key, needed) != needed) refuse(key, fmt::format("is {}, which is not supported", !needed));
  }
  void require_absent(std::string_view key) const {
    if (has(key)) refuse(key, "is set, which is not supported");
  }
  const json& member(std::string_view key) const { return value_.at(std::string(key)); }
  [[noreturn]] void refuse(std::string_view key, const std::string& what) const {
    throw InputError(fmt::format("{}: {} {}", where_, quoted(key), what));
  }

 private:
  const json& value_;
  const std::string& where_;
};

void check_heads(const ModelConfig& model, const Members& members, std::string_view heads, std::string_view kv_heads) {
  if (model.hidden > largest_hidden) {
    members.refuse(heads,
                   fmt::format("divides a hidden size of {}, at most {} is accepted", model.hidden, largest_hidden));
  }
  if (model.hidden % model.heads != 0) {
    members.refuse(heads, fmt::format("is {}, which does not divide the hidden size {}", model.heads, model.hidden));
  }
  if (model.heads % model.kv_heads != 0) {
    members.refuse(kv_heads, fmt::format("is {}, which does not divide the {} heads", model.kv_heads, model.heads));
  }
  if (model.position == PositionKind::rope && model.hidden / model.heads % 2 != 0) {
    members.refuse(heads, "gives an odd head size, which rotary positions cannot have");
  }
}

ModelConfig parse_gpt2(const Members& members) {
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
  return model;
}

// The base of the rotary angles: a member of its own, or of "rope_parameters" in newer files.
double rope_theta(const Members& members, const std::string& where) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    if (!members.has(key)) continue;
    const json& value = members.member(key);
    if (!value.is_object()) members.refuse(key, "is not an object");
    const std::string place = fmt::format("{}: {}", where, quoted(key));
    const Members rope(value, place);
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    if (type != "default") {
      members.refuse(key, fmt::format("asks for {}, which is not supported", quoted(std::string_view(type))));
    }
    if (rope.positive("partial_rotary_factor", 1.0) != 1.0) {
      rope.refuse("partial_rotary_factor", "is not 1, which is not supported");
    }
    if (rope.has("rope_theta")) return rope.positive("rope_theta", 10000.0);
  }
  return members.positive("rope_theta", 10000.0);
}

ModelConfig parse_llama(const Members& members, const std::string& where) {
  ModelConfig model;
  model.layers = members.size("num_hidden_layers");
  model.hidden = members.size("hidden_size");
  model.heads = members.size("num_attention_heads");
  model.kv_heads = members.size("num_key_value_heads", model.heads);
  model.ffn_hidden = members.size("intermediate_size");
  model.context = members.size("max_position_embeddings", 2048);
  model.vocab = members.size("vocab_size");
  model.norm = NormKind::rmsnorm;
  model.norm_epsilon = members.positive("rms_norm_eps", 1e-6);
  model.position = PositionKind::rope;
  model.rope_theta = rope_theta(members, where);
  model.tie_embeddings = members.flag("tie_word_embeddings", false);
  model.activation = ActivationKind::swiglu;
  const std::string activation = members.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    members.refuse("hidden_act", fmt::format("is {}; supported is silu", quoted(std::string_view(activation))));
  }
  model.bias = members.flag("attention_bias", false);
  if (members.flag("mlp_bias", false) != model.bias) {
    members.refuse("mlp_bias", "differs from \"attention_bias\", which is not supported");
  }
  check_heads(model, members, "num_attention_heads", "num_key_value_heads");
  const std::int64_t head_size = model.hidden / model.heads;
  if (members.size("head_dim", head_size) != head_size) {
    members.refuse("head_dim",
                   fmt::format("is not hidden_size / num_attention_heads = {}, which is not supported", head_size));
  }
  if (members.positive("partial_rotary_factor", 1.0) != 1.0) {
    members.refuse("partial_rotary_factor", "is not 1, which is not supported");
  }
  members.require_absent("sliding_window");
  return model;
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

nlohmann::ordered_json gpt2_json(const ModelConfig& model) {
  if (!model.bias || model.kv_heads != model.heads || model.activation == ActivationKind::swiglu) {
    throw UserError(
        "a GPT-2 of Hugging Face has biases, as many key/value heads as heads, and gelu or gelu_tanh: this model "
        "cannot be exported as one");
  }
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", model.vocab.value()},
          {"n_positions", model.context},
          {"n_embd", model.hidden},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", model.ffn_hidden},
          {"activation_function", model.activation == ActivationKind::gelu ? "gelu" : "gelu_new"},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"attn_pdrop", model.dropout},
          {"embd_pdrop", model.dropout},
          {"resid_pdrop", model.dropout}};
}

nlohmann::ordered_json llama_json(const ModelConfig& model) {
  if (model.norm != NormKind::rmsnorm || model.position != PositionKind::rope ||
      model.activation != ActivationKind::swiglu) {
    throw UserError(
        "Hugging Face has GPT-2 (layernorm, learned positions) and Llama (rmsnorm, rope, swiglu): this model is a "
        "mixture of both and cannot be exported");
  }
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", model.vocab.value()},
          {"max_position_embeddings", model.context},
          {"hidden_size", model.hidden},
          {"intermediate_size", model.ffn_hidden},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.hidden / model.heads},
          {"hidden_act", "silu"},
          {"rms_norm_eps", model.norm_epsilon},
          {"rope_theta", model.rope_theta},
          {"rope_scaling", nullptr},
          {"attention_bias", model.bias},
          {"mlp_bias", model.bias}};
}

}  // namespace

ModelConfig parse_hugging_face_config(const json& value, const std::string& where) {
  const std::string type = json_string(value, "model_type", where);
  const Members members(value, where);
  members.require_absent("quantization_config");
  if (type == "gpt2") return parse_gpt2(members);
  if (type == "llama") return parse_llama(members, where);
  members.refuse("model_type", fmt::format("is {}; supported are gpt2 and llama", quoted(std::string_view(type))));
}

std::string hugging_face_config_text(const ModelConfig& model, DType dtype) {
  SCALETRAIN_CHECK(model.vocab.has_value());
  const bool is_gpt2 = model.norm == NormKind::layernorm && model.position == PositionKind::learned;
  nlohmann::ordered_json value = is_gpt2 ? gpt2_json(model) : llama_json(model);
  value["tie_word_embeddings"] = model.tie_embeddings;
  value["torch_dtype"] = torch_name(dtype);
  return value.dump(2) + "\n";
}

}  // namespace scaletrain
