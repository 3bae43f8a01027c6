#include "checkpoint/hugging_face/hugging_face.h"

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint_fixture.h"
#include "hugging_face_fixture.h"
#include "layout_fixture.h"
#include "support/bytes_read.h"

using namespace scaletrain;

namespace {

SafetensorsHeader header_of(const std::filesystem::path& file) {
  const FileReader reader(file);
  return read_safetensors_header([&](std::uint64_t offset, std::span<std::byte> out) { reader.read_at(offset, out); },
                                 reader.size(), file.string());
}

float float_at(const std::filesystem::path& file, const std::string& tensor, std::int64_t row, std::int64_t column) {
  const SafetensorsHeader header = header_of(file);
  const SafetensorsEntry* entry = header.find(tensor);
  REQUIRE(entry != nullptr);
  float value = 0;
  const auto element = static_cast<std::uint64_t>(row * entry->shape[1] + column);
  FileReader(file).read_at(entry->offset + 4 * element, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace

TEST_CASE("hugging_face_round_trip_is_bit_exact_in_each_dtype_single_and_sharded") {
  for (const ModelConfig& model :
       {tiny_gpt2_config(), tiny_llama_config(true), tiny_llama_config(false), tiny_llama3_config(),
        tiny_qwen2_config(), tiny_qwen3_config(), tiny_mistral_config()}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::uint64_t shard_bytes : {std::uint64_t{1} << 30, std::uint64_t{1500}}) {
        const TempFolder folder;
        StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
        saved.fill(3, dtype);
        export_store(saved, {.folder = folder / "out",
                             .model = model,
                             .dtype = dtype,
                             .tokenizer_files = {},
                             .max_shard_bytes = shard_bytes});
        CHECK(std::filesystem::exists(folder / "out" / "model.safetensors") == (shard_bytes > 1500));
        CHECK(is_hugging_face_folder(folder / "out"));
        const HuggingFaceModel imported(folder / "out");
        CHECK(imported.dtype() == dtype);
        StoreFixture loaded(make_param_table(make_model_spec(imported.model_config(), 11), InitConfig{}), {});
        loaded.fill(4);
        imported.load(loaded.store, host_stream());
        CHECK(loaded.content() == saved.content());

        export_store(loaded, {.folder = folder / "again",
                              .model = imported.model_config(),
                              .dtype = dtype,
                              .tokenizer_files = {},
                              .max_shard_bytes = shard_bytes});
        const auto names = names_in(folder / "out");
        REQUIRE(names_in(folder / "again") == names);
        for (const std::string& name : names) {
          CHECK(TempFolder::read(folder / "out" / name) == TempFolder::read(folder / "again" / name));
        }
      }
    }
  }
}

TEST_CASE("hugging_face_export_lays_tensors_out_as_the_library_does") {
  const TempFolder folder;
  const ModelConfig model = tiny_gpt2_config();
  StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
  saved.fill(3);
  export_store(saved, {.folder = folder / "gpt2",
                       .model = model,
                       .dtype = DType::f32,
                       .tokenizer_files = {},
                       .max_shard_bytes = 1 << 30});
  const auto file = folder / "gpt2" / "model.safetensors";
  // Conv1D: [in, out], with query, key and value side by side.
  CHECK(header_of(file).find("transformer.h.1.attn.c_attn.weight")->shape == Shape{12, 36});
  CHECK(header_of(file).find("transformer.h.1.attn.c_attn.bias")->shape == Shape{36});
  CHECK(header_of(file).find("transformer.h.1.mlp.c_fc.weight")->shape == Shape{12, 20});
  CHECK(header_of(file).find("lm_head.weight") == nullptr);
  CHECK(header_of(file).metadata.at("format") == "pt");
  const auto ours = [&](const char* name, std::int64_t row, std::int64_t column) {
    const View view = saved.store.master(name);
    return view.as<float>()[row * view.shape()[1] + column];
  };
  for (const std::int64_t in : {0, 5, 11}) {
    for (const std::int64_t out : {0, 3, 11}) {
      CHECK(float_at(file, "transformer.h.1.attn.c_attn.weight", in, out) ==
            ours("blocks.1.attention.query.weight", out, in));
      CHECK(float_at(file, "transformer.h.1.attn.c_attn.weight", in, 12 + out) ==
            ours("blocks.1.attention.key.weight", out, in));
      CHECK(float_at(file, "transformer.h.1.attn.c_attn.weight", in, 24 + out) ==
            ours("blocks.1.attention.value.weight", out, in));
      CHECK(float_at(file, "transformer.h.0.mlp.c_fc.weight", in, out) == ours("blocks.0.ffn.up.weight", out, in));
    }
  }
  const ModelConfig llama = tiny_llama_config(false);
  StoreFixture other(make_param_table(make_model_spec(llama, 11), InitConfig{}), {});
  other.fill(3);
  export_store(other, {.folder = folder / "llama",
                       .model = llama,
                       .dtype = DType::f32,
                       .tokenizer_files = {},
                       .max_shard_bytes = 1 << 30});
  const auto llama_file = folder / "llama" / "model.safetensors";
  CHECK(header_of(llama_file).find("model.layers.0.self_attn.k_proj.weight")->shape == Shape{4, 12});
  CHECK(header_of(llama_file).find("lm_head.weight")->shape == Shape{11, 12});
  CHECK(float_at(llama_file, "model.layers.1.mlp.gate_proj.weight", 7, 3) ==
        other.store.master("blocks.1.ffn.gate.weight").as<float>()[7 * 12 + 3]);
}

TEST_CASE("hugging_face_config_says_the_same_both_ways") {
  ModelConfig with_bias = tiny_llama_config(false);
  with_bias.bias = true;
  ModelConfig exact_gelu = tiny_gpt2_config();
  exact_gelu.activation = ActivationKind::gelu;
  exact_gelu.tie_embeddings = false;
  for (const ModelConfig& model :
       {tiny_gpt2_config(), exact_gelu, tiny_llama_config(true), tiny_llama_config(false), with_bias,
        tiny_llama3_config(), tiny_qwen2_config(), tiny_qwen3_config(), tiny_mistral_config(), tiny_gemma_config(),
        tiny_gemma2_config(), tiny_gemma3_config()}) {
    const TempFolder folder;
    StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
    export_store(saved, {.folder = folder / "out",
                         .model = model,
                         .dtype = DType::bf16,
                         .tokenizer_files = {},
                         .max_shard_bytes = 1 << 30});
    const HuggingFaceModel imported(folder / "out");
    CHECK(make_model_spec(imported.model_config(), 11) == make_model_spec(model, 11));
    CHECK(imported.model_config().vocab == 11);
    const auto config = read_json_file(folder / "out" / "config.json");
    CHECK(config["torch_dtype"] == "bfloat16");
    if (model.norm == NormKind::rmsnorm) {
      CHECK(config["rms_norm_eps"] == 1e-6);
      CHECK(config["rope_theta"] == 50000.0);
      CHECK(config["num_key_value_heads"] == 1);
      CHECK(config.value("attention_bias", false) == model.bias);
      CHECK(config["head_dim"] == model.head_size());
    } else {
      CHECK(config["activation_function"] == (model.activation == ActivationKind::gelu ? "gelu" : "gelu_new"));
      CHECK(config["n_positions"] == 5);
    }
  }
}

TEST_CASE("hugging_face_export_is_of_the_family_that_has_all_of_the_model_or_refused") {
  const auto written = [](const ModelConfig& model) { return HuggingFaceFolder(model).config; };
  const auto family = [&](const ModelConfig& model) { return written(model)["model_type"].get<std::string>(); };
  CHECK(family(tiny_gpt2_config()) == "gpt2");
  CHECK(family(tiny_llama_config(true)) == "llama");
  CHECK(family(tiny_mistral_config()) == "mistral");
  CHECK(written(tiny_mistral_config())["sliding_window"] == nullptr);
  CHECK(family(tiny_qwen2_config()) == "qwen2");
  CHECK(family(tiny_qwen3_config()) == "qwen3");
  CHECK(family(tiny_gemma_config()) == "gemma");
  CHECK(family(tiny_gemma2_config()) == "gemma2");
  CHECK(family(tiny_gemma3_config()) == "gemma3_text");
  CHECK(written(tiny_gemma3_config())["architectures"] == nlohmann::json{"Gemma3ForCausalLM"});
  ModelConfig windowed = tiny_llama_config(true);
  windowed.window.tokens = 7;
  CHECK(family(windowed) == "mistral");
  CHECK(written(windowed)["sliding_window"] == 7);
  CHECK(written(tiny_qwen3_config())["architectures"] == nlohmann::json{"Qwen3ForCausalLM"});
  CHECK(written(tiny_qwen2_config())["rope_scaling"] == nlohmann::json{{"rope_type", "linear"}, {"factor", 2.5}});
  CHECK(written(tiny_llama3_config())["rope_scaling"] == nlohmann::json{{"rope_type", "llama3"},
                                                                        {"factor", 8.0},
                                                                        {"low_freq_factor", 1.0},
                                                                        {"high_freq_factor", 4.0},
                                                                        {"original_max_position_embeddings", 4}});
  const auto refused = [&](const ModelConfig& model) { return message_of<UserError>([&] { written(model); }); };
  ModelConfig normed_with_biases = tiny_qwen3_config();
  normed_with_biases.qkv_bias = true;
  CHECK(contains(refused(normed_with_biases), "qk_norm true"));
  ModelConfig in_some = windowed;
  in_some.window.global_every = 2;
  CHECK(contains(refused(in_some), "windows in all layers of Mistral"));
  for (const auto& change :
       std::vector<std::function<void(ModelConfig&)>>{[](ModelConfig& model) { model.attention_softcap = 2.0; },
                                                      [](ModelConfig& model) { model.scale_embeddings = false; },
                                                      [](ModelConfig& model) { model.query_pre_attn_scalar = 2.5; },
                                                      [](ModelConfig& model) { model.window.rope_theta.reset(); },
                                                      [](ModelConfig& model) { model.qk_norm = false; }}) {
    ModelConfig mixed = tiny_gemma3_config();
    change(mixed);
    CHECK(contains(refused(mixed), "Hugging Face has Gemma"));
  }
  ModelConfig less_biases = tiny_llama_config(true);
  less_biases.bias = true;
  less_biases.qkv_bias = false;
  CHECK(contains(refused(less_biases), "bias true, qkv_bias false"));
  ModelConfig normed_gpt2 = tiny_gpt2_config();
  normed_gpt2.qk_norm = true;
  CHECK(contains(refused(normed_gpt2), "a GPT-2 of Hugging Face has"));
  ModelConfig long_heads = tiny_gpt2_config();
  long_heads.head_dim = 8;
  CHECK(contains(refused(long_heads), "a GPT-2 of Hugging Face has"));
  ModelConfig mixture = tiny_llama_config(true);
  mixture.norm = NormKind::layernorm;
  CHECK(contains(refused(mixture), "mixture of both"));
}

TEST_CASE("hugging_face_export_names_the_tokens_that_begin_and_end_a_document") {
  const ModelConfig model = tiny_llama_config(true);
  StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
  const TempFolder folder;
  HuggingFaceExport request{.folder = folder / "out", .model = model, .dtype = DType::f32, .tokenizer_files = {}};
  request.tokens = {.begin = 3, .end = {10}, .pad = std::nullopt};
  export_store(saved, request);
  const auto config = read_json_file(folder / "out" / "config.json");
  CHECK(config["bos_token_id"] == 3);
  CHECK(config["eos_token_id"] == 10);
  CHECK(HuggingFaceFolder(model).config["eos_token_id"] == nullptr);
}

TEST_CASE("hugging_face_windows_bound_the_context_where_they_are_narrower") {
  const auto shape = [](HuggingFaceFolder& folder) {
    REQUIRE(folder.refusal() == "");
    return HuggingFaceModel(folder.path()).shape();
  };
  HuggingFaceFolder mistral(tiny_mistral_config());
  mistral.config["max_position_embeddings"] = 9000;
  CHECK_FALSE(shape(mistral).window);
  CHECK(shape(mistral).model.context == 9000);
  mistral.config["sliding_window"] = 7;
  // Which attention has, and the context is longer.
  CHECK_FALSE(shape(mistral).window);
  CHECK(shape(mistral).model.window == WindowConfig{.tokens = 7});
  CHECK(shape(mistral).model.context == 9000);
  mistral.config.erase("sliding_window");  // the library's own
  CHECK(shape(mistral).model.window.tokens == 4096);
  mistral.config["sliding_window"] = nullptr;
  CHECK_FALSE(shape(mistral).model.window.tokens);

  HuggingFaceFolder qwen(tiny_qwen2_config());
  qwen.config["max_position_embeddings"] = 9000;
  qwen.config["sliding_window"] = 7;
  CHECK_FALSE(shape(qwen).window);  // use_sliding_window is false
  qwen.config["use_sliding_window"] = true;
  CHECK_FALSE(shape(qwen).window);  // from layer 28 on, where there are 2
  qwen.config["max_window_layers"] = 1;
  CHECK(shape(qwen).model.context == 7);
  // A list of the layers decides, where there is one.
  qwen.config["layer_types"] = {"full_attention", "full_attention"};
  CHECK_FALSE(shape(qwen).window);
  qwen.config["layer_types"] = {"full_attention", "sliding_attention"};
  qwen.config["max_window_layers"] = 28;
  CHECK(shape(qwen).window == 7);
  qwen.config["layer_types"] = {"full_attention", "chunked_attention"};
  CHECK(qwen.refusal().find("\"layer_types\" has \"chunked_attention\"") != std::string::npos);
}

TEST_CASE("hugging_face_gemmas_say_their_windows_caps_and_rotations_in_old_files_and_new") {
  const auto model = [](HuggingFaceFolder& folder) {
    REQUIRE(folder.refusal() == "");
    return HuggingFaceModel(folder.path()).model_config();
  };
  HuggingFaceFolder gemma2(tiny_gemma2_config());
  CHECK(gemma2.config["layer_types"] == nlohmann::json{"sliding_attention", "full_attention", "sliding_attention"});
  CHECK(model(gemma2).window == WindowConfig{.tokens = 3, .global_every = 2});
  // What a file leaves out is the library's own; null is none.
  for (const char* key :
       {"layer_types", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"})
    gemma2.config.erase(key);
  CHECK(model(gemma2).window == WindowConfig{.tokens = 4096, .global_every = 2});
  CHECK((model(gemma2).attention_softcap == 50.0 && model(gemma2).logit_softcap == 30.0));
  CHECK(model(gemma2).query_pre_attn_scalar == 256.0);
  gemma2.config["attn_logit_softcapping"] = nullptr;
  gemma2.config["final_logit_softcapping"] = nullptr;
  gemma2.config["sliding_window"] = nullptr;
  CHECK_FALSE((model(gemma2).attention_softcap || model(gemma2).logit_softcap || model(gemma2).window.tokens));
  gemma2.config["sliding_window"] = 9;
  gemma2.config["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  CHECK_FALSE(model(gemma2).window.tokens);
  gemma2.config["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention"};
  CHECK(model(gemma2).window == WindowConfig{.tokens = 9});

  HuggingFaceFolder gemma3(tiny_gemma3_config());
  const ModelConfig written = model(gemma3);
  CHECK(written.window == WindowConfig{.tokens = 3, .global_every = 2, .rope_theta = 500.0});
  gemma3.config.erase("rope_theta");
  gemma3.config.erase("rope_local_base_freq");
  gemma3.config.erase("rope_scaling");
  CHECK((model(gemma3).rope_theta == 1e6 && model(gemma3).window.rope_theta == 1e4));
  gemma3.config["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 50000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500.0}}}};
  CHECK(make_model_spec(model(gemma3), 11) == make_model_spec(written, 11));
  gemma3.config.erase("layer_types");
  gemma3.config["sliding_window_pattern"] = 3;
  CHECK(model(gemma3).window.global_every == 3);
  // The first of the family says gelu and means the other.
  HuggingFaceFolder gemma(tiny_gemma_config());
  gemma.config["hidden_act"] = "gelu";
  gemma.config["hidden_activation"] = nullptr;
  CHECK(model(gemma).activation == ActivationKind::geglu);
  CHECK((model(gemma).norm_zero_centered && model(gemma).scale_embeddings && !model(gemma).post_norm));
}

TEST_CASE("hugging_face_files_that_say_a_thing_twice_or_not_at_all_are_not_guessed_at") {
  HuggingFaceFolder llama(tiny_llama_config(false));
  llama.config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  llama.config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  CHECK(llama.refusal().find("\"rope_scaling\" and \"rope_parameters\" are both set") != std::string::npos);
  // null: as many as heads, where a file that leaves it out has the library's own.
  HuggingFaceFolder qwen(tiny_qwen2_config());
  qwen.config["num_key_value_heads"] = nullptr;
  CHECK(qwen.refusal().find("num_key_value_heads") == std::string::npos);
}

TEST_CASE("hugging_face_older_and_newer_spellings_are_understood") {
  HuggingFaceFolder gpt2(tiny_gpt2_config());
  // A base model's names have no prefix, and old files keep the causal mask; n_inner may be null, the head may be
  // repeated.
  gpt2.rename_tensors([](const std::string& name) { return name.substr(std::string("transformer.").size()); });
  gpt2.add_tensor("h.0.attn.bias", {1, 1, 5, 5});
  gpt2.add_tensor("h.0.attn.masked_bias", {});
  gpt2.add_tensor("lm_head.weight", {11, 12});
  CHECK(gpt2.refusal().empty());

  HuggingFaceFolder llama(tiny_llama_config(true));
  llama.config.erase("rope_theta");
  llama.config.erase("rope_scaling");
  llama.config["rope_parameters"] = {{"rope_theta", 50000.0}, {"rope_type", "default"}};
  llama.config.erase("torch_dtype");
  llama.config["dtype"] = "float32";
  llama.config["pretraining_tp"] = 1;
  CHECK(llama.refusal().empty());
  CHECK(HuggingFaceModel(llama.path()).model_config().rope_theta == 50000.0);
  llama.config["rope_parameters"] = {{"rope_theta", 70000.0},   {"rope_type", "llama3"},
                                     {"factor", 32.0},          {"low_freq_factor", 1.0},
                                     {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  REQUIRE(llama.refusal() == "");
  const ModelConfig scaled = HuggingFaceModel(llama.path()).model_config();
  CHECK(scaled.rope_theta == 70000.0);
  CHECK(scaled.rope_scaling == RopeScalingConfig{.type = RopeScalingKind::llama3,
                                                 .factor = 32.0,
                                                 .low_frequency_factor = 1.0,
                                                 .high_frequency_factor = 4.0});
}

TEST_CASE("hugging_face_n_inner_null_means_four_times_the_hidden_size") {
  ModelConfig model = tiny_gpt2_config();
  model.ffn_hidden = 48;
  HuggingFaceFolder folder(model);
  folder.config["n_inner"] = nullptr;
  REQUIRE(folder.refusal().empty());
  CHECK(HuggingFaceModel(folder.path()).model_config().ffn_hidden == 48);
}

TEST_CASE("hugging_face_export_is_complete_or_not_there") {
  const TempFolder folder;
  const ModelConfig model = tiny_gpt2_config();
  StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
  const auto attempt = [&](const std::filesystem::path& target, const TensorReader& read) {
    return message_of<InputError>([&] {
      export_hugging_face(
          saved.table, read,
          {.folder = target, .model = model, .dtype = DType::f32, .tokenizer_files = {}, .max_shard_bytes = 1 << 20});
    });
  };
  int reads = 0;
  const TensorReader failing = [&](const Parameter&, View) {
    if (++reads == 9) throw InputError("the checkpoint is damaged");
  };
  const TensorReader working = [](const Parameter&, View) {};
  CHECK(contains(attempt(folder / "out", failing), "damaged"));
  CHECK(names_in(folder.path()).empty());
  folder.write("full/file", "mine");
  CHECK_THROWS_AS(attempt(folder / "full", working), UserError);
  CHECK(TempFolder::read(folder / "full" / "file") == "mine");
  std::filesystem::create_directory(folder / "empty");
  CHECK(attempt(folder / "empty", working).empty());
  CHECK(HuggingFaceModel(folder / "empty").model_config().layers == 2);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"empty", "full"});
}

TEST_CASE("an export of a weight that is no number in its type is refused by its name and place, and nothing is left") {
  const TempFolder folder;
  const ModelConfig model = tiny_gpt2_config();
  StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
  saved.fill(3);
  float& weight =
      saved.store.master("blocks.1.attention.key.weight").as<float>()[5 * 12 + 2];  // [5, 2], stored [2, 17]
  float& bias = saved.store.master("blocks.0.ffn.up.bias").as<float>()[7];
  const auto attempt = [&](DType dtype) {
    std::string refusal = message_of<InputError>([&] {
      export_store(saved, {.folder = folder / "out",
                           .model = model,
                           .dtype = dtype,
                           .tokenizer_files = {},
                           .max_shard_bytes = 1 << 20});
    });
    if (!refusal.empty()) CHECK(names_in(folder.path()).empty());
    std::filesystem::remove_all(folder / "out");
    return refusal;
  };
  const float fine = std::exchange(weight, std::numeric_limits<float>::quiet_NaN());
  CHECK(contains(attempt(DType::f32), "transformer.h.1.attn.c_attn.weight [2, 17] is nan: "));
  weight = -std::numeric_limits<float>::infinity();
  CHECK(contains(attempt(DType::bf16), "transformer.h.1.attn.c_attn.weight [2, 17] is -inf: "));
  weight = fine;
  bias = 65520.0F;  // half way from the largest f16 to the next one there would be
  CHECK(attempt(DType::f16) ==
        "transformer.h.0.mlp.c_fc.bias [7] is 65520, for which fp16 has no number: export with --dtype fp32");
  CHECK(attempt(DType::f32).empty());
  bias = std::nextafter(65520.0F, 0.0F);
  CHECK(attempt(DType::f16).empty());
  bias = std::numeric_limits<float>::max();
  CHECK(contains(attempt(DType::bf16), "for which bf16 has no number"));
  CHECK(attempt(DType::f32).empty());
}

TEST_CASE("hugging_face_export_of_a_model_that_neither_family_expresses_is_refused") {
  const TempFolder folder;
  ModelConfig mixture = tiny_llama_config(true);
  mixture.norm = NormKind::layernorm;
  ModelConfig without_bias = tiny_gpt2_config();
  without_bias.bias = false;
  ModelConfig grouped = tiny_gpt2_config();
  grouped.kv_heads = 1;
  for (const ModelConfig& model : {mixture, without_bias, grouped}) {
    StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
    CHECK_THROWS_AS(export_store(saved, {.folder = folder / "out",
                                         .model = model,
                                         .dtype = DType::f32,
                                         .tokenizer_files = {},
                                         .max_shard_bytes = 1 << 20}),
                    UserError);
    CHECK(names_in(folder.path()).empty());
  }
}

namespace {

// As RankStore::difference compares.
void fill_by_place(StoreFixture& saved, std::uint64_t seed) {
  for (const Parameter& parameter : saved.table.parameters()) {
    if (parameter.tied_to) continue;
    const View master = saved.store.master(parameter.name);
    for (std::int64_t i = 0; i < master.num_elements(); ++i) master.as<float>()[i] = value_at(parameter.name, i, seed);
  }
}

}  // namespace

TEST_CASE("hugging_face_import_fills_every_layout_with_the_values_of_the_whole_tensors") {
  // GPT-2: transposed, with query, key and value fused in one tensor. Llama: neither, and two key/value heads.
  for (const bool llama : {false, true}) {
    const TempFolder folder;
    const ModelConfig model = layout_model(llama, true);
    StoreFixture saved(make_param_table(make_model_spec(model, model.vocab.value()), InitConfig{}), {});
    fill_by_place(saved, 9);
    export_store(saved, {.folder = folder / "out",
                         .model = model,
                         .dtype = DType::f32,
                         .tokenizer_files = {},
                         .max_shard_bytes = 20'000});
    const ParamTable table = layout_table(llama, true);
    const std::vector<Layout> layouts = {{1, 1, 1, 0}, {3, 1, 1, 3}, {2, 2, 1, 3}, {1, 4, 1, 0}, {2, 1, 3, 1}};
    for (const Layout& layout : layouts) {
      CAPTURE(layout.text());
      std::vector<std::string> differences(static_cast<std::size_t>(layout.mesh().world()));
      run_layout(table, layout, [&](Rank rank, RankStore& store, KeyValueStore&) {
        HuggingFaceModel(folder / "out").load(store.store(), host_stream());
        differences[static_cast<std::size_t>(rank.value())] = store.difference(9, false);
      });
      for (const std::string& difference : differences) CHECK(difference == "");
    }
  }
}

TEST_CASE("hugging_face_import_reads_large_blocks_of_transposed_tensors_whatever_part_of_them_it_needs") {
  // Matrices of more elements than are transposed at once.
  ModelConfig model = tiny_gpt2_config();
  model.layers = 1;
  model.hidden = 640;
  model.heads = model.kv_heads = 10;
  model.ffn_hidden = 2560;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TempFolder folder;
    StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
    saved.fill(3, dtype);
    export_store(
        saved,
        {.folder = folder / "out", .model = model, .dtype = dtype, .tokenizer_files = {}, .max_shard_bytes = 1 << 30});
    StoreFixture loaded(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
    const HuggingFaceModel imported(folder / "out");
    std::uint64_t elements = 0;
    for (const Parameter& parameter : saved.table.parameters())
      elements += static_cast<std::uint64_t>(parameter.shape.num_elements());
    const std::uint64_t before = reads_made();
    imported.load(loaded.store, host_stream());
    CHECK(reads_made() - before < 2 * saved.table.parameters().size() + elements / (1 << 17));
    CHECK(loaded.content() == saved.content());
  }

  // Ranks that need some columns of the file, or parts of columns.
  model.hidden = 96;
  model.heads = model.kv_heads = 8;
  model.ffn_hidden = 200;
  const TempFolder folder;
  StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
  fill_by_place(saved, 9);
  export_store(saved, {.folder = folder / "out",
                       .model = model,
                       .dtype = DType::f32,
                       .tokenizer_files = {},
                       .max_shard_bytes = 1 << 30});
  for (const Layout& layout : std::vector<Layout>{{3, 1, 1, 3}, {1, 4, 1, 0}, {3, 2, 1, 3}}) {
    CAPTURE(layout.text());
    const HuggingFaceModel imported(folder / "out");
    const auto world = static_cast<std::size_t>(layout.mesh().world());
    std::vector<std::string> differences(world);
    std::vector<std::uint64_t> reads(world);
    run_layout(saved.table, layout, [&](Rank rank, RankStore& store, KeyValueStore&) {
      const auto index = static_cast<std::size_t>(rank.value());
      const std::uint64_t before = reads_made();
      imported.load(store.store(), host_stream());
      reads[index] = reads_made() - before;
      differences[index] = store.difference(9, false);
    });
    // A parameter that is not transposed may begin and end within a row.
    for (const std::uint64_t count : reads) CHECK(count < 3 * saved.table.parameters().size());
    for (const std::string& difference : differences) CHECK(difference == "");
  }
}
