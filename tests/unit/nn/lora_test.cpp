// Which maps get adapters, and what the parameter table says of them. What they compute is held against peft by
// tests/golden, and among ranks by tests/multirank.
#include "nn/lora.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/models/tiny_model.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

ModelSpec spec_of(bool llama) {
  ModelConfig model = tiny_model({.layers = 2});
  if (llama) make_llama(model);
  model.kv_heads = llama ? model.heads / 2 : model.heads;
  return make_model_spec(model, 61);
}

ParamTable base_of(bool llama) {
  return make_param_table(spec_of(llama), InitConfig{});
}

std::vector<std::string> maps_for(bool llama, std::vector<std::string> targets) {
  return make_lora_spec(base_of(llama), {.rank = 2, .alpha = 3.0, .targets = std::move(targets)}).maps;
}

std::string refusal_of(bool llama, const std::vector<std::string>& targets) {
  return message_of<UserError>([&] { maps_for(llama, targets); });
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("targets name maps as the family's modules are named, in the table's order") {
  CHECK(maps_for(true, {"v_proj", "q_proj"}) == Names{"attention.query", "attention.value"});
  CHECK(maps_for(true, {"self_attn.o_proj", "mlp.gate_proj"}) == Names{"attention.output", "ffn.gate"});
  CHECK(maps_for(true, {"all-linear"}) == Names{"attention.query", "attention.key", "attention.value",
                                                "attention.output", "ffn.gate", "ffn.up", "ffn.down"});
  CHECK(maps_for(false, {"all-linear"}) == Names{"attention.qkv", "attention.output", "ffn.up", "ffn.down"});
  // As with peft, of both parts of a block.
  CHECK(maps_for(false, {"c_proj"}) == Names{"attention.output", "ffn.down"});
  CHECK(maps_for(false, {"attn.c_proj", "c_attn"}) == Names{"attention.qkv", "attention.output"});
}

TEST_CASE("a target that names no map is refused with those that there are") {
  CHECK(refusal_of(true, {"q_proj", "c_attn"}) ==
        "finetune.lora.targets: \"c_attn\" is no map of this model that can have an adapter; there are q_proj, k_proj, "
        "v_proj, o_proj, gate_proj, up_proj, down_proj, and all-linear for all of them");
  CHECK(contains(refusal_of(false, {"q_proj"}), "there are c_attn, attn.c_proj, c_fc, mlp.c_proj, and"));
  for (const char* name : {"proj", "lm_head", "wte", "q_pro", "ln_1", ""})
    CHECK_FALSE(refusal_of(true, {name}).empty());
}

TEST_CASE("the base is frozen, and adapters are divided as their maps are") {
  for (const bool llama : {false, true}) {
    const ModelSpec spec = spec_of(llama);
    const ParamTable base = base_of(llama);
    const LoraSpec lora = make_lora_spec(base, {.rank = 2, .alpha = 3.0});
    CHECK(lora.scale == 1.5);
    const ParamTable table = with_adapters(base, lora);
    CHECK(table.units().size() == base.units().size());
    CHECK(table.num_parameters(ParamRole::frozen) == base.num_parameters());
    const std::int64_t adapters = table.num_parameters(ParamRole::trained);
    CHECK(adapters > 0);
    for (const Parameter& parameter : table.parameters()) {
      CHECK(parameter.in_base == (base.find(parameter.name) != nullptr));
      CHECK(parameter.is_adapter != parameter.in_base);
    }
    // A frozen parameter costs 4 a token, one of an adapter 6.
    CHECK(model_flops_per_token(spec, table) - model_flops_per_token(spec, base) ==
          6.0 * static_cast<double>(adapters) -
              2.0 * static_cast<double>(base.num_parameters() - (llama ? 0 : spec.context * spec.hidden) -
                                        (spec.tie_embeddings ? 0 : spec.vocab * spec.hidden)));
    const Parameter& up_in = *table.find(llama ? "blocks.1.attention.query.lora_a" : "blocks.1.attention.qkv.lora_a");
    CHECK((up_in.shape == Shape{2, spec.hidden} && up_in.split.kind == Split::Kind::replicated));
    CHECK((up_in.tensor_partial && up_in.decays));
    CHECK((up_in.init.kind == InitialValues::Kind::uniform &&
           up_in.init.deviation == 1.0 / std::sqrt(static_cast<double>(spec.hidden))));
    const Parameter& key_out = *table.find("blocks.1.attention.key.lora_b");
    CHECK(key_out.shape == Shape{spec.kv_heads * spec.head_size, 2});
    CHECK((key_out.split == base.find("blocks.1.attention.key.weight")->split && !key_out.tensor_partial));
    CHECK(key_out.init.kind == InitialValues::Kind::zeros);
    const Parameter& down_in = *table.find("blocks.0.ffn.down.lora_a");
    CHECK((down_in.split == base.find("blocks.0.ffn.down.weight")->split && !down_in.tensor_partial));
    const Parameter& down_out = *table.find("blocks.0.ffn.down.lora_b");
    CHECK((down_out.split.kind == Split::Kind::replicated && down_out.tensor_partial));
    CHECK(down_out.hugging_face_name == (llama ? "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"
                                               : "base_model.model.transformer.h.0.mlp.c_proj.lora_B.weight"));
  }
}

TEST_CASE("a layer's adapters have the columns of their maps, of a tensor rank its own") {
  ModelSpec spec = spec_of(true);
  spec.lora = {.rank = 2, .scale = 1.0, .maps = {"attention.key", "ffn.up", "ffn.down"}};
  const ModelSpec local = local_spec(spec, {.degree = 2, .rank = 1});
  const std::vector<AdaptedLayer> layers = adapted_layers(spec, {.degree = 2, .rank = 1});
  REQUIRE(layers.size() == 3);
  const std::int64_t query = local.heads * local.head_size;
  const std::int64_t key = local.kv_heads * local.head_size;
  CHECK((layers[0].name == "attention.qkv" && layers[0].outputs == query + 2 * key));
  REQUIRE(layers[0].maps.size() == 1);
  CHECK((layers[0].maps[0].first == query && layers[0].maps[0].outputs == key));
  CHECK((layers[0].down() == "attention.key.lora_a" && !layers[0].is_whole()));
  CHECK((layers[1].maps[0].first == local.ffn_hidden && layers[1].outputs == 2 * local.ffn_hidden));
  CHECK((layers[2].is_whole() && layers[2].inputs == local.ffn_hidden && layers[2].outputs == local.hidden));
  CHECK((layers[2].first_input == first_ffn_column(spec, {.degree = 2, .rank = 1}) &&
         layers[2].whole_inputs == spec.ffn_hidden));
  CHECK((layers[0].first_input == 0 && layers[0].whole_inputs == spec.hidden));
  spec.lora.rank = 0;
  CHECK(adapted_layers(spec, {}).empty());
}
