#include "checkpoint/hugging_face/adapter_import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/host_access.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/format/confined_path.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hugging_face/hugging_face_tensors.h"
#include "checkpoint/range_boxes.h"
#include "nn/lora.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* config_file = "adapter_config.json";
constexpr const char* weights_file = "adapter_model.safetensors";

struct OpenFile {
  explicit OpenFile(const fs::path& folder) : file(confined_path(folder, weights_file, folder.string())) {
    header =
        read_safetensors_header([this](std::uint64_t offset, std::span<std::byte> out) { file.read_at(offset, out); },
                                file.size(), file.path().string());
  }

  FileReader file;
  SafetensorsHeader header;
};

// peft reads such words so.
std::string lowered(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool says_something(const json& value) {
  return !value.is_null() && value != json(false) && !(value.is_structured() && value.empty());
}

// What peft computes with these is something else, or is more than adapters.
void refuse_other_kinds(const json& config, const std::string& where) {
  const auto refuse = [&](std::string_view key, const json& value) {
    throw InputError(fmt::format(
        "{}: \"{}\" is {}, which is not supported: adapters are LoRA's, each beside one map and scaled by alpha / rank",
        where, key, value.dump()));
  };
  if (const json type = config.value("peft_type", json("LORA")); type != "LORA") refuse("peft_type", type);
  if (const json bias = config.value("bias", json("none")); bias != "none") refuse("bias", bias);
  for (const char* key : {"use_rslora", "use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern",
                          "trainable_token_indices", "target_parameters", "layers_to_transform", "layer_replication",
                          "alora_invocation_tokens", "use_bdlora", "use_qalora", "arrow_config", "velora_config",
                          "monteclora_config", "kasa_config"})
    if (const auto found = config.find(key); found != config.end() && says_something(*found)) refuse(key, *found);
  // Others change the model's own weights too, where peft loads them.
  if (const auto init = config.find("init_lora_weights"); init != config.end() && init->is_string()) {
    constexpr std::array<std::string_view, 6> plain = {"true", "false", "gaussian", "eva", "orthogonal", "lora_ga"};
    if (std::find(plain.begin(), plain.end(), lowered(init->get<std::string>())) == plain.end())
      refuse("init_lora_weights", *init);
  }
}

double number_of(const json& config, const char* key, const std::string& where) {
  const json& value = json_member(config, key, where);
  if (!value.is_number()) throw InputError(fmt::format("{}: \"{}\" is no number", where, key));
  return value.get<double>();
}

// As finetune.lora.targets has them: of each map of which there is an adapter, what its module is called.
std::vector<std::string> targets_of(const SafetensorsHeader& header, const ParamTable& base) {
  std::vector<std::string> targets;
  for (const LoraMap& map : lora_maps(base)) {
    const std::string ending = "." + map.module + ".lora_A.weight";
    const bool has_one = std::any_of(header.entries.begin(), header.entries.end(),
                                     [&](const auto& entry) { return entry.first.ends_with(ending); });
    if (has_one) targets.push_back(map.module);
  }
  return targets;
}

std::vector<HuggingFaceTensor> wanted_tensors(const ParamTable& base, const LoraConfig& lora) {
  return peft_tensors(with_adapters(base, make_lora_spec(base, lora)));
}

bool has_same_names(const SafetensorsHeader& header, const std::vector<HuggingFaceTensor>& wanted) {
  return header.entries.size() == wanted.size() &&
         std::all_of(wanted.begin(), wanted.end(),
                     [&](const HuggingFaceTensor& tensor) { return header.find(tensor.name) != nullptr; });
}

void check_tensors(const OpenFile& weights, const std::vector<HuggingFaceTensor>& wanted) {
  const std::string where = weights.file.path().string();
  for (const HuggingFaceTensor& tensor : wanted) {
    const SafetensorsEntry& entry = *weights.header.find(tensor.name);
    if (!(entry.shape == tensor.shape))
      throw InputError(
          fmt::format("{}: tensor {} has the shape {}, the base model needs {}; is it the one that these "
                      "adapters are for?",
                      where, quoted(std::string_view(tensor.name)), to_text(entry.shape), to_text(tensor.shape)));
    if (entry.dtype != DType::f32 && entry.dtype != DType::bf16 && entry.dtype != DType::f16)
      throw InputError(fmt::format("{}: tensor {} holds {}; supported are F32, BF16 and F16", where,
                                   quoted(std::string_view(tensor.name)), entry.type_name));
  }
}

// A whole tensor in f32. The last one read is kept: a parameter lies in several ranges, a tensor in several parameters.
class TensorValues {
 public:
  explicit TensorValues(const OpenFile& weights) : weights_(weights) {}

  const std::vector<float>& of(const HuggingFaceTensor& tensor) {
    if (name_ == tensor.name) return values_;
    const SafetensorsEntry& entry = *weights_.header.find(tensor.name);
    std::vector<std::byte> bytes(entry.bytes);
    weights_.file.read_at(entry.offset, bytes);
    values_.resize(static_cast<std::size_t>(tensor.shape.num_elements()));
    convert_floats(*entry.dtype, bytes.data(), DType::f32, values_.data(), values_.size());
    for (const float value : values_)
      if (!std::isfinite(value))
        throw InputError(fmt::format("{}: tensor {} holds {}: such adapters compute nothing",
                                     weights_.file.path().string(), quoted(std::string_view(tensor.name)), value));
    name_ = tensor.name;
    return values_;
  }

 private:
  const OpenFile& weights_;
  std::string name_;
  std::vector<float> values_;
};

}  // namespace

