#include "nn/model_spec.h"
#include "support/near.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace scaletrain;

namespace {

ModelConfig gpt2(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  ModelConfig config;
  config.layers = layers;
  config.hidden = hidden;
  config.heads = heads;
  config.kv_heads = heads;
  config.ffn_hidden = 4 * hidden;
  return config;
}

ModelConfig llama(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn_hidden) {
  ModelConfig config = gpt2(layers, hidden, heads);
  config.kv_heads = 8;
  config.ffn_hidden = ffn_hidden;
  config.context = 8192;
  config.norm = NormKind::rmsnorm;
  config.activation = ActivationKind::swiglu;
  config.position = PositionKind::rope;
  config.bias = false;
  config.tie_embeddings = false;
  return config;
}

std::int64_t count(const ModelConfig& config, std::int64_t vocab) {
  return make_param_table(make_model_spec(config, vocab), config.init).num_parameters();
}

const Parameter& parameter(const ParamTable& table, std::string_view name) {
  const Parameter* found = table.find(name);
  REQUIRE_MESSAGE(found != nullptr, name);
  return *found;
}

}  // namespace

TEST_CASE("parameter counts are those of the published models") {
  CHECK(count(gpt2(12, 768, 12), 50257) == 124439808);
  CHECK(count(gpt2(24, 1024, 16), 50257) == 354823168);
  CHECK(count(gpt2(36, 1280, 20), 50257) == 774030080);
  CHECK(count(gpt2(48, 1600, 25), 50257) == 1557611200);
  CHECK(count(llama(32, 4096, 32, 14336), 128256) == 8030261248);
  CHECK(count(llama(80, 8192, 64, 28672), 128256) == 70553706496);
  CHECK(count(llama(126, 16384, 128, 53248), 128256) == 405853388800);
}

TEST_CASE("trap: FLOPs follow grouped heads and gated FFN, without tables that are looked up, with a tied head once") {
  // GPT-2 124M: N = 124439808 - 1024·768 = 123653376; 6N = 741920256; 6·12·768·1024 = 56623104.
  CHECK(model_flops_per_token(make_model_spec(gpt2(12, 768, 12), 50257)) == 798543360.0);
  // A weight of the head's own is what its product takes in the tied table's place.
  ModelConfig untied = gpt2(12, 768, 12);
  untied.tie_embeddings = false;
  CHECK(model_flops_per_token(make_model_spec(untied, 50257)) == 798543360.0);
  // Llama 8b, product by product: query and output C·C, key and value C·C/4 each, gate, up and down C·F, the head C·V;
  // two norms a block and the last one, C each; 6·L·C·T.
  const double square = 4096.0 * 4096;
  const double block = 2 * square + 2 * square / 4 + 3 * 4096.0 * 14336 + 2 * 4096;
  const double whole = 32 * block + 4096.0 * 128256 + 4096;
  const double attention = 6.0 * 32 * 4096 * 8192;
  CHECK(model_flops_per_token(make_model_spec(llama(32, 4096, 32, 14336), 128256)) == 6 * whole + attention);
  // The published number of parameters, without the embedding.
  CHECK(whole == 8030261248.0 - 128256.0 * 4096);
}

TEST_CASE("rows come in the documented order, fused groups contiguous") {
  ModelConfig config = gpt2(1, 8, 2);
  config.activation = ActivationKind::swiglu;
  const ParamTable table = make_param_table(make_model_spec(config, 11), config.init);
  std::vector<std::string> names;
  for (const Parameter& entry : table.parameters()) names.push_back(entry.name);
  const std::vector<std::string> expected = {"embedding.token.weight",
                                             "embedding.position.weight",
                                             "blocks.0.attention_norm.weight",
                                             "blocks.0.attention_norm.bias",
                                             "blocks.0.attention.query.weight",
                                             "blocks.0.attention.key.weight",
                                             "blocks.0.attention.value.weight",
                                             "blocks.0.attention.query.bias",
                                             "blocks.0.attention.key.bias",
                                             "blocks.0.attention.value.bias",
                                             "blocks.0.attention.output.weight",
                                             "blocks.0.attention.output.bias",
                                             "blocks.0.ffn_norm.weight",
                                             "blocks.0.ffn_norm.bias",
                                             "blocks.0.ffn.gate.weight",
                                             "blocks.0.ffn.up.weight",
                                             "blocks.0.ffn.gate.bias",
                                             "blocks.0.ffn.up.bias",
                                             "blocks.0.ffn.down.weight",
                                             "blocks.0.ffn.down.bias",
                                             "head.norm.weight",
                                             "head.norm.bias",
                                             "head.weight"};
  CHECK(names == expected);
  CHECK(parameter(table, "blocks.0.attention.key.bias").fused == "attention.qkv.bias");
  CHECK(parameter(table, "blocks.0.ffn.up.weight").fused == "ffn.gate_up.weight");
  CHECK(table.units().size() == 3);
  CHECK(table.units()[2].name == "head");
}

