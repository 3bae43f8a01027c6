#include "checkpoint/hugging_face/adapter_export.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/hugging_face/hugging_face_tensors.h"
#include "checkpoint/merge_adapters.h"
#include "nn/lora.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

// A whole number as one, as people write it.
nlohmann::json number(double value) {
  if (std::floor(value) == value && std::fabs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

std::string config_text(const ParamTable& base, const AdapterExport& request, const LoraSpec& lora,
                        const std::string& base_path) {
  nlohmann::json modules = nlohmann::json::array();
  bool transposed = false;
  for (const LoraMap& map : lora_maps(base)) {
    if (std::find(lora.maps.begin(), lora.maps.end(), map.name) != lora.maps.end()) modules.push_back(map.module);
  }
  for (const Parameter& parameter : base.parameters()) transposed = transposed || parameter.hugging_face_transposed;
  const nlohmann::json config = {{"peft_type", "LORA"},
                                 {"task_type", "CAUSAL_LM"},
                                 {"base_model_name_or_path", base_path},
                                 {"r", request.lora.rank},
                                 {"lora_alpha", number(request.lora.alpha)},
                                 {"lora_dropout", request.lora.dropout},
                                 {"target_modules", std::move(modules)},
                                 {"fan_in_fan_out", transposed},
                                 {"bias", "none"},
                                 {"use_rslora", false},
                                 {"inference_mode", true}};
  return config.dump(2) + "\n";
}

// As other programs are to name it, from whatever folder; without a separator at its end.
std::string normal_path(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return (normal.filename().empty() ? normal.parent_path() : normal).string();
}

Box whole(const Shape& shape) {
  Box box;
  box.first.assign(static_cast<std::size_t>(shape.num_dims()), 0);
  box.extent.assign(shape.begin(), shape.end());
  return box;
}

// A folder that takes its name when it is complete.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& target) : target_(fs::absolute(target).lexically_normal()) {
    if (target_.filename().empty()) target_ = target_.parent_path();  // a trailing separator
    temporary_ = target_.parent_path() / fmt::format(".exporting-{}-{}", target_.filename().string(), random_id());
    create_folders(temporary_);
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(temporary_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  fs::path place(const std::string& name) const { return temporary_ / name; }
  void commit() {
    sync_folder(temporary_);
    rename_durably(temporary_, target_);
    committed_ = true;
  }

 private:
  fs::path target_;
  fs::path temporary_;
  bool committed_ = false;
};

void write_text(const fs::path& path, const std::string& text) {
  FileWriter file(path);
  file.write(text);
  file.finish();
}

std::vector<std::byte> stored(const std::string& name, const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  convert_floats(DType::f32, values.data(), dtype, bytes.data(), values.size());
  std::vector<float> back(values.size());
  convert_floats(dtype, bytes.data(), DType::f32, back.data(), back.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(back[i]))
      throw InputError(fmt::format("{} [{}] is {}, which {} has no number for; fp32 has all that are finite", name, i,
                                   values[i], to_text(dtype)));
  return bytes;
}

void write_tensors(const fs::path& file, const Checkpoint& checkpoint, const ParamTable& table, DType dtype) {
  const std::vector<HuggingFaceTensor> tensors = peft_tensors(table);
  std::vector<SafetensorsTensor> entries;
  entries.reserve(tensors.size());
  for (const HuggingFaceTensor& tensor : tensors)
    entries.push_back({.name = tensor.name, .dtype = dtype, .shape = tensor.shape});
  SafetensorsWriter writer(file, entries, {{"format", "pt"}});
  std::vector<float> values;
  for (const HuggingFaceTensor& tensor : tensors) {
    values.resize(static_cast<std::size_t>(tensor.shape.num_elements()));
    for (const HuggingFacePart& part : tensor.parts) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(part.parameter)];
      checkpoint.read(parameter.name, whole(parameter.shape),
                      View(values.data() + part.offset * tensor.shape[1], DType::f32, parameter.shape));
    }
    writer.write(stored(tensor.name, values, dtype));
  }
  writer.finish();
}

}  // namespace

void export_adapter(const Checkpoint& checkpoint, const AdapterExport& request) {
  const ParamTable base = make_param_table(request.model, InitConfig{});
  check_adapters(checkpoint.manifest(), base, request.lora, checkpoint.path().string());
  const LoraSpec lora = make_lora_spec(base, request.lora);
  check_export_folder(request.folder);
  try {
    NewFolder folder(request.folder);
    write_text(folder.place("adapter_config.json"),
               config_text(base, request, lora, normal_path(checkpoint.manifest().base->path)));
    for (const ExportedFile& file : request.files) write_text(folder.place(file.name), file.content);
    write_tensors(folder.place("adapter_model.safetensors"), checkpoint, with_adapters(base, lora), request.dtype);
    folder.commit();
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: exporting failed: {}", request.folder.string(), error.what()));
  }
}

}  // namespace scaletrain
