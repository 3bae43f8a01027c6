// Folders from anywhere: refused by file and member, never by bad_alloc or a wrong model.
#include "hugging_face_fixture.h"

using namespace scaletrain;

TEST_CASE("hugging_face_config_values_that_are_not_supported_are_refused_by_member") {
  const auto with = [](const ModelConfig& model, const char* key, const nlohmann::json& value) {
    HuggingFaceFolder folder(model);
    folder.config[key] = value;
    const std::string message = folder.refusal();
    CHECK(contains(message, "config.json"));
    return contains(message, "\"" + std::string(key) + "\"");
  };
  const auto takes = [](const ModelConfig& model, const char* key, const nlohmann::json& value) {
    HuggingFaceFolder folder(model);
    folder.config[key] = value;
    return folder.refusal().empty();
  };
  const ModelConfig gpt2 = tiny_gpt2_config();
  CHECK(with(gpt2, "model_type", "bert"));
  CHECK(with(gpt2, "activation_function", "relu"));
  CHECK(with(gpt2, "scale_attn_weights", false));
  CHECK(with(gpt2, "scale_attn_by_inverse_layer_idx", true));
  CHECK(with(gpt2, "add_cross_attention", true));
  CHECK(with(gpt2, "quantization_config", {{"bits", 4}}));
  CHECK(with(gpt2, "n_head", 5));
  CHECK(with(gpt2, "n_layer", 0));
  CHECK(with(gpt2, "n_layer", "two"));
  CHECK(with(gpt2, "n_layer", 2.0));
  CHECK(with(gpt2, "layer_norm_epsilon", 0));
  CHECK(with(gpt2, "tie_word_embeddings", "yes"));
  const ModelConfig llama = tiny_llama_config(true);
  CHECK(with(llama, "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}));
  const nlohmann::json llama3 = {{"rope_type", "llama3"},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};
  CHECK(takes(llama, "rope_scaling", llama3));
  const auto llama3_with = [&](const char* key, const nlohmann::json& value) {
    HuggingFaceFolder folder(llama);
    folder.config["rope_scaling"] = llama3;
    folder.config["rope_scaling"][key] = value;
    std::string message = folder.refusal();
    CHECK(contains(message, "config.json: \"rope_scaling\""));
    return message;
  };
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    for (const nlohmann::json& value : {nlohmann::json(), nlohmann::json(0), nlohmann::json("much")})
      CHECK(contains(llama3_with(key, value), "\"" + std::string(key) + "\""));
  }
  CHECK(contains(llama3_with("low_freq_factor", 4.0), "no less than high_freq_factor"));
  CHECK(contains(llama3_with("original_max_position_embeddings", 0), "original_max_position_embeddings"));
  CHECK(with(llama, "rope_scaling", {{"type", "linear"}}));
  CHECK(takes(llama, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}));
  for (const char* type : {"yarn", "dynamic", "longrope", "su", "proportional"}) {
    CHECK(with(llama, "rope_parameters", {{"rope_type", type}, {"factor", 2.0}}));
    CHECK(with(llama, "rope_scaling", {{"type", type}, {"factor", 2.0}}));
  }
  CHECK(with(llama, "rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}));
  CHECK(with(llama, "mlp_bias", true));
  CHECK(with(llama, "head_dim", 7));
  CHECK(with(llama, "head_dim", 0));
  CHECK(with(llama, "head_dim", 2147483646));
  CHECK(with(llama, "hidden_act", "gelu"));
  CHECK(with(llama, "num_key_value_heads", 2));
  CHECK(with(llama, "partial_rotary_factor", 0.5));
  CHECK(with(llama, "sliding_window", 4096));
  CHECK(with(llama, "rope_theta", -1));
  const ModelConfig qwen2 = tiny_qwen2_config();
  const ModelConfig qwen3 = tiny_qwen3_config();
  CHECK(with(qwen2, "attention_bias", true));
  CHECK(with(qwen3, "attention_bias", true));
  CHECK(with(qwen3, "num_key_value_heads", 2));
  for (const char* type : {"gemma3", "gemma3n_text", "phi3", "mixtral", "qwen3_moe"})
    CHECK(with(llama, "model_type", type));
  const ModelConfig gemma2 = tiny_gemma2_config();
  const ModelConfig gemma3 = tiny_gemma3_config();
  for (const ModelConfig& gemma : {gemma2, gemma3}) {
    CHECK(with(gemma, "hidden_activation", "gelu"));
    CHECK(with(gemma, "attention_bias", true));
    CHECK(with(gemma, "use_bidirectional_attention", true));
    CHECK(with(gemma, "query_pre_attn_scalar", 0));
    CHECK(with(gemma, "final_logit_softcapping", -1.0));
    CHECK(with(gemma, "sliding_window", 0));
    CHECK(with(gemma, "layer_types", {"sliding_attention", "full_attention"}));
    CHECK(with(gemma, "layer_types", {"full_attention", "sliding_attention", "full_attention"}));
    CHECK(with(gemma, "layer_types", {"sliding_attention", "full_attention", "full_attention"}));
    CHECK(with(gemma, "layer_types", {"sliding_attention", "chunked_attention", "sliding_attention"}));
    CHECK(with(gemma, "layer_types", "full_attention"));
  }
  CHECK(with(gemma3, "attn_logit_softcapping", 50.0));  // which the library does not compute
  CHECK(with(gemma3, "rope_local_base_freq", 0));
  CHECK(with(gemma3, "rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}));
  HuggingFaceFolder two_ropes(gemma3);
  two_ropes.config["rope_scaling"] = nullptr;
  two_ropes.config["rope_parameters"] = {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}};
  CHECK(contains(two_ropes.refusal(), "\"sliding_attention\" is scaled, which is not supported"));
  HuggingFaceFolder missing(llama);
  missing.config.erase("intermediate_size");
  CHECK(contains(missing.refusal(), "\"intermediate_size\" is missing"));
}

TEST_CASE("hugging_face_absurd_sizes_are_refused_before_anything_is_made_in_them") {
  const auto with = [](const ModelConfig& model, const char* key, std::int64_t value) {
    HuggingFaceFolder folder(model);
    folder.config[key] = value;
    return folder.refusal();
  };
  for (const std::int64_t size : {std::int64_t{2'147'483'647}, std::int64_t{1} << 40, INT64_MAX}) {
    for (const char* key : {"vocab_size", "n_embd", "n_layer", "n_inner", "n_positions"}) {
      CHECK(contains(with(tiny_gpt2_config(), key, size), "config.json"));
    }
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"}) {
      CHECK(contains(with(tiny_llama_config(false), key, size), "config.json"));
    }
  }
  // Hidden and inner size together: their product has more than 63 bits.
  HuggingFaceFolder wide(tiny_gpt2_config());
  wide.config["n_embd"] = 3 * (1ll << 28);
  wide.config["n_inner"] = nullptr;
  CHECK(contains(wide.refusal(), "268435456"));
}

TEST_CASE("hugging_face_config_that_is_no_json_object_is_refused") {
  for (const char* text :
       {"", "[]", "nonsense", "{\"model_type\": \"gpt2\", \"model_type\": \"gpt2\"}", "{\"model_type\": 1}", "{}"}) {
    HuggingFaceFolder folder(tiny_gpt2_config());
    folder.config_text = text[0] == '\0' ? " " : text;
    CHECK(contains(folder.refusal(), "config.json"));
  }
  HuggingFaceFolder large(tiny_gpt2_config());
  large.config_text = std::string(2 << 20, ' ') + "{}";
  CHECK(contains(large.refusal(), "config.json"));
}

TEST_CASE("hugging_face_tensors_missing_superfluous_misshapen_or_of_another_type_are_refused_by_name") {
  const auto spoilt = [](const std::function<void(HuggingFaceFolder&)>& spoil) {
    HuggingFaceFolder folder(tiny_gpt2_config());
    REQUIRE(folder.refusal().empty());
    spoil(folder);
    return folder.refusal();
  };
  CHECK(contains(spoilt([](auto& f) { f.tensors.erase("transformer.h.1.mlp.c_fc.bias"); }),
                 "\"transformer.h.1.mlp.c_fc.bias\" is missing"));
  CHECK(contains(spoilt([](auto& f) { f.tensors.erase("transformer.wte.weight"); }), "embedding is missing"));
  CHECK(contains(spoilt([](auto& f) { f.add_tensor("transformer.h.2.ln_1.weight", {12}); }),
                 "\"transformer.h.2.ln_1.weight\" is no part"));
  CHECK(contains(spoilt([](auto& f) { f.add_tensor("h.1.ln_1.weight", {12}); }), "ln_1.weight\" appears twice"));
  CHECK(contains(spoilt([](auto& f) {
                   f.add_tensor("transformer.h.0.attn.c_attn.weight", {36, 12});
                 }),
                 "has the shape [36, 12]"));
  CHECK(contains(spoilt([](auto& f) { f.add_tensor("transformer.wte.weight", {12, 12}); }), "has the shape [12, 12]"));
  CHECK(contains(spoilt([](auto& f) { f.add_tensor("transformer.ln_f.weight", {12}, DType::i64); }), "holds I64"));
  CHECK(contains(spoilt([](auto& f) { f.config["tie_word_embeddings"] = false; }), "\"lm_head.weight\" is missing"));
  CHECK(contains(spoilt([](auto& f) {
                   f.add_tensor("lm_head.weight", {12, 12});
                 }),
                 "\"lm_head.weight\" has the shape"));
}

TEST_CASE("hugging_face_missing_files_are_named") {
  HuggingFaceFolder folder(tiny_gpt2_config());
  folder.write();
  std::filesystem::remove(folder.path() / "model.safetensors");
  CHECK(contains(folder.refusal_as_it_is(), "neither model.safetensors nor"));
  CHECK(contains(folder.refusal_as_it_is(), "weights in other formats are not read"));
  // With the one command that makes them readable.
  std::ofstream(folder.path() / "pytorch_model.bin") << "PK";
  const std::string refusal = folder.refusal_as_it_is();
  CHECK(contains(refusal, "but PyTorch's own files, which are not read. This converts them"));
  CHECK(contains(refusal, "\n  python3 -c 'import glob, sys, torch;"));
  // Whoever says more behind it leaves the command as it is.
  CHECK(refusal.ends_with("' " + folder.path().string() + "\n(with torch and safetensors from PyPI)"));
  CHECK_FALSE(is_hugging_face_folder(folder.path() / "absent"));
  CHECK(contains(message_of<InputError>([&] { HuggingFaceModel{folder.path() / "absent"}; }), "no such folder"));
}

TEST_CASE("hugging_face_folders_that_are_none_are_told_by_what_they_are") {
  const TempFolder folder;
  const auto refusal = [&folder](const char* name) {
    return message_of<InputError>([&] { read_hugging_face_shape(folder / name); });
  };
  CHECK(refusal("gone") ==
        (folder / "gone").string() + ": no such folder; a model that has only a name on a hub is downloaded first");
  folder.write("a run/checkpoints/x", "");
  CHECK(refusal("a run") == (folder / "a run").string() +
                                ": a run's folder, and a Hugging Face folder is expected: make one of it with "
                                "`scaletrain checkpoint export '" +
                                (folder / "a run").string() + "' --to huggingface --output FOLDER`, and name that");
  folder.write("saved/manifest.json", "{}");
  CHECK(contains(refusal("saved"), "saved: a checkpoint, and a Hugging Face folder is expected"));
  folder.write("other/notes", "");
  CHECK(contains(refusal("other"), "\"config.json\" is missing"));
}

TEST_CASE("hugging_face_index_may_not_lead_out_of_the_folder_or_contradict_the_files") {
  HuggingFaceFolder folder(tiny_gpt2_config());
  folder.write();
  const auto weights = folder.path() / "model.safetensors";
  const auto shard = folder.path() / "shard.safetensors";
  std::filesystem::rename(weights, shard);
  const auto with_map = [&](const nlohmann::json& weight_map) {
    std::ofstream(folder.path() / "model.safetensors.index.json") << nlohmann::json{{"weight_map", weight_map}}.dump();
    return folder.refusal_as_it_is();
  };
  nlohmann::json good = nlohmann::json::object();
  for (const auto& [name, tensor] : folder.tensors) good[name] = "shard.safetensors";
  REQUIRE(with_map(good).empty());
  const auto replaced = [&](const nlohmann::json& file) {
    nlohmann::json map = good;
    map["transformer.wte.weight"] = file;
    return with_map(map);
  };
  const TempFolder outside;
  std::filesystem::copy_file(shard, outside / "shard.safetensors");
  CHECK(contains(replaced("../shard.safetensors"), "not a plain name"));
  CHECK(contains(replaced((outside / "shard.safetensors").string()), "not a plain name"));
  CHECK(contains(replaced(""), "not a plain name"));
  CHECK(contains(replaced(7), "not a file name"));
  CHECK(contains(replaced("absent.safetensors"), "\"absent.safetensors\" is missing"));
  CHECK(contains(with_map(nlohmann::json::array()), "weight_map"));
  CHECK(contains(with_map(nlohmann::json::object()), "weight_map"));
  nlohmann::json less = good;
  less.erase("transformer.wte.weight");
  CHECK(contains(with_map(less), "\"transformer.wte.weight\" is not listed"));
  nlohmann::json more = good;
  more["transformer.other"] = "shard.safetensors";
  CHECK(contains(with_map(more), "\"transformer.other\" is missing"));

  std::filesystem::create_symlink(outside / "shard.safetensors", folder.path() / "linked.safetensors");
  nlohmann::json linked = good;
  for (auto& [name, file] : linked.items()) file = "linked.safetensors";
  CHECK(contains(with_map(linked), "leaves the folder"));
  std::filesystem::remove(folder.path() / "model.safetensors.index.json");
  std::filesystem::create_symlink(outside / "shard.safetensors", weights);
  CHECK(contains(folder.refusal_as_it_is(), "leaves the folder"));
}