TEST_CASE("matrices decay; norms and biases do not") {
  const ModelConfig config = gpt2(2, 8, 2);
  const ParamTable table = make_param_table(make_model_spec(config, 11), config.init);
  for (const Parameter& entry : table.parameters()) {
    CAPTURE(entry.name);
    CHECK(entry.decays == (entry.shape.num_dims() == 2));
  }
}

TEST_CASE("a model without bias has none, not even in its layernorms; rmsnorm never has one") {
  ModelConfig config = gpt2(2, 8, 2);
  config.bias = false;
  const ParamTable no_bias = make_param_table(make_model_spec(config, 11), config.init);
  for (const Parameter& entry : no_bias.parameters()) CHECK(entry.name.find(".bias") == std::string::npos);
  config.bias = true;
  config.norm = NormKind::rmsnorm;
  const ParamTable rms = make_param_table(make_model_spec(config, 11), config.init);
  CHECK(rms.find("blocks.1.ffn_norm.bias") == nullptr);
  CHECK(rms.find("blocks.1.ffn.down.bias") != nullptr);
}

TEST_CASE("Hugging Face names follow the family") {
  const ModelConfig small = gpt2(2, 8, 2);
  const ParamTable first = make_param_table(make_model_spec(small, 11), small.init);
  CHECK(parameter(first, "embedding.token.weight").hugging_face_name == "transformer.wte.weight");
  CHECK(parameter(first, "blocks.1.attention.query.weight").hugging_face_name == "transformer.h.1.attn.c_attn.weight");
  CHECK(parameter(first, "blocks.1.attention.value.bias").hugging_face_name == "transformer.h.1.attn.c_attn.bias");
  CHECK(parameter(first, "blocks.1.ffn.down.weight").hugging_face_name == "transformer.h.1.mlp.c_proj.weight");
  CHECK(parameter(first, "blocks.1.ffn.down.weight").hugging_face_transposed);
  CHECK_FALSE(parameter(first, "embedding.token.weight").hugging_face_transposed);
  CHECK(parameter(first, "head.norm.weight").hugging_face_name == "transformer.ln_f.weight");
  const ModelConfig large = llama(2, 64, 8, 96);
  const ParamTable second = make_param_table(make_model_spec(large, 11), large.init);
  CHECK(parameter(second, "blocks.0.attention_norm.weight").hugging_face_name ==
        "model.layers.0.input_layernorm.weight");
  CHECK(parameter(second, "blocks.0.attention.key.weight").hugging_face_name ==
        "model.layers.0.self_attn.k_proj.weight");
  CHECK(parameter(second, "blocks.1.ffn.gate.weight").hugging_face_name == "model.layers.1.mlp.gate_proj.weight");
  CHECK_FALSE(parameter(second, "blocks.1.ffn.gate.weight").hugging_face_transposed);
  CHECK(parameter(second, "head.weight").hugging_face_name == "lm_head.weight");
}

