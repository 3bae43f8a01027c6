// A small model's store with recognisable values, and ways to damage files.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/load.h"
#include "checkpoint/save/save.h"
#include "nn/model_spec.h"
#include "support/models/model_store.h"
#include "support/models/tiny_model.h"
#include "support/ranks/host_stream.h"
#include "support/temp_folder.h"
#include "support/text.h"

namespace scaletrain {

inline ModelConfig tiny_gpt2_config() {
  ModelConfig model =
      tiny_model({.layers = 2, .hidden = 12, .heads = 3, .kv_heads = 3, .ffn_hidden = 20, .context = 5, .vocab = 11});
  model.activation = ActivationKind::gelu_tanh;
  return model;
}

inline ModelConfig tiny_llama_config(bool tied) {
  ModelConfig model = tiny_gpt2_config();
  make_llama(model);
  model.kv_heads = 1;
  model.norm_epsilon = 1e-6;
  model.rope_theta = 50000.0;
  model.tie_embeddings = tied;
  return model;
}

inline ModelConfig tiny_llama3_config() {
  ModelConfig model = tiny_llama_config(true);
  model.rope_scaling = {.type = RopeScalingKind::llama3, .factor = 8.0, .original_context = 4};
  return model;
}

inline ModelConfig tiny_qwen2_config() {
  ModelConfig model = tiny_llama_config(true);
  model.qkv_bias = true;
  model.rope_scaling = {.type = RopeScalingKind::linear, .factor = 2.5};
  return model;
}

inline ModelConfig tiny_qwen3_config() {
  ModelConfig model = tiny_llama_config(false);
  model.qk_norm = true;
  model.head_dim = 6;
  return model;
}

// A Llama by all but the size of its heads, which that of Hugging Face cannot have: one of Mistral's.
inline ModelConfig tiny_mistral_config() {
  ModelConfig model = tiny_llama_config(false);
  model.hidden = 10;
  model.head_dim = 4;
  return model;
}

// The two that Hugging Face has beside the first: all of make_gemma() but what each lacks.
inline ModelConfig tiny_gemma2_config() {
  ModelConfig model = tiny_llama_config(true);
  make_gemma(model);
  model.layers = 3;
  model.head_dim = 6;
  model.qk_norm = false;
  model.window.rope_theta.reset();
  return model;
}
inline ModelConfig tiny_gemma3_config() {
  ModelConfig model = tiny_llama_config(true);
  make_gemma(model);
  model.layers = 3;
  model.head_dim = 6;
  model.attention_softcap.reset();
  model.rope_scaling = {.type = RopeScalingKind::linear, .factor = 8.0};
  return model;
}
inline ModelConfig tiny_gemma_config() {
  ModelConfig model = tiny_gemma2_config();
  model.post_norm = false;
  model.attention_softcap.reset();
  model.logit_softcap.reset();
  model.query_pre_attn_scalar.reset();
  model.window = {};
  return model;
}

// A store of a whole model.
struct StoreFixture : ModelStore {
  explicit StoreFixture(ParamTable made_table, std::vector<std::string> states = {"exp_avg", "exp_avg_sq"},
                        DType dtype = DType::f32)
      : ModelStore(std::move(made_table), make_reference_backend(dtype), {.state_names = std::move(states)}) {}
  explicit StoreFixture(const ModelConfig& model)
      : StoreFixture(make_param_table(make_model_spec(model, model.vocab.value()), InitConfig{})) {}

  // Every master and state gets values that depend on its name and place. `as`: values that this type can hold.
  void fill(std::uint64_t seed, DType as = DType::f32) {
    for_each([&](const std::string& name, View view) {
      const std::uint64_t key = hash_text(name, seed);
      for (std::int64_t i = 0; i < view.num_elements(); ++i) {
        const std::uint64_t bits = hash_bytes(std::as_bytes(std::span(&i, 1)), key);
        float value = static_cast<float>(static_cast<std::int64_t>(bits >> 16) - (1ll << 47)) * 0x1p-48f;
        std::uint64_t narrow_bits = 0;
        convert_floats(DType::f32, &value, as, &narrow_bits, 1);
        convert_floats(as, &narrow_bits, view.dtype(),
                       static_cast<std::byte*>(view.data()) + i * std::int64_t(size_of(view.dtype())), 1);
      }
    });
    store.values_changed(host_stream());
  }

  // All values by tensor name, as bytes.
  std::vector<std::pair<std::string, std::string>> content() {
    std::vector<std::pair<std::string, std::string>> out;
    for_each([&](const std::string& name, View view) {
      out.emplace_back(name, std::string(static_cast<const char*>(view.data()), view.num_bytes()));
    });
    return out;
  }

  template <class Visit>
  void for_each(Visit visit) {
    for (const Parameter& parameter : table.parameters()) {
      visit(parameter.name, store.master(parameter.name));
      for (std::size_t state = 0; state < store.options().state_names.size(); ++state) {
        visit(parameter.name + "/" + store.options().state_names[state], store.state(parameter.name, state));
      }
    }
  }
};

inline SaveRequest save_request(const std::filesystem::path& folder, std::int64_t step, std::int64_t generation = 0) {
  SaveRequest request;
  request.folder = folder;
  request.manifest.step = step;
  request.manifest.generation = generation;
  request.manifest.tokens = step * 1000;
  request.manifest.config = "run: {name: \"test\"}\n";
  request.manifest.history = "[]";
  request.manifest.fingerprint = "one rank";
  request.manifest.scalars = {{"optimizer.step", "7"}, {"loss", "0.1"}};
  return request;
}

inline void flip_byte(const std::filesystem::path& file, std::uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(stream.get());
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(byte ^ 0x10));
  REQUIRE(stream.good());
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline bool verifies(const std::filesystem::path& folder) {
  return message_of<InputError>([&] { Checkpoint(folder).verify(); }).empty();
}

}  // namespace scaletrain
