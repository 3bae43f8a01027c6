#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/hugging_face/hugging_face_config.h"
#include "checkpoint/hugging_face/hugging_face_tensors.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t tokenizer_limit_bytes = 1ull << 30;

struct Shard {
  std::string file;
  std::uint64_t bytes = 0;
  std::vector<const HuggingFaceTensor*> tensors;
};

std::uint64_t tensor_bytes(const HuggingFaceTensor& tensor, DType dtype) {
  return checked_mul(static_cast<std::uint64_t>(tensor.shape.num_elements()), std::uint64_t{size_of(dtype)});
}

std::vector<Shard> plan_shards(const std::vector<HuggingFaceTensor>& tensors, DType dtype, std::uint64_t most) {
  std::vector<Shard> shards;
  for (const HuggingFaceTensor& tensor : tensors) {
    const std::uint64_t bytes = tensor_bytes(tensor, dtype);
    if (shards.empty() || shards.back().bytes > most || bytes > most - shards.back().bytes) shards.emplace_back();
    shards.back().bytes += bytes;
    shards.back().tensors.push_back(&tensor);
  }
  std::size_t number = 0;
  for (Shard& shard : shards) {
    shard.file = shards.size() == 1 ? "model.safetensors"
                                    : fmt::format("model-{:05}-of-{:05}.safetensors", ++number, shards.size());
  }
  return shards;
}

// The tensor of the file, f32, from its rows. `row_values` and `out` are reused from tensor to tensor.
void assemble(const ParamTable& table, const TensorReader& read, const HuggingFaceTensor& tensor,
              std::vector<float>& row_values, std::vector<float>& out) {
  out.resize(static_cast<std::size_t>(tensor.shape.num_elements()));
  for (const HuggingFacePart& part : tensor.parts) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(part.parameter)];
    if (!tensor.is_transposed) {
      const std::int64_t inner = parameter.shape.num_dims() == 2 ? parameter.shape[1] : 1;
      read(parameter, View(out.data() + part.offset * inner, DType::f32, parameter.shape));
      continue;
    }
    const std::int64_t outputs = parameter.shape[0];
    const std::int64_t inputs = parameter.shape[1];
    const std::int64_t width = tensor.shape[1];
    row_values.resize(static_cast<std::size_t>(2 * parameter.shape.num_elements()));
    float* const turned = row_values.data() + parameter.shape.num_elements();
    read(parameter, View(row_values.data(), DType::f32, parameter.shape));
    transpose(row_values.data(), inputs, outputs, inputs, turned);
    for (std::int64_t input = 0; input < inputs; ++input) {
      std::copy_n(turned + input * outputs, outputs, out.data() + input * width + part.offset);
    }
  }
}

// As --dtype has it.
std::string_view word_of(DType dtype) {
  return dtype == DType::f16 ? "fp16" : dtype == DType::bf16 ? "bf16" : "fp32";
}

// The smallest positive number that becomes infinite in this type.
float first_beyond(DType dtype) {
  if (dtype == DType::f16) return 65520.0F;
  if (dtype == DType::bf16) return 0x1.ffp127F;
  return std::numeric_limits<float>::infinity();
}

// A model in which a weight is NaN or infinite computes nothing, and few of those who read the folder would say why.
void check_numbers(const HuggingFaceTensor& tensor, const std::vector<float>& values, DType dtype) {
  const float limit = first_beyond(dtype);
  const auto bad = std::find_if(values.begin(), values.end(), [&](float value) { return !(std::fabs(value) < limit); });
  if (bad == values.end()) return;
  const std::int64_t at = bad - values.begin();
  const Shape& shape = tensor.shape;
  const std::int64_t width = shape[shape.num_dims() - 1];
  const std::string place =
      shape.num_dims() == 2 ? fmt::format("{}, {}", at / width, at % width) : fmt::format("{}", at);
  if (std::isfinite(*bad))
    throw InputError(fmt::format("{} [{}] is {:g}, for which {} has no number: export with --dtype fp32", tensor.name,
                                 place, *bad, word_of(dtype)));
  throw InputError(
      fmt::format("{} [{}] is {}: a model with such a weight computes nothing; an earlier checkpoint may have none",
                  tensor.name, place, *bad));
}

