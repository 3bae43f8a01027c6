#include "nn/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

enum class Family { gpt2, llama, gemma };

Family family_of(const ModelSpec& spec) {
  if (spec.norm == NormKind::layernorm && spec.position == PositionKind::learned) return Family::gpt2;
  return spec.post_norm ? Family::gemma : Family::llama;
}

// What the families call the same tensors; Gemma with norms behind the maps, too, as Llama but where it says otherwise.
// GPT-2 keeps query, key and value in one tensor: the three parameters carry its name and follow each other along the
// output dim.
struct LayerName {
  std::string_view ours;
  std::string_view gpt2;
  std::string_view llama;
  std::string_view gemma = llama;
};

constexpr LayerName attention_norm{"attention_norm", "ln_1", "input_layernorm"};
constexpr LayerName query{"attention.query", "attn.c_attn", "self_attn.q_proj"};
constexpr LayerName key{"attention.key", "attn.c_attn", "self_attn.k_proj"};
constexpr LayerName value{"attention.value", "attn.c_attn", "self_attn.v_proj"};
constexpr LayerName query_norm{"attention.query_norm", "attn.q_norm", "self_attn.q_norm"};
constexpr LayerName key_norm{"attention.key_norm", "attn.k_norm", "self_attn.k_norm"};
constexpr LayerName attention_output{"attention.output", "attn.c_proj", "self_attn.o_proj"};
// Only Gemma has norms there, and one of Llama's names for another place.
constexpr LayerName attention_post_norm{"attention_post_norm", "attn.post_norm", "", "post_attention_layernorm"};
constexpr LayerName ffn_norm{"ffn_norm", "ln_2", "post_attention_layernorm", "pre_feedforward_layernorm"};
constexpr LayerName ffn_post_norm{"ffn_post_norm", "mlp.post_norm", "", "post_feedforward_layernorm"};
constexpr LayerName gate{"ffn.gate", "mlp.c_gate",
                         "mlp.gate_proj"};  // no GPT-2 of Hugging Face has one: export refuses it
constexpr LayerName up{"ffn.up", "mlp.c_fc", "mlp.up_proj"};
constexpr LayerName down{"ffn.down", "mlp.c_proj", "mlp.down_proj"};

const Split by_vocabulary{Split::Kind::cut, 0, 0};
constexpr std::string_view token_table = "embedding.token.weight";

// How a linear map lies on the tensor axis: its outputs are divided, or its inputs.
enum class Cut { outputs, inputs };

struct LinearMap {
  LayerName name;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  Cut cut = Cut::outputs;
  std::int64_t pieces = 0;  // indivisible units along the cut dim (heads), or 0
  bool may_repeat = false;  // grouped: fewer pieces than ranks are allowed
  bool ends_residual_branch = false;
  std::string_view fused = {};  // the group, without ".weight" and ".bias"
  bool has_bias = true;
};

class TableBuilder {
 public:
  TableBuilder(const ModelSpec& spec, const InitConfig& init) : spec_(spec), init_(init), family_(family_of(spec)) {}

  ParamTable build() {
    add_embedding();
    for (std::int64_t layer = 0; layer < spec_.layers; ++layer) add_block(layer);
    add_head();
    return std::move(table_);
  }

 private:
  bool gpt2() const { return family_ == Family::gpt2; }

  void begin_unit(std::string name) {
    prefix_ = name + ".";
    table_.begin_unit(std::move(name));
  }

  std::string family_name(const LayerName& name) const {
    const bool is_gemma = family_ == Family::gemma;
    return family_prefix_ + std::string(gpt2() ? name.gpt2 : is_gemma ? name.gemma : name.llama);
  }

  InitialValues normal(double deviation) const { return {InitialValues::Kind::normal, deviation}; }

  InitialValues linear_values(const LinearMap& map) const {
    InitialValues values = unscaled_values(map);
    if (map.ends_residual_branch && init_.scales_residual())
      values.deviation /= std::sqrt(2.0 * static_cast<double>(spec_.layers));
    return values;
  }

