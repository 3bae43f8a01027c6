#include "checkpoint/gguf/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/hugging_face/hugging_face_config.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;

// Numbers that are encoded at once.
constexpr std::int64_t encoded_at_once = 1 << 18;

// A family of Hugging Face's (its model_type) and what the format calls it.
struct GgufFamily {
  std::string_view type;
  std::string_view architecture;
  // llama.cpp rotates neighbouring pairs of a head's elements there, Hugging Face elements half a head apart: the rows
  // of query and key are put in the other order.
  bool pairs_neighbours = false;
  bool scales_rope = false;  // reads rope_freqs.weight, the divisors of Llama 3's scaling
  // What it has of windows: the last of so many layers sees all. 0: it has none.
  std::int64_t global_every = 0;
  bool caps = false;                   // scores and logits are capped, always
  bool heads_are_embeddings = false;   // it reads no head of its own
  std::int64_t layers_of_largest = 0;  // the model whose scores are scaled by hidden / heads; others by the head size
};

constexpr std::array<GgufFamily, 8> gguf_families = {
    {{.type = "gpt2", .architecture = "gpt2"},
     {.type = "llama", .architecture = "llama", .pairs_neighbours = true, .scales_rope = true},
     {.type = "mistral", .architecture = "llama", .pairs_neighbours = true, .scales_rope = true},
     {.type = "qwen2", .architecture = "qwen2"},
     {.type = "qwen3", .architecture = "qwen3"},
     {.type = "gemma", .architecture = "gemma", .heads_are_embeddings = true},
     {.type = "gemma2",
      .architecture = "gemma2",
      .global_every = 2,
      .caps = true,
      .heads_are_embeddings = true,
      .layers_of_largest = 46},
     {.type = "gemma3_text", .architecture = "gemma3", .global_every = 6, .layers_of_largest = 62}}};

// What Hugging Face would call it: config.json knows every family, and what it cannot say is refused there.
json hugging_face_config_of(const ModelConfig& model) {
  return json::parse(hugging_face_config_text(model, DType::f32, {}));
}

[[noreturn]] void refuse_key(const GgufFamily& family, std::string_view key, const std::string& value,
                             std::string_view theirs) {
  throw UserError(fmt::format("--to gguf: {}: {} is not what llama.cpp computes with {}, {}; --to huggingface has it",
                              key, value, family.architecture, theirs));
}

// Whether layers with a window are others than those without: by what they see, or by how they rotate.
bool has_windows(const ModelConfig& model) {
  return model.window.tokens && (*model.window.tokens < model.context || model.window.rope_theta);
}

// Whether the same layers have windows there.
bool has_same_pattern(const ModelConfig& model, const GgufFamily& family) {
  if (family.global_every == 0) return false;
  const std::int64_t every = model.window.global_every;
  for (std::int64_t layer = 1; layer <= model.layers; ++layer)
    if ((every > 0 && layer % every == 0) != (layer % family.global_every == 0)) return false;
  return true;
}

void check_windows(const ModelConfig& model, const GgufFamily& family) {
  if (!has_windows(model) || has_same_pattern(model, family)) return;
  const WindowConfig& window = model.window;
  if (family.global_every == 0)
    refuse_key(family, "model.window.tokens", std::to_string(*window.tokens), "whose attention reaches all before");
  refuse_key(family, "model.window.global_every", std::to_string(window.global_every),
             fmt::format("which is {}", family.global_every));
}

// What Gemma's families fix there that config.json leaves open.
void check_gemma(const ModelConfig& model, const GgufFamily& family) {
  if (!model.norm_zero_centered) return;
  const bool is_largest = model.layers == family.layers_of_largest;
  const double scalar = static_cast<double>(is_largest ? model.hidden / model.heads : model.head_size());
  if (model.query_scalar() != scalar)
    refuse_key(family, "model.query_pre_attn_scalar", fmt::format("{:g}", model.query_scalar()),
               fmt::format("which is {:g}", scalar));
  const auto capped = [](const std::optional<double>& cap) { return cap ? fmt::format("{:g}", *cap) : "none"; };
  if (family.caps != model.attention_softcap.has_value())
    refuse_key(family, "model.attention_softcap", capped(model.attention_softcap),
               family.caps ? "which has one" : "which has none");
  if (family.caps && !model.logit_softcap) refuse_key(family, "model.logit_softcap", "none", "which has one");
  if (family.heads_are_embeddings && !model.tie_embeddings)
    refuse_key(family, "model.tie_embeddings", "false", "whose head is the embedding");
}