bool is_adapter_folder(const fs::path& folder) {
  return path_exists(folder / config_file) && !path_exists(folder / "config.json");
}

void check_adapter_folder(const fs::path& folder, const ParamTable& base, const LoraConfig& lora) {
  const fs::path file = confined_path(folder, config_file, folder.string());
  const std::string where = file.string();
  const json config = read_json_file(file);
  if (!config.is_object()) throw InputError(where + ": is no JSON object");
  refuse_other_kinds(config, where);
  const double rank = number_of(config, "r", where);
  const double alpha = number_of(config, "lora_alpha", where);
  const OpenFile weights(folder);
  const std::vector<HuggingFaceTensor> wanted = wanted_tensors(base, lora);
  const bool is_same = rank == static_cast<double>(lora.rank) && alpha == lora.alpha;
  if (is_same && has_same_names(weights.header, wanted)) return check_tensors(weights, wanted);
  const std::vector<std::string> targets = targets_of(weights.header, base);
  if (is_same && targets.empty())
    throw InputError(fmt::format("{}: {} holds adapters of no map of this base model", where, weights_file));
  LoraConfig theirs = lora;
  theirs.targets = targets;
  theirs.rank = std::max<std::int64_t>(1, static_cast<std::int64_t>(rank));
  if (targets.empty() || !has_same_names(weights.header, wanted_tensors(base, theirs)))
    throw InputError(fmt::format(
        "{}: {} does not hold an adapter for each layer's {}, as one that is trained here does, or holds other tensors",
        where, weights_file, targets.empty() ? "map" : fmt::format("{}", fmt::join(targets, ", "))));
  throw UserError(fmt::format(
      "finetune.lora.from: the adapters in {} have rank {:g}, alpha {:g} and the targets {}; write `rank: {:g}, alpha: "
      "{:g}, targets: [{}]` beside it",
      folder.string(), rank, alpha, fmt::join(targets, ", "), rank, alpha, fmt::join(targets, ", ")));
}

void load_adapters(const fs::path& folder, ParamStore& store) {
  const ParamTable& table = store.table();
  const std::vector<HuggingFaceTensor> tensors = peft_tensors(table);
  const OpenFile weights(folder);
  if (!has_same_names(weights.header, tensors))
    throw InputError(fmt::format("{}: changed since it was looked at", weights.file.path().string()));
  check_tensors(weights, tensors);
  std::map<int, std::pair<const HuggingFaceTensor*, HuggingFacePart>> by_parameter;
  for (const HuggingFaceTensor& tensor : tensors)
    for (const HuggingFacePart& part : tensor.parts) by_parameter.emplace(part.parameter, std::pair(&tensor, part));
  TensorValues values(weights);
  HostAccess access(store.backend());
  for (const ParamRange& range : store.held(StateKind::master)) {
    if (!table.parameters()[static_cast<std::size_t>(range.parameter)].is_adapter) continue;
    const auto found = by_parameter.find(range.parameter);
    SCALETRAIN_CHECK(found != by_parameter.end());
    const HuggingFaceTensor& tensor = *found->second.first;
    SCALETRAIN_CHECK(!tensor.is_transposed);
    const std::vector<float>& whole = values.of(tensor);
    for_each_box(*store.layout().find(range.parameter), range, [&](const Box& box, const ParamRange& part_of_range) {
      const Box in_file = hugging_face_box(tensor, found->second.second, box);
      const View out = store.values(StateKind::master, part_of_range);
      const View flat = out.reshape({out.num_elements()});
      for_each_run(whole_box(tensor.shape), in_file, in_file,
                   [&](std::int64_t source, std::int64_t target, std::int64_t count) {
                     constexpr std::int64_t most = 1 << 18;
                     for (std::int64_t done = 0; done < count; done += most) {
                       const std::int64_t some = std::min(most, count - done);
                       access.write(flat.rows(target + done, some), [&](const View& to) {
                         convert_floats(DType::f32, whole.data() + source + done, to.dtype(), to.bytes(),
                                        static_cast<std::size_t>(some));
                       });
                     }
                   });
    });
  }
  access.finish();
}

}  // namespace scaletrain