  InitialValues unscaled_values(const LinearMap& map) const {
    const auto inputs = static_cast<double>(map.inputs);
    switch (init_.type) {
      case InitKind::xavier:
        return {InitialValues::Kind::uniform, std::sqrt(6.0 / (inputs + static_cast<double>(map.outputs)))};
      case InitKind::he:
        return normal(std::sqrt(2.0 / inputs));
      case InitKind::normal:
        break;
    }
    return normal(init_.std);
  }

  // A matrix with a row per token or position, not yet in the table.
  Parameter table_row(std::string_view name, std::string_view family_name, std::int64_t rows) const {
    Parameter parameter;
    parameter.name = prefix_ + std::string(name);
    parameter.hugging_face_name = family_name;
    parameter.shape = {rows, spec_.hidden};
    parameter.decays = true;
    parameter.init = normal(init_.std);
    return parameter;
  }

  void add_weight(const LinearMap& map) {
    Parameter parameter;
    parameter.name = prefix_ + std::string(map.name.ours) + ".weight";
    parameter.hugging_face_name = family_name(map.name) + ".weight";
    parameter.hugging_face_transposed = gpt2();
    parameter.shape = {map.outputs, map.inputs};
    parameter.split = {map.may_repeat ? Split::Kind::grouped : Split::Kind::cut, map.cut == Cut::outputs ? 0 : 1,
                       map.pieces};
    parameter.decays = true;
    parameter.is_hidden_map = true;
    parameter.init = linear_values(map);
    if (!map.fused.empty()) parameter.fused = std::string(map.fused) + ".weight";
    table_.add(std::move(parameter));
  }

  void add_bias(const LinearMap& map) {
    if (!map.has_bias) return;
    Parameter parameter;
    parameter.name = prefix_ + std::string(map.name.ours) + ".bias";
    parameter.hugging_face_name = family_name(map.name) + ".bias";
    parameter.shape = {map.outputs};
    if (map.cut == Cut::outputs)
      parameter.split = {map.may_repeat ? Split::Kind::grouped : Split::Kind::cut, 0, map.pieces};
    parameter.sequence_partial = map.cut == Cut::inputs;
    if (!map.fused.empty()) parameter.fused = std::string(map.fused) + ".bias";
    table_.add(std::move(parameter));
  }

  // Maps of one matrix: all weights, then all biases, so that each fused group is contiguous.
  void add_linear(std::initializer_list<LinearMap> maps) {
    for (const LinearMap& map : maps) add_weight(map);
    for (const LinearMap& map : maps) add_bias(map);
  }

  // Such that a norm multiplies by one.
  InitialValues::Kind norm_values() const {
    return spec_.norm_weight_offset == 1.0 ? InitialValues::Kind::zeros : InitialValues::Kind::ones;
  }

  void add_norm(std::string_view name, const std::string& family_name) {
    Parameter parameter;
    parameter.name = prefix_ + std::string(name) + ".weight";
    parameter.hugging_face_name = family_name + ".weight";
    parameter.shape = {spec_.hidden};
    parameter.init.kind = norm_values();
    parameter.sequence_partial = true;
    table_.add(parameter);
    if (spec_.norm != NormKind::layernorm || !spec_.bias) return;
    parameter.name = prefix_ + std::string(name) + ".bias";
    parameter.hugging_face_name = family_name + ".bias";
    parameter.init.kind = InitialValues::Kind::zeros;
    table_.add(std::move(parameter));
  }

  // Of heads, each of which has the same weights: a tensor rank sees those of its own.
  void add_head_norm(const LayerName& name) {
    Parameter parameter;
    parameter.name = prefix_ + std::string(name.ours) + ".weight";
    parameter.hugging_face_name = family_name(name) + ".weight";
    parameter.shape = {spec_.head_size};
    parameter.init.kind = norm_values();
    parameter.tensor_partial = true;
    table_.add(std::move(parameter));
  }