TEST_CASE("initial values follow the config") {
  ModelConfig config = gpt2(8, 16, 2);
  const ModelSpec spec = make_model_spec(config, 11);
  InitConfig init;
  init.std = 0.04;
  const ParamTable normal = make_param_table(spec, init);
  CHECK(parameter(normal, "embedding.position.weight").init.deviation == 0.04);
  CHECK(parameter(normal, "blocks.3.attention.key.weight").init.deviation == 0.04);
  CHECK(parameter(normal, "blocks.3.attention.output.weight").init.deviation == Near(0.01));  // / sqrt(2·8)
  CHECK(parameter(normal, "blocks.3.ffn.down.weight").init.deviation == Near(0.01));
  CHECK(parameter(normal, "blocks.3.ffn.up.weight").init.deviation == 0.04);
  CHECK(parameter(normal, "blocks.3.ffn_norm.weight").init.kind == InitialValues::Kind::ones);
  CHECK(parameter(normal, "blocks.3.ffn.up.bias").init.kind == InitialValues::Kind::zeros);
  init.scale_residual = false;
  CHECK(parameter(make_param_table(spec, init), "blocks.3.ffn.down.weight").init.deviation == 0.04);
  init.type = InitKind::xavier;
  const ParamTable xavier = make_param_table(spec, init);
  CHECK(parameter(xavier, "blocks.0.ffn.up.weight").init.kind == InitialValues::Kind::uniform);
  CHECK(parameter(xavier, "blocks.0.ffn.up.weight").init.deviation == Near(std::sqrt(6.0 / (16 + 64))));
  CHECK(parameter(xavier, "embedding.token.weight").init.kind == InitialValues::Kind::normal);
  init.type = InitKind::he;
  const ParamTable he = make_param_table(spec, init);
  CHECK(parameter(he, "blocks.0.ffn.down.weight").init.kind == InitialValues::Kind::normal);
  CHECK(parameter(he, "blocks.0.ffn.down.weight").init.deviation == Near(std::sqrt(2.0 / 64)));
  // Only where it is asked for: what the papers say is of maps without a residual stream.
  for (const auto& [type, unscaled] :
       {std::pair(InitKind::xavier, std::sqrt(6.0 / (16 + 64))), std::pair(InitKind::he, std::sqrt(2.0 / 64))}) {
    init.type = type;
    init.scale_residual.reset();
    CHECK(parameter(make_param_table(spec, init), "blocks.0.ffn.down.weight").init.deviation == Near(unscaled));
    init.scale_residual = true;
    const ParamTable scaled = make_param_table(spec, init);
    CHECK(parameter(scaled, "blocks.0.ffn.down.weight").init.deviation == Near(unscaled / 4));
    CHECK(parameter(scaled, "blocks.0.ffn.up.weight").init.deviation ==
          parameter(type == InitKind::he ? he : xavier, "blocks.0.ffn.up.weight").init.deviation);
  }
}

TEST_CASE("heads that do not divide the hidden size are refused") {
  ModelConfig config = gpt2(2, 10, 3);
  CHECK_THROWS_AS(make_model_spec(config, 11), BugError);
}

TEST_CASE("a tied head's matrix is the embedding's: stored, counted and exported once") {
  ModelConfig config = gpt2(2, 8, 2);
  const ParamTable tied = make_param_table(make_model_spec(config, 11), config.init);
  const Parameter& head = parameter(tied, "head.weight");
  CHECK(head.tied_to == "embedding.token.weight");
  CHECK(head.hugging_face_name.empty());
  CHECK(head.decays);
  CHECK(head.split == parameter(tied, "embedding.token.weight").split);
  CHECK_FALSE(parameter(tied, "embedding.token.weight").lookup_only);
  config.tie_embeddings = false;
  const ParamTable untied = make_param_table(make_model_spec(config, 11), config.init);
  CHECK_FALSE(parameter(untied, "head.weight").tied_to.has_value());
  CHECK(untied.num_parameters() == tied.num_parameters() + 11 * 8);
}

TEST_CASE("only norms and the biases of row-parallel maps have a gradient per sequence shard") {
  ModelConfig config = gpt2(1, 8, 2);
  const ParamTable table = make_param_table(make_model_spec(config, 11), config.init);
  std::vector<std::string> partial;
  for (const Parameter& entry : table.parameters())
    if (entry.sequence_partial) partial.push_back(entry.name);
  CHECK(partial == std::vector<std::string>{"blocks.0.attention_norm.weight", "blocks.0.attention_norm.bias",
                                            "blocks.0.attention.output.bias", "blocks.0.ffn_norm.weight",
                                            "blocks.0.ffn_norm.bias", "blocks.0.ffn.down.bias", "head.norm.weight",
                                            "head.norm.bias"});
}

