// A tiny model as a checkpoint or a Hugging Face folder, made without training.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <memory>
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
#include "support/models/model_store.h"
#include "support/models/tiny_model.h"
#include "support/ranks/host_stream.h"
#include "support/temp_folder.h"
#include "support/text.h"

namespace scaletrain {

// A model for bytes.
inline Config byte_config() {
  Config config;
  config.model =
      tiny_model({.layers = 2, .heads = 2, .ffn_hidden = 24, .context = 12, .vocab = std::nullopt, .std = 0.4});
  config.train.steps = 1;
  config.train.lr_schedule.warmup = 0;
  return config;
}

// A store with initial weights of the config's model.
struct TinyModel : ModelStore {
  explicit TinyModel(const Config& model_config, std::int64_t vocab = 257)
      : ModelStore(make_param_table(make_model_spec(model_config.model, vocab), model_config.model.init),
                   make_reference_backend(DType::f32), {.gradients = false}),
        config(model_config),
        spec(make_model_spec(config.model, vocab)) {
    initialise_parameters(store, host_stream(), 5, 1);
  }

  std::filesystem::path save(const std::filesystem::path& folder, std::int64_t step = 3) const {
    SaveRequest request;
    request.folder = folder;
    request.manifest.step = step;
    request.manifest.config = resolved_yaml(config);
    request.manifest.history = "[]";
    return save_checkpoint(store, request).path;
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
};

// A backend with its stream.
struct Device {
  explicit Device(std::unique_ptr<Backend> used = make_reference_backend(DType::f32))
      : backend(std::move(used)), stream(backend->make_stream()) {}
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

}  // namespace scaletrain