  void add_embedding() {
    begin_unit("embedding");
    Parameter token =
        table_row("token.weight", gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight", spec_.vocab);
    token.split = by_vocabulary;
    token.lookup_only = !spec_.tie_embeddings;  // a tied head multiplies by it
    table_.add(std::move(token));
    if (spec_.position != PositionKind::learned) return;
    Parameter position =
        table_row("position.weight", gpt2() ? "transformer.wpe.weight" : "model.embed_positions.weight", spec_.context);
    position.lookup_only = true;
    table_.add(std::move(position));
  }

  void add_block(std::int64_t layer) {
    begin_unit(fmt::format("blocks.{}", layer));
    family_prefix_ = fmt::format(fmt::runtime(gpt2() ? "transformer.h.{}." : "model.layers.{}."), layer);
    const std::int64_t hidden = spec_.hidden;
    const std::int64_t query_features = spec_.heads * spec_.head_size;
    const std::int64_t key_features = spec_.kv_heads * spec_.head_size;
    add_norm(attention_norm.ours, family_name(attention_norm));
    add_linear({{.name = query,
                 .outputs = query_features,
                 .inputs = hidden,
                 .pieces = spec_.heads,
                 .fused = "attention.qkv",
                 .has_bias = spec_.qkv_bias},
                {.name = key,
                 .outputs = key_features,
                 .inputs = hidden,
                 .pieces = spec_.kv_heads,
                 .may_repeat = true,
                 .fused = "attention.qkv",
                 .has_bias = spec_.qkv_bias},
                {.name = value,
                 .outputs = key_features,
                 .inputs = hidden,
                 .pieces = spec_.kv_heads,
                 .may_repeat = true,
                 .fused = "attention.qkv",
                 .has_bias = spec_.qkv_bias}});
    if (spec_.qk_norm) {
      add_head_norm(query_norm);
      add_head_norm(key_norm);
    }
    add_linear({{.name = attention_output,
                 .outputs = hidden,
                 .inputs = query_features,
                 .cut = Cut::inputs,
                 .pieces = spec_.heads,
                 .ends_residual_branch = true,
                 .has_bias = spec_.bias}});
    if (spec_.post_norm) add_norm(attention_post_norm.ours, family_name(attention_post_norm));
    add_norm(ffn_norm.ours, family_name(ffn_norm));
    const std::int64_t ffn = spec_.ffn_hidden;
    if (has_gate(spec_.activation))
      add_linear({{.name = gate, .outputs = ffn, .inputs = hidden, .fused = "ffn.gate_up", .has_bias = spec_.bias},
                  {.name = up, .outputs = ffn, .inputs = hidden, .fused = "ffn.gate_up", .has_bias = spec_.bias}});
    else
      add_linear({{.name = up, .outputs = ffn, .inputs = hidden, .has_bias = spec_.bias}});
    add_linear({{.name = down,
                 .outputs = hidden,
                 .inputs = ffn,
                 .cut = Cut::inputs,
                 .ends_residual_branch = true,
                 .has_bias = spec_.bias}});
    if (spec_.post_norm) add_norm(ffn_post_norm.ours, family_name(ffn_post_norm));
  }

  void add_head() {
    begin_unit("head");
    add_norm("norm", gpt2() ? "transformer.ln_f" : "model.norm");
    Parameter parameter = table_row("weight", spec_.tie_embeddings ? "" : "lm_head.weight", spec_.vocab);
    parameter.split = by_vocabulary;
    if (spec_.tie_embeddings)
      parameter.tied_to = token_table;
    else
      parameter.init = linear_values({.name = {}, .outputs = spec_.vocab, .inputs = spec_.hidden});
    table_.add(std::move(parameter));
  }

  const ModelSpec& spec_;
  const InitConfig& init_;
  Family family_;
  ParamTable table_;
  std::string prefix_;
  std::string family_prefix_;
};

RopeScaling rope_scaling_of(const RopeScalingConfig& config) {
  switch (config.type) {
    case RopeScalingKind::linear:
      return {.factor = config.factor};
    case RopeScalingKind::llama3:
      return {.factor = config.factor,
              .low_frequency_factor = config.low_frequency_factor,
              .high_frequency_factor = config.high_frequency_factor,
              .original_context = static_cast<double>(config.original_context)};
    case RopeScalingKind::none:
      break;
  }
  return {};
}

}  // namespace

