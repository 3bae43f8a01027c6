// A tiny model as a checkpoint or a Hugging Face folder, made without training.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/save/save.h"
#include "config/load.h"
#include "infer/model.h"
#include "nn/init.h"
#include "support/temp_folder.h"

namespace scaletrain {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The message of the Error that f throws; empty if it throws nothing.
template <class Error, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// A model for bytes; weights large enough that its predictions are far from uniform.
inline Config byte_config() {
  Config config;
  config.model.layers = 2;
  config.model.hidden = 16;
  config.model.heads = 2;
  config.model.kv_heads = 2;
  config.model.ffn_hidden = 24;
  config.model.context = 12;
  config.model.init.std = 0.4;
  config.train.steps = 1;
  config.train.lr_schedule.warmup = 0;
  return config;
}

// A store with initial weights of the config's model.
struct TinyModel {
  explicit TinyModel(const Config& model_config, std::int64_t vocab = 257)
      : config(model_config),
        spec(make_model_spec(config.model, vocab)),
        table(make_param_table(spec, config.model.init)),
        units(table.units().size()),
        backend(make_reference_backend(DType::f32)) {
    std::iota(units.begin(), units.end(), 0);
    layout = ShardLayout(table, units, Mesh(), MeshPosition{});
    store = std::make_unique<ParamStore>(
        *backend, table, layout, ParamStore::Options{.state_names = {}, .gradients = false, .dtype = DType::f32});
    initialise_parameters(*store, 5, 1);
    store->values_changed();
  }

  std::filesystem::path save(const std::filesystem::path& folder, std::int64_t step = 3) const {
    SaveRequest request;
    request.folder = folder;
    request.manifest.step = step;
    request.manifest.config = resolved_yaml(config);
    request.manifest.history = "[]";
    return save_checkpoint(*store, request).path;
  }

  // Every weight in a map of its own, to compare with what was loaded.
  std::vector<float> weights(const ParamStore& from) const {
    std::vector<float> out;
    for (const Parameter& parameter : table.parameters()) {
      const View view = from.master(parameter.name);
      const auto* values = view.as<float>();
      out.insert(out.end(), values, values + view.num_elements());
    }
    return out;
  }

  Config config;
  ModelSpec spec;
  ParamTable table;
  std::vector<int> units;
  std::unique_ptr<Backend> backend;
  ShardLayout layout;
  std::unique_ptr<ParamStore> store;
};

// A backend with its stream.
struct Device {
  explicit Device(std::unique_ptr<Backend> used = make_reference_backend(DType::f32))
      : backend(std::move(used)), stream(backend->make_stream()) {}
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

}  // namespace scaletrain
