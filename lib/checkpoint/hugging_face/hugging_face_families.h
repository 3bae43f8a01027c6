// What the rows of hugging_face_config.cpp's table of families share: members of config.json, what tells families
// apart, and the functions of families that have a file of their own. Internal to hugging_face.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/hugging_face/hugging_face.h"

namespace scaletrain {

inline constexpr std::int64_t largest_size = std::numeric_limits<std::int32_t>::max();
// Far beyond any model; a matrix of four times this by this, and one of largest_size by this, have less than 2^63
// bytes.
inline constexpr std::int64_t largest_hidden = 1 << 28;

// Members by name, with the library's own defaults for those that a file may leave out or set to null.
class Members {
 public:
  Members(const nlohmann::json& value, const std::string& where) : value_(value), where_(where) {}

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
  // Zero is one too.
  std::int64_t count(std::string_view key, std::int64_t fallback) const {
    const std::int64_t value = has(key) ? json_integer(value_, key, where_) : fallback;
    if (value < 0 || value > largest_size) refuse(key, fmt::format("is {}, expected 0 to {}", value, largest_size));
    return value;
  }
  bool is_null(std::string_view key) const {
    const auto found = value_.find(key);
    return found != value_.end() && found->is_null();
  }
  double required_positive(std::string_view key) const {
    if (!has(key)) refuse(key, "is missing");
    return positive(key, 0.0);
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
  const nlohmann::json& member(std::string_view key) const { return value_.at(std::string(key)); }
  [[noreturn]] void refuse(std::string_view key, const std::string& what) const {
    throw InputError(fmt::format("{}: {} {}", where_, quoted(key), what));
  }

 private:
  const nlohmann::json& value_;
  const std::string& where_;
};

// What all models are held to, whatever their family calls it.
void check_heads(const ModelConfig& model, const Members& members, std::string_view heads, std::string_view kv_heads);

// How a family's attention may be narrower than its context.
enum class Window { never, always, by_flag };
// Which of a family's linear maps have biases: all or none, by "attention_bias" and "mlp_bias"; none; those to query,
// key and value.
enum class Biases { by_flags, none, of_qkv };

// What tells families of the Gemma kind apart; all of them are rmsnorm with weights around zero, rope, geglu, and token
// embeddings that are scaled. Numbers: what the library takes for a member that a file leaves out.
struct GemmaTraits {
  bool post_norm = true;            // and windows
  bool is_query_scalar_own = true;  // "query_pre_attn_scalar"; else the head size
  bool caps_attention = false;      // by "attn_logit_softcapping"
  std::optional<double> attention_softcap = std::nullopt;
  bool caps_logits = false;  // by "final_logit_softcapping"
  std::optional<double> logit_softcap = std::nullopt;
  std::int64_t global_every = 0;  // without "layer_types"
  bool has_local_rope = false;    // of layers with a window
};

// What tells families of the Llama kind apart; all of them are rmsnorm and rope, and swiglu but for Gemma's. Sizes:
// what the library takes for a member that a file leaves out.
struct LlamaTraits {
  Biases biases = Biases::by_flags;
  Window window = Window::never;
  bool qk_norm = false;
  std::optional<std::int64_t> kv_heads = std::nullopt;  // nothing: as many as heads
  std::optional<std::int64_t> head_dim = std::nullopt;  // nothing: hidden / heads
  std::int64_t context = 2048;
  GemmaTraits gemma{};               // of those alone
  bool heads_divide_hidden = false;  // whether the library insists on it, whatever the head size
};

// A family: one row below, and its tensors' names in make_param_table().
struct Family {
  std::string_view type;          // "model_type"
  std::string_view architecture;  // the library's class
  HuggingFaceShape (*parse)(const Members& members, const std::string& where, const LlamaTraits& traits);
  bool (*expresses)(const ModelConfig& model, const LlamaTraits& traits);
  nlohmann::ordered_json (*write)(const ModelConfig& model, const LlamaTraits& traits);
  LlamaTraits traits{};
};

// One object of "rope_scaling" or "rope_parameters", which is the member `key` of `members`.
struct RopeMembers {
  RopeScalingConfig scaling;
  std::optional<double> theta;
};
RopeMembers parse_rope_object(const Members& members, std::string_view key, const nlohmann::json& value,
                              const std::string& where, std::int64_t context);
// The base of the rotary angles and their scaling: members of their own, or of "rope_parameters" in newer files.
void parse_rope(ModelConfig& model, const Members& members, const std::string& where);
nlohmann::ordered_json rope_json(const RopeScalingConfig& scaling);
// The members that families of the Llama and of the Gemma kind begin with. activation: the name of its member.
nlohmann::ordered_json decoder_json(const ModelConfig& model, std::string_view activation, std::string_view function);

// hugging_face_gemma.cpp
HuggingFaceShape parse_gemma(const Members& members, const std::string& where, const LlamaTraits& traits);
bool gemma_expresses(const ModelConfig& model, const LlamaTraits& traits);
nlohmann::ordered_json gemma_json(const ModelConfig& model, const LlamaTraits& traits);

}  // namespace scaletrain