ModelSpec make_model_spec(const ModelConfig& config, std::int64_t vocab) {
  ModelSpec spec;
  spec.layers = config.layers;
  spec.hidden = config.hidden;
  spec.heads = config.heads;
  spec.kv_heads = config.kv_heads;
  spec.head_size = config.head_dim ? *config.head_dim : div_exact(config.hidden, config.heads);
  spec.ffn_hidden = config.ffn_hidden;
  spec.context = config.context;
  spec.vocab = vocab;
  spec.norm = config.norm;
  spec.norm_epsilon = config.norm_epsilon;
  spec.activation = config.activation;
  spec.position = config.position;
  spec.rope_theta = config.rope_theta;
  spec.rope_scaling = rope_scaling_of(config.rope_scaling);
  spec.bias = config.bias;
  spec.qkv_bias = config.has_qkv_bias();
  spec.qk_norm = config.qk_norm;
  spec.post_norm = config.post_norm;
  spec.norm_weight_offset = config.norm_zero_centered ? 1.0 : 0.0;
  spec.scale_embeddings = config.scale_embeddings;
  if (const auto& scalar = config.query_pre_attn_scalar; scalar && *scalar != static_cast<double>(spec.head_size))
    spec.attention_scale = 1.0 / std::sqrt(*scalar);
  spec.attention_softcap = config.attention_softcap.value_or(0.0);
  spec.logit_softcap = config.logit_softcap.value_or(0.0);
  spec.window = config.window.tokens.value_or(0);
  spec.global_every = config.window.global_every;
  spec.window_rope_theta = config.window.rope_theta.value_or(0.0);
  spec.tie_embeddings = config.tie_embeddings;
  spec.dropout = {.embedding = config.embedding_dropout.value_or(config.dropout),
                  .attention = config.attention_dropout.value_or(config.dropout),
                  .residual = config.residual_dropout.value_or(config.dropout)};
  SCALETRAIN_CHECK(spec.layers >= 1 && spec.kv_heads >= 1 && spec.ffn_hidden >= 1 && spec.context >= 1 &&
                   spec.vocab >= 1);
  SCALETRAIN_CHECK_EQ(spec.heads % spec.kv_heads, 0);
  if (spec.position == PositionKind::rope) SCALETRAIN_CHECK_EQ(spec.head_size % 2, 0);
  SCALETRAIN_CHECK(!spec.post_norm || spec.norm == NormKind::rmsnorm);
  SCALETRAIN_CHECK(!spec.scale_embeddings || spec.position == PositionKind::rope);
  return spec;
}

bool has_dropout(const ModelSpec& spec) {
  const DropoutSpec& dropout = spec.dropout;
  return dropout.embedding > 0 || dropout.attention > 0 || dropout.residual > 0 ||
         (spec.lora.rank > 0 && spec.lora.dropout > 0);
}

ParamTable make_param_table(const ModelSpec& spec, const InitConfig& init) {
  return TableBuilder(spec, init).build();
}

namespace {

// The part of `extent` indices that a rank holds, cut as the table cuts them.
Box cut_of(std::int64_t extent, const TensorPart& part) {
  Parameter parameter;
  parameter.shape = {extent};
  parameter.split = by_vocabulary;
  return ParamTable::box_of(parameter, part.degree, part.rank);
}

}  // namespace