class Export {
 public:
  Export(const ParamTable& table, const TensorReader& read, const HuggingFaceExport& request)
      : table_(table), read_(read), request_(request), tensors_(hugging_face_tensors(table)) {
    // A trailing separator would make the last component empty.
    target_ = fs::absolute(request.folder).lexically_normal();
    if (target_.filename().empty()) target_ = target_.parent_path();
    temporary_ = target_.parent_path() / fmt::format(".exporting-{}-{}", target_.filename().string(), random_id());
  }
  ~Export() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(temporary_, ignored);
  }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;

  void run() {
    const std::string config = hugging_face_config_text(request_.model, request_.dtype, request_.tokens);
    check_export_folder(target_);
    create_folders(temporary_);
    write("config.json", config);
    copy_tokenizer_files();
    const std::vector<Shard> shards = plan_shards(tensors_, request_.dtype, request_.max_shard_bytes);
    for (const Shard& shard : shards) write_shard(shard);
    if (shards.size() > 1) write_index(shards);
    sync_folder(temporary_);
    // Replaces an empty folder of that name in one step.
    rename_durably(temporary_, target_);
    committed_ = true;
  }

 private:
  void write(const std::string& name, std::string_view text) {
    FileWriter writer(temporary_ / name);
    writer.write(text);
    writer.finish();
  }

  void copy_tokenizer_files() {
    std::set<std::string> names = {"config.json", "model.safetensors.index.json", "manifest.json"};
    for (const fs::path& file : request_.tokenizer_files) {
      // The name by which the folder's readers find it; those of several files are fixed already.
      const std::string name =
          request_.tokenizer_files.size() == 1 ? request_.tokenizer_name : file.filename().string();
      if (!names.insert(name).second) {
        throw InputError(fmt::format("{}: a tokenizer file of this name cannot be exported", file.string()));
      }
      write(name, read_text_file(file, tokenizer_limit_bytes));
    }
  }

  void write_shard(const Shard& shard) {
    std::vector<SafetensorsTensor> tensors;
    for (const HuggingFaceTensor* tensor : shard.tensors) {
      tensors.push_back({.name = tensor->name, .dtype = request_.dtype, .shape = tensor->shape});
    }
    SafetensorsWriter writer(temporary_ / shard.file, tensors, {{"format", "pt"}});
    for (const HuggingFaceTensor* tensor : shard.tensors) {
      assemble(table_, read_, *tensor, row_values_, values_);
      check_numbers(*tensor, values_, request_.dtype);
      converted_.resize(static_cast<std::size_t>(tensor_bytes(*tensor, request_.dtype)));
      if (request_.dtype == DType::f32) {
        writer.write(std::as_bytes(std::span(values_)));
      } else {
        convert_floats(DType::f32, values_.data(), request_.dtype, converted_.data(), values_.size());
        writer.write(converted_);
      }
    }
    writer.finish();
  }

  void write_index(const std::vector<Shard>& shards) {
    nlohmann::json weight_map = nlohmann::json::object();
    std::uint64_t total = 0;
    for (const Shard& shard : shards) {
      total += shard.bytes;
      for (const HuggingFaceTensor* tensor : shard.tensors) weight_map[tensor->name] = shard.file;
    }
    const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
    write("model.safetensors.index.json", index.dump(2) + "\n");
  }

  const ParamTable& table_;
  const TensorReader& read_;
  const HuggingFaceExport& request_;
  std::vector<HuggingFaceTensor> tensors_;
  fs::path target_;
  fs::path temporary_;
  bool committed_ = false;
  std::vector<float> row_values_;
  std::vector<float> values_;
  std::vector<std::byte> converted_;
};

}  // namespace

void check_export_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(folder, error))) return;
  if (fs::is_directory(folder, error) && fs::is_empty(folder, error) && !error) return;
  throw UserError(fmt::format(
      "{}: already exists and is not an empty folder; name a new folder, or remove what is there", folder.string()));
}

void export_hugging_face(const ParamTable& table, const TensorReader& read, const HuggingFaceExport& request) {
  try {
    Export(table, read, request).run();
  } catch (const fs::filesystem_error& error) {
    throw InputError(fmt::format("{}: exporting failed: {}", request.folder.string(), error.what()));
  }
}

}  // namespace scaletrain