const GgufFamily& family_of(const ModelConfig& model, const json& config) {
  const std::string type = config.at("model_type");
  const auto* const family =
      std::find_if(gguf_families.begin(), gguf_families.end(), [&](const GgufFamily& one) { return one.type == type; });
  if (family == gguf_families.end())
    throw UserError(fmt::format(
        "--to gguf: the family {} is not supported; gpt2, llama, mistral, qwen2, qwen3 and gemma to gemma 3 are; --to "
        "huggingface has it",
        type));
  if (model.activation == ActivationKind::gelu)
    throw UserError(
        "--to gguf: model.activation: gelu is not what llama.cpp computes in a GPT-2, which is gelu_tanh; --to "
        "huggingface has it");
  check_windows(model, *family);
  check_gemma(model, *family);
  if (model.rope_scaling.type == RopeScalingKind::llama3 && !family->scales_rope)
    throw UserError(fmt::format(
        "--to gguf: model.rope_scaling: llama3 is not supported with {} there; --to huggingface has it", type));
  return *family;
}

// "blk.3." of blocks.3.
struct Names {
  std::string prefix;
  std::string_view rest;
};
Names split_name(std::string_view name) {
  constexpr std::string_view blocks = "blocks.";
  if (!name.starts_with(blocks)) return {"", name};
  name.remove_prefix(blocks.size());
  const std::size_t dot = name.find('.');
  return {fmt::format("blk.{}.", name.substr(0, dot)), name.substr(dot + 1)};
}

// By the part of a parameter's name before ".weight" or ".bias". GPT-2 has query, key and value as one.
constexpr std::pair<std::string_view, std::string_view> tensor_names[] = {
    {"embedding.token", "token_embd"},
    {"embedding.position", "position_embd"},
    {"attention_norm", "attn_norm"},
    {"attention.query", "attn_q"},
    {"attention.key", "attn_k"},
    {"attention.value", "attn_v"},
    {"attention.query_norm", "attn_q_norm"},
    {"attention.key_norm", "attn_k_norm"},
    {"attention.output", "attn_output"},
    {"attention_post_norm", "post_attention_norm"},
    {"ffn_norm", "ffn_norm"},
    {"ffn.gate", "ffn_gate"},
    {"ffn.up", "ffn_up"},
    {"ffn.down", "ffn_down"},
    {"ffn_post_norm", "post_ffw_norm"},
    {"head.norm", "output_norm"},
    {"head", "output"},
};

std::string gguf_name(const Parameter& parameter, const GgufFamily& family) {
  const Names names = split_name(parameter.name);
  const std::size_t dot = names.rest.rfind('.');
  const std::string_view part = names.rest.substr(0, dot);
  if (family.type == "gpt2" && (part == "attention.query" || part == "attention.key" || part == "attention.value"))
    return names.prefix + "attn_qkv" + std::string(names.rest.substr(dot));
  const auto* const found = std::find_if(std::begin(tensor_names), std::end(tensor_names),
                                         [&](const auto& entry) { return entry.first == part; });
  if (found == std::end(tensor_names))
    throw UserError(
        fmt::format("--to gguf: the parameter {} is not supported; --to huggingface has it", quoted(parameter.name)));
  return names.prefix + std::string(found->second) + std::string(names.rest.substr(dot));
}

// A tensor of the file and the parameters that make it, one after the other.
struct Planned {
  GgufTensor tensor;
  std::vector<const Parameter*> parts;
};

std::vector<Planned> plan_tensors(const ParamTable& table, const GgufFamily& family, GgufType type) {
  std::vector<Planned> planned;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.tied_to) continue;
    const std::string name = gguf_name(parameter, family);
    if (planned.empty() || planned.back().tensor.name != name) {
      planned.push_back({.tensor = {.name = name, .type = gguf_type_of(parameter, type), .shape = parameter.shape},
                         .parts = {&parameter}});
      continue;
    }
    GgufTensor& tensor = planned.back().tensor;
    const std::int64_t outputs = tensor.shape[0] + parameter.shape[0];
    tensor.shape = tensor.shape.num_dims() == 1 ? Shape{outputs} : Shape{outputs, tensor.shape[1]};
    planned.back().parts.push_back(&parameter);
  }
  return planned;
}

