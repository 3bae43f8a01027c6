// Hugging Face folders: from a store, and by hand with anything wrong in them.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/hugging_face/hugging_face_tensors.h"
#include "checkpoint_fixture.h"

namespace scaletrain {

inline void export_store(StoreFixture& from, const HuggingFaceExport& request) {
  const TensorReader read = [&](const Parameter& parameter, View out) {
    const View master = from.store.master(parameter.name);
    convert_floats(master.dtype(), master.data(), DType::f32, out.data(), static_cast<std::size_t>(out.num_elements()));
  };
  export_hugging_face(from.table, read, request);
}

// A good folder of zeros, to be spoilt before refusal() writes it.
class HuggingFaceFolder {
 public:
  explicit HuggingFaceFolder(const ModelConfig& model) {
    StoreFixture store(make_param_table(make_model_spec(model, model.vocab.value()), InitConfig{}), {});
    for (const HuggingFaceTensor& tensor : hugging_face_tensors(store.table)) add_tensor(tensor.name, tensor.shape);
    const TempFolder scratch;
    export_store(store, {.folder = scratch / "out",
                         .model = model,
                         .dtype = DType::f32,
                         .tokenizer_files = {},
                         .max_shard_bytes = 1 << 30});
    config = read_json_file(scratch / "out" / "config.json");
  }

  void add_tensor(const std::string& name, Shape shape, DType dtype = DType::f32) {
    tensors[name] = {name, dtype, shape};
  }
  void rename_tensors(const std::function<std::string(const std::string&)>& rename) {
    std::map<std::string, SafetensorsTensor> renamed;
    for (auto& [name, tensor] : tensors) {
      tensor.name = rename(name);
      renamed[tensor.name] = tensor;
    }
    tensors = std::move(renamed);
  }

  void write() const {
    std::vector<SafetensorsTensor> list;
    std::size_t bytes = 0;
    for (const auto& [name, tensor] : tensors) {
      list.push_back(tensor);
      bytes += static_cast<std::size_t>(tensor.shape.num_elements()) * size_of(tensor.dtype);
    }
    folder_.write("config.json", config_text.empty() ? config.dump() : config_text);
    folder_.write("model.safetensors", safetensors_header_text(list, {}) + std::string(bytes, '\0'));
  }
  // What an import says; empty if it is content.
  std::string refusal() const {
    write();
    return refusal_as_it_is();
  }
  std::string refusal_as_it_is() const {
    return message_of<InputError>([&] { HuggingFaceModel{folder_.path()}; });
  }
  const std::filesystem::path& path() const { return folder_.path(); }

  nlohmann::json config;
  std::string config_text;  // instead of config, unless empty
  std::map<std::string, SafetensorsTensor> tensors;

 private:
  TempFolder folder_;
};

}  // namespace scaletrain