ModelSpec layer_spec(const ModelSpec& spec, std::int64_t layer) {
  ModelSpec of_layer = spec;
  if (spec.global_every > 0 && (layer + 1) % spec.global_every == 0) of_layer.window = 0;
  if (of_layer.window > 0 && spec.window_rope_theta > 0) {
    of_layer.rope_theta = spec.window_rope_theta;
    of_layer.rope_scaling = {};
  }
  return of_layer;
}

double attention_share(const ModelSpec& spec) {
  double layers = 0;  // as many of those without a window
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::int64_t window = layer_spec(spec, layer).window;
    const double share = static_cast<double>(window) / static_cast<double>(spec.context);
    layers += window > 0 && window < spec.context ? share * (2.0 - share) : 1.0;
  }
  return layers / static_cast<double>(spec.layers);
}

ModelSpec local_spec(const ModelSpec& spec, const TensorPart& part) {
  SCALETRAIN_CHECK(part.degree >= 1 && part.rank >= 0 && part.rank < part.degree);
  ModelSpec local = spec;
  local.heads = div_exact(spec.heads, part.degree);
  if (spec.kv_heads >= part.degree) {
    local.kv_heads = div_exact(spec.kv_heads, part.degree);
  } else {
    div_exact(part.degree, spec.kv_heads);
    local.kv_heads = 1;
  }
  local.ffn_hidden = cut_of(spec.ffn_hidden, part).extent[0];
  local.vocab = cut_of(spec.vocab, part).extent[0];
  return local;
}

std::int64_t first_vocab_row(const ModelSpec& spec, const TensorPart& part) {
  return cut_of(spec.vocab, part).first[0];
}

std::int64_t first_ffn_column(const ModelSpec& spec, const TensorPart& part) {
  return cut_of(spec.ffn_hidden, part).first[0];
}

std::vector<std::int64_t> sequence_shards(std::int64_t rows, std::int64_t degree) {
  SCALETRAIN_CHECK(rows >= 0 && degree >= 1);
  std::vector<std::int64_t> counts;
  for (std::int64_t rank = 0; rank < degree; ++rank) counts.push_back(rows / degree + (rank < rows % degree ? 1 : 0));
  return counts;
}

double model_flops_per_token(const ModelSpec& spec) {
  return model_flops_per_token(spec, make_param_table(spec, InitConfig{}));
}

double model_flops_per_token(const ModelSpec& spec, const ParamTable& table, std::int64_t updates) {
  const int first_trained = table.first_trained_unit(updates);
  const int head = narrow<int>(table.units().size()) - 1;
  std::int64_t parameters = 0;
  std::int64_t left_out = 0;  // products with them, of weights' gradients and of inputs'
  for (const Parameter& parameter : table.parameters()) {
    const bool is_token_table = parameter.name == "embedding.token.weight";
    const bool is_looked_up = parameter.name == "embedding.position.weight" || (is_token_table && !spec.tie_embeddings);
    if (parameter.tied_to || is_looked_up) continue;
    const std::int64_t elements = parameter.shape.num_elements();
    parameters += elements;
    if (parameter.role == ParamRole::frozen || parameter.joins_after > updates) left_out += elements;
    if ((is_token_table ? head : parameter.unit) < first_trained) left_out += elements;
  }
  const auto attention =
      6.0 * static_cast<double>(spec.layers) * static_cast<double>(spec.heads) * static_cast<double>(spec.head_size);
  const double of_attention = attention * static_cast<double>(spec.context) * attention_share(spec);
  const auto blocks_below = static_cast<double>(std::clamp<std::int64_t>(first_trained - 1, 0, spec.layers));
  return 6.0 * static_cast<double>(parameters) - 2.0 * static_cast<double>(left_out) + of_attention -
         of_attention * (2.0 / 3.0) * (blocks_below / static_cast<double>(spec.layers));
}

}  // namespace scaletrain