TEST_CASE("each tensor rank has a part of the gradients of query and key norms, and of no others at all times") {
  ModelConfig config = llama(1, 8, 2, 20);
  config.kv_heads = 1;
  config.qk_norm = true;
  config.head_dim = 6;
  const ParamTable table = make_param_table(make_model_spec(config, 11), config.init);
  std::vector<std::string> partial;
  for (const Parameter& entry : table.parameters())
    if (entry.tensor_partial) partial.push_back(entry.name);
  CHECK(partial ==
        std::vector<std::string>{"blocks.0.attention.query_norm.weight", "blocks.0.attention.key_norm.weight"});
  CHECK(parameter(table, "blocks.0.attention.key_norm.weight").shape == Shape{6});
  CHECK(parameter(table, "blocks.0.attention.output.weight").shape == Shape{8, 12});
  CHECK_FALSE(parameter(table, "blocks.0.attention.query_norm.weight").decays);
}

TEST_CASE("biases of query, key and value alone") {
  ModelConfig config = llama(1, 8, 2, 20);
  config.kv_heads = 1;
  config.bias = false;
  config.qkv_bias = true;
  const ParamTable table = make_param_table(make_model_spec(config, 11), config.init);
  std::vector<std::string> biases;
  for (const Parameter& entry : table.parameters())
    if (entry.name.ends_with(".bias")) biases.push_back(entry.name);
  CHECK(biases == std::vector<std::string>{"blocks.0.attention.query.bias", "blocks.0.attention.key.bias",
                                           "blocks.0.attention.value.bias"});
}

TEST_CASE("the work of attention is that of its heads, whatever their size") {
  ModelConfig config = llama(2, 8, 2, 20);
  config.kv_heads = 1;
  const ModelSpec narrow = make_model_spec(config, 11);
  config.head_dim = 12;
  const ModelSpec wide = make_model_spec(config, 11);
  const auto products = [](const ModelSpec& spec) {
    std::int64_t parameters = make_param_table(spec, {}).num_parameters();
    if (!spec.tie_embeddings) parameters -= spec.vocab * spec.hidden;
    return 6.0 * static_cast<double>(parameters);
  };
  const auto context = static_cast<double>(narrow.context);
  CHECK(model_flops_per_token(narrow) - products(narrow) == 6.0 * 2 * 8 * context);
  CHECK(model_flops_per_token(wide) - products(wide) == 6.0 * 2 * 24 * context);
}

TEST_CASE("the work of attention with a window is that of the keys that its queries see") {
  ModelConfig config = llama(6, 8, 2, 20);
  config.kv_heads = 1;
  config.context = 40;
  const ModelSpec all = make_model_spec(config, 11);
  config.window = {.tokens = 10, .global_every = 3, .rope_theta = std::nullopt};
  const ModelSpec windowed = make_model_spec(config, 11);
  // Of 40 queries the t-th sees t keys, or 10 of them, where another sees t: 12·H·D on each, on average T/2 of all.
  const double seen = (10.0 * 40 - 10.0 * 10 / 2) / 40;
  CHECK(model_flops_per_token(all) - model_flops_per_token(windowed) == Near(12.0 * 4 * 8 * (20 - seen)));
  config.window.tokens = 40;
  CHECK(model_flops_per_token(make_model_spec(config, 11)) == model_flops_per_token(all));
}

TEST_CASE("layers have the window and the rotation of their kind") {
  ModelConfig config = llama(7, 8, 2, 20);
  config.kv_heads = 1;
  config.rope_theta = 1e6;
  config.rope_scaling = {.type = RopeScalingKind::linear, .factor = 8.0};
  config.window = {.tokens = 4, .global_every = 3, .rope_theta = 1e4};
  const ModelSpec spec = make_model_spec(config, 11);
  for (const std::int64_t layer : {2, 5}) {
    CHECK((layer_spec(spec, layer).window == 0 && layer_spec(spec, layer).rope_theta == 1e6));
    CHECK(layer_spec(spec, layer).rope_scaling.factor == 8.0);
  }
  for (const std::int64_t layer : {0, 1, 3, 4, 6}) {
    CHECK((layer_spec(spec, layer).window == 4 && layer_spec(spec, layer).rope_theta == 1e4));
    CHECK(layer_spec(spec, layer).rope_scaling.factor == 1.0);
  }
  config.window.rope_theta.reset();
  config.window.global_every = 0;
  const ModelSpec alike = layer_spec(make_model_spec(config, 11), 2);
  CHECK((alike.window == 4 && alike.rope_theta == 1e6 && alike.rope_scaling.factor == 8.0));
}