// What the angles of each pair are divided by: Llama 3's scaling, as nn/rope has it.
std::vector<float> rope_divisors(const ModelConfig& model) {
  const RopeScalingConfig& scaling = model.rope_scaling;
  const auto context = static_cast<double>(scaling.original_context);
  const std::int64_t size = model.head_size();
  std::vector<float> divisors;
  for (std::int64_t i = 0; i < size / 2; ++i) {
    const double frequency = std::pow(model.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(size));
    const double turns = context * frequency / (2.0 * std::numbers::pi);  // within the original context
    double divisor = 1.0;
    if (turns < scaling.low_frequency_factor) {
      divisor = scaling.factor;
    } else if (turns <= scaling.high_frequency_factor) {
      const double smooth =
          (turns - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor);
      divisor = 1.0 / ((1.0 - smooth) / scaling.factor + smooth);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

// "general.file_type", by llama.cpp's numbers: what most of the weights are.
std::uint32_t number_of_type(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return 0;
    case GgufType::f16:
      return 1;
    case GgufType::q4_0:
      return 2;
    case GgufType::q8_0:
      return 7;
    case GgufType::bf16:
      return 32;
  }
  SCALETRAIN_CHECK(false);
  return 0;
}

std::string_view word_of(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return "fp32";
    case GgufType::f16:
      return "fp16";
    case GgufType::q4_0:
      return "int4";
    case GgufType::q8_0:
      return "int8";
    case GgufType::bf16:
      return "bf16";
  }
  return "";
}

// Beyond its length a window of a model changes nothing; a family that has windows is told of one all the same where
// leaving it out would mean the family's own.
void add_windows_and_caps(GgufMetadata& metadata, const ModelConfig& model, const GgufFamily& family) {
  const std::string arch(family.architecture);
  if (has_windows(model) || (family.global_every > 0 && family.caps))
    metadata.add(arch + ".attention.sliding_window",
                 static_cast<std::uint32_t>(std::min(model.window.tokens.value_or(model.context), model.context)));
  if (has_windows(model) && model.window.rope_theta)
    metadata.add(arch + ".rope.freq_base_swa", static_cast<float>(*model.window.rope_theta));
  if (model.attention_softcap)
    metadata.add(arch + ".attn_logit_softcapping", static_cast<float>(*model.attention_softcap));
  if (model.logit_softcap) metadata.add(arch + ".final_logit_softcapping", static_cast<float>(*model.logit_softcap));
}

void add_shape(GgufMetadata& metadata, const ModelConfig& model, const std::string& arch) {
  const auto count = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
  metadata.add(arch + ".vocab_size", count(model.vocab.value()));
  metadata.add(arch + ".context_length", count(model.context));
  metadata.add(arch + ".embedding_length", count(model.hidden));
  metadata.add(arch + ".block_count", count(model.layers));
  metadata.add(arch + ".feed_forward_length", count(model.ffn_hidden));
  metadata.add(arch + ".attention.head_count", count(model.heads));
  const auto epsilon = static_cast<float>(model.norm_epsilon);
  if (model.norm == NormKind::layernorm) return metadata.add(arch + ".attention.layer_norm_epsilon", epsilon);
  metadata.add(arch + ".attention.layer_norm_rms_epsilon", epsilon);
  metadata.add(arch + ".attention.head_count_kv", count(model.kv_heads));
  metadata.add(arch + ".attention.key_length", count(model.head_size()));
  metadata.add(arch + ".attention.value_length", count(model.head_size()));
  metadata.add(arch + ".rope.dimension_count", count(model.head_size()));
  metadata.add(arch + ".rope.freq_base", static_cast<float>(model.rope_theta));
  if (model.rope_scaling.type == RopeScalingKind::linear) {
    metadata.add(arch + ".rope.scaling.type", "linear");
    metadata.add(arch + ".rope.scaling.factor", static_cast<float>(model.rope_scaling.factor));
  }
}

// Of ids that the model has and the tokenizer does not.
void add_tokens(GgufMetadata& metadata, const GgufVocabulary& vocabulary, std::int64_t model_vocab) {
  std::vector<std::string> tokens = vocabulary.tokens;
  std::vector<std::int32_t> kinds;
  for (const GgufVocabulary::Kind kind : vocabulary.kinds) kinds.push_back(static_cast<std::int32_t>(kind));
  while (std::ssize(tokens) < model_vocab) {
    tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
    kinds.push_back(static_cast<std::int32_t>(GgufVocabulary::Kind::unused));
  }
  metadata.add("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
  metadata.add("tokenizer.ggml.token_type", std::span<const std::int32_t>(kinds));
  if (vocabulary.scores.empty()) return;
  std::vector<float> scores = vocabulary.scores;
  scores.resize(tokens.size(), -1e9F);  // never chosen
  metadata.add("tokenizer.ggml.scores", std::span<const float>(scores));
}

void add_vocabulary(GgufMetadata& metadata, const GgufVocabulary& vocabulary, std::int64_t model_vocab) {
  if (vocabulary.model.empty()) return metadata.add("tokenizer.ggml.model", "no_vocab");
  metadata.add("tokenizer.ggml.model", vocabulary.model);
  if (vocabulary.model == "gpt2") metadata.add("tokenizer.ggml.pre", vocabulary.pre);
  add_tokens(metadata, vocabulary, model_vocab);
  if (vocabulary.model == "gpt2")
    metadata.add("tokenizer.ggml.merges", std::span<const std::string>(vocabulary.merges));
  const auto id = [&](std::string_view key, std::optional<std::int64_t> token) {
    if (token) metadata.add(key, static_cast<std::uint32_t>(*token));
  };
  const SpecialTokens& special = vocabulary.special;
  const auto end = special.end.empty() ? std::nullopt : std::optional(special.end.front());
  // Where a file names none, llama.cpp takes the id 11: the end stands in for a beginning that is not used.
  id("tokenizer.ggml.bos_token_id", special.begin ? special.begin : end);
  id("tokenizer.ggml.eos_token_id", end);
  id("tokenizer.ggml.padding_token_id", special.pad);
  metadata.add_flag("tokenizer.ggml.add_bos_token", vocabulary.begins_document);
  metadata.add_flag("tokenizer.ggml.add_eos_token", false);
  if (vocabulary.adds_space_prefix) metadata.add_flag("tokenizer.ggml.add_space_prefix", *vocabulary.adds_space_prefix);
  if (!vocabulary.chat_template.empty()) metadata.add("tokenizer.chat_template", vocabulary.chat_template);
}

// Rows of each head's first half and second half in turn.
void interleave_rows(std::span<float> values, std::int64_t heads, std::int64_t head_size, std::vector<float>& scratch) {
  const auto width = static_cast<std::size_t>(std::ssize(values) / (heads * head_size));
  const auto size = static_cast<std::size_t>(head_size);
  scratch.resize(size * width);
  for (std::size_t head = 0; head < static_cast<std::size_t>(heads); ++head) {
    float* const rows = values.data() + head * size * width;
    for (std::size_t row = 0; row < size; ++row)
      std::copy_n(rows + (row % 2 * (size / 2) + row / 2) * width, width, scratch.data() + row * width);
    std::copy(scratch.begin(), scratch.end(), rows);
  }
}

class GgufExporter {
 public:
  GgufExporter(const ParamTable& table, const TensorReader& read, const GgufExport& request)
      : read_(read),
        request_(request),
        family_(family_of(request.model, hugging_face_config_of(request.model))),
        planned_(plan_tensors(table, family_, request.type)) {}

  void run() {
    std::vector<GgufTensor> tensors;
    std::int64_t largest = 0;
    const bool has_divisors = request_.model.rope_scaling.type == RopeScalingKind::llama3;
    if (has_divisors)
      tensors.push_back(
          {.name = "rope_freqs.weight", .type = GgufType::f32, .shape = {request_.model.head_size() / 2}});
    for (const Planned& planned : planned_) {
      tensors.push_back(planned.tensor);
      largest = std::max(largest, planned.tensor.shape.num_elements());
    }
    GgufWriter writer(request_.file, metadata(), tensors);
    if (has_divisors) {
      const std::vector<float> divisors = rope_divisors(request_.model);
      writer.write(std::as_bytes(std::span(divisors)));
    }
    values_.reserve(static_cast<std::size_t>(largest));  // growing would hold two tensors
    for (const Planned& planned : planned_) write(writer, planned);
    writer.finish();
  }

 private:
  GgufMetadata metadata() const {
    const ModelConfig& model = request_.model;
    const std::string arch(family_.architecture);
    GgufMetadata metadata;
    metadata.add("general.architecture", arch);
    metadata.add("general.file_type", number_of_type(request_.type));
    metadata.add("general.quantization_version", std::uint32_t{2});
    add_shape(metadata, model, arch);
    add_windows_and_caps(metadata, model, family_);
    add_vocabulary(metadata, request_.vocabulary, model.vocab.value());
    return metadata;
  }

  void write(GgufWriter& writer, const Planned& planned) {
    values_.resize(static_cast<std::size_t>(planned.tensor.shape.num_elements()));
    float* out = values_.data();
    for (const Parameter* part : planned.parts) {
      const std::span<float> values(out, static_cast<std::size_t>(part->shape.num_elements()));
      read_(*part, View(out, DType::f32, part->shape));
      if (family_.pairs_neighbours) put_in_order(*part, values);
      // Ours are kept as their distance from one, theirs as they are.
      if (request_.model.norm_zero_centered && is_norm(*part))
        for (float& value : values) value += 1.0F;
      out += values.size();
    }
    const Shape& shape = planned.tensor.shape;
    const std::int64_t row = shape[shape.num_dims() - 1];
    const std::int64_t most = std::max<std::int64_t>(encoded_at_once / row, 1) * row;
    for (std::int64_t done = 0; done < shape.num_elements(); done += most) {
      const auto values = std::span<const float>(values_).subspan(
          static_cast<std::size_t>(done), static_cast<std::size_t>(std::min(most, shape.num_elements() - done)));
      refuse_unholdable(planned.tensor, done, values);
      encoded_.resize(static_cast<std::size_t>(gguf_bytes(planned.tensor.type, std::ssize(values))));
      encode_gguf(planned.tensor.type, values, encoded_);
      writer.write(encoded_);
    }
  }

  static bool is_norm(const Parameter& parameter) { return parameter.name.ends_with("norm.weight"); }

  void put_in_order(const Parameter& parameter, std::span<float> values) {
    const std::string_view rest = split_name(parameter.name).rest;
    const std::int64_t size = request_.model.head_size();
    if (rest == "attention.query.weight" || rest == "attention.query.bias")
      interleave_rows(values, request_.model.heads, size, scratch_);
    if (rest == "attention.key.weight" || rest == "attention.key.bias")
      interleave_rows(values, request_.model.kv_heads, size, scratch_);
  }

  static void refuse_unholdable(const GgufTensor& tensor, std::int64_t first, std::span<const float> values) {
    const std::int64_t bad = find_unholdable(tensor.type, values);
    if (bad < 0) return;
    const float value = values[static_cast<std::size_t>(bad)];
    const std::string what = fmt::format("{} [{}] is {:g}", tensor.name, first + bad, value);
    if (std::isfinite(value))
      throw InputError(fmt::format("{}, which {} cannot hold: export with --dtype fp32", what, word_of(tensor.type)));
    throw InputError(what + ": a model with such a weight computes nothing; an earlier checkpoint may have none");
  }

  const TensorReader& read_;
  const GgufExport& request_;
  const GgufFamily& family_;
  std::vector<Planned> planned_;
  std::vector<float> values_;  // of one tensor
  std::vector<float> scratch_;
  std::vector<std::byte> encoded_;
};

}  // namespace

GgufType gguf_type_of(const Parameter& parameter, GgufType type) {
  if (parameter.shape.num_dims() < 2 || parameter.name == "embedding.position.weight") return GgufType::f32;
  const bool is_vocabulary = parameter.name == "embedding.token.weight" || parameter.name == "head.weight";
  const GgufType wanted = type == GgufType::q4_0 && is_vocabulary ? GgufType::q8_0 : type;
  return fits_gguf_blocks(wanted, parameter.shape[1]) ? wanted : GgufType::f16;
}

void round_as_gguf(const Parameter& parameter, GgufType type, std::span<float> values) {
  const GgufType stored = gguf_type_of(parameter, type);
  if (stored == GgufType::f32) return;
  const std::size_t row = static_cast<std::size_t>(parameter.shape[1]);
  std::vector<std::byte> encoded(static_cast<std::size_t>(gguf_bytes(stored, parameter.shape[1])));
  for (std::size_t done = 0; done < values.size(); done += row) {
    encode_gguf(stored, values.subspan(done, row), encoded);
    decode_gguf(stored, encoded, values.subspan(done, row));
  }
}

std::int64_t gguf_context(const ModelConfig& model, std::int64_t context) {
  if (!model.window.tokens || has_same_pattern(model, family_of(model, hugging_face_config_of(model)))) return context;
  return std::min(context, *model.window.tokens);
}

void check_gguf_export(const ModelConfig& model, const fs::path& file) {
  family_of(model, hugging_face_config_of(model));
  if (path_exists(file))
    throw UserError(fmt::format("{}: already exists; name a new file, or remove what is there", file.string()));
  const fs::path folder = fs::absolute(file).parent_path();
  if (!is_folder(folder)) throw UserError(fmt::format("{}: no such folder: {}", file.string(), folder.string()));
}

void export_gguf(const ParamTable& table, const TensorReader& read, const GgufExport& request) {
  check_gguf_export(request.model, request.file);
  try {
    GgufExporter(table, read, request).run();
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: exporting failed: {}", request.file.string(), error.what()));
  }
}

}  // namespace scaletrain