TEST_CASE("weights of norms that are kept as their distance from one start at zero") {
  ModelConfig config = llama(1, 8, 2, 20);
  config.kv_heads = 1;
  config.post_norm = config.norm_zero_centered = config.qk_norm = true;
  const ParamTable table = make_param_table(make_model_spec(config, 11), config.init);
  int norms = 0;
  for (const Parameter& entry : table.parameters())
    if (entry.name.find("norm") != std::string::npos) {
      CHECK(entry.init.kind == InitialValues::Kind::zeros);
      ++norms;
    }
  CHECK(norms == 4 + 2 + 1);
  CHECK(parameter(table, "blocks.0.attention_post_norm.weight").hugging_face_name ==
        "model.layers.0.post_attention_layernorm.weight");
  CHECK(parameter(table, "blocks.0.ffn_norm.weight").hugging_face_name ==
        "model.layers.0.pre_feedforward_layernorm.weight");
}

TEST_CASE("a tensor rank's part of the model is what the table's boxes give it") {
  for (const std::int64_t kv_heads : {1, 2, 4, 8}) {
    ModelConfig config = gpt2(1, 32, 8);
    config.kv_heads = kv_heads;
    config.ffn_hidden = 11;
    const ModelSpec spec = make_model_spec(config, 9);
    const ParamTable table = make_param_table(spec, config.init);
    for (const std::int64_t degree : {1, 2, 4, 8}) {
      std::int64_t rows = 0;
      for (std::int64_t rank = 0; rank < degree; ++rank) {
        CAPTURE(kv_heads);
        CAPTURE(degree);
        CAPTURE(rank);
        const ModelSpec local = local_spec(spec, {.degree = degree, .rank = rank});
        const auto box = [&](std::string_view name) {
          return ParamTable::box_of(parameter(table, name), degree, rank);
        };
        CHECK(box("blocks.0.attention.query.weight").extent[0] == local.heads * local.head_size);
        CHECK(box("blocks.0.attention.value.weight").extent[0] == local.kv_heads * local.head_size);
        CHECK(box("blocks.0.attention.output.weight").extent[1] == local.heads * local.head_size);
        CHECK(box("blocks.0.ffn.up.weight").extent[0] == local.ffn_hidden);
        CHECK(box("blocks.0.ffn.down.weight").extent[1] == local.ffn_hidden);
        CHECK(box("embedding.token.weight").extent[0] == local.vocab);
        CHECK(box("embedding.token.weight").first[0] == first_vocab_row(spec, {.degree = degree, .rank = rank}));
        CHECK(local.heads % local.kv_heads == 0);
        CHECK(local.hidden == spec.hidden);
        rows += local.vocab;
      }
      CHECK(rows == spec.vocab);
    }
  }
  const ModelConfig config = gpt2(1, 32, 8);
  CHECK_THROWS_AS(local_spec(make_model_spec(config, 9), {.degree = 3, .rank = 0}), BugError);
  CHECK_THROWS_AS(local_spec(make_model_spec(config, 9), {.degree = 2, .rank = 2}), BugError);
}

TEST_CASE("sequence shards are as even as may be, the first ones larger") {
  CHECK(sequence_shards(10, 4) == std::vector<std::int64_t>{3, 3, 2, 2});
  CHECK(sequence_shards(3, 4) == std::vector<std::int64_t>{1, 1, 1, 0});
  CHECK(sequence_shards(8, 2) == std::vector<std::int64_t>{4, 4});
  CHECK(sequence_shards(0, 2) == std::vector<std::int64_t>{0, 0});
}
